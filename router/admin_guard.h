/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a request that changes something may do so. Every browser that reaches the admin listener lets any
 * page send requests there: a form or a script of another origin (recognised by Origin, or by a content
 * type that needs no leave), or a page whose own name was made to stand for our address (recognised by that
 * name in Host). Pure; any thread.
 */
#ifndef KVROUTE_ROUTER_ADMIN_GUARD_H
#define KVROUTE_ROUTER_ADMIN_GUARD_H

#include "proto/http1.h"

enum admin_guard {
        ADMIN_GUARD_FINE,
        ADMIN_GUARD_HOST,   /* 403: Host is a name that is not known to be this router's */
        ADMIN_GUARD_ORIGIN, /* 403: sent by a page of another origin */
        ADMIN_GUARD_TYPE,   /* 415: a body that is not said to be JSON */
};

struct admin_guard_source {
        const struct http1_head *head;
        bool has_body;
        bool token; /* it has shown the admin token, which no such page knows: Host may be any name */
        const char *names[3]; /* names that are ours besides localhost; NULL or "" are skipped */
};

enum admin_guard admin_guard(const struct admin_guard_source *source);

#endif
