/* SPDX-License-Identifier: Apache-2.0 */
/* Asking a running router's admin API, blocking: for `kvroute top` and `kvroute report`. */
#ifndef KVROUTE_SIM_ASK_H
#define KVROUTE_SIM_ASK_H

#include "run.h"

#include <sys/socket.h>
#include <yyjson.h>

#define SIM_ASK_URL       "http://127.0.0.1:8081" /* the admin listener's default */
#define SIM_ASK_TOKEN_MAX 512

struct sim_ask {
        struct sim_url url;
        struct sockaddr_storage addr;
        char headers[SIM_ASK_TOKEN_MAX + 64]; /* holds the token */
        const char *token_from; /* "--token-file" and the like, for messages; NULL: none was given */
};

enum sim_ask_status {
        SIM_ASK_OK,
        SIM_ASK_FAILED, /* no answer, or one that may be better next time */
        SIM_ASK_FINAL,  /* asking again does not help: a token is missing, or this is no admin listener */
        SIM_ASK_USAGE,  /* what was given is wrong */
};

/*
 * The token comes from the file (NULL: none given), else from KVROUTE_ADMIN_TOKEN as `serve` takes it: itself,
 * env:NAME or file:PATH. Unless SIM_ASK_OK, message says why.
 */
KVR_MUST_USE enum sim_ask_status sim_ask_begin(const char *url, const char *token_file, struct sim_ask *ret,
                                               char *message, size_t size);
/* GET path; SIM_ASK_OK: *ret is to be freed with yyjson_doc_free. */
KVR_MUST_USE enum sim_ask_status sim_ask_get(const struct sim_ask *ask, const char *path, yyjson_doc **ret,
                                             char *message, size_t size);

#endif
