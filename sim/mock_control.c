/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What no engine has: /mock/..., by which tests set faults and ask what happened. docs/mock.md describes it.
 */
#include "mock_int.h"

#include <inttypes.h>
#include <stdlib.h>
#include <yyjson.h>

static void bad(struct sim_mock *mock, struct net_exchange *exchange, unsigned status, const char *message)
{
        sim_buf_reset(&mock->buf);
        sim_answer_error(&mock->buf, SIM_API_CHAT, status, "invalid_request_error", NULL, message);
        mock_respond(mock, exchange, status, &mock->buf);
}

static void show_fault(struct sim_mock *mock, struct net_exchange *exchange)
{
        sim_buf_reset(&mock->buf);
        sim_fault_write(&mock->fault, &mock->buf);
        mock_respond(mock, exchange, 200, &mock->buf);
}

static void set_fault(struct sim_mock *mock, struct net_exchange *exchange)
{
        struct sim_fault fault;
        char message[200];

        if (!sim_fault_parse(&fault, net_exchange_body(exchange), message, sizeof(message))) {
                bad(mock, exchange, 400, message);
                return;
        }
        sim_buf_reset(&mock->buf);
        sim_fault_write(&fault, &mock->buf);
        /* Answer first: a fault that refuses connections cuts this one too. */
        mock_respond(mock, exchange, 200, &mock->buf);
        sim_mock_set_fault(mock, &fault);
}

static void restart(struct sim_mock *mock, struct net_exchange *exchange)
{
        struct kvr_slice body = net_exchange_body(exchange);
        yyjson_doc *doc = body.len ? yyjson_read(body.data, body.len, 0) : NULL;
        yyjson_val *down = yyjson_obj_get(yyjson_doc_get_root(doc), "down_ms");
        uint64_t ms = yyjson_is_uint(down) ? yyjson_get_uint(down) : 0;
        bool good = (body.len == 0 || yyjson_is_obj(yyjson_doc_get_root(doc))) &&
                    (!down || yyjson_is_uint(down)) && ms <= 86400000;

        yyjson_doc_free(doc);
        if (!good) {
                bad(mock, exchange, 400, "the body is empty or {\"down_ms\": milliseconds}");
                return;
        }
        net_respond(exchange, 200, MOCK_JSON, MOCK_SERVER, sim_slice("{}"));
        sim_mock_restart(mock, (uint32_t)ms);
}

static bool query_has(struct kvr_slice query, const char *name)
{
        size_t len = strlen(name);

        for (size_t i = 0; i + len <= query.len; i++) {
                if ((i == 0 || query.data[i - 1] == '&') && memcmp(query.data + i, name, len) == 0)
                        return true;
        }
        return false;
}

static uint64_t query_number(struct kvr_slice query, const char *name)
{
        size_t len = strlen(name);
        uint64_t value = 0;

        for (size_t i = 0; i + len <= query.len; i++) {
                if ((i > 0 && query.data[i - 1] != '&') || memcmp(query.data + i, name, len) != 0)
                        continue;
                for (i += len;
                     i < query.len && query.data[i] >= '0' && query.data[i] <= '9' && value < UINT32_MAX; i++)
                        value = value * 10 + (uint64_t)(query.data[i] - '0');
                return value;
        }
        return 0;
}

static void requests(struct sim_mock *mock, struct net_exchange *exchange, struct kvr_slice query)
{
        sim_buf_reset(&mock->buf);
        sim_records_write(&mock->records, query_number(query, "since="), query_has(query, "full=1"),
                          &mock->buf);
        mock_respond(mock, exchange, 200, &mock->buf);
}

static void state(struct sim_mock *mock, struct net_exchange *exchange)
{
        struct sim_engine_counters c;
        struct sim_buf *buf = &mock->buf;

        mock_pump(mock);
        sim_engine_counters(mock->engine, &c);
        sim_buf_reset(buf);
        sim_buf_printf(buf,
                       "{\"running\":%u,\"waiting\":%u,\"kv_usage\":%.6f,\"cached_blocks\":%u,\"evictions\":"
                       "%" PRIu64,
                       sim_engine_running(mock->engine), sim_engine_waiting(mock->engine),
                       sim_engine_usage(mock->engine), sim_engine_cached_blocks(mock->engine),
                       sim_engine_evictions(mock->engine));
        sim_buf_printf(buf,
                       ",\"pending_tokens\":%" PRIu64 ",\"steps\":%" PRIu64
                       ",\"busy_s\":%.6f,\"now_s\":%.6f,\"preempted\":%" PRIu64,
                       sim_engine_pending_tokens(mock->engine), c.steps, (double)c.busy_ns * 1e-9,
                       (double)mock_virtual_ns(mock) * 1e-9, c.preempted);
        sim_buf_printf(buf, ",\"probes\":%" PRIu64 ",\"speed\":%g}\n", mock->probes, mock->options.speed);
        mock_respond(mock, exchange, 200, buf);
}

/* What the cache holds of a prompt, without touching it: the body is a request for the path in ?path=. */
static void match(struct sim_mock *mock, struct net_exchange *exchange, struct kvr_slice query)
{
        struct sim_request request;
        struct sim_request_error error;
        enum sim_api api = query_has(query, "path=/v1/completions") ? SIM_API_COMPLETIONS
                           : query_has(query, "path=/v1/responses") ? SIM_API_RESPONSES
                           : query_has(query, "path=/v1/messages")  ? SIM_API_MESSAGES
                                                                    : SIM_API_CHAT;
        uint32_t block = mock->options.engine.block_tokens, count, hit = 0;
        uint64_t *keys, space;

        if (!sim_request_parse(&request, api, net_exchange_body(exchange), &error)) {
                bad(mock, exchange, error.status, error.message);
                return;
        }
        mock_pump(mock);
        keys = mock_keys(mock, request.tokens.len / block + 1);
        if (keys && mock_space(mock, request.model, request.salt, &space)) {
                count = sim_block_keys(space, request.tokens.ids, request.tokens.len, block, keys);
                hit = sim_engine_match(mock->engine, keys, count, (uint32_t)request.tokens.len);
        }
        sim_buf_reset(&mock->buf);
        sim_buf_printf(&mock->buf, "{\"prompt_tokens\":%zu,\"match_tokens\":%u}\n", request.tokens.len, hit);
        sim_request_fini(&request);
        mock_respond(mock, exchange, 200, &mock->buf);
}

static void events(struct sim_mock *mock, struct net_exchange *exchange, bool order)
{
        char message[240];

        mock_pump(mock);
        if (order &&
            !mock_events_order(mock->events, net_exchange_body(exchange), message, sizeof(message))) {
                bad(mock, exchange, 400, message);
                return;
        }
        sim_buf_reset(&mock->buf);
        mock_events_write(mock->events, &mock->buf);
        mock_respond(mock, exchange, 200, &mock->buf);
}

bool mock_control(struct sim_mock *mock, struct net_exchange *exchange)
{
        static const char prefix[] = "/mock/";
        const struct http1_head *head = net_exchange_head(exchange);
        struct kvr_slice path = head->path;
        bool get = sim_slice_is(head->method, "GET"), post = sim_slice_is(head->method, "POST");

        if (path.len < sizeof(prefix) - 1 || memcmp(path.data, prefix, sizeof(prefix) - 1) != 0)
                return false;
        path.data += sizeof(prefix) - 1;
        path.len -= sizeof(prefix) - 1;
        if (get && sim_slice_is(path, "fault")) {
                show_fault(mock, exchange);
        } else if (post && sim_slice_is(path, "fault")) {
                set_fault(mock, exchange);
        } else if (post && sim_slice_is(path, "restart")) {
                restart(mock, exchange);
        } else if (post && sim_slice_is(path, "flush")) {
                sim_engine_drop_cache(mock->engine);
                net_respond(exchange, 200, MOCK_JSON, MOCK_SERVER, sim_slice("{}"));
        } else if (mock->events && sim_slice_is(path, "events") && (get || post)) {
                events(mock, exchange, post);
        } else if (get && sim_slice_is(path, "requests")) {
                requests(mock, exchange, head->query);
        } else if (sim_slice_is(head->method, "DELETE") && sim_slice_is(path, "requests")) {
                sim_records_clear(&mock->records);
                net_respond(exchange, 200, MOCK_JSON, MOCK_SERVER, sim_slice("{}"));
        } else if (get && sim_slice_is(path, "state")) {
                state(mock, exchange);
        } else if (post && sim_slice_is(path, "match")) {
                match(mock, exchange, head->query);
        } else {
                bad(mock, exchange, 404, "no such control endpoint; see docs/mock.md");
        }
        return true;
}
