/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SIGTERM and SIGINT:
 *
 *     (shutdown-delay: /readyz says 503, requests are taken)  ──►  no new requests, answers may end  ──►  end
 *                          └───────────────── second signal, or drain-timeout: cut ─────────────────────────┘
 */
#include "serve_int.h"

#include <signal.h>
#include <stdio.h>
#include <time.h>

#include "host.h"

/* "14:03:22Z" */
static void time_after(uint64_t ms, char *ret, size_t size)
{
        time_t at = (time_t)((log_unix_time_ms(NULL) + ms + 999) / 1000);
        struct tm tm;

        if (!gmtime_r(&at, &tm) || strftime(ret, size, "%H:%M:%SZ", &tm) == 0)
                ret[0] = '\0';
}

static unsigned running_answers(const struct server *server)
{
        return control_running(server->control) + atomic_load(&server->proxy.queued);
}

static const char *answers(unsigned count)
{
        return count == 1 ? "answer" : "answers";
}

static void cut(struct server *server)
{
        (void)uv_timer_stop(&server->delay_timer);
        (void)uv_timer_stop(&server->drain_timer);
        atomic_store(&server->proxy.draining, true);
        atomic_store(&server->proxy.abandon, true);
        serve_wake(server);
}

static void on_drain_over(uv_timer_t *timer)
{
        struct server *server = timer->data;
        unsigned count = running_answers(server);

        log_say(server->proxy.log, LOG_WARN, NULL, "the drain-timeout is over: %u running %s cut", count,
                count == 1 ? "answer is" : "answers are");
        cut(server);
}

static void say_draining(struct server *server, uint64_t limit_ms)
{
        unsigned count = running_answers(server);
        char until[32], length[40];

        if (count == 0) {
                log_say(server->proxy.log, LOG_INFO, NULL, "stopping: no new requests, no answer runs");
        } else if (limit_ms == 0) {
                log_say(server->proxy.log, LOG_INFO, NULL,
                        "stopping: no new requests; %u running %s may take as long as needed (drain-timeout "
                        "off); a "
                        "second signal cuts them",
                        count, answers(count));
        } else {
                time_after(limit_ms, until, sizeof until);
                option_format_millis(limit_ms, length, sizeof length);
                log_say(server->proxy.log, LOG_INFO, NULL,
                        "stopping: no new requests; %u running %s may end until %s (drain-timeout %s); a "
                        "second signal "
                        "cuts them",
                        count, answers(count), until, length);
        }
}

static void drain(struct server *server)
{
        const struct router_config *config = atomic_load(&server->proxy.config);

        say_draining(server, config->drain_timeout_ms);
        atomic_store(&server->proxy.draining, true);
        if (config->drain_timeout_ms)
                (void)uv_timer_start(&server->drain_timer, on_drain_over, config->drain_timeout_ms, 0);
        serve_wake(server);
}

static void on_delay_over(uv_timer_t *timer)
{
        drain(timer->data);
}

static void on_stop(uv_signal_t *handle, int number)
{
        struct server *server = handle->data;
        const struct router_config *config = atomic_load(&server->proxy.config);
        char length[40];

        (void)number;
        if (server->stop_signals++) {
                unsigned count = running_answers(server);

                if (server->stop_signals == 2)
                        log_say(server->proxy.log, LOG_WARN, NULL, "second signal: %u running %s cut", count,
                                count == 1 ? "answer is" : "answers are");
                cut(server);
                return;
        }
        host_notify("STOPPING=1");
        if (config->shutdown_delay_ms == 0) {
                drain(server);
                return;
        }
        option_format_millis(config->shutdown_delay_ms, length, sizeof length);
        log_say(server->proxy.log, LOG_INFO, NULL,
                "stopping: /readyz says 503, requests are taken for %s more (shutdown-delay); a second "
                "signal cuts "
                "everything",
                length);
        atomic_store(&server->proxy.unready, true);
        (void)uv_timer_start(&server->delay_timer, on_delay_over, config->shutdown_delay_ms, 0);
}

static void watch_signal(struct server *server, uv_signal_t *handle, int number)
{
        (void)uv_signal_init(&server->loop.uv, handle);
        handle->data = server;
        (void)uv_signal_start(handle, on_stop, number);
}

void serve_watch_stop(struct server *server)
{
        watch_signal(server, &server->term, SIGTERM);
        watch_signal(server, &server->interrupt, SIGINT);
        (void)uv_timer_init(&server->loop.uv, &server->drain_timer);
        (void)uv_timer_init(&server->loop.uv, &server->delay_timer);
        server->drain_timer.data = server->delay_timer.data = server;
}

void serve_say_stopped(struct server *server)
{
        unsigned count = atomic_load(&server->proxy.cut);

        if (count)
                log_say(server->proxy.log, LOG_WARN, NULL, "stopped: %u %s cut", count,
                        count == 1 ? "answer was" : "answers were");
        else
                log_say(server->proxy.log, LOG_INFO, NULL, "stopped: no answer was cut");
}

void serve_unwatch_stop(struct server *server)
{
        uv_close((uv_handle_t *)&server->term, NULL);
        uv_close((uv_handle_t *)&server->interrupt, NULL);
        uv_close((uv_handle_t *)&server->drain_timer, NULL);
        uv_close((uv_handle_t *)&server->delay_timer, NULL);
}
