/* SPDX-License-Identifier: Apache-2.0 */
#include "deadline.h"

#include <string.h>

static void on_timer(uv_timer_t *timer);

void net_deadlines_init(struct net_deadlines *deadlines, struct net_loop *loop)
{
        memset(deadlines, 0, sizeof *deadlines);
        deadlines->loop = loop;
        (void)uv_timer_init(&loop->uv, &deadlines->timer);
        deadlines->timer.data = deadlines;
}

void net_deadlines_close(struct net_deadlines *deadlines)
{
        uv_close((uv_handle_t *)&deadlines->timer, NULL);
}

uint8_t net_deadlines_kind(struct net_deadlines *deadlines, uint64_t length_ms,
                           void (*on_expired)(struct net_deadline *))
{
        uint8_t kind = (uint8_t)deadlines->kind_count++;
        struct net_deadline *list = &deadlines->kinds[kind].list;

        list->prev = list->next = list;
        deadlines->kinds[kind].length_ms = length_ms;
        deadlines->kinds[kind].on_expired = on_expired;
        return kind;
}

void net_deadlines_set(struct net_deadlines *deadlines, uint8_t kind, uint64_t length_ms)
{
        deadlines->kinds[kind].length_ms = length_ms;
}

void net_deadline_disarm(struct net_deadline *deadline)
{
        if (!deadline->next)
                return;
        deadline->prev->next = deadline->next;
        deadline->next->prev = deadline->prev;
        deadline->prev = deadline->next = NULL;
}

/* The timer may be too early (its object was re-armed): then it only looks and sets itself anew. */
static void timer_until(struct net_deadlines *deadlines, uint64_t due_ms)
{
        uint64_t now = net_now_ms(deadlines->loop);

        if (deadlines->timer_due_ms && deadlines->timer_due_ms <= due_ms)
                return;
        deadlines->timer_due_ms = due_ms ? due_ms : 1;
        (void)uv_timer_start(&deadlines->timer, on_timer, due_ms > now ? due_ms - now : 0, 0);
}

void net_deadline_arm(struct net_deadlines *deadlines, struct net_deadline *deadline, uint8_t kind)
{
        struct net_deadline *list = &deadlines->kinds[kind].list;
        uint64_t length_ms = deadlines->kinds[kind].length_ms;
        struct net_deadline *at;

        net_deadline_disarm(deadline);
        if (length_ms == 0)
                return;
        deadline->kind = kind;
        deadline->due_ms = net_now_ms(deadlines->loop) + length_ms;
        /* A length made shorter by a reload can leave later ones before it: keep the order. */
        for (at = list->prev; at != list && at->due_ms > deadline->due_ms; at = at->prev)
                ;
        deadline->prev = at;
        deadline->next = at->next;
        at->next->prev = deadline;
        at->next = deadline;
        timer_until(deadlines, deadline->due_ms);
}

static void on_timer(uv_timer_t *timer)
{
        struct net_deadlines *deadlines = timer->data;
        uint64_t now = net_now_ms(deadlines->loop), first = 0;

        deadlines->timer_due_ms = 0;
        for (unsigned kind = 0; kind < deadlines->kind_count; kind++) {
                struct net_deadline *list = &deadlines->kinds[kind].list;

                while (list->next != list && list->next->due_ms <= now) {
                        struct net_deadline *deadline = list->next;

                        net_deadline_disarm(deadline);
                        deadlines->kinds[kind].on_expired(deadline);
                }
                if (list->next != list && (!first || list->next->due_ms < first))
                        first = list->next->due_ms;
        }
        if (first)
                timer_until(deadlines, first);
}
