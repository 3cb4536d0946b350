/* SPDX-License-Identifier: Apache-2.0 */
/* The mock engine over loopback, client and engine on one loop. It runs 1,000 times faster than the engine it
 * models. */
#include "mock.h"
#include "net/client.h"
#include "tokens.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <yyjson.h>

#include <cmocka.h>

struct fixture {
        struct net_loop loop;
        struct sockaddr_storage addr;
        struct sim_mock_options options;
        struct sim_mock *mock;
        struct net_client *client;
        bool mock_closed;
};

struct answer {
        bool done;
        enum net_request_error error;
        unsigned status;
        char headers[512]; /* "name: value\n"... */
        char body[65536];
        size_t len;
        yyjson_doc *doc;
};

static void on_head(void *ctx, const struct http1_head *head)
{
        struct answer *a = ctx;
        size_t len = 0;

        for (uint32_t i = 0; i < head->field_count && len < sizeof(a->headers); i++)
                len += (size_t)snprintf(a->headers + len, sizeof(a->headers) - len, "%.*s: %.*s\n",
                                        (int)head->fields[i].name.len, head->fields[i].name.data,
                                        (int)head->fields[i].value.len, head->fields[i].value.data);
}

static void on_chunk(void *ctx, const char *data, size_t len)
{
        struct answer *a = ctx;

        assert_true(a->len + len < sizeof(a->body));
        memcpy(a->body + a->len, data, len);
        a->len += len;
        a->body[a->len] = 0;
}

static void on_done(void *ctx, enum net_request_error error, unsigned status, struct kvr_slice body)
{
        struct answer *a = ctx;

        (void)body;
        a->done = true;
        a->error = error;
        a->status = status;
}

static struct net_request *begin(struct fixture *f, struct answer *a, const char *method, const char *target,
                                 const char *body)
{
        struct net_request_spec spec = {
                .addr = (struct sockaddr *)&f->addr,
                .host = "mock",
                .method = method,
                .target = target,
                .body = sim_slice(body),
                .timeout_ms = 10000,
                .on_head = on_head,
                .on_chunk = on_chunk,
                .on_done = on_done,
                .ctx = a,
        };
        struct net_request *request;

        memset(a, 0, sizeof(*a));
        request = net_request_send(f->client, &spec);
        assert_non_null(request);
        return request;
}

static void finish(struct fixture *f, struct answer *a)
{
        while (!a->done)
                uv_run(&f->loop.uv, UV_RUN_ONCE);
}

static struct answer *call(struct fixture *f, const char *method, const char *target, const char *body)
{
        struct answer *a = test_malloc(sizeof(*a));

        begin(f, a, method, target, body);
        finish(f, a);
        a->doc = yyjson_read(a->body, a->len, 0);
        return a;
}

static void drop(struct answer *a)
{
        yyjson_doc_free(a->doc);
        test_free(a);
}

static int64_t number(const struct answer *a, const char *pointer)
{
        yyjson_val *value = yyjson_doc_ptr_get(a->doc, pointer);

        if (!yyjson_is_int(value))
                fail_msg("no number at %s in %s", pointer, a->body);
        return yyjson_get_sint(value);
}

static const char *text(const struct answer *a, const char *pointer)
{
        const char *value = yyjson_get_str(yyjson_doc_ptr_get(a->doc, pointer));

        if (!value)
                fail_msg("no text at %s in %s", pointer, a->body);
        return value;
}

/* Number at a pointer of a GET. */
static int64_t ask(struct fixture *f, const char *target, const char *pointer)
{
        struct answer *a = call(f, "GET", target, "");
        int64_t value;

        assert_int_equal(a->status, 200);
        value = number(a, pointer);
        drop(a);
        return value;
}

static void set_fault(struct fixture *f, const char *json)
{
        struct answer *a = call(f, "POST", "/mock/fault", json);

        assert_int_equal(a->status, 200);
        drop(a);
}

static int setup(void **state)
{
        struct fixture *f = calloc(1, sizeof(*f));
        int error = 0;

        if (!f || net_loop_init(&f->loop) || net_resolve("127.0.0.1", 0, &f->addr))
                return -1;
        sim_mock_defaults(&f->options);
        f->options.speed = 1000;
        f->options.engine.capacity_blocks = 64;
        f->options.engine.max_waiting = 2;
        f->options.engine.max_running = 2;
        f->options.models = "tiny,ad1";
        f->options.max_model_len = 500;
        f->options.store_responses = true;
        f->options.record_bodies = true;
        f->mock = sim_mock_new(&f->loop, &f->addr, &f->options, &error);
        f->client = net_client_new(&f->loop, 16, 0);
        *state = f;
        return f->mock && f->client ? 0 : -1;
}

static void on_closed(void *ctx)
{
        ((struct fixture *)ctx)->mock_closed = true;
}

static int teardown(void **state)
{
        struct fixture *f = *state;

        net_client_free(f->client);
        sim_mock_close(f->mock, on_closed, f);
        while (!f->mock_closed)
                uv_run(&f->loop.uv, UV_RUN_ONCE);
        net_loop_fini(&f->loop);
        assert_int_equal(f->loop.conn_count, 0);
        free(f);
        return 0;
}

/* 160 bytes: 40 tokens; with the chat's frame 1 + 1 + 40 + 1 + 1 = 44. */
#define LONG_TEXT                                                                                           \
        "the quick brown fox jumps over the lazy dog and then the dog wakes up and runs after the fox for " \
        "a very long time "                                                                                 \
        "until both of them are quite tired now, you see"
#define CHAT "{\"messages\":[{\"role\":\"user\",\"content\":\"" LONG_TEXT "\"}],\"max_tokens\":4}"
#define CHAT_STREAM                                                  \
        "{\"messages\":[{\"role\":\"user\",\"content\":\"" LONG_TEXT \
        "\"}],\"max_tokens\":4,\"stream\":true,\"stream_options\":{\"include_usage\":true}}"

static void hits_and_usage_add_up(void **state)
{
        struct fixture *f = *state;
        struct answer *first = call(f, "POST", "/v1/chat/completions", CHAT);
        struct answer *second = call(f, "POST", "/v1/chat/completions", CHAT);

        assert_int_equal(first->status, 200);
        assert_int_equal(number(first, "/usage/prompt_tokens"), (strlen(LONG_TEXT) + 3) / 4 + 4);
        assert_int_equal(number(first, "/usage/completion_tokens"), 4);
        assert_int_equal(number(first, "/usage/prompt_tokens_details/cached_tokens"), 0);
        assert_int_equal(number(first, "/usage/prompt_tokens_details/created_cache_tokens"), 32);
        assert_int_equal(number(second, "/usage/prompt_tokens_details/cached_tokens"), 32);
        assert_string_equal(text(first, "/choices/0/message/content"),
                            text(second, "/choices/0/message/content"));
        assert_int_equal(strlen(text(first, "/choices/0/message/content")), 16);
        assert_string_equal(text(first, "/choices/0/finish_reason"), "length");
        assert_string_equal(text(first, "/model"), "tiny");
        assert_int_equal(ask(f, "/mock/requests", "/requests"), 2);
        assert_int_equal(ask(f, "/mock/requests", "/finished"), 2);
        assert_int_equal(ask(f, "/mock/requests", "/cached_tokens"), 32);
        assert_int_equal(ask(f, "/mock/requests", "/list/1/cached_tokens"), 32);
        assert_int_equal(ask(f, "/mock/requests?since=1", "/list/0/number"), 2);
        drop(first);
        drop(second);
}

static void streams_end_with_usage(void **state)
{
        struct fixture *f = *state;
        struct answer *whole = call(f, "POST", "/v1/chat/completions", CHAT);
        struct answer *stream = call(f, "POST", "/v1/chat/completions", CHAT_STREAM);
        char content[64] = "";
        unsigned events = 0;

        assert_int_equal(stream->error, NET_REQUEST_OK);
        assert_non_null(strstr(stream->headers, "content-type: text/event-stream"));
        for (char *at = stream->body; (at = strstr(at, "\"delta\":{\"content\":\"")); events++) {
                at += strlen("\"delta\":{\"content\":\"");
                memcpy(content + strlen(content), at, 4);
        }
        assert_int_equal(events, 4);
        assert_string_equal(content, text(whole, "/choices/0/message/content"));
        assert_non_null(strstr(
                stream->body, "\"prompt_tokens_details\":{\"cached_tokens\":32,\"created_cache_tokens\":0}"));
        assert_string_equal(stream->body + stream->len - 14, "data: [DONE]\n\n");
        drop(whole);
        drop(stream);
}

static void namespaces_do_not_share(void **state)
{
        struct fixture *f = *state;
        static const char salted[] =
                "{\"cache_salt\":\"s\",\"messages\":[{\"role\":\"user\",\"content\":\"" LONG_TEXT
                "\"}],\"max_tokens\":1}";
        static const char adapter[] =
                "{\"model\":\"ad1\",\"messages\":[{\"role\":\"user\",\"content\":\"" LONG_TEXT
                "\"}],\"max_tokens\":1}";
        static const char named[] =
                "{\"model\":\"tiny\",\"messages\":[{\"role\":\"user\",\"content\":\"" LONG_TEXT
                "\"}],\"max_tokens\":1}";
        static const struct {
                const char *body;
                int64_t cached;
        } steps[] = {{CHAT, 0}, {salted, 0}, {salted, 32}, {adapter, 0}, {adapter, 32}, {named, 32}};
        struct answer *a;

        for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
                a = call(f, "POST", "/v1/chat/completions", steps[i].body);
                assert_int_equal(number(a, "/usage/prompt_tokens_details/cached_tokens"), steps[i].cached);
                drop(a);
        }
        a = call(f, "POST", "/v1/chat/completions",
                 "{\"model\":\"other\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}");
        assert_int_equal(a->status, 404);
        assert_int_equal(number(a, "/error/code"), 404);
        drop(a);
}

static void tokens_agree_everywhere(void **state)
{
        struct fixture *f = *state;
        struct answer *tokens = call(f, "POST", "/tokenize",
                                     "{\"messages\":[{\"role\":\"user\",\"content\":\"" LONG_TEXT "\"}]}");
        struct answer *chat =
                call(f, "POST", "/v1/chat/completions",
                     "{\"return_token_ids\":true,\"messages\":[{\"role\":\"user\",\"content\":\"" LONG_TEXT
                     "\"}],\"max_tokens\":2}");
        struct answer *count = call(f, "POST", "/v1/messages/count_tokens",
                                    "{\"messages\":[{\"role\":\"user\",\"content\":\"" LONG_TEXT "\"}]}");
        struct answer *match;
        yyjson_val *a = yyjson_doc_ptr_get(tokens->doc, "/tokens"),
                   *b = yyjson_doc_ptr_get(chat->doc, "/prompt_token_ids");

        assert_true(yyjson_equals(a, b));
        assert_int_equal(yyjson_arr_size(a), number(tokens, "/count"));
        assert_int_equal(number(chat, "/usage/prompt_tokens"), number(tokens, "/count"));
        assert_int_equal(number(count, "/input_tokens"), number(tokens, "/count"));
        assert_int_equal(yyjson_arr_size(yyjson_doc_ptr_get(chat->doc, "/choices/0/token_ids")), 2);
        match = call(f, "POST", "/mock/match", CHAT);
        assert_int_equal(number(match, "/match_tokens"), 32);
        drop(tokens);
        drop(chat);
        drop(count);
        drop(match);
}

static void limits_are_refused(void **state)
{
        struct fixture *f = *state;
        char body[4096] = "{\"prompt\":\"";
        struct answer *a;

        memset(body + strlen(body), 'x', 2000); /* 500 tokens of 500 */
        strncat(body, "\"}", 3);
        a = call(f, "POST", "/v1/completions", body);
        assert_int_equal(a->status, 400);
        assert_string_equal(text(a, "/error/param"), "input_tokens");
        drop(a);
        a = call(f, "POST", "/v1/completions", "{\"prompt\":\"abcd\",\"max_tokens\":100000}");
        assert_int_equal(number(a, "/usage/completion_tokens"), 499);
        drop(a);
        a = call(f, "POST", "/v1/completions", "{\"prompt\":\"abcd\"}");
        assert_int_equal(number(a, "/usage/completion_tokens"), 64);
        assert_string_equal(text(a, "/choices/0/finish_reason"), "stop");
        drop(a);
        a = call(f, "POST", "/v1/messages", "{");
        assert_int_equal(a->status, 400);
        assert_string_equal(text(a, "/type"), "error");
        drop(a);
}

static void a_full_queue_says_503(void **state)
{
        struct fixture *f = *state;
        struct answer *a = test_calloc(6, sizeof(*a));
        unsigned refused = 0;

        /* Two run, two wait, the others are refused: at this speed the first ones take 499 * 18 ms / 1000 = 9
         * ms. */
        for (size_t i = 0; i < 6; i++)
                begin(f, &a[i], "POST", "/v1/completions", "{\"prompt\":\"abcd\",\"max_tokens\":499}");
        for (size_t i = 0; i < 6; i++) {
                finish(f, &a[i]);
                refused += a[i].status == 503;
                assert_true(a[i].status == 503 || a[i].status == 200);
        }
        assert_in_range(refused, 1, 4);
        assert_int_equal(ask(f, "/mock/requests", "/refused"), refused);
        test_free(a);
}

static void a_client_that_leaves_is_counted(void **state)
{
        struct fixture *f = *state;
        struct answer *a = test_malloc(sizeof(*a));
        struct net_request *request;

        /* Hung by a fault, so that it cannot end before. */
        set_fault(f, "{\"stall_after_tokens\":1,\"count\":1}");
        request = begin(f, a, "POST", "/v1/chat/completions", CHAT_STREAM);
        while (!strstr(a->body, "\"delta\":{\"content\":"))
                uv_run(&f->loop.uv, UV_RUN_ONCE);
        net_request_cancel(request);
        while (ask(f, "/mock/requests", "/aborted") == 0)
                ;
        assert_int_equal(ask(f, "/mock/state", "/running"), 0);
        assert_int_equal(ask(f, "/mock/requests", "/finished"), 0);
        test_free(a);
}

static void responses_can_be_continued(void **state)
{
        struct fixture *f = *state;
        struct answer *one =
                call(f, "POST", "/v1/responses", "{\"input\":\"" LONG_TEXT "\",\"max_output_tokens\":4}");
        struct answer *two, *three;
        char body[300], target[200];

        assert_int_equal(one->status, 200);
        assert_string_equal(text(one, "/status"), "incomplete");
        snprintf(body, sizeof(body),
                 "{\"input\":\"go on\",\"previous_response_id\":\"%s\",\"max_output_tokens\":2}",
                 text(one, "/id"));
        two = call(f, "POST", "/v1/responses", body);
        assert_int_equal(two->status, 200);
        /* All of the first one, its answer, an end, and the new turn: user, two pieces, end, assistant. */
        assert_int_equal(number(two, "/usage/input_tokens"), number(one, "/usage/total_tokens") + 1 + 5);
        /* The last token of the first answer was never computed. */
        assert_int_equal(number(two, "/usage/input_tokens_details/cached_tokens"),
                         (number(one, "/usage/total_tokens") - 1) / 16 * 16);
        snprintf(target, sizeof(target), "/v1/responses/%s", text(one, "/id"));
        three = call(f, "GET", target, "");
        assert_string_equal(text(three, "/id"), text(one, "/id"));
        drop(three);
        three = call(f, "POST", "/v1/responses",
                     "{\"input\":\"x\",\"previous_response_id\":\"resp_unknown\"}");
        assert_int_equal(three->status, 404);
        drop(one);
        drop(two);
        drop(three);
}

static void restart_and_flush_empty_the_cache(void **state)
{
        struct fixture *f = *state;
        static const char *const ways[] = {"/reset_prefix_cache", "/mock/flush", "/mock/restart"};

        for (size_t i = 0; i < 3; i++) {
                struct answer *a = call(f, "POST", "/v1/chat/completions", CHAT);

                assert_int_equal(number(a, "/usage/prompt_tokens_details/cached_tokens"), 0);
                drop(a);
                a = call(f, "POST", ways[i], "");
                assert_int_equal(a->status, 200);
                drop(a);
        }
        assert_int_equal(ask(f, "/mock/state", "/cached_blocks"), 0);
}

static void a_restart_cuts_and_refuses_for_a_while(void **state)
{
        struct fixture *f = *state;
        struct answer *a = test_malloc(sizeof(*a)), *b;

        set_fault(f, "{\"hang\":true}");
        begin(f, a, "POST", "/v1/chat/completions", CHAT);
        while (ask(f, "/mock/requests", "/requests") == 0)
                ;
        set_fault(f, "{}");
        b = call(f, "POST", "/mock/restart", "{\"down_ms\":50}");
        assert_int_equal(b->status, 200);
        drop(b);
        finish(f, a);
        assert_int_equal(a->error, NET_REQUEST_CLOSED);
        assert_int_equal(a->status, 0);
        b = call(f, "GET", "/health", "");
        assert_int_equal(b->error, NET_REQUEST_CONNECT);
        while (b->error == NET_REQUEST_CONNECT) {
                drop(b);
                uv_run(&f->loop.uv, UV_RUN_NOWAIT);
                b = call(f, "GET", "/health", "");
        }
        assert_int_equal(b->status, 200);
        assert_int_equal(ask(f, "/mock/requests", "/aborted"), 1);
        drop(b);
        test_free(a);
}

static void faults_strike_as_told(void **state)
{
        struct fixture *f = *state;
        static const struct {
                const char *fault;
                enum net_request_error error;
                unsigned status;
                const char *has, *has_not;
        } cases[] = {
                {"{\"status\":503,\"retry_after\":7,\"count\":1}", NET_REQUEST_OK, 503, "\"code\":503",
                 "data:"},
                {"{\"status\":418,\"body\":\"tea\",\"count\":1}", NET_REQUEST_OK, 418, "tea", "data:"},
                {"{\"cut\":\"reset\",\"count\":1}", NET_REQUEST_CLOSED, 0, "", "data:"},
                {"{\"cut\":\"close\",\"count\":1}", NET_REQUEST_CLOSED, 0, "", "data:"},
                {"{\"cut\":\"close\",\"cut_at\":\"head\",\"count\":1}", NET_REQUEST_CLOSED, 200, "", "data:"},
                {"{\"cut\":\"reset\",\"cut_at\":\"tokens\",\"cut_after_tokens\":2,\"count\":1}",
                 NET_REQUEST_CLOSED, 200, "", "[DONE]"},
                {"{\"cut\":\"close\",\"cut_at\":\"tokens\",\"cut_after_tokens\":2,\"count\":1}",
                 NET_REQUEST_CLOSED, 200, "\"delta\":{\"content\":", "finish_reason\":\"length"},
                {"{\"cut\":\"mid_chunk\",\"cut_at\":\"tokens\",\"cut_after_tokens\":2,\"count\":1}",
                 NET_REQUEST_CLOSED, 200, "data: {\"id\":\"cmpl-", "[DONE]"},
                {"{\"error_after_tokens\":2,\"count\":1}", NET_REQUEST_OK, 200, "InternalServerError",
                 "finish_reason\":\"length"},
                {"{\"delay_head_ms\":20,\"count\":1}", NET_REQUEST_OK, 200, "[DONE]", "error"},
                {"{\"chunk_delay_ms\":5,\"count\":1}", NET_REQUEST_OK, 200, "[DONE]", "error"},
                {"{\"stall_after_tokens\":2,\"stall_ms\":20,\"count\":1}", NET_REQUEST_OK, 200, "[DONE]",
                 "error"},
        };

        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                struct answer *a;
                uint64_t began;

                set_fault(f, cases[i].fault);
                began = uv_hrtime();
                a = call(f, "POST", "/v1/chat/completions", CHAT_STREAM);
                assert_int_equal(a->error, cases[i].error);
                assert_int_equal(a->status, cases[i].status);
                assert_non_null(strstr(a->body, cases[i].has));
                assert_null(strstr(a->body, cases[i].has_not));
                if (strstr(cases[i].fault, "_ms"))
                        assert_true(uv_hrtime() - began >= 12000000);
                if (strstr(cases[i].fault, "retry_after"))
                        assert_non_null(strstr(a->headers, "retry-after: 7\n"));
                drop(a);
                a = call(f, "POST", "/v1/chat/completions", CHAT_STREAM); /* count 1: the next one is well */
                assert_int_equal(a->status, 200);
                assert_string_equal(a->body + a->len - 14, "data: [DONE]\n\n");
                drop(a);
                assert_int_equal(ask(f, "/mock/state", "/running"), 0);
        }
}

static void faults_skip_and_whole_answers_fail_too(void **state)
{
        struct fixture *f = *state;
        struct answer *a;

        set_fault(f, "{\"status\":500,\"skip\":1,\"count\":2}");
        for (unsigned i = 0; i < 4; i++) {
                a = call(f, "POST", "/v1/chat/completions", CHAT);
                assert_int_equal(a->status, i == 1 || i == 2 ? 500 : 200);
                drop(a);
        }
        set_fault(f, "{\"error_after_tokens\":1,\"count\":1}");
        a = call(f, "POST", "/v1/chat/completions", CHAT);
        assert_int_equal(a->status, 500);
        drop(a);
        set_fault(f, "{\"cut\":\"close\",\"cut_at\":\"head\",\"count\":1}");
        a = call(f, "POST", "/v1/chat/completions", CHAT);
        assert_int_equal(a->error, NET_REQUEST_CLOSED);
        assert_int_equal(a->status, 200);
        drop(a);
        a = call(f, "POST", "/mock/fault", "{\"delay\":1}");
        assert_int_equal(a->status, 400);
        assert_non_null(strstr(a->body, "there is no fault named 'delay'"));
        drop(a);
        a = call(f, "POST", "/mock/fault", "{\"cut\":\"sometimes\"}");
        assert_int_equal(a->status, 400);
        assert_non_null(strstr(a->body, "cut must be one of none|reset|close|mid_chunk"));
        drop(a);
}

static void probes_fail_apart_from_the_work(void **state)
{
        struct fixture *f = *state;
        struct answer *a, *b;

        set_fault(f, "{\"health\":\"error\",\"models\":\"error\",\"metrics\":\"error\"}");
        static const char *const paths[] = {"/health", "/v1/models", "/metrics"};
        for (size_t i = 0; i < 3; i++) {
                a = call(f, "GET", paths[i], "");
                assert_int_equal(a->status, 503);
                drop(a);
        }
        a = call(f, "POST", "/v1/chat/completions", CHAT);
        assert_int_equal(a->status, 200);
        drop(a);
        set_fault(f, "{\"metrics\":\"frozen\"}");
        a = call(f, "GET", "/metrics", "");
        drop(call(f, "POST", "/v1/chat/completions", CHAT));
        b = call(f, "GET", "/metrics", "");
        assert_string_equal(a->body, b->body);
        drop(b);
        set_fault(f, "{\"hang\":true}");
        b = call(f, "GET", "/health", ""); /* hangs while health is fine */
        assert_int_equal(b->status, 200);
        drop(a);
        drop(b);
}

static double metric(const struct answer *page, const char *name)
{
        const char *at = page->body;
        size_t len = strlen(name);

        while ((at = strstr(at, name))) {
                if ((at == page->body || at[-1] == '\n') && at[len] == ' ')
                        return strtod(at + len, NULL);
                at += len;
        }
        fail_msg("no metric %s", name);
        return 0;
}

static void metrics_have_vllms_names(void **state)
{
        struct fixture *f = *state;
        struct answer *page;

        drop(call(f, "POST", "/v1/chat/completions", CHAT));
        drop(call(f, "POST", "/v1/chat/completions", CHAT));
        page = call(f, "GET", "/metrics", "");
#define LABELS "{engine=\"0\",model_name=\"tiny\"}"
        assert_true(metric(page, "vllm:num_requests_running" LABELS) == 0);
        assert_true(metric(page, "vllm:num_requests_waiting" LABELS) == 0);
        assert_true(metric(page, "vllm:kv_cache_usage_perc" LABELS) == 0);
        assert_true(metric(page, "vllm:prompt_tokens_total" LABELS) ==
                    (double)(2 * ((strlen(LONG_TEXT) + 3) / 4 + 4)));
        assert_true(metric(page, "vllm:prefix_cache_hits_total" LABELS) == 32);
        assert_true(metric(page, "vllm:generation_tokens_total" LABELS) == 8);
        assert_true(metric(page, "vllm:time_to_first_token_seconds_count" LABELS) == 2);
        assert_true(metric(page, "vllm:time_to_first_token_seconds_bucket{engine=\"0\",model_name=\"tiny\","
                                 "le=\"+Inf\"}") == 2);
        assert_true(metric(page, "vllm:inter_token_latency_seconds_count" LABELS) == 6);
        assert_non_null(strstr(page->body, "vllm:cache_config_info{block_size=\"16\""));
        assert_non_null(strstr(page->body, "kv_cache_size_tokens=\"1039\",num_gpu_blocks=\"65\""));
        drop(page);
}

static void bodies_and_headers_are_recorded(void **state)
{
        struct fixture *f = *state;
        struct answer *a;

        drop(call(f, "POST", "/v1/chat/completions?x=1", CHAT));
        a = call(f, "GET", "/mock/requests?full=1", "");
        assert_string_equal(text(a, "/list/0/target"), "/v1/chat/completions?x=1");
        assert_string_equal(text(a, "/list/0/body"), CHAT);
        assert_string_equal(text(a, "/list/0/headers/0/0"), "host");
        assert_string_equal(text(a, "/list/0/headers/0/1"), "mock");
        assert_string_equal(text(a, "/list/0/state"), "finished");
        assert_int_equal(number(a, "/list/0/body_bytes"), strlen(CHAT));
        drop(a);
        a = call(f, "DELETE", "/mock/requests", "");
        drop(a);
        assert_int_equal(ask(f, "/mock/requests", "/requests"), 0);
}

static void paths_and_methods_are_checked(void **state)
{
        struct fixture *f = *state;
        static const struct {
                const char *method, *path;
                unsigned status;
        } cases[] = {{"GET", "/nope", 404},        {"GET", "/v1/chat/completions", 405},
                     {"POST", "/health", 405},     {"GET", "/tokenize", 405},
                     {"GET", "/version", 200},     {"GET", "/v1/models", 200},
                     {"GET", "/mock/nothing", 404}};

        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                struct answer *a = call(f, cases[i].method, cases[i].path, "");

                assert_int_equal(a->status, cases[i].status);
                drop(a);
        }
}

static void the_models_page_is_vllms(void **state)
{
        struct fixture *f = *state;
        struct answer *a = call(f, "GET", "/v1/models", "");
        char path[512];
        yyjson_doc *recorded;
        yyjson_val *want, *got, *key;
        yyjson_obj_iter iter;

        snprintf(path, sizeof(path), "%s/vllm/models.json", TEST_DATA);
        recorded = yyjson_read_file(path, 0, NULL, NULL);
        assert_non_null(recorded);
        for (size_t i = 0; i < 2; i++) {
                want = yyjson_arr_get(yyjson_obj_get(yyjson_doc_get_root(recorded), "data"), i);
                got = yyjson_arr_get(yyjson_obj_get(yyjson_doc_get_root(a->doc), "data"), i);
                assert_int_equal(yyjson_obj_size(want), yyjson_obj_size(got));
                iter = yyjson_obj_iter_with(want);
                while ((key = yyjson_obj_iter_next(&iter))) {
                        yyjson_val *x = yyjson_obj_iter_get_val(key),
                                   *y = yyjson_obj_get(got, yyjson_get_str(key));

                        assert_non_null(y);
                        assert_int_equal(yyjson_get_type(x), yyjson_get_type(y));
                        /* Equal but for what differs between any two servers. */
                        if (!yyjson_equals_str(key, "created") && !yyjson_equals_str(key, "permission") &&
                            !yyjson_equals_str(key, "max_model_len"))
                                assert_true(yyjson_equals(x, y));
                }
        }
        yyjson_doc_free(recorded);
        drop(a);
}

/* Two engines on one port would each get half of the requests, and nobody would be told. */
static void a_taken_port_is_refused(void **state)
{
        struct fixture *f = *state;
        struct sim_mock_options options;
        struct sockaddr_storage addr = f->addr;
        int error = 0;

        sim_mock_defaults(&options);
        assert_null(sim_mock_new(&f->loop, &addr, &options, &error));
        assert_int_equal(error, UV_EADDRINUSE);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(hits_and_usage_add_up, setup, teardown),
                cmocka_unit_test_setup_teardown(streams_end_with_usage, setup, teardown),
                cmocka_unit_test_setup_teardown(namespaces_do_not_share, setup, teardown),
                cmocka_unit_test_setup_teardown(tokens_agree_everywhere, setup, teardown),
                cmocka_unit_test_setup_teardown(limits_are_refused, setup, teardown),
                cmocka_unit_test_setup_teardown(a_full_queue_says_503, setup, teardown),
                cmocka_unit_test_setup_teardown(a_client_that_leaves_is_counted, setup, teardown),
                cmocka_unit_test_setup_teardown(responses_can_be_continued, setup, teardown),
                cmocka_unit_test_setup_teardown(restart_and_flush_empty_the_cache, setup, teardown),
                cmocka_unit_test_setup_teardown(a_restart_cuts_and_refuses_for_a_while, setup, teardown),
                cmocka_unit_test_setup_teardown(faults_strike_as_told, setup, teardown),
                cmocka_unit_test_setup_teardown(faults_skip_and_whole_answers_fail_too, setup, teardown),
                cmocka_unit_test_setup_teardown(probes_fail_apart_from_the_work, setup, teardown),
                cmocka_unit_test_setup_teardown(metrics_have_vllms_names, setup, teardown),
                cmocka_unit_test_setup_teardown(bodies_and_headers_are_recorded, setup, teardown),
                cmocka_unit_test_setup_teardown(paths_and_methods_are_checked, setup, teardown),
                cmocka_unit_test_setup_teardown(the_models_page_is_vllms, setup, teardown),
                cmocka_unit_test_setup_teardown(a_taken_port_is_refused, setup, teardown),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
