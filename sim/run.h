/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What bench and demo share around a load: the loop that runs it to its end, progress on a terminal,
 * Ctrl-C, the URL, the model's name.
 */
#ifndef KVROUTE_SIM_RUN_H
#define KVROUTE_SIM_RUN_H

#include "load.h"

struct sim_url {
        char host[256];      /* without brackets */
        char authority[300]; /* for the Host field */
        char base[512];      /* path without a slash at its end, may be empty */
        uint16_t port;
};

/* http://HOST[:PORT][/BASE]. False: message says what is wrong. */
KVR_MUST_USE bool sim_url_parse(const char *text, struct sim_url *ret, char *message, size_t message_size);

/* Draws on stderr: a bar on a terminal, else a line for each tenth. */
struct sim_progress {
        const char *title;
        bool terminal, off;
        uint64_t start_ns, drawn_ns;
        uint32_t tenth;
};
void sim_progress_init(struct sim_progress *progress, const char *title, bool off);
void sim_progress_show(struct sim_progress *progress, uint32_t done, uint32_t total);
void sim_progress_end(struct sim_progress *progress); /* leaves the terminal's line */

enum sim_run_status {
        SIM_RUN_DONE,
        SIM_RUN_INTERRUPTED, /* SIGINT or SIGTERM: the result holds what was measured so far */
        SIM_RUN_NO_MEMORY,
};

/*
 * Runs a load on a loop of its own (options.loop, callbacks and ctx are set here) and moves its result to
 * *ret, to be freed with sim_result_fini.
 */
enum sim_run_status sim_run_load(const struct sim_load_options *options, struct sim_progress *progress,
                                 struct sim_result *ret);

/*
 * GET target, blocking, body up to 8 MiB into *ret_body. False: message says why.
 */
KVR_MUST_USE bool sim_run_get(const struct sockaddr_storage *addr, const char *authority, const char *target,
                              const char *headers, struct sim_buf *ret_body, unsigned *ret_status,
                              char *message, size_t message_size);
/* The first id of a /v1/models document, "" if there is none. */
void sim_first_model(struct kvr_slice body, char *ret, size_t size);
/* As many descriptors as the system lets us have. */
void sim_raise_descriptor_limit(void);

#endif
