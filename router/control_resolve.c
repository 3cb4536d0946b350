/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The addresses behind the replicas' host names. A name is looked up when its replica comes, every
 * resolve-interval, and soon after a connection failed; the system's resolver blocks, so libuv asks it on a
 * thread of its own. An address stays as long as the name still stands for it, whatever the order of the
 * answer (name servers shuffle), unless connections there fail and there is another one.
 */
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control_int.h"

#define LOOKUPS_MAX   4    /* at a time: the threads that libuv has */
#define AGAIN_MS      1000 /* between two look-ups of one name, however often connections fail */
#define AGAIN_MAX_MS  8000 /* the same after many failures in a row, while there is no address */
#define ADDRESSES_MAX 64   /* looked at in one answer */

struct lookup {
        uv_getaddrinfo_t request;
        struct control *control; /* NULL: gone */
        struct probe *probe;     /* NULL: nobody waits */
        struct lookup *prev, *next;
        bool failed_there; /* asked for because connections to the present address fail */
};

static void unlink_lookup(struct lookup *lookup)
{
        struct control *control = lookup->control;

        if (!control)
                return;
        if (lookup->prev)
                lookup->prev->next = lookup->next;
        else
                control->lookups = lookup->next;
        if (lookup->next)
                lookup->next->prev = lookup->prev;
        control->lookup_count--;
        lookup->control = NULL;
}

void probe_drop_lookup(struct probe *probe)
{
        if (!probe->lookup)
                return;
        probe->lookup->probe = NULL;
        (void)uv_cancel(
                (uv_req_t *)&probe->lookup->request); /* fails where it runs: then its answer is dropped */
        probe->lookup = NULL;
}

void control_drop_lookups(struct control *control)
{
        while (control->lookups)
                unlink_lookup(control->lookups);
}

bool control_is_resolving(const struct control *control)
{
        for (const struct lookup *lookup = control->lookups; lookup; lookup = lookup->next) {
                /* One that waits for a thread is gone with the next turn of the loop. */
                if (uv_cancel((uv_req_t *)(uintptr_t)&lookup->request) != 0)
                        return true;
        }
        return false;
}

/* ---- an answer ---- */

static unsigned read_list(const struct addrinfo *list, uint16_t port, struct sockaddr_storage *ret)
{
        unsigned count = 0;

        for (; list && count < ADDRESSES_MAX; list = list->ai_next) {
                struct sockaddr_storage *addr = &ret[count];

                memset(addr, 0, sizeof *addr);
                if (list->ai_family == AF_INET) {
                        memcpy(addr, list->ai_addr, sizeof(struct sockaddr_in));
                        ((struct sockaddr_in *)addr)->sin_port = htons(port);
                } else if (list->ai_family == AF_INET6) {
                        memcpy(addr, list->ai_addr, sizeof(struct sockaddr_in6));
                        ((struct sockaddr_in6 *)addr)->sin6_port = htons(port);
                } else {
                        continue;
                }
                count++;
        }
        return count;
}

/* The present address if the name still stands for it; the one behind it in the list if connecting failed. */
static const struct sockaddr_storage *choose(const struct sockaddr_storage *list, unsigned count,
                                             const struct sockaddr_storage *present, bool failed_there)
{
        for (unsigned i = 0; present && i < count; i++) {
                if (memcmp(&list[i], present, sizeof *present) == 0)
                        return &list[failed_there ? (i + 1) % count : i];
        }
        return &list[0];
}

/* One name for several engines: a part of them would never be used, and nobody would notice. */
static void say_several(struct probe *probe, const struct sockaddr_storage *list, unsigned count)
{
        unsigned alike = 0;

        for (unsigned i = 0; i < count; i++)
                alike += list[i].ss_family == list[0].ss_family;
        if (alike < 2 || probe->said_several)
                return;
        probe->said_several = true;
        log_say(probe->control->options.log, LOG_WARN, NULL,
                "replica %s: the name %s stands for %u addresses, of which one is used at a time; a replica "
                "is one "
                "engine: give each a name or an address of its own",
                probe_name(probe), probe->target->spec.host, alike);
}

static void resolved(struct probe *probe, const struct addrinfo *answer, bool failed_there)
{
        struct control *control = probe->control;
        struct target *target = probe->target;
        struct sockaddr_storage list[ADDRESSES_MAX], present;
        unsigned count = read_list(answer, target->spec.port, list);
        bool has = target_address(target, &present, NULL);
        char now[80], before[80] = "", key[300];

        if (count == 0) {
                target_unresolved(control->options.fleet, target, "the answer has no address");
                return;
        }
        say_several(probe, list, count);
        const struct sockaddr_storage *chosen = choose(list, count, has ? &present : NULL, failed_there);
        bool moved = target_set_address(control->options.fleet, target, chosen);

        probe->resolved = true;
        if (!moved)
                return;
        target_address_text(chosen, now, sizeof now);
        if (has)
                target_address_text(&present, before, sizeof before);
        /* Two addresses that take turns, since neither answers, are one message a minute each. */
        snprintf(key, sizeof key, "%.200s %s", probe_name(probe), now);
        log_say(control->options.log, has ? LOG_WARN : LOG_INFO, key,
                has ? "replica %s: %s is at %s now (was %s): what was known of its cache is void"
                    : "replica %s: %s is at %s%s",
                probe_name(probe), target->spec.host, now, before);
        probe_begin_anew(probe);
}

static void unresolved(struct probe *probe, int error)
{
        struct control *control = probe->control;
        struct target *target = probe->target;
        char why[128];

        snprintf(why, sizeof why, "%.80s: %s", target->spec.host, uv_strerror(error));
        target_unresolved(control->options.fleet, target, why);
        log_say(control->options.log, LOG_WARN, target->url,
                "replica %s: its host name cannot be resolved (%s): %s", probe_name(probe), why,
                probe->resolved ? "its last address stays in use" : "it gets no requests until it can");
}

static void on_answer(uv_getaddrinfo_t *request, int status, struct addrinfo *list)
{
        struct lookup *lookup = request->data;
        struct probe *probe = lookup->probe;

        unlink_lookup(lookup);
        if (probe) {
                const struct control *control = probe->control;
                uint64_t now_ms = net_now_ms(control->options.loop), again_ms = AGAIN_MS;
                uint64_t interval_ms = control->config->resolve_interval_ms;

                probe->lookup = NULL;
                probe->resolve_failures = status ? probe->resolve_failures + 1 : 0;
                if (status)
                        unresolved(probe, status);
                else
                        resolved(probe, list, lookup->failed_there);
                for (unsigned i = 1; i < probe->resolve_failures && again_ms < AGAIN_MAX_MS; i++)
                        again_ms *= 2;
                probe->resolve_soon_ms = now_ms + AGAIN_MS;
                probe->resolve_due_ms = !probe->resolved ? now_ms + again_ms
                                        : interval_ms    ? now_ms + interval_ms
                                                         : UINT64_MAX;
        }
        uv_freeaddrinfo(list);
        free(lookup);
}

/* ---- asking ---- */

static void begin_lookup(struct probe *probe, uint64_t now_ms)
{
        static const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG};
        struct control *control = probe->control;
        struct lookup *lookup = calloc(1, sizeof *lookup);
        /* Whether the present address is at fault is known only from what happened since it was set. */
        bool failed_there = atomic_exchange(&probe->target->resolve_wanted, false);

        probe->resolve_due_ms = probe->resolve_soon_ms = now_ms + AGAIN_MS;
        if (!lookup)
                return;
        lookup->request.data = lookup;
        lookup->probe = probe;
        lookup->failed_there = failed_there && probe->resolved;
        if (uv_getaddrinfo(&control->options.loop->uv, &lookup->request, on_answer, probe->target->spec.host,
                           NULL, &hints) != 0) {
                free(lookup);
                return;
        }
        probe->lookup = lookup;
        lookup->control = control;
        lookup->next = control->lookups;
        if (lookup->next)
                lookup->next->prev = lookup;
        control->lookups = lookup;
        control->lookup_count++;
}

/* When its next look-up is due; UINT64_MAX: not now. */
static uint64_t due_of(const struct probe *probe)
{
        uint64_t due_ms = probe->resolve_due_ms;

        if (!probe->target->named || probe->lookup)
                return UINT64_MAX;
        if (atomic_load_explicit(&probe->target->resolve_wanted, memory_order_relaxed) &&
            probe->resolve_soon_ms < due_ms)
                due_ms = probe->resolve_soon_ms;
        return due_ms;
}

void control_resolve(struct control *control, uint64_t now_ms)
{
        while (control->lookup_count < LOOKUPS_MAX) {
                struct probe *next = NULL;
                uint64_t next_due_ms = now_ms;

                /* The longest overdue first, or a slow name server would starve those at the list's end. */
                for (struct probe *probe = control->probes; probe; probe = probe->next) {
                        uint64_t due_ms = due_of(probe);

                        if (due_ms <= next_due_ms) {
                                next = probe;
                                next_due_ms = due_ms;
                        }
                }
                if (!next)
                        return;
                begin_lookup(next, now_ms);
        }
}
