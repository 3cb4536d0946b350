/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long threads could have run and had to wait for a processor: what a busy machine adds to every time
 * that is measured on it. The kernel keeps the count (/proc/.../schedstat, second field).
 */
#ifndef KVROUTE_SIM_WAIT_H
#define KVROUTE_SIM_WAIT_H

/* Of the calling thread since it began, in seconds. NAN: this system does not tell. */
double sim_wait_thread_s(void);
/* Summed over the threads that the process has now. NAN: it is gone, or this system does not tell. */
double sim_wait_process_s(int pid);
/* The second number of a line of schedstat, nanoseconds, as seconds. NAN: it is no such line. */
double sim_wait_parse_s(const char *line);

#endif
