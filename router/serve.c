/* SPDX-License-Identifier: Apache-2.0 */
#include "serve_int.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "adapters.h"
#include "help.h"
#include "host.h"
#include "serve.h"

#define FAMILIES_LOOK_MS 1000

extern char **environ;

static void endpoint_text(const struct sockaddr_storage *addr, char *ret, size_t size)
{
        char host[64] = "";

        if (addr->ss_family == AF_INET6) {
                uv_ip6_name((const struct sockaddr_in6 *)addr, host, sizeof host);
                snprintf(ret, size, "http://[%s]:%u", host,
                         ntohs(((const struct sockaddr_in6 *)addr)->sin6_port));
        } else {
                uv_ip4_name((const struct sockaddr_in *)addr, host, sizeof host);
                snprintf(ret, size, "http://%s:%u", host,
                         ntohs(((const struct sockaddr_in *)addr)->sin_port));
        }
}

static int resolve_endpoint(const struct config_endpoint *endpoint, struct sockaddr_storage *ret)
{
        return net_resolve(endpoint->host[0] ? endpoint->host : "0.0.0.0", endpoint->port, ret);
}

static void on_state(void *ctx, struct target *target, enum kvr_state from, enum kvr_state to,
                     const char *why)
{
        struct server *server = ctx;
        bool asked_for = to == KVR_DRAINING;

        log_say(server->proxy.log, to == KVR_READY || to == KVR_TRIAL || asked_for ? LOG_INFO : LOG_WARN,
                NULL, "replica %s: %s (was %s)%s%s", target->spec.name, kvr_state_name(to),
                kvr_state_name(from), to == KVR_READY ? "" : ": ",
                to == KVR_READY ? ""
                : asked_for     ? "as the admin API said"
                                : why);
}

void serve_wake(struct server *server)
{
        for (unsigned i = 0; i < server->proxy.worker_count; i++)
                worker_wake(&server->proxy.workers[i]);
}

static void on_leave(void *ctx)
{
        struct server *server = ctx;

        atomic_fetch_add(&server->proxy.leave_count, 1);
        serve_wake(server);
}

static void on_hangup(uv_signal_t *handle, int number)
{
        (void)number;
        serve_reload(handle->data);
}

/* A worker has ended, or something else woke us. */
static void on_wake(struct net_loop *loop)
{
        struct server *server = loop->owner;

        if (atomic_load(&server->proxy.running) == 0)
                uv_stop(&loop->uv);
}

/* ---- starting ---- */

static int fail(const char *what, const char *why)
{
        fprintf(stderr, "kvroute: %s: %s\n", what, why);
        return 1;
}

int serve_open_access_log(const char *path)
{
        return open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
}

static int open_log(struct server *server, const struct router_config *config)
{
        struct log_options options = {
                .level = (enum log_level)config->log_level,
                .json = config->log_format == 1,
                .fd = STDERR_FILENO,
                .now_ns = log_now_ns,
                .unix_time_ms = log_unix_time_ms,
        };
        char what[4200];

        server->proxy.log = log_new(&options);
        if (!server->proxy.log)
                return fail("log", "out of memory");
        server->proxy.access_fd = -1;
        if (strcmp(config->access_log, "off") == 0)
                return 0;
        server->access_log = config->access_log;
        server->proxy.access_fd = strcmp(config->access_log, "-") == 0
                                          ? STDOUT_FILENO
                                          : serve_open_access_log(config->access_log);
        if (server->proxy.access_fd >= 0)
                return 0;
        snprintf(what, sizeof what, "--access-log %s", config->access_log);
        return fail(what, strerror(errno));
}

static int open_capture(struct server *server, const struct router_config *config)
{
        const struct capture_options options = {
                .path = config->capture,
                .file_bytes = config->capture_bytes,
                .files = (unsigned)config->capture_files,
                .block_tokens = (uint32_t)config->capture_block,
                .key = capture_key(config->seed_given, config->seed_value, host_random64, NULL),
                .start_ns = uv_hrtime(),
                .log = server->proxy.log,
        };
        char what[4200], why[256];

        if (strcmp(config->capture, "off") == 0)
                return 0;
        server->proxy.capture = capture_new(&options, why, sizeof why);
        if (server->proxy.capture)
                return 0;
        snprintf(what, sizeof what, "--capture %s", config->capture);
        return fail(what, why);
}

static int make_brain(struct server *server, const struct router_config *config)
{
        const struct kvr_env env = serve_env(server, config);
        struct kvr_settings settings = {
                .policy = config->policy,
                .index_memory_bytes = serve_index_bytes(config),
                .block_memory_bytes = config->event_memory_bytes,
                .token_map_bytes = config->event_memory_bytes / 8,
                .default_prefill_tokens_per_second = config->prefill_speed,
                .default_tokens_per_byte = config->tokens_per_byte,
                .queue_wait_hint_ms =
                        1, /* "full" has no known end: only a replica's own Retry-After is one */
        };
        struct health_limits limits = {
                .fall = (unsigned)config->health_fall,
                .rise = (unsigned)config->health_rise,
                .proof_of_life_ns = config->health_fall * config->health_interval_ms * 1000000,
        };
        struct kvr_error err = {0};

        if (kvr_router_new(&settings, &env, &server->router, &err) != KVR_OK) {
                fail("--policy", err.message);
                return 2;
        }
        if (config->ledger) {
                const struct kvr_ledger_settings ledger = {.without_counterfactual = !config->counterfactual};

                if (kvr_ledger_new(&ledger, &server->proxy.ledger, &err) != KVR_OK)
                        return fail("--ledger", err.message);
                kvr_router_set_ledger(server->router, server->proxy.ledger);
        }
        if (serve_make_shadow(server, config, &err) != KVR_OK)
                return fail("--shadow", err.message);
        server->proxy.decisions = decisions_new();
        if (!server->proxy.decisions)
                return fail("decisions", "out of memory");
        if (!fleet_init(&server->fleet, server->router, &limits))
                return fail("fleet", "out of memory");
        server->fleet.shadow = server->proxy.shadow;
        server->fleet.on_state = on_state;
        server->fleet.ctx = server;
        for (size_t i = 0; i < config->replicas.count; i++) {
                if (!serve_add_replica(server, config, &config->replicas.items[i], &err)) {
                        fail("--replica", err.message);
                        return 2;
                }
        }
        return 0;
}

static int make_proxy(struct server *server, const struct router_config *config)
{
        struct proxy *proxy = &server->proxy;
        unsigned threads = config->threads ? (unsigned)config->threads : host_cores();
        struct kvr_slice version = {KVROUTE_VERSION, strlen(KVROUTE_VERSION)};

        proxy->router = server->router;
        proxy->fleet = &server->fleet;
        proxy->control_loop = &server->loop;
        proxy->seed = config->seed_given ? config->seed_value : host_random64(NULL);
        proxy->id_prefix = host_random64(NULL);
        proxy->workers = calloc(threads, sizeof *proxy->workers);
        proxy->metrics =
                metrics_new(threads + 1, (uint32_t)config->max_series); /* the last one: the control thread */
        if (!proxy->workers || !proxy->metrics)
                return fail("start", "out of memory");
        proxy->worker_count = threads;
        metrics_set(proxy->metrics, metrics_series(proxy->metrics, threads, METRIC_BUILD_INFO, &version), 1);
        metrics_set(proxy->metrics, metrics_series(proxy->metrics, threads, METRIC_START_TIME, NULL),
                    (double)log_unix_time_ms(NULL) / 1000);
        for (unsigned i = 0; i < threads; i++) {
                int error = worker_init(&proxy->workers[i], proxy, i);

                if (error)
                        return fail("worker", uv_strerror(error));
        }
        return 0;
}

/* The first worker's bind settles the port, the others share it. */
static int bind_listeners(struct server *server, const struct router_config *config)
{
        for (unsigned i = 0; i < config->listen.count; i++) {
                struct sockaddr_storage addr;
                char text[96], what[400];
                int error = resolve_endpoint(&config->listen.items[i], &addr);

                if (!error)
                        error = net_port_is_free(&addr);
                for (unsigned w = 0; w < server->proxy.worker_count && !error; w++)
                        error = worker_listen(&server->proxy.workers[w], i, &addr);
                if (error) {
                        snprintf(what, sizeof what, "--listen %s:%u", config->listen.items[i].host,
                                 config->listen.items[i].port);
                        fail(what, error == UV_EADDRINUSE
                                           ? "the port is in use; choose another, or stop what listens there"
                                           : uv_strerror(error));
                        return 2;
                }
                endpoint_text(&addr, text, sizeof text);
                snprintf(server->ready + strlen(server->ready), sizeof server->ready - strlen(server->ready),
                         "%s%s", i ? ", " : "", text);
        }
        return 0;
}

/* What goes on in the background of requests. */
static bool make_helpers(struct server *server, const struct router_config *config)
{
        const struct tokens_options options = {
                .loop = &server->loop,
                .router = server->router,
                .fleet = &server->fleet,
                .metrics = server->proxy.metrics,
                .metrics_thread = server->proxy.worker_count,
                .log = server->proxy.log,
        };

        const struct events_options events = {
                .router = server->router,
                .log = server->proxy.log,
                .relearn_ns = config->events_relearn_ms * 1000000,
        };

        if (server->proxy.mirror)
                return true;
        server->events = events_new(&events);
        server->proxy.adapters = adapters_new();
        if (config->tokenize)
                server->proxy.tokens = tokens_new(&options);
        return server->events && server->proxy.adapters && (server->proxy.tokens || !config->tokenize);
}

static int open_admin(struct server *server, const struct router_config *config)
{
        struct control_options control = {
                .loop = &server->loop,
                .fleet = &server->fleet,
                .events = server->events,
                .metrics = server->proxy.metrics,
                .log = server->proxy.log,
                .metrics_thread = server->proxy.worker_count,
                .imagined = server->proxy.mirror,
                .tokens = server->proxy.tokens,
                .adapters = server->proxy.adapters,
                .on_leave = on_leave,
                .ctx = server,
        };
        struct sockaddr_storage addr;
        char text[96], what[400];
        int error;

        server->control = control_new(&control, config);
        if (!server->control)
                return fail("control", "out of memory");
        if (config->admin.off)
                return 0;
        error = resolve_endpoint(&config->admin, &addr);
        if (!error)
                error = net_port_is_free(&addr);
        if (!error) {
                struct admin_options admin = {&server->loop, &server->proxy, server->control};

                server->admin = admin_new(&admin, &addr, &error);
        }
        if (!server->admin) {
                snprintf(what, sizeof what, "--admin %s:%u", config->admin.host, config->admin.port);
                fail(what, error == UV_EADDRINUSE ? "the port is in use; choose another, or --admin off"
                                                  : uv_strerror(error));
                return 2;
        }
        endpoint_text(&addr, text, sizeof text);
        snprintf(server->ready + strlen(server->ready), sizeof server->ready - strlen(server->ready),
                 " (admin %s)", text);
        return 0;
}

/* ---- names that nothing answers to ---- */

static void on_families(uv_timer_t *timer)
{
        struct server *server = timer->data;

        families_look(&server->proxy.families, atomic_load(&server->proxy.config), server->proxy.ledger,
                      uv_hrtime(), server->proxy.log);
}

static void watch_families(struct server *server)
{
        (void)uv_timer_init(&server->loop.uv, &server->families_timer);
        server->families_timer.data = server;
        (void)uv_timer_start(&server->families_timer, on_families, FAMILIES_LOOK_MS, FAMILIES_LOOK_MS);
}

static int start(struct server *server, struct router_config *config)
{
        int status = net_loop_init(&server->loop);

        if (status)
                return fail("loop", uv_strerror(status));
        server->loop.owner = server;
        server->loop.on_wake = on_wake;
        if (!serve_keep_config(server, config))
                return fail("start", "out of memory");
        atomic_store(&server->proxy.config, config);
        status = open_log(server, config);
        if (!status)
                status = open_capture(server, config);
        if (!status)
                status = make_brain(server, config);
        if (!status)
                status = make_proxy(server, config);
        if (!status)
                status = bind_listeners(server, config);
        if (!status)
                status = make_helpers(server, config) ? open_admin(server, config)
                                                      : fail("start", "out of memory");
        if (status)
                return status;
        server->proxy.connections_max = host_room_for_connections(server->proxy.log, config->max_connections);
        serve_say_warnings(server, config);
        serve_watch_stop(server);
        serve_watch_shadow(server);
        watch_families(server);
        (void)uv_signal_init(&server->loop.uv, &server->hangup);
        server->hangup.data = server;
        (void)uv_signal_start(&server->hangup, on_hangup, SIGHUP);
        for (unsigned i = 0; i < server->proxy.worker_count; i++) {
                if (worker_start(&server->proxy.workers[i]))
                        return fail("worker", "a thread cannot be started");
        }
        return 0;
}

static void stop(struct server *server)
{
        for (unsigned i = 0; i < server->proxy.worker_count; i++) {
                (void)pthread_join(server->proxy.workers[i].thread, NULL);
                worker_fini(&server->proxy.workers[i]);
        }
        serve_unwatch_shadow(server);
        uv_close((uv_handle_t *)&server->families_timer, NULL);
        capture_free(server->proxy.capture); /* what is queued is written, however this ends */
        server->proxy.capture = NULL;
        serve_say_stopped(server);
        admin_close(server->admin);
        if (control_is_resolving(server->control)) {
                /* libuv would wait for the name server, which may be gone, here and in exit(). */
                fflush(NULL);
                _exit(0);
        }
        control_free(server->control);
        events_free(server->events);
        tokens_free(server->proxy.tokens);
        adapters_free(server->proxy.adapters);
        serve_unwatch_stop(server);
        uv_close((uv_handle_t *)&server->hangup, NULL);
        net_loop_fini(&server->loop);
        fleet_fini(&server->fleet);
        shadow_free(server->proxy.shadow);
        kvr_router_free(server->router);
        kvr_ledger_free(server->proxy.ledger);
        decisions_free(server->proxy.decisions);
        workload_names_fini(&server->proxy.workloads);
        metrics_free(server->proxy.metrics);
        log_free(server->proxy.log);
        free(server->proxy.workers);
        if (server->proxy.access_fd > STDERR_FILENO)
                close(server->proxy.access_fd);
        while (server->configs) {
                struct kept_config *kept = server->configs;

                server->configs = kept->next;
                config_free(kept->config);
                free(kept);
        }
}

static void say_settings(struct server *server, const struct router_config *config)
{
        unsigned threads = server->proxy.worker_count;
        char size[40];

        option_format_bytes(config->index_memory_bytes, size, sizeof size);
        log_say(server->proxy.log, LOG_INFO, NULL, "policy %s, index at most %s, %u %s", config->policy, size,
                threads, threads == 1 ? "thread" : "threads");
        if (server->proxy.mirror)
                log_say(server->proxy.log, LOG_WARN, NULL,
                        "--shadow=mirror: requests are only looked at and answered with {}; no replica is "
                        "contacted");
        else if (server->proxy.shadow)
                log_say(server->proxy.log, LOG_INFO, NULL,
                        "--shadow: %s routes, and what kv would have done is counted beside it",
                        config->policy);
}

int serve_main(int argc, char *const *argv)
{
        static struct server server; /* large; one per process */
        struct config_input input = {argc, argv, environ, false, NULL};
        struct router_config *config = NULL;
        struct config_error err = {0};
        int status;

        switch (config_load(&input, &config, &err)) {
        case CONFIG_OK:
                break;
        case CONFIG_HELP:
                help_serve(stdout);
                return 0;
        case CONFIG_VERSION:
                printf("kvroute %s\n", KVROUTE_VERSION);
                return 0;
        case CONFIG_ERROR:
                fprintf(stderr, "kvroute: %s\n", err.message);
                return 2;
        }
        (void)signal(SIGPIPE, SIG_IGN);
        server.argc = argc;
        server.argv = argv;
        status = start(&server, config);
        if (status)
                return status; /* nothing runs yet that would not end with the process */
        say_settings(&server, config);
        fprintf(stderr, "kvroute: ready on %s, %zu %s\n", server.ready, config->replicas.count,
                config->replicas.count == 1 ? "replica" : "replicas");
        host_notify("READY=1");
        uv_run(&server.loop.uv, UV_RUN_DEFAULT);
        stop(&server);
        return 0;
}
