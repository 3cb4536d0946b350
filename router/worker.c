/* SPDX-License-Identifier: Apache-2.0 */
/* A worker thread: its loop, listeners, the pool of idle upstream connections, the memory of exchanges. */
#include "proxy.h"

#include "adapters.h"

#include <stdlib.h>
#include <string.h>

#define FREE_EXCHANGES_MAX 64           /* kept for reuse per worker */
#define KEEP_BUFFER_BYTES  (256 * 1024) /* larger buffers are given back with their exchange */
#define KEEP_BODIES_BYTES \
        ((size_t)16 * 1024 * 1024) /* but bodies: fresh memory costs a page fault every 4 KB */
#define LINGER_MS     2000         /* for the last bytes of a connection that is to be closed */
#define PROBE_IDLE_MS 500          /* idle for longer, a connection may be closed at this very moment */
#define POOL_DISTRUST_MS \
        ((uint64_t)10 * 60 * 1000) /* no connection is reused after a replica sent what nobody asked for */

/* ---- pool ---- */

static struct upstream *bucket_of(struct worker *worker, const struct target *target)
{
        return &worker->pool[target->id % POOL_BUCKETS];
}

static void pool_unlink(struct upstream *upstream)
{
        net_deadline_disarm(&upstream->deadline);
        upstream->worker->pool_count[upstream->target->id % POOL_BUCKETS]--;
        upstream->prev->next = upstream->next;
        upstream->next->prev = upstream->prev;
        upstream->prev = upstream->next = NULL;
}

void upstream_close(struct upstream *upstream)
{
        if (upstream->next)
                pool_unlink(upstream);
        net_deadline_disarm(&upstream->deadline);
        net_close(upstream->conn);
        target_unref(upstream->target);
        free(upstream);
}

void worker_count(struct worker *worker, enum metric_id id, const struct kvr_slice *labels, uint64_t n)
{
        struct metrics *metrics = worker->proxy->metrics;

        if (n)
                metrics_add(metrics, worker->number, metrics_series(metrics, worker->number, id, labels), n);
}

void worker_observe(struct worker *worker, enum metric_id id, const struct kvr_slice *labels, double seconds)
{
        struct metrics *metrics = worker->proxy->metrics;

        metrics_observe(metrics, worker->number, metrics_series(metrics, worker->number, id, labels),
                        seconds);
}

void count_connection(struct worker *worker, const struct target *target, const char *kind)
{
        struct kvr_slice labels[2] = {slice_of(target->spec.name), slice_of(kind)};

        worker_count(worker, METRIC_POOL_REUSED, labels, 1);
}

/* Whether it leads to where the replica is now: its name may have got another address. */
bool upstream_is_current(const struct upstream *upstream)
{
        return upstream->addr_version ==
               atomic_load_explicit(&upstream->target->addr_version, memory_order_relaxed);
}

static bool is_distrusted(const struct worker *worker, const struct target *target)
{
        uint64_t stray_ms = atomic_load_explicit(&target->stray_ms, memory_order_relaxed);

        return stray_ms && net_now_ms(&worker->loop) < stray_ms + POOL_DISTRUST_MS;
}

void pool_distrust(struct worker *worker, struct target *target)
{
        struct kvr_slice labels[2] = {slice_of(target->spec.name), slice_of("protocol")};
        uint64_t now_ms = net_now_ms(&worker->loop);
        uint64_t before_ms = atomic_exchange(&target->stray_ms, now_ms ? now_ms : 1);

        worker_count(worker, METRIC_UPSTREAM_ERRORS, labels, 1);
        if (before_ms == 0 || now_ms >= before_ms + POOL_DISTRUST_MS)
                log_say(worker->proxy->log, LOG_WARN, NULL,
                        "replica %s: it sends bytes that belong to no request, so for %u minutes its "
                        "connections "
                        "are used for one request each",
                        target->spec.name, (unsigned)(POOL_DISTRUST_MS / 60000));
}

void pool_moved(struct upstream *upstream)
{
        if (upstream->exchange || !net_has_input(upstream->conn))
                return; /* an end is found when the connection is wanted, or in time */
        pool_distrust(upstream->worker, upstream->target);
        upstream_close(upstream);
}

/*
 * Whether the connection can take a request. A replica that ever sent what nobody asked for may have done so
 * a moment ago, and only the kernel knows.
 */
static bool is_usable(const struct worker *worker, const struct upstream *upstream)
{
        bool ask = net_now_ms(&worker->loop) - upstream->idle_since_ms >= PROBE_IDLE_MS ||
                   atomic_load_explicit(&upstream->target->stray_ms, memory_order_relaxed);

        return upstream_is_current(upstream) && !net_moved(upstream->conn) &&
               !(ask && net_stale(upstream->conn)) && !is_distrusted(worker, upstream->target);
}

struct upstream *pool_take(struct worker *worker, struct target *target)
{
        struct upstream *bucket = bucket_of(worker, target);

        /* The one used last first: the others may then grow old and go. */
        for (struct upstream *at = bucket->next, *next; at != bucket; at = next) {
                next = at->next;
                if (at->target != target)
                        continue;
                if (!is_usable(worker, at)) {
                        if (net_has_input(at->conn))
                                pool_distrust(worker, target);
                        count_connection(worker, target, "stale");
                        upstream_close(at);
                        continue;
                }
                pool_unlink(at);
                return at;
        }
        return NULL;
}

static bool pool_is_full(struct worker *worker, const struct target *target)
{
        struct upstream *bucket = bucket_of(worker, target);
        uint64_t count = 0;

        /* A walk over the connections only when there could be enough of them. */
        if (worker->pool_count[target->id % POOL_BUCKETS] < worker->config->pool_connections)
                return false;
        for (struct upstream *at = bucket->next; at != bucket; at = at->next)
                count += at->target == target;
        return count >= worker->config->pool_connections;
}

void pool_give(struct upstream *upstream)
{
        struct worker *worker = upstream->worker;
        struct upstream *bucket = bucket_of(worker, upstream->target);
        const struct router_config *config = worker->config;
        const struct engine_traits *traits =
                engine_traits((enum engine_kind)atomic_load(&upstream->target->engine));

        if (pool_is_full(worker, upstream->target) || config->pool_idle_ms == 0 || worker->stopping ||
            !upstream_is_current(upstream) || is_distrusted(worker, upstream->target) ||
            atomic_load_explicit(&upstream->target->removed, memory_order_relaxed) ||
            (traits->requests_per_connection && upstream->requests >= traits->requests_per_connection)) {
                upstream_close(upstream);
                return;
        }
        upstream->exchange = NULL;
        upstream->idle_since_ms = net_now_ms(&worker->loop);
        worker->pool_count[upstream->target->id % POOL_BUCKETS]++;
        upstream->next = bucket->next;
        upstream->prev = bucket;
        bucket->next->prev = upstream;
        bucket->next = upstream;
        net_deadline_arm(&worker->deadlines, &upstream->deadline, DEADLINE_POOL);
}

static void on_pool_deadline(struct net_deadline *deadline)
{
        upstream_close((struct upstream *)((char *)deadline - offsetof(struct upstream, deadline)));
}

/* ---- exchanges ---- */

struct exchange *exchange_new(struct worker *worker)
{
        struct exchange *exchange = worker->free_exchanges;

        if (exchange) {
                worker->free_exchanges = exchange->next_free;
                worker->free_exchange_count--;
                if (exchange->body.cap > KEEP_BUFFER_BYTES)
                        worker->kept_body_bytes -= exchange->body.cap;
        } else {
                exchange = calloc(1, sizeof *exchange);
                if (!exchange)
                        return NULL;
        }
        exchange->worker = worker;
        return exchange;
}

static void buffer_reset(struct worker *worker, struct exchange *exchange, struct text *text)
{
        if (text->cap > KEEP_BUFFER_BYTES) {
                if (text == &exchange->body && text->cap <= KEEP_BODIES_BYTES - worker->kept_body_bytes)
                        worker->kept_body_bytes += text->cap;
                else
                        text_free(text);
        }
        text_clear(text);
}

#define EXCHANGE_BUFFERS 11

static void exchange_buffers(struct exchange *exchange, struct text *ret[EXCHANGE_BUFFERS])
{
        struct text *const buffers[EXCHANGE_BUFFERS] = {
                &exchange->target, &exchange->fields,    &exchange->credentials,  &exchange->rank_fields,
                &exchange->body,   &exchange->decoded,   &exchange->answer_input, &exchange->answer_head,
                &exchange->held,   &exchange->edit_text, &exchange->request_head,
        };

        memcpy(ret, buffers, sizeof buffers);
}

static void exchange_destroy(struct exchange *exchange)
{
        struct text *buffers[EXCHANGE_BUFFERS];

        exchange_buffers(exchange, buffers);
        for (size_t i = 0; i < EXCHANGE_BUFFERS; i++)
                text_free(buffers[i]);
        usage_tap_fini(&exchange->tap);
        free(exchange);
}

/* Everything to zero but what stands behind `scanner`: buffers keep their memory, the rest is set before use. */
void exchange_free(struct exchange *exchange)
{
        struct worker *worker = exchange->worker;
        struct text *buffers[EXCHANGE_BUFFERS];

        usage_tap_rest(&exchange->tap);
        if (worker->free_exchange_count == FREE_EXCHANGES_MAX) {
                exchange_destroy(exchange);
                return;
        }
        exchange_buffers(exchange, buffers);
        for (size_t i = 0; i < EXCHANGE_BUFFERS; i++)
                buffer_reset(worker, exchange, buffers[i]);
        memset(exchange, 0, offsetof(struct exchange, scanner));
        exchange->model[0] = exchange->real_model[0] = '\0';
        exchange->upgrade_to[0] = exchange->content_encoding[0] = '\0';
        exchange->own_code = NULL;
        exchange->next_free = worker->free_exchanges;
        worker->free_exchanges = exchange;
        worker->free_exchange_count++;
}

static void exchanges_destroy(struct worker *worker)
{
        while (worker->free_exchanges) {
                struct exchange *exchange = worker->free_exchanges;

                worker->free_exchanges = exchange->next_free;
                exchange_destroy(exchange);
        }
}

/* ---- thread ---- */

static void set_limits(struct worker *worker)
{
        const struct router_config *config = worker->config;
        const uint64_t lengths[DEADLINE_KIND_COUNT] = {
                [DEADLINE_HEAD] = config->head_timeout_ms,
                [DEADLINE_KEEP_ALIVE] = config->keep_alive_ms,
                [DEADLINE_CONNECT] = config->connect_timeout_ms,
                [DEADLINE_FIRST_BYTE] = config->first_byte_timeout_ms,
                [DEADLINE_IDLE] = config->idle_timeout_ms,
                [DEADLINE_FIN_PROBE] = FIN_PROBE_MS,
                [DEADLINE_POOL] = config->pool_idle_ms,
                [DEADLINE_TICK] = TICK_MS,
                [DEADLINE_HEARTBEAT] = config->heartbeat_ms,
                [DEADLINE_LINGER] = LINGER_MS,
                [DEADLINE_CLIENT_IDLE] = config->idle_timeout_ms,
        };

        for (unsigned kind = 0; kind < DEADLINE_KIND_COUNT; kind++)
                net_deadlines_set(&worker->deadlines, (uint8_t)kind, lengths[kind]);
}

static void stop_step(struct worker *worker);

static void on_tick(struct net_deadline *deadline)
{
        struct worker *worker = (struct worker *)((char *)deadline - offsetof(struct worker, tick));

        queue_run(worker);
        if (worker->stopping)
                stop_step(worker);
        if (worker->queue_len || worker->stopping)
                net_deadline_arm(&worker->deadlines, &worker->tick, DEADLINE_TICK);
}

static void make_deadlines(struct worker *worker)
{
        static void (*const handlers[DEADLINE_KIND_COUNT])(struct net_deadline *) = {
                [DEADLINE_HEAD] = client_on_deadline,
                [DEADLINE_KEEP_ALIVE] = client_on_deadline,
                [DEADLINE_CONNECT] = route_on_connect_deadline,
                [DEADLINE_FIRST_BYTE] = relay_on_deadline,
                [DEADLINE_IDLE] = relay_on_deadline,
                [DEADLINE_FIN_PROBE] = client_on_fin_probe,
                [DEADLINE_POOL] = on_pool_deadline,
                [DEADLINE_TICK] = on_tick,
                [DEADLINE_HEARTBEAT] = relay_on_heartbeat,
                [DEADLINE_LINGER] = client_on_deadline,
                [DEADLINE_CLIENT_IDLE] = client_on_deadline,
        };

        net_deadlines_init(&worker->deadlines, &worker->loop);
        for (unsigned kind = 0; kind < DEADLINE_KIND_COUNT; kind++)
                (void)net_deadlines_kind(&worker->deadlines, 0, handlers[kind]);
        set_limits(worker);
}

static void listeners_close(struct worker *worker)
{
        if (!worker->listening)
                return;
        worker->listening = false;
        for (unsigned i = 0; i < worker->listener_count; i++)
                net_listener_close(&worker->listeners[i], NULL);
}

/* Neither the client nor the replica ends it: we do. */
static void cut_for_the_end(struct exchange *exchange)
{
        atomic_fetch_add(&exchange->worker->proxy->cut, 1);
        exchange->cut = true;
        exchange->own_code = "draining";
        exchange_end(exchange, KVR_END_FAILED);
}

/* Stopping: no new connections, idle ones are closed, running exchanges end by themselves or are cut in the
 * end. */
static void stop_step(struct worker *worker)
{
        bool abandon = atomic_load(&worker->proxy->abandon);

        for (struct client *client = worker->clients.next, *next; client != &worker->clients; client = next) {
                next = client->next;
                if (client->exchange && abandon)
                        cut_for_the_end(client->exchange);
                else if (client->exchange && client->exchange->state == EXCHANGE_BODY)
                        client_refuse_draining(client);
                else if (!client->exchange &&
                         (abandon || (client->state == CLIENT_IDLE && client->input.len == 0)))
                        client_close(client);
        }
        if (worker->clients.next != &worker->clients)
                return;
        for (unsigned i = 0; i < POOL_BUCKETS; i++) {
                while (worker->pool[i].next != &worker->pool[i])
                        upstream_close(worker->pool[i].next);
        }
        net_deadline_disarm(&worker->tick);
        uv_stop(&worker->loop.uv);
}

/*
 * Requests that wait at a replica found hanging, and of which the client has seen nothing, go elsewhere. What
 * still runs on a removed replica when its time to drain is over is cut.
 */
static void leave_replicas(struct worker *worker)
{
        for (struct client *client = worker->clients.next, *next; client != &worker->clients; client = next) {
                struct exchange *exchange = client->exchange;

                next = client->next;
                if (!exchange || !exchange->replica)
                        continue;
                if (atomic_load(&exchange->replica->abandoned))
                        relay_cut(exchange, "the replica was removed (drain-timeout)");
                else if (exchange->counted_waiting && !exchange->committed &&
                         exchange->sent_ns < atomic_load(&exchange->replica->stalled_ns))
                        route_failed(exchange, FAIL_STALL, true, 504, "upstream_timeout",
                                     "the replica hangs (stall-timeout)");
        }
}

static void on_wake(struct net_loop *loop)
{
        struct worker *worker = loop->owner;
        const struct router_config *config =
                atomic_load_explicit(&worker->proxy->config, memory_order_acquire);

        if (config != worker->config) {
                worker->config = config;
                set_limits(worker);
        }
        if (atomic_load(&worker->proxy->leave_count) != worker->leaves_seen) {
                worker->leaves_seen = atomic_load(&worker->proxy->leave_count);
                leave_replicas(worker);
        }
        if (worker->proxy->adapters)
                adapters_answer(worker);
        queue_run(worker);
        if (atomic_load(&worker->proxy->draining) && !worker->stopping) {
                worker->stopping = true;
                listeners_close(worker);
                net_deadline_arm(&worker->deadlines, &worker->tick, DEADLINE_TICK);
        }
        if (worker->stopping)
                stop_step(worker);
}

void worker_wake(struct worker *worker)
{
        net_loop_wake(&worker->loop);
}

int worker_init(struct worker *worker, struct proxy *proxy, unsigned number)
{
        const struct router_config *config = atomic_load(&proxy->config);
        int error;

        memset(worker, 0, sizeof *worker);
        worker->proxy = proxy;
        worker->number = number;
        worker->config = config;
        worker->parser = kvr_parser_new();
        worker->listeners = calloc(config->listen.count, sizeof *worker->listeners);
        if (!worker->parser || !worker->listeners)
                return UV_ENOMEM;
        error = net_loop_init(&worker->loop);
        if (error)
                return error;
        worker->loop.owner = worker;
        worker->loop.on_wake = on_wake;
        worker->clients.prev = worker->clients.next = &worker->clients;
        worker->queue.queue_prev = worker->queue.queue_next = &worker->queue;
        for (unsigned i = 0; i < POOL_BUCKETS; i++)
                worker->pool[i].prev = worker->pool[i].next = &worker->pool[i];
        make_deadlines(worker);
        return 0;
}

static void on_accept(struct net_listener *listener, struct net_conn *conn)
{
        client_accept(listener->owner, conn);
}

int worker_listen(struct worker *worker, unsigned index, struct sockaddr_storage *addr)
{
        int error = net_listen(&worker->listeners[index], &worker->loop, addr, on_accept, worker);

        if (!error) {
                worker->listener_count++;
                worker->listening = true;
        }
        return error;
}

static void *run(void *arg)
{
        struct worker *worker = arg;

        uv_run(&worker->loop.uv, UV_RUN_DEFAULT);
        atomic_fetch_sub(&worker->proxy->running, 1);
        net_loop_wake(worker->proxy->control_loop);
        return NULL;
}

int worker_start(struct worker *worker)
{
        int error;

        atomic_fetch_add(&worker->proxy->running, 1);
        error = pthread_create(&worker->thread, NULL, run, worker);
        if (error)
                atomic_fetch_sub(&worker->proxy->running, 1);
        return error;
}

void worker_fini(struct worker *worker)
{
        if (!worker->loop.read_buf)
                goto no_loop;
        listeners_close(worker);
        while (worker->clients.next != &worker->clients) {
                struct client *client = worker->clients.next;

                if (client->exchange)
                        exchange_abort(client->exchange);
                else
                        client_close(client);
        }
        for (unsigned i = 0; i < POOL_BUCKETS; i++) {
                while (worker->pool[i].next != &worker->pool[i])
                        upstream_close(worker->pool[i].next);
        }
        net_deadlines_close(&worker->deadlines);
        net_loop_fini(&worker->loop);
        exchanges_destroy(worker);
no_loop:
        fleet_snapshot_unref(worker->fleet);
        text_free(&worker->scratch);
        text_free(&worker->scratch2);
        kvr_parser_free(worker->parser);
        free(worker->listeners);
}
