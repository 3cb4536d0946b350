/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From gains to verdicts, for traces (analyze.h) and for live routers (report.h) alike. The thresholds are
 * those of docs/analyze.md.
 */
#ifndef KVROUTE_SIM_VERDICT_H
#define KVROUTE_SIM_VERDICT_H

#define SIM_VERDICT_WORK_YES      0.10 /* less prefill work than the rung below */
#define SIM_VERDICT_WORK_SOME     0.05
#define SIM_VERDICT_CAPACITY_YES  0.20 /* more load at the target */
#define SIM_VERDICT_CAPACITY_SOME 0.05
/* Nothing queues: busy for less than the first, or for less than the second and fewer than the third wait. */
#define SIM_VERDICT_IDLE_BUSY   0.10
#define SIM_VERDICT_IDLE_CALM   0.30
#define SIM_VERDICT_IDLE_WAITED 0.10
#define SIM_VERDICT_HOURS       730.0 /* of a month, for break-even */

enum sim_verdict { SIM_VERDICT_NO, SIM_VERDICT_MARGINAL, SIM_VERDICT_YES };
const char *sim_verdict_name(enum sim_verdict verdict); /* "not justified", "marginal", "justified" */

/*
 * By work: shares of prefill work that are not needed any more, against the next simpler rule and against
 * that simpler rule which computes least, which carries `more` less load than what is judged. By load: more
 * load than any simpler rule carries. A gain that is NAN is none.
 */
enum sim_verdict sim_verdict_work(double next_gain, double best_gain, double more);
enum sim_verdict sim_verdict_load(double gain);

#endif
