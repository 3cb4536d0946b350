/* SPDX-License-Identifier: Apache-2.0 */
#include "health.h"

#include <string.h>

const char *health_failure_name(enum health_failure failure)
{
        static const char *const names[] = {"refused", "reset", "timeout", "error", "stall"};

        return names[failure];
}

void health_init(struct health *health)
{
        memset(health, 0, sizeof *health);
        health->state = KVR_STARTING;
        health->backoff_ms = HEALTH_BACKOFF_FIRST_MS;
        health->why = "not probed yet";
}

static bool set_state(struct health *health, enum kvr_state state)
{
        bool changed = health->state != state;

        health->state = state;
        return changed && !health->draining;
}

static bool go_down(struct health *health, bool by_traffic, const char *why, uint64_t now_ns)
{
        if (health->state == KVR_TRIAL && health->backoff_ms < HEALTH_BACKOFF_MAX_MS)
                health->backoff_ms *= 2;
        health->by_traffic = by_traffic;
        health->why = why;
        health->probe_successes = 0;
        health->retry_at_ns = now_ns + health->backoff_ms * 1000000;
        return set_state(health, KVR_DOWN);
}

bool health_probe_ok(struct health *health, const struct health_limits *limits)
{
        health->probe_failures = 0;
        if (health->probe_successes < limits->rise)
                health->probe_successes++;
        switch (health->state) {
        case KVR_STARTING:
                return set_state(health, KVR_READY);
        case KVR_DOWN:
                if (health->by_traffic && !health->refused_since_ok)
                        return false;
                if (health->probe_successes < limits->rise)
                        return false;
                health->failures = 0;
                health->backoff_ms = HEALTH_BACKOFF_FIRST_MS;
                return set_state(health, KVR_READY);
        default:
                return false;
        }
}

bool health_probe_failed(struct health *health, const struct health_limits *limits, bool refused,
                         bool starting, uint64_t last_byte_ns, uint64_t now_ns)
{
        health->probe_successes = 0;
        if (refused && health->state != KVR_STARTING)
                health->refused_since_ok = true;
        if (health->state == KVR_STARTING)
                return false;
        /* An engine that says so itself is believed at once; silence needs repetition and no sign of life. */
        if (!starting) {
                if (last_byte_ns && now_ns - last_byte_ns < limits->proof_of_life_ns && !refused)
                        return false;
                if (++health->probe_failures < limits->fall)
                        return false;
        }
        if (health->state == KVR_DOWN)
                return false;
        return go_down(health, false, starting ? "engine says it is not ready" : "health probes fail",
                       now_ns);
}

bool health_traffic_ok(struct health *health)
{
        health->failures = 0;
        if (health->state == KVR_READY)
                return false;
        if (health->state == KVR_STARTING || (health->state == KVR_DOWN && !health->by_traffic))
                return false;
        health->backoff_ms = HEALTH_BACKOFF_FIRST_MS;
        health->probe_failures = 0;
        return set_state(health, KVR_READY);
}

bool health_traffic_failed(struct health *health, const struct health_limits *limits,
                           enum health_failure failure, uint64_t now_ns)
{
        static const char *const why[] = {
                "connections are refused", "connections break", "requests time out",
                "requests fail",           "requests hang",
        };

        if (failure == HEALTH_REFUSED)
                health->refused_since_ok = true;
        health->failures++;
        if (health->state == KVR_DOWN) {
                /* A trial or the last resort failed: wait anew and longer, so that it is not hammered. */
                if (now_ns >= health->retry_at_ns && health->backoff_ms < HEALTH_BACKOFF_MAX_MS)
                        health->backoff_ms *= 2;
                health->retry_at_ns = now_ns + health->backoff_ms * 1000000;
                return false;
        }
        if (health->state == KVR_STARTING)
                return false;
        if (health->state == KVR_READY && failure != HEALTH_STALL && health->failures < limits->fall)
                return false;
        return go_down(health, true, why[failure], now_ns);
}

bool health_tick(struct health *health, uint64_t now_ns)
{
        if (health->state != KVR_DOWN || !health->by_traffic || now_ns < health->retry_at_ns)
                return false;
        return set_state(health, KVR_TRIAL);
}

bool health_drain(struct health *health, bool draining)
{
        bool changed = health->draining != draining;

        health->draining = draining;
        return changed;
}

bool health_found(struct health *health, const char *why)
{
        bool draining = health->draining, changed = health->state != KVR_STARTING;

        health_init(health);
        health->draining = draining;
        health->why = why;
        return changed && !draining;
}

bool health_lost(struct health *health, const char *why)
{
        health->by_traffic = health->refused_since_ok = false;
        health->why = why;
        health->probe_successes = 0;
        return set_state(health, KVR_DOWN);
}

bool health_begin_anew(struct health *health, const char *why)
{
        struct health before = *health;

        health_init(health);
        health->draining = before.draining;
        if (before.state == KVR_DOWN || before.state == KVR_TRIAL) {
                health->state = KVR_DOWN;
                health->why = before.why;
                return before.state == KVR_TRIAL && !health->draining;
        }
        health->why = why;
        return before.state != KVR_STARTING && !health->draining;
}

bool health_withhold(struct health *health, const char *why)
{
        health->probe_successes = 0;
        health->why = why;
        if (health->state == KVR_STARTING)
                return false;
        health->by_traffic = false;
        return set_state(health, KVR_DOWN);
}

enum kvr_state health_state(const struct health *health)
{
        return health->draining ? KVR_DRAINING : health->state;
}

bool health_take_restart(struct health *health)
{
        bool restarted = health->refused_since_ok && health->state == KVR_READY;

        if (restarted)
                health->refused_since_ok = false;
        return restarted;
}
