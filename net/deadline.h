/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Time limits of many objects at little cost. Limits of one kind have one length, so their objects expire in
 * the order in which they were armed: a list per kind, oldest first, and one libuv timer for the first of all
 * lists. Arming and disarming are a few stores. Owner thread only.
 *
 *     kind "idle, 5 min":   [conn 7] [conn 2] [conn 9] ...      armed last ──► tail
 *     kind "connect, 2 s":  [conn 4] [conn 1]
 */
#ifndef KVROUTE_NET_DEADLINE_H
#define KVROUTE_NET_DEADLINE_H

#include "conn.h"

#define NET_DEADLINE_KINDS_MAX 16

struct net_deadline {
        struct net_deadline *prev, *next; /* NULL when not armed */
        uint64_t due_ms;
        uint8_t kind;
};

struct net_deadlines {
        struct net_loop *loop;
        uv_timer_t timer;
        uint64_t timer_due_ms; /* 0: timer not running */
        unsigned kind_count;
        struct {
                struct net_deadline list; /* sentinel */
                uint64_t length_ms;       /* 0: off */
                void (*on_expired)(struct net_deadline *deadline);
        } kinds[NET_DEADLINE_KINDS_MAX];
};

void net_deadlines_init(struct net_deadlines *deadlines, struct net_loop *loop);
void net_deadlines_close(
        struct net_deadlines *deadlines); /* before the loop ends; armed ones are forgotten */
/* Returns the number of the new kind. length 0: arming does nothing. on_expired gets a disarmed deadline. */
uint8_t net_deadlines_kind(struct net_deadlines *deadlines, uint64_t length_ms,
                           void (*on_expired)(struct net_deadline *));
/* Applies to deadlines armed from now on. */
void net_deadlines_set(struct net_deadlines *deadlines, uint8_t kind, uint64_t length_ms);

/* (Re)arms, from now, whatever it was before. */
void net_deadline_arm(struct net_deadlines *deadlines, struct net_deadline *deadline, uint8_t kind);
void net_deadline_disarm(struct net_deadline *deadline);

#endif
