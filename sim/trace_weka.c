/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions in JSON, as Weka's captures of coding agents have them. */
#include "trace_int.h"
#include "rng.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <yyjson.h>

#define BLOCK_DEFAULT 64u
#define BLOCK_MAX     1048576u
#define GAP_S         20.0
#define DEPTH_MAX     8u /* sub-agents of sub-agents */
#define HEAD_BYTES    65536u
#define SECONDS_MAX   1e9
#define STREAM        0x77656b61u
#define BEFORE_S      1e-6 /* times that far apart are equal */

/* One conversation: the session's own, or a sub-agent's. */
struct chain {
        struct sim__trace_reader *reader;
        double start_s; /* of the session, within the trace */
        uint64_t root;  /* that ids are chained to */
        uint32_t block, source_block;
        uint32_t session, parent, depth;
        double shift_s; /* of times that count from a sub-agent's start */
        /* When its last answer was there, and the last one of agents it began since; NAN: not known. In the
         * session's time. */
        double answered_s, agents_s;
};

bool sim__trace_weka_is(const char *bytes, size_t len)
{
        static const char requests[] = "\"requests\"", ids[] = "\"hash_ids\"";
        size_t at = 0;

        while (at < len && (bytes[at] == ' ' || bytes[at] == '\n' || bytes[at] == '\r' || bytes[at] == '\t'))
                at++;
        if (at == len || (bytes[at] != '{' && bytes[at] != '['))
                return false;
        len = len - at > HEAD_BYTES ? at + HEAD_BYTES : len;
        for (; at + sizeof(requests) - 1 <= len; at++) {
                if (memcmp(bytes + at, requests, sizeof(requests) - 1) == 0)
                        return true;
                if (memcmp(bytes + at, ids, sizeof(ids) - 1) == 0)
                        return false;
        }
        return false;
}

/* ---- one request -------------------------------------------------------------------------------------- */

static bool seconds(yyjson_val *root, const char *name, double *ret)
{
        yyjson_val *value = yyjson_obj_get(root, name);

        if (!yyjson_is_num(value) || !(yyjson_get_num(value) >= 0) || yyjson_get_num(value) > SECONDS_MAX)
                return false;
        *ret = yyjson_get_num(value);
        return true;
}

static bool whole(yyjson_val *root, const char *name, uint64_t most, uint32_t *ret)
{
        yyjson_val *value = yyjson_obj_get(root, name);

        if (!yyjson_is_uint(value) || yyjson_get_uint(value) > most)
                return false;
        *ret = (uint32_t)yyjson_get_uint(value);
        return true;
}

/*
 * A block of the trace is known by all ids up to its end, whatever the source's ids stand for. What no id
 * covers is nobody else's.
 */
static bool take_ids(const struct chain *chain, yyjson_val *array, struct sim_trace_row *row)
{
        struct sim__trace_reader *reader = chain->reader;
        uint32_t times = chain->block / chain->source_block, count = 0, done = 0;
        uint64_t key = chain->root, *ids;
        yyjson_arr_iter iter = yyjson_arr_iter_with(array);
        yyjson_val *id;

        if (yyjson_arr_size(array) > (row->input_tokens - 1) / chain->source_block + 1)
                return sim__trace_fail(reader, "hash_ids has more elements than the prompt has blocks");
        row->id_count = (row->input_tokens - 1) / chain->block + 1;
        if (!sim__trace_reserve(reader, row->id_count))
                return false;
        ids = reader->trace->ids + reader->trace->id_count;
        while ((id = yyjson_arr_iter_next(&iter))) {
                if (!yyjson_is_int(id))
                        return sim__trace_fail(reader, "hash_ids has an element that is not a whole number");
                key = sim_mix64(key ^ sim_mix64(yyjson_get_uint(id) + 1));
                if (++count % times == 0)
                        ids[done++] = key;
        }
        /* The last one may be partial, and known as such. */
        if (done + 1 == row->id_count && count == (row->input_tokens - 1) / chain->source_block + 1)
                ids[done++] = key;
        while (done < row->id_count)
                ids[done++] = sim_mix64(UINT64_C(1) << 63 | reader->unique++);
        return true;
}

/*
 * How long the user took: said, or told from when the answers before it were there. Agents that were still at
 * work then were not waited for.
 */
static float pause_of(const struct chain *chain, yyjson_val *root, double at_s)
{
        double waited_s = chain->agents_s > at_s ? chain->answered_s : chain->agents_s, pause_s;

        if (!seconds(root, "think_time", &pause_s))
                pause_s = isnan(waited_s) ? waited_s : at_s - fmax(waited_s, chain->answered_s);
        if (isnan(pause_s) || isinf(pause_s))
                return 0;
        return pause_s > 0 ? (float)pause_s : SIM_TRACE_NO_PAUSE;
}

static bool take_request(struct chain *chain, yyjson_val *root)
{
        struct sim__trace_reader *reader = chain->reader;
        yyjson_val *ids = yyjson_obj_get(root, "hash_ids");
        struct sim_trace_row row = {.session = chain->session, .parent = chain->parent};
        double at_s, api_s;

        if (!seconds(root, "t", &at_s))
                return sim__trace_fail(reader, "t is not a number of seconds");
        if (!whole(root, "in", SIM_TRACE_TOKENS_MAX, &row.input_tokens))
                return sim__trace_fail(reader, "in is not a number of tokens");
        if (yyjson_obj_get(root, "out") && !whole(root, "out", SIM_TRACE_TOKENS_MAX, &row.output_tokens))
                return sim__trace_fail(reader, "out is not a number of tokens");
        if (ids && !yyjson_is_arr(ids))
                return sim__trace_fail(reader, "hash_ids is not an array");
        at_s += chain->shift_s;
        row.pause_s = pause_of(chain, root, at_s);
        chain->answered_s = seconds(root, "api_time", &api_s) ? at_s + api_s : (double)NAN;
        chain->agents_s = -INFINITY;
        if (row.input_tokens == 0)
                return true; /* nothing was computed */
        row.time_s = chain->start_s + at_s;
        if (!take_ids(chain, ids, &row))
                return false;
        sim__trace_add(reader, &row);
        return true;
}

/* ---- one session -------------------------------------------------------------------------------------- */

static bool take_requests(struct chain *chain, yyjson_val *array);

/* Times within it count from the session's start, or in older captures from the sub-agent's. */
static bool take_agent(struct chain *parent, yyjson_val *root)
{
        struct sim__trace_reader *reader = parent->reader;
        yyjson_val *requests = yyjson_obj_get(root, "requests"), *entry;
        struct chain chain = *parent;
        yyjson_arr_iter iter;
        double at_s, t;

        if (!seconds(root, "t", &at_s))
                return sim__trace_fail(reader, "t is not a number of seconds");
        if (!requests || yyjson_is_null(requests))
                return true;
        if (!yyjson_is_arr(requests))
                return sim__trace_fail(reader, "requests is not an array");
        if (++chain.depth > DEPTH_MAX)
                return sim__trace_fail(reader, "too many sub-agents within sub-agents");
        iter = yyjson_arr_iter_with(requests);
        while ((entry = yyjson_arr_iter_next(&iter))) {
                if (seconds(entry, "t", &t) && t < at_s - BEFORE_S)
                        chain.shift_s = parent->shift_s + at_s;
        }
        chain.parent = parent->session;
        chain.session = ++reader->names.sessions;
        chain.agents_s = -INFINITY;
        if (!take_requests(&chain, requests))
                return false;
        if (yyjson_arr_size(requests) && !isnan(parent->agents_s) && !(parent->agents_s > chain.answered_s))
                parent->agents_s = chain.answered_s;
        return true;
}

static bool take_requests(struct chain *chain, yyjson_val *array)
{
        yyjson_arr_iter iter = yyjson_arr_iter_with(array);
        yyjson_val *entry;

        while ((entry = yyjson_arr_iter_next(&iter))) {
                const char *type = yyjson_get_str(yyjson_obj_get(entry, "type"));

                if (!yyjson_is_obj(entry))
                        return sim__trace_fail(chain->reader,
                                               "requests has an element that is not an object");
                if (type && strcmp(type, "subagent") == 0 ? !take_agent(chain, entry)
                                                          : !take_request(chain, entry))
                        return false;
        }
        return true;
}

/* Sessions have no common clock: each begins a while after the one before. */
static double next_start(struct sim__trace_reader *reader)
{
        double gap_s = reader->options->session_gap_s > 0 ? reader->options->session_gap_s : GAP_S;
        struct sim_rng rng = {.state = reader->session_random};

        if (!reader->session_random)
                rng = sim_rng_for(1, STREAM, 0);
        else
                reader->session_start_s += sim_rng_exp(&rng, gap_s);
        reader->session_random = rng.state | (rng.state == 0);
        return reader->session_start_s;
}

static bool settle_block(struct sim__trace_reader *reader, yyjson_val *root, struct chain *chain)
{
        uint32_t wanted = reader->options->block_tokens;
        char why[128];

        chain->source_block = BLOCK_DEFAULT;
        if (yyjson_obj_get(root, "block_size") &&
            (!whole(root, "block_size", BLOCK_MAX, &chain->source_block) || !chain->source_block))
                return sim__trace_fail(reader, "block_size is not a number of tokens");
        if (!reader->block)
                reader->block = wanted ? wanted : chain->source_block;
        chain->block = reader->block;
        if (chain->block % chain->source_block == 0)
                return true;
        snprintf(why, sizeof(why), "blocks of %u tokens cannot be made of blocks of %u", chain->block,
                 chain->source_block);
        return sim__trace_fail(reader, why);
}

static bool take_session(struct sim__trace_reader *reader, yyjson_val *root)
{
        yyjson_val *requests = yyjson_obj_get(root, "requests");
        struct chain chain = {.reader = reader, .answered_s = (double)NAN, .agents_s = -INFINITY};

        if (!yyjson_is_arr(requests))
                return sim__trace_fail(reader, "not a session: there is no array requests");
        if (!settle_block(reader, root, &chain))
                return false;
        chain.session = ++reader->names.sessions;
        chain.start_s = next_start(reader);
        if (!yyjson_equals_str(yyjson_obj_get(root, "hash_id_scope"), "global"))
                chain.root = sim_mix64(chain.session);
        return take_requests(&chain, requests);
}

/* ---- a file ------------------------------------------------------------------------------------------- */

static uint64_t lines_before(const char *bytes, size_t len)
{
        uint64_t lines = 0;
        const char *at = bytes, *end;

        while ((end = memchr(at, '\n', len - (size_t)(at - bytes)))) {
                lines++;
                at = end + 1;
        }
        return lines;
}

static bool take_document(struct sim__trace_reader *reader, yyjson_val *root)
{
        yyjson_arr_iter iter;
        yyjson_val *session;

        if (!yyjson_is_arr(root))
                return take_session(reader, root);
        iter = yyjson_arr_iter_with(root);
        while ((session = yyjson_arr_iter_next(&iter))) {
                if (!take_session(reader, session))
                        return false;
        }
        return true;
}

bool sim__trace_weka(struct sim__trace_reader *reader, const char *bytes, size_t len)
{
        size_t at = 0;

        reader->line_number = 1;
        for (;;) {
                yyjson_read_err error;
                yyjson_doc *doc;
                char why[160];
                bool good;

                while (at < len && strchr(" \t\r\n", bytes[at]) && bytes[at]) {
                        reader->line_number += bytes[at] == '\n';
                        at++;
                }
                if (at == len)
                        return true;
                /* Without YYJSON_READ_INSITU the text is only read. */
                doc = yyjson_read_opts((char *)(uintptr_t)bytes + at, len - at, YYJSON_READ_STOP_WHEN_DONE,
                                       NULL, &error);
                if (!doc) {
                        size_t pos = error.pos < len - at ? error.pos : len - at;

                        reader->line_number += lines_before(bytes + at, pos);
                        snprintf(why, sizeof(why), "not JSON (%s)", error.msg);
                        return sim__trace_fail(reader, why);
                }
                good = take_document(reader, yyjson_doc_get_root(doc));
                if (good) {
                        reader->line_number += lines_before(bytes + at, yyjson_doc_get_read_size(doc));
                        at += yyjson_doc_get_read_size(doc);
                }
                yyjson_doc_free(doc);
                if (!good)
                        return false;
        }
}
