/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of workloads that clients give themselves (x-kvroute-workload). Each becomes a label of metrics and
 * an account of the ledger for as long as the program runs, so only so many are taken.
 */
#ifndef KVROUTE_ROUTER_WORKLOAD_H
#define KVROUTE_ROUTER_WORKLOAD_H

#include <kvroute/base.h>
#include <stdatomic.h>

#define WORKLOAD_NAMES_MAX 64        /* besides those that rules have */
#define WORKLOAD_OTHER     "other"   /* what requests with further names count as */
#define WORKLOAD_DEFAULT   "default" /* what requests count as that neither their client nor a rule names */

/* All zero is empty. */
struct workload_names {
        _Atomic(char *) names[WORKLOAD_NAMES_MAX];
};

/* Whether the name has a place, or gets one now. Any thread; lock-free. False also when out of memory. */
KVR_MUST_USE bool workload_admit(struct workload_names *names, struct kvr_slice name);
/* No thread uses it any more. */
void workload_names_fini(struct workload_names *names);

#endif
