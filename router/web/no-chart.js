/* SPDX-License-Identifier: Apache-2.0 */
/* Stands for the chart library where the program was built without it: charts.js then shows tables. */
