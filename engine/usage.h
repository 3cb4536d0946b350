/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Token counts from an answer as it passes by. A tap is fed the content bytes of a response (JSON or SSE;
 * chunk framing and compression removed) in pieces of any size and looks for the few members that matter:
 *
 *     "usage":{...}      OpenAI chat, completions, responses; Anthropic messages (message_start and
 * message_delta) "timings":{...}    llama.cpp "meta_info":{...}  SGLang /generate
 *
 * It searches text for these keys (inside a JSON string a quote is escaped, so the bytes `"usage":` can only
 * be a key) and parses nothing but the object that follows. The last valid object wins; nulls and look-alikes
 * are passed over. Memory: a window of at most USAGE_WINDOW_BYTES, grown on demand. Owner thread only.
 */
#ifndef KVROUTE_ENGINE_USAGE_H
#define KVROUTE_ENGINE_USAGE_H

#include "engine.h"
#include <kvroute/prompt.h>

#define USAGE_WINDOW_BYTES (16 * 1024) /* bytes looked at together */
#define USAGE_OBJECT_MAX   (8 * 1024)  /* a larger usage object is not read */
#define USAGE_ID_MAX       128         /* bytes of a response id, terminator included */

enum usage_finish {
        USAGE_FINISH_UNKNOWN,
        USAGE_FINISH_STOP,   /* stop, end_turn, stop_sequence, completed, eos_token */
        USAGE_FINISH_LENGTH, /* length, max_tokens, max_output_tokens */
        USAGE_FINISH_TOOL,   /* tool_calls, tool_use, function_call */
        USAGE_FINISH_ABORT,  /* abort, cancelled, error, failed, content_filter */
};
const char *usage_finish_name(enum usage_finish finish);

struct usage {
        int64_t prompt_tokens;     /* whole prompt, cached part included; -1 unknown */
        int64_t cached_tokens;     /* -1 unknown, which is not 0 */
        int64_t completion_tokens; /* -1 unknown */
        bool report_proved;        /* this answer proves that the engine reports cached tokens
                                      (ENGINE_REPORT_FLAG...):        remember it per replica and pass it as
                                      report_known        from now on */
        enum usage_finish finish;
        char id[USAGE_ID_MAX]; /* response id, or empty. Certain for /v1/responses, elsewhere as a rule */
};

struct usage_tap {
        /* private */
        enum engine_kind kind;
        enum kvr_api api;
        bool several;
        bool broken; /* out of memory: nothing is known */
        char *window;
        uint32_t len, cap;
        uint32_t scanned;     /* no unread key starts before it */
        bool open;            /* an object started and has not ended */
        uint32_t object, pos; /* its first byte, and how far its end was looked for */
        uint32_t depth;
        bool in_string, escape;
        uint8_t object_key;
        uint32_t id_scanned; /* no unread id starts before it */
        uint64_t total;      /* bytes fed */
        int64_t input, output, cache_read, cache_creation, cached, total_prompt; /* as found */
        int64_t timings_cached, timings_prompt, timings_predicted;
        bool details_seen;
        enum usage_finish finish;
        char id[USAGE_ID_MAX];
};

/*
 * several: the request holds several prompts or asks for several choices (n > 1): its cached count says
 * nothing about hits and comes out unknown.
 */
void usage_tap_init(struct usage_tap *tap, enum engine_kind kind, enum kvr_api api, bool several);
void usage_tap_fini(struct usage_tap *tap); /* twice or on zeroed memory is fine */
/* For taps that are used again and again: rest in place of fini, again in place of the next init. What an answer of
 * usual size needs stays allocated meanwhile. `again` takes zeroed memory too. */
void usage_tap_rest(struct usage_tap *tap);
void usage_tap_again(struct usage_tap *tap, enum engine_kind kind, enum kvr_api api, bool several);
/* Borrows data. Cost: about one memcpy and one memmem over it. */
void usage_tap_feed(struct usage_tap *tap, const char *data, size_t len);
/*
 * What was found so far, normalised by the engine's rules. report_known: this replica is known to report
 * cached tokens (engine_load.cache_report is 1, or an earlier answer had report_proved).
 */
void usage_tap_result(const struct usage_tap *tap, bool report_known, struct usage *ret);

#endif
