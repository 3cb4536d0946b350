/* SPDX-License-Identifier: Apache-2.0 */
#include "mock_int.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

void sim_mock_defaults(struct sim_mock_options *options)
{
        *options = (struct sim_mock_options){
                .engine =
                        {
                                .block_tokens = 16,
                                .capacity_blocks = 16384,
                                .max_running = 256,
                                .step_tokens = 8192,
                                .cost = *sim_cost_preset(0),
                        },
                .speed = 1,
                .models = "mock",
                .max_model_len = 131072,
                .output_tokens = 64,
                .stream_interval = 1,
                .prompt_tokens_details = true,
                .keep_alive_ms = 5000,
                .body_bytes_max = 64 * 1024 * 1024,
                .record_max = 1024,
        };
}

uint64_t mock_virtual_ns(const struct sim_mock *mock)
{
        return (uint64_t)((double)(uv_hrtime() - mock->epoch_ns) * mock->options.speed);
}

double mock_wall_s(const struct sim_mock *mock)
{
        return (double)(uv_hrtime() - mock->epoch_ns) * 1e-9;
}

void mock_respond(struct sim_mock *mock, struct net_exchange *exchange, unsigned status, struct sim_buf *body)
{
        static const char no_memory[] = "{\"detail\":\"out of memory\"}";

        (void)mock;
        if (body->failed)
                net_respond(exchange, 500, MOCK_JSON, MOCK_SERVER, sim_slice(no_memory));
        else
                net_respond(exchange, status, MOCK_JSON, MOCK_SERVER, sim_buf_slice(body));
}

/* ---- the clock ---------------------------------------------------------------------------------------- */

static void on_timer(uv_timer_t *timer)
{
        mock_pump(timer->data);
}

/* Requests whose delay is over. */
static void run_due(struct sim_mock *mock, uint64_t now_ms)
{
        for (struct mock_request *request = mock->requests.next; request != &mock->requests;) {
                if (request->due_ms > now_ms) {
                        request = request->next;
                        continue;
                }
                request->due_ms = UINT64_MAX;
                mock_infer_due(request); /* may end this request and others */
                request = mock->requests.next;
        }
}

static uint64_t first_due(const struct sim_mock *mock)
{
        uint64_t first = UINT64_MAX;

        for (const struct mock_request *request = mock->requests.next; request != &mock->requests;
             request = request->next)
                first = request->due_ms < first ? request->due_ms : first;
        return first;
}

static void serve_again(struct sim_mock *mock);

void mock_pump(struct sim_mock *mock)
{
        uint64_t due, next_ns, now_ns, now_ms;
        struct sim_event event;
        double wait_ms;

        if (mock->pumping || mock->closing)
                return;
        mock->pumping = true;
        uv_update_time(&mock->loop->uv);
        now_ms = net_now_ms(mock->loop);
        if (mock->refuse_until_ms && mock->refuse_until_ms <= now_ms && !mock->server_closing)
                serve_again(mock);
        run_due(mock, now_ms);
        while (sim_engine_next(mock->engine, mock_virtual_ns(mock), &event))
                mock_infer_event(mock, &event);
        if (mock->events) {
                mock_events_take(mock->events, mock->engine);
                mock_events_publish(mock->events, mock_virtual_ns(mock));
        }
        next_ns = sim_engine_next_ns(mock->engine);
        now_ns = mock_virtual_ns(mock);
        mock->pumping = false;
        due = first_due(mock); /* delays that began just now, too */
        wait_ms = due == UINT64_MAX ? INFINITY : (double)(due > now_ms ? due - now_ms : 0);
        if (next_ns != SIM_NEVER)
                wait_ms = fmin(
                        wait_ms,
                        next_ns <= now_ns ? 0 : ceil((double)(next_ns - now_ns) / mock->options.speed / 1e6));
        if (mock->refuse_until_ms && !mock->server_closing)
                wait_ms = fmin(wait_ms, (double)(mock->refuse_until_ms - now_ms));
        if (isinf(wait_ms))
                (void)uv_timer_stop(&mock->timer);
        else
                (void)uv_timer_start(&mock->timer, on_timer, (uint64_t)wait_ms, 0);
}

/* ---- requests ----------------------------------------------------------------------------------------- */

static void on_request(void *ctx, struct net_exchange *exchange)
{
        static const struct {
                const char *path;
                enum sim_api api;
        } routes[] = {
                {"/v1/chat/completions", SIM_API_CHAT},
                {"/v1/completions", SIM_API_COMPLETIONS},
                {"/v1/responses", SIM_API_RESPONSES},
                {"/v1/messages", SIM_API_MESSAGES},
        };
        struct sim_mock *mock = ctx;
        const struct http1_head *head = net_exchange_head(exchange);

        net_exchange_set_user(exchange, NULL);
        for (size_t i = 0; i < sizeof(routes) / sizeof(routes[0]); i++) {
                if (!sim_slice_is(head->path, routes[i].path))
                        continue;
                if (sim_slice_is(head->method, "POST"))
                        mock_infer(mock, exchange, routes[i].api);
                else
                        net_respond(exchange, 405, MOCK_JSON, MOCK_SERVER "allow: POST\r\n",
                                    sim_slice("{\"detail\":\"Method Not Allowed\"}"));
                return;
        }
        if (mock_control(mock, exchange))
                return;
        mock->probes++;
        if (!mock_pages(mock, exchange))
                net_respond(exchange, 404, MOCK_JSON, MOCK_SERVER, sim_slice("{\"detail\":\"Not Found\"}"));
}

static void on_gone(void *ctx, struct net_exchange *exchange)
{
        struct mock_request *request = net_exchange_user(exchange);

        (void)ctx;
        if (request)
                mock_infer_gone(request);
}

/* ---- life ---- */

static int serve(struct sim_mock *mock)
{
        struct net_server_options options = {
                .body_bytes_max = mock->options.body_bytes_max,
                .idle_timeout_ms = mock->options.keep_alive_ms,
                .on_request = on_request,
                .on_gone = on_gone,
                .ctx = mock,
        };
        int error = net_port_is_free(&mock->addr); /* sockets of this kind would share it without a word */

        if (error)
                return error;
        mock->server = net_server_new(mock->loop, &mock->addr, &options, &error);
        return mock->server ? 0 : error;
}

static void mock_free(struct sim_mock *mock)
{
        mock_events_close(mock->events);
        if (mock->stored)
                mock_stored_clear(mock);
        free(mock->stored);
        sim_records_fini(&mock->records);
        sim_engine_free(mock->engine);
        sim_buf_fini(&mock->buf);
        sim_buf_fini(&mock->frozen);
        free(mock->keys);
        free(mock->base_model);
        free(mock);
}

struct sim_mock *sim_mock_new(struct net_loop *loop, struct sockaddr_storage *addr,
                              const struct sim_mock_options *options, int *ret_error)
{
        struct sim_mock *mock = calloc(1, sizeof(*mock));
        int error = UV_ENOMEM;

        if (!mock)
                goto fail;
        mock->loop = loop;
        mock->addr = *addr;
        mock->options = *options;
        mock->requests.prev = mock->requests.next = &mock->requests;
        mock->epoch_ns = uv_hrtime();
        mock->started = (int64_t)time(NULL);
        sim_fault_init(&mock->fault);
        mock->options.engine.changes = options->events.endpoint && options->events.endpoint[0];
        mock->engine = sim_engine_new(&mock->options.engine);
        mock->base_model = strndup(options->models, strcspn(options->models, ","));
        if (options->store_responses)
                mock->stored = calloc(MOCK_STORED_MAX, sizeof(*mock->stored));
        if (!mock->engine || !mock->base_model || (options->store_responses && !mock->stored) ||
            !sim_records_init(&mock->records, options->record_max, options->record_bodies))
                goto fail;
        if (mock->options.engine.changes) {
                const char *why;

                mock->events = mock_events_new(loop, &options->events, options->engine.block_tokens,
                                               options->engine.capacity_blocks, &why);
                if (!mock->events) {
                        fprintf(stderr, "kvroute mock: events %s: %s\n", options->events.endpoint, why);
                        error = UV_EINVAL;
                        goto fail;
                }
        }
        error = serve(mock);
        if (error)
                goto fail;
        *addr = mock->addr;
        (void)uv_timer_init(&loop->uv, &mock->timer);
        mock->timer.data = mock;
        return mock;
fail:
        if (mock)
                mock_free(mock);
        *ret_error = error;
        return NULL;
}

static void on_timer_closed(uv_handle_t *handle)
{
        struct sim_mock *mock = handle->data;

        if (mock->on_closed)
                mock->on_closed(mock->closed_ctx);
        mock_free(mock);
}

static void on_server_closed(void *ctx)
{
        struct sim_mock *mock = ctx;

        mock->server_closing = false;
        if (mock->closing)
                uv_close((uv_handle_t *)&mock->timer, on_timer_closed);
        else
                mock_pump(mock);
}

void sim_mock_close(struct sim_mock *mock, void (*on_closed)(void *ctx), void *ctx)
{
        struct net_server *server = mock->server;

        mock->closing = true;
        mock->on_closed = on_closed;
        mock->closed_ctx = ctx;
        (void)uv_timer_stop(&mock->timer);
        mock->server = NULL;
        if (server)
                net_server_close(server, on_server_closed, mock);
        else if (!mock->server_closing)
                uv_close((uv_handle_t *)&mock->timer, on_timer_closed);
}

static void serve_again(struct sim_mock *mock)
{
        mock->refuse_until_ms = 0;
        if (serve(mock)) /* somebody took the port: try again until it is free */
                mock->refuse_until_ms = net_now_ms(mock->loop) + 100;
}

void mock_refuse(struct sim_mock *mock, uint32_t ms)
{
        struct net_server *server = mock->server;

        mock->refuse_until_ms = net_now_ms(mock->loop) + (ms ? ms : 1);
        if (!server)
                return;
        mock->server = NULL;
        mock->server_closing = true;
        net_server_close(server, on_server_closed, mock);
}

void sim_mock_set_fault(struct sim_mock *mock, const struct sim_fault *fault)
{
        bool was_frozen = mock->fault.metrics == SIM_PROBE_FROZEN;

        mock->fault = *fault;
        if (fault->metrics == SIM_PROBE_FROZEN && !was_frozen) {
                sim_buf_reset(&mock->frozen);
                mock_metrics_write(mock, &mock->frozen);
        }
        if (fault->refuse_ms) {
                mock->fault.refuse_ms = 0;
                mock_refuse(mock, fault->refuse_ms);
        }
        mock_pump(mock);
}

void sim_mock_restart(struct sim_mock *mock, uint32_t down_ms)
{
        if (mock->server)
                net_server_drop_all(mock->server);
        sim_engine_restart(mock->engine, mock_virtual_ns(mock));
        if (mock->events) {
                mock_events_take(mock->events, mock->engine);
                mock_events_restart(mock->events, down_ms);
        }
        if (mock->stored)
                mock_stored_clear(mock);
        memset(&mock->ttft, 0, sizeof(mock->ttft));
        memset(&mock->itl, 0, sizeof(mock->itl));
        memset(&mock->e2e, 0, sizeof(mock->e2e));
        memset(&mock->queue, 0, sizeof(mock->queue));
        mock->started = (int64_t)time(NULL);
        if (down_ms)
                mock_refuse(mock, down_ms);
        mock_pump(mock);
}
