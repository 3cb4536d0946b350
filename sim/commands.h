/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The commands of this layer. argv[0] is the command's name ("mock"). Each returns the program's exit
 * status: 0 done, 1 failed while running, 2 wrong usage.
 */
#ifndef KVROUTE_SIM_COMMANDS_H
#define KVROUTE_SIM_COMMANDS_H

int sim_mock_main(int argc, char **argv);
int sim_bench_main(int argc, char **argv);
int sim_demo_main(int argc, char **argv);
int sim_simulate_main(int argc, char **argv);
int sim_top_main(int argc, char **argv);
int sim_report_main(int argc, char **argv);
int sim_analyze_main(int argc, char **argv);

#endif
