/* SPDX-License-Identifier: Apache-2.0 */
#include "load.h"
#include "reply.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define IDLE_CONNS_MAX  4096
#define IDLE_TIMEOUT_MS 4000 /* below uvicorn's 5 s */

struct call {
        struct call *prev, *next; /* of those under way */
        struct sim_load *load;
        struct net_request *request;
        uint32_t session, turn;
        uint64_t intended_ns;
        uint64_t first_ns, last_ns; /* pieces of content; 0: none yet */
        unsigned status;
        struct sim_reply reply;
        struct sim_buf body;
        struct kvr_slice *answers; /* of the session so far; owned, text included */
        int64_t predicted;
        char replica[128];
        char error[160]; /* beginning of a body that is no answer */
        size_t error_len;
};

struct due {
        double at_s;
        uint32_t session, turn;
        struct kvr_slice *answers;
};

struct sim_load {
        struct sim_load_options options;
        struct net_client *client;
        uv_timer_t timer;
        uint64_t start_ns;
        struct call calls; /* sentinel */
        uint32_t in_flight, done, total;
        struct due *heap; /* requests by their time: binary heap */
        size_t heap_len;
        uint32_t next_session; /* closed loop */
        double last_start_s;   /* when the last session begins: from then on the load only ebbs */
        struct sim_result result;
        bool stopped, told, sending;
};

/* ---- what is to be sent ------------------------------------------------------------------------------- */

static void heap_push(struct sim_load *load, struct due due)
{
        size_t i = load->heap_len++;

        while (i > 0 && load->heap[(i - 1) / 2].at_s > due.at_s) {
                load->heap[i] = load->heap[(i - 1) / 2];
                i = (i - 1) / 2;
        }
        load->heap[i] = due;
}

static struct due heap_pop(struct sim_load *load)
{
        struct due first = load->heap[0], last = load->heap[--load->heap_len];
        size_t i = 0;

        for (;;) {
                size_t child = 2 * i + 1;

                if (child >= load->heap_len)
                        break;
                if (child + 1 < load->heap_len && load->heap[child + 1].at_s < load->heap[child].at_s)
                        child++;
                if (load->heap[child].at_s >= last.at_s)
                        break;
                load->heap[i] = load->heap[child];
                i = child;
        }
        load->heap[i] = last;
        return first;
}

static void answers_free(struct kvr_slice *answers, uint32_t count)
{
        for (uint32_t i = 0; answers && i < count; i++)
                free((char *)(uintptr_t)answers[i].data);
        free(answers);
}

static double now_s(const struct sim_load *load)
{
        return (double)(uv_hrtime() - load->start_ns) * 1e-9;
}

/* ---- one request -------------------------------------------------------------------------------------- */

static void call_free(struct call *call)
{
        call->prev->next = call->next;
        call->next->prev = call->prev;
        call->load->in_flight--;
        answers_free(call->answers, call->turn);
        sim_reply_fini(&call->reply);
        sim_buf_fini(&call->body);
        free(call);
}

static void on_piece(void *ctx)
{
        struct call *call = ctx;
        struct sim_load *load = call->load;
        uint64_t now = uv_hrtime();

        if (!call->first_ns)
                call->first_ns = now;
        else if (call->reply.stream)
                sim_result_itl(&load->result,
                               (double)(now - call->last_ns) * 1e-9 * load->options.time_scale);
        call->last_ns = now;
}

static int64_t count_of(struct kvr_slice text)
{
        int64_t value = 0;

        if (text.len == 0 || text.len > 15)
                return -1;
        for (size_t i = 0; i < text.len; i++) {
                if (text.data[i] < '0' || text.data[i] > '9')
                        return -1;
                value = value * 10 + (text.data[i] - '0');
        }
        return value;
}

static void on_head(void *ctx, const struct http1_head *head)
{
        struct call *call = ctx;
        const struct http1_field *replica = http1_find(head, "x-kvroute-replica");
        const struct http1_field *match = http1_find(head, "x-kvroute-match-tokens");

        call->status = head->status;
        if (replica)
                snprintf(call->replica, sizeof(call->replica), "%.*s",
                         replica->value.len > 127 ? 127 : (int)replica->value.len, replica->value.data);
        if (match)
                call->predicted = count_of(match->value);
}

static void on_chunk(void *ctx, const char *data, size_t len)
{
        struct call *call = ctx;

        if (call->status == 200) {
                sim_reply_feed(&call->reply, data, len);
                return;
        }
        for (size_t i = 0; i < len && call->error_len + 1 < sizeof(call->error); i++)
                call->error[call->error_len++] = (unsigned char)data[i] < 0x20 ? ' ' : data[i];
}

static void note_error(struct call *call, enum net_request_error error)
{
        char *text = call->load->result.first_error;
        size_t size = sizeof(call->load->result.first_error);

        if (text[0])
                return;
        if (error != NET_REQUEST_OK)
                snprintf(text, size, "%s%s", net_request_error_text(error),
                         call->status ? ", after the head" : "");
        else if (call->status != 200)
                snprintf(text, size, "status %u: %.*s", call->status, (int)call->error_len, call->error);
        else
                snprintf(text, size, "%s",
                         call->reply.error ? "the answer held an error" : "the answer ended too early");
}

static void follow(struct sim_load *load, const struct call *call, double latency_s)
{
        double at_s = (double)(call->intended_ns - load->start_ns) * 1e-9;

        if (load->options.concurrency == 0 && at_s <= load->last_start_s)
                sim_trend_add(&load->result.trend, at_s * load->options.time_scale, latency_s);
}

static void book(struct call *call, enum net_request_error error)
{
        struct sim_load *load = call->load;
        double scale = load->options.time_scale;
        struct sim_outcome outcome = {
                .status = call->status,
                .broken = error != NET_REQUEST_OK ||
                          (call->status == 200 && (call->reply.error || !call->reply.finished)),
                .ttft_s = (double)NAN,
                .e2e_s = (double)(uv_hrtime() - call->intended_ns) * 1e-9 * scale,
                .prompt_tokens = call->reply.prompt_tokens,
                .cached_tokens = call->reply.cached_tokens,
                .completion_tokens = call->reply.completion_tokens,
                .predicted_tokens = call->predicted,
                .replica = sim_slice(call->replica),
        };

        if (call->first_ns && call->reply.stream)
                outcome.ttft_s = (double)(call->first_ns - call->intended_ns) * 1e-9 * scale;
        if (outcome.broken || call->status != 200)
                note_error(call, error);
        sim_result_add(&load->result, &outcome);
        if (!outcome.broken && call->status == 200)
                follow(load, call, isfinite(outcome.ttft_s) ? outcome.ttft_s : outcome.e2e_s);
}

static void send_next(struct sim_load *load);

static void finish_if_done(struct sim_load *load)
{
        if (load->told || load->in_flight || (!load->stopped && load->done < load->total))
                return;
        load->told = true;
        load->result.duration_s = now_s(load) * load->options.time_scale;
        load->options.on_done(load->options.ctx);
}

/* The turns of a session that can no longer be sent count as done: their conversation is broken. */
static void give_up_session(struct sim_load *load, uint32_t session, uint32_t turn)
{
        load->done += sim_workload_session(load->options.workload, session)->turns - turn;
}

static void continue_session(struct call *call)
{
        struct sim_load *load = call->load;
        const struct sim_session *session = sim_workload_session(load->options.workload, call->session);
        struct due due = {.session = call->session, .turn = call->turn + 1, .answers = call->answers};
        char *text;

        if (due.turn == session->turns)
                return;
        text = malloc(call->reply.text.len + 1);
        if (!text) {
                give_up_session(load, due.session, due.turn);
                return;
        }
        if (call->reply.text.len)
                memcpy(text, call->reply.text.data, call->reply.text.len);
        due.answers[call->turn] = (struct kvr_slice){text, call->reply.text.len};
        call->answers = NULL;
        due.at_s = now_s(load);
        if (load->options.concurrency == 0)
                due.at_s = fmax(due.at_s, sim_workload_turn_s(load->options.workload, due.session, due.turn));
        heap_push(load, due);
}

static void on_done(void *ctx, enum net_request_error error, unsigned status, struct kvr_slice body)
{
        struct call *call = ctx;
        struct sim_load *load = call->load;

        (void)status;
        (void)body;
        if (error == NET_REQUEST_OK && call->status == 200)
                sim_reply_end(&call->reply);
        book(call, error);
        load->done++;
        if (error == NET_REQUEST_OK && call->status == 200 && call->reply.finished && !call->reply.error)
                continue_session(call);
        else
                give_up_session(load, call->session, call->turn + 1);
        call_free(call);
        if (load->options.on_progress)
                load->options.on_progress(load->options.ctx, load->done, load->total);
        send_next(load);
        finish_if_done(load);
}

static bool call_start(struct sim_load *load, const struct due *due)
{
        const struct sim_workload_options *wo = sim_workload_options(load->options.workload);
        const struct sim_session *session = sim_workload_session(load->options.workload, due->session);
        struct call *call = calloc(1, sizeof(*call));
        uint64_t now;
        struct net_request_spec spec = {
                .addr = (const struct sockaddr *)&load->options.addr,
                .host = load->options.host,
                .method = "POST",
                .target = load->options.target,
                .headers = load->options.headers,
                .timeout_ms = load->options.timeout_ms,
                .again = true, /* llama.cpp closes behind a stream that promised to be kept */
                .on_head = on_head,
                .on_chunk = on_chunk,
                .on_done = on_done,
                .ctx = call,
        };

        if (!call)
                return false;
        call->load = load;
        call->session = due->session;
        call->turn = due->turn;
        call->predicted = -1;
        call->answers = due->answers ? due->answers : calloc(session->turns, sizeof(*call->answers));
        call->prev = load->calls.prev;
        call->next = &load->calls;
        call->prev->next = call->next->prev = call;
        load->in_flight++;
        sim_reply_init(&call->reply, wo->stream, due->turn + 1 < session->turns);
        call->reply.on_piece = on_piece;
        call->reply.ctx = call;
        sim_workload_body(load->options.workload, due->session, due->turn, call->answers, &call->body);
        spec.body = sim_buf_slice(&call->body);
        now = uv_hrtime();
        call->intended_ns = load->options.concurrency ? now : load->start_ns + (uint64_t)(due->at_s * 1e9);
        if (load->options.concurrency == 0)
                sim_samples_add(&load->result.late, (double)(now - call->intended_ns) * 1e-9);
        call->request = call->answers && !call->body.failed ? net_request_send(load->client, &spec) : NULL;
        if (!call->request) {
                call_free(call);
                return false;
        }
        return true;
}

static void start_due(struct sim_load *load, struct due due)
{
        struct sim_outcome failed = {.ttft_s = (double)NAN};

        if (call_start(load, &due))
                return;
        sim_result_add(&load->result, &failed);
        if (!load->result.first_error[0])
                snprintf(load->result.first_error, sizeof(load->result.first_error), "out of memory");
        load->done++;
        give_up_session(load, due.session, due.turn + 1);
}

static void on_timer(uv_timer_t *timer)
{
        send_next(timer->data);
        finish_if_done(timer->data);
}

static void send_open(struct sim_load *load)
{
        double wait_s;

        while (load->heap_len && load->heap[0].at_s <= now_s(load))
                start_due(load, heap_pop(load));
        if (load->heap_len == 0)
                return;
        wait_s = load->heap[0].at_s - now_s(load);
        uv_update_time(&load->options.loop->uv);
        (void)uv_timer_start(&load->timer, on_timer, wait_s > 0 ? (uint64_t)ceil(wait_s * 1000) : 0, 0);
}

static void send_closed(struct sim_load *load)
{
        uint32_t sessions = sim_workload_session_count(load->options.workload);

        while (load->in_flight < load->options.concurrency) {
                if (load->heap_len)
                        start_due(load, heap_pop(load));
                else if (load->next_session < sessions)
                        start_due(load, (struct due){.session = load->next_session++});
                else
                        break;
        }
}

/* Sending never calls back, but this is called from callbacks of requests that it may outlive. */
static void send_next(struct sim_load *load)
{
        if (load->stopped || load->sending)
                return;
        load->sending = true;
        if (load->options.concurrency)
                send_closed(load);
        else
                send_open(load);
        load->sending = false;
}

/* ---- life --------------------------------------------------------------------------------------------- */

struct sim_load *sim_load_start(const struct sim_load_options *options)
{
        struct sim_load *load = calloc(1, sizeof(*load));
        uint32_t sessions = sim_workload_session_count(options->workload);

        if (!load)
                return NULL;
        load->options = *options;
        load->total = sim_workload_requests(options->workload);
        load->calls.prev = load->calls.next = &load->calls;
        load->heap = calloc((size_t)sessions + 1, sizeof(*load->heap));
        load->client = net_client_new(options->loop, IDLE_CONNS_MAX, IDLE_TIMEOUT_MS);
        if (!load->heap || !load->client) {
                net_client_free(load->client);
                free(load->heap);
                free(load);
                return NULL;
        }
        (void)uv_timer_init(&options->loop->uv, &load->timer);
        load->timer.data = load;
        load->start_ns = uv_hrtime();
        if (options->concurrency == 0) {
                for (uint32_t i = 0; i < sessions; i++) {
                        double at_s = sim_workload_turn_s(options->workload, i, 0);

                        heap_push(load, (struct due){.at_s = at_s, .session = i});
                        load->last_start_s = fmax(load->last_start_s, at_s);
                }
        }
        /* From the loop, so that the caller has its pointer before anything comes back. */
        (void)uv_timer_start(&load->timer, on_timer, 0, 0);
        return load;
}

void sim_load_stop(struct sim_load *load)
{
        load->stopped = true;
        (void)uv_timer_stop(&load->timer);
        for (struct call *call = load->calls.next, *after; call != &load->calls; call = after) {
                after = call->next;
                net_request_cancel(call->request);
                call_free(call);
        }
        finish_if_done(load);
}

struct sim_result *sim_load_result(struct sim_load *load)
{
        return &load->result;
}

uint32_t sim_load_in_flight(const struct sim_load *load)
{
        return load->in_flight;
}

static void on_timer_closed(uv_handle_t *handle)
{
        free(handle->data);
}

void sim_load_free(struct sim_load *load)
{
        if (!load)
                return;
        load->told = true;
        sim_load_stop(load);
        for (size_t i = 0; i < load->heap_len; i++)
                answers_free(load->heap[i].answers, load->heap[i].turn);
        free(load->heap);
        net_client_free(load->client);
        sim_result_fini(&load->result);
        uv_close((uv_handle_t *)&load->timer, on_timer_closed);
}
