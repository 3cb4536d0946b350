/* SPDX-License-Identifier: Apache-2.0 */
/* What adapters.c (workers) and adapters_side.c (control thread) share: requests on their way. */
#ifndef KVROUTE_ROUTER_ADAPTERS_INT_H
#define KVROUTE_ROUTER_ADAPTERS_INT_H

#include "adapters.h"
#include "proxy.h"

/* One request, on its way through all replicas. */
struct task {
        struct task *next;
        struct adapters *adapters;
        struct worker *worker;     /* to be woken; NULL: nobody waits, a replica is told what it missed */
        struct exchange *exchange; /* under the lock; NULL: the client has left */
        bool load;
        char name[KVR_NAME_MAX];
        char path[64];
        char *body;
        size_t len;
        char *credentials;        /* the client's, rendered; for replicas that are passed them */
        unsigned open, good, bad; /* replicas that have not answered, that did it, that did not */
        unsigned status;          /* of the first that did not */
        struct text answer;       /* JSON, one object per replica */
};

struct adapters {
        pthread_mutex_t lock;
        struct task *asked_head, *asked_tail; /* for the control thread */
        unsigned asked_count;                 /* of them and of those that it has */
        struct task *done;                    /* for workers */
};

/* Copies path and body; NULL: out of memory. */
struct task *adapters_task_new(struct adapters *adapters, const char *path, size_t path_len,
                               struct kvr_slice body);
void adapters_task_free(struct task *task);
void adapters_tasks_free(struct task *task); /* a list of them */

#endif
