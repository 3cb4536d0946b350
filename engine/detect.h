/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which engine answers at a base URL: a small state machine without I/O. The caller fetches the path it is
 * told to and feeds the answer until a kind comes out. Bounded: at most ENGINE_DETECT_STEPS_MAX requests.
 *
 *     engine_detect_init(&d);
 *     while ((path = engine_detect_next_path(&d)) != NULL)
 *             GET path -> engine_detect_feed(&d, status, server_header, body);
 *     d.kind, d.version, d.failed
 */
#ifndef KVROUTE_ENGINE_DETECT_H
#define KVROUTE_ENGINE_DETECT_H

#include "engine.h"

#define ENGINE_DETECT_STEPS_MAX 10
#define ENGINE_DETECT_BODY_BYTES \
        (1024 * 1024) /* read at most this much of an answer; more is not looked at */
#define ENGINE_VERSION_MAX 64

struct engine_detect {
        enum engine_kind kind;            /* ENGINE_AUTO until decided */
        bool failed;                      /* no connection: nothing is decided, start again later */
        bool unauthorized;                /* some answers were 401 or 403: a key may be needed to tell */
        char version[ENGINE_VERSION_MAX]; /* as the engine writes it, or empty */
        /* private */
        uint8_t step;
        enum engine_kind hint;
};

void engine_detect_init(struct engine_detect *detect);
/* The path to GET next, NULL when finished (decided or failed). */
const char *engine_detect_next_path(const struct engine_detect *detect);
/*
 * The answer to that path. status 0: no answer (connection refused, time-out): detection fails, unless other
 * paths were answered before. server: value of the Server field, may be empty. body: possibly cut, borrowed.
 */
void engine_detect_feed(struct engine_detect *detect, unsigned status, struct kvr_slice server,
                        struct kvr_slice body);

#endif
