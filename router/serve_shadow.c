/* SPDX-License-Identifier: Apache-2.0 */
/* The shadow of the serve command: made at the start, ticked, and spoken of once a minute and at the end. */
#include "serve_int.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "host.h"

#define SHADOW_TICK_MS   200
#define SHADOW_SAY_TICKS (60000 / SHADOW_TICK_MS)

/* This router among those that have its seed. */
static void who_am_i(const struct router_config *config, char *ret, size_t size)
{
        char name[HOST_NAME_MAX + 1] = "";
        const struct config_endpoint *listen = config->listen.count ? &config->listen.items[0] : NULL;

        (void)gethostname(name, sizeof name - 1);
        snprintf(ret, size, "%s %s:%u", name, listen ? listen->host : "", listen ? listen->port : 0U);
}

struct kvr_env serve_env(struct server *server, const struct router_config *config)
{
        struct kvr_env env = {host_now_ns, host_random64, NULL};

        if (config->seed_given) {
                char who[HOST_NAME_MAX + REPLICA_HOST_MAX + 16];

                who_am_i(config, who, sizeof who);
                host_chance_init(&server->chance, config->seed_value, who);
                env = (struct kvr_env){host_now_ns, host_chance64, &server->chance};
        }
        shadow_clock_init(&server->clock, &env);
        return config->shadow == CONFIG_SHADOW_MIRROR ? shadow_clock_env(&server->clock) : env;
}

uint64_t serve_index_bytes(const struct router_config *config)
{
        return config->shadow == CONFIG_SHADOW_OFF ? config->index_memory_bytes
                                                   : config->index_memory_bytes / 2;
}

enum kvr_status serve_make_shadow(struct server *server, const struct router_config *config,
                                  struct kvr_error *err)
{
        const struct shadow_options options = {
                .clock = &server->clock,
                .real = server->router,
                .index_memory_bytes = config->index_memory_bytes - serve_index_bytes(config),
                .prefill_speed = config->prefill_speed,
                .tokens_per_byte = config->tokens_per_byte,
                .mirror = config->shadow == CONFIG_SHADOW_MIRROR,
        };

        if (config->shadow == CONFIG_SHADOW_OFF)
                return KVR_OK;
        server->proxy.mirror = options.mirror;
        return shadow_new(&options, &server->proxy.shadow, err);
}

/* ---- what it has found, in words ---- */

static void say(struct server *server)
{
        const struct router_config *config = atomic_load(&server->proxy.config);
        struct shadow_figures figures;
        double gained_s;

        shadow_figures(server->proxy.shadow, uv_hrtime(), &figures);
        if (figures.requests == server->shadow_said || !figures.prompt_tokens)
                return;
        server->shadow_said = figures.requests;
        gained_s = ((double)figures.kv.avoided_ns - (double)figures.actual.avoided_ns) / 1e9;
        log_say(server->proxy.log, LOG_INFO, NULL,
                "shadow: kv would have served %.1f %% of %llu prompt tokens from cache, %s %s %.1f %% (%llu "
                "requests); %.3g replica-seconds of prefill %s",
                100 * shadow_hit_rate(&figures, &figures.kv), (unsigned long long)figures.prompt_tokens,
                config->policy, figures.mirror ? "would have" : "did",
                100 * shadow_hit_rate(&figures, &figures.actual), (unsigned long long)figures.requests,
                fabs(gained_s), gained_s >= 0 ? "less" : "more");
}

/* ---- the timer ---- */

static void on_tick(uv_timer_t *timer)
{
        struct server *server = timer->data;

        shadow_tick(server->proxy.shadow, uv_hrtime());
        if (++server->shadow_ticks % SHADOW_SAY_TICKS == 0)
                say(server);
}

void serve_watch_shadow(struct server *server)
{
        (void)uv_timer_init(&server->loop.uv, &server->shadow_timer);
        server->shadow_timer.data = server;
        if (server->proxy.shadow)
                (void)uv_timer_start(&server->shadow_timer, on_tick, SHADOW_TICK_MS, SHADOW_TICK_MS);
}

void serve_unwatch_shadow(struct server *server)
{
        if (server->proxy.shadow)
                say(server);
        uv_close((uv_handle_t *)&server->shadow_timer, NULL);
}
