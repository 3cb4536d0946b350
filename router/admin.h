/* SPDX-License-Identifier: Apache-2.0 */
/* The admin listener: metrics, fleet, explain, configuration. On the control thread's loop. */
#ifndef KVROUTE_ROUTER_ADMIN_H
#define KVROUTE_ROUTER_ADMIN_H

#include "control.h"
#include "net/server.h"
#include "proxy.h"

struct admin;

struct admin_options {
        struct net_loop *loop;   /* kept */
        struct proxy *proxy;     /* kept */
        struct control *control; /* kept */
};

/* Binds *addr (port 0 is replaced). NULL on failure with *ret_error set. */
KVR_MUST_USE struct admin *admin_new(const struct admin_options *options, struct sockaddr_storage *addr,
                                     int *ret_error);
void admin_close(struct admin *admin); /* frees when the loop has turned */

#endif
