/* SPDX-License-Identifier: Apache-2.0 */
/* Requests for adapters on the control thread: told to all replicas, and remembered for those to come. */
#include "adapters.h"

#include <stdlib.h>
#include <string.h>

#include "adapters_int.h"
#include "engine/models.h"
#include "net/client.h"

#define SHOWN_BYTES 400 /* of a replica's answer that are shown */

/* An adapter that every replica should have. */
struct wanted {
        struct wanted *next;
        char name[KVR_NAME_MAX];
        char path[64];
        char *body;
        size_t len;
};

/* A request to one replica. */
struct telling {
        struct telling *next;
        struct adapters_side *side;
        struct task *task;
        struct target *target;
        struct net_request *request;
};

/* When a replica was last told something of its own. */
struct told {
        struct told *next;
        kvr_replica_id id;
        uint64_t again_ms, pause_ms;
        unsigned restarts; /* of its process, when it was told */
};

struct adapters_side {
        struct adapters *adapters;
        struct control_options options;
        struct net_client *client;
        struct fleet_snapshot *fleet;
        struct wanted *wanted;
        unsigned wanted_count;
        struct telling *tellings;
        struct told *told;
        struct task *waiting_head, *waiting_tail; /* behind the one that replicas are being told */
        bool news;                                /* a replica's list of models has changed */
};

/* ---- what is remembered ---- */

static struct wanted **wanted_find(struct adapters_side *side, const char *name)
{
        struct wanted **at = &side->wanted;

        while (*at && strcmp((*at)->name, name) != 0)
                at = &(*at)->next;
        return at;
}

static void wanted_drop(struct adapters_side *side, const char *name)
{
        struct wanted **at = wanted_find(side, name), *wanted = *at;

        if (!wanted)
                return;
        *at = wanted->next;
        side->wanted_count--;
        free(wanted->body);
        free(wanted);
}

/* Takes the task's body. */
static void wanted_put(struct adapters_side *side, struct task *task)
{
        struct wanted *wanted;

        wanted_drop(side, task->name);
        wanted = side->wanted_count < ADAPTERS_MAX ? calloc(1, sizeof *wanted) : NULL;
        if (!wanted) {
                log_say(side->options.log, LOG_WARN, NULL,
                        "adapter %s: loaded, but not remembered: a replica that restarts will lack it",
                        task->name);
                return;
        }
        memcpy(wanted->name, task->name, sizeof wanted->name);
        memcpy(wanted->path, task->path, sizeof wanted->path);
        wanted->body = task->body;
        wanted->len = task->len;
        task->body = NULL;
        wanted->next = side->wanted;
        side->wanted = wanted;
        side->wanted_count++;
}

/* ---- telling replicas ---- */

static struct told *told_get(struct adapters_side *side, kvr_replica_id id)
{
        struct told *told = side->told;

        while (told && told->id != id)
                told = told->next;
        if (!told && (told = calloc(1, sizeof *told))) {
                told->id = id;
                told->next = side->told;
                side->told = told;
        }
        return told;
}

/* It was told something: what its list says is old for a while, and longer where it refused. */
static void told_note(struct adapters_side *side, struct target *target, bool refused)
{
        struct told *told = told_get(side, target->id);

        if (!told)
                return;
        if (!refused || told->pause_ms < ADAPTERS_AGAIN_MS)
                told->pause_ms = ADAPTERS_AGAIN_MS;
        else if (told->pause_ms < ADAPTERS_AGAIN_MAX_MS)
                told->pause_ms *= 2;
        told->again_ms = net_now_ms(side->options.loop) + told->pause_ms;
        told->restarts = atomic_load(&target->restarts);
}

static void task_finish(struct adapters_side *side, struct task *task)
{
        struct adapters *adapters = side->adapters;

        side->news = true;
        text_adds(&task->answer, "]}");
        if (task->worker && task->load && task->good)
                wanted_put(side, task);
        else if (task->worker && !task->load)
                wanted_drop(side, task->name);
        log_say(side->options.log, task->bad ? LOG_WARN : LOG_INFO, NULL,
                "adapter %s: %s by %u %s, refused by %u", task->name, task->load ? "loaded" : "unloaded",
                task->good, task->good == 1 ? "replica" : "replicas", task->bad);
        if (!task->worker) {
                adapters_task_free(task);
                return;
        }
        /* Woken within the lock: a worker without answers to wait for may end. */
        pthread_mutex_lock(&adapters->lock);
        adapters->asked_count--;
        task->next = adapters->done;
        adapters->done = task;
        worker_wake(task->worker);
        pthread_mutex_unlock(&adapters->lock);
}

static void note_answer(struct task *task, const struct target *target, unsigned status,
                        struct kvr_slice body)
{
        bool good = status >= 200 && status < 300;

        if (!good && !task->bad)
                task->status = status >= 400 ? status : 502;
        task->good += good;
        task->bad += !good;
        if (task->good + task->bad > 1)
                text_adds(&task->answer, ",");
        text_adds(&task->answer, "{\"replica\":\"");
        text_add_json(&task->answer,
                      slice_of(target->spec.group[0] ? target->spec.group : target->spec.name));
        text_addf(&task->answer, "\",\"status\":%u,\"answer\":\"", status);
        text_add_json(&task->answer,
                      (struct kvr_slice){body.data, body.len < SHOWN_BYTES ? body.len : SHOWN_BYTES});
        text_adds(&task->answer, "\"}");
}

static void telling_free(struct adapters_side *side, struct telling *telling)
{
        struct telling **at = &side->tellings;

        while (*at != telling)
                at = &(*at)->next;
        *at = telling->next;
        target_unref(telling->target);
        free(telling);
}

static void on_told(void *ctx, enum net_request_error error, unsigned status, struct kvr_slice body)
{
        struct telling *telling = ctx;
        struct task *task = telling->task;

        if (error != NET_REQUEST_OK)
                note_answer(task, telling->target, 0, slice_of(net_request_error_text(error)));
        else
                note_answer(task, telling->target, status, body);
        struct adapters_side *side = telling->side;

        told_note(side, telling->target, error == NET_REQUEST_OK && status >= 400 && status < 500);
        telling_free(side, telling);
        if (--task->open == 0)
                task_finish(side, task);
}

static bool tell(struct adapters_side *side, struct task *task, struct target *target)
{
        struct telling *telling = calloc(1, sizeof *telling);
        struct text path = {0}, headers = {0};
        struct sockaddr_storage addr;
        struct net_request_spec spec = {
                .addr = (const struct sockaddr *)&addr,
                .host = target->spec.authority,
                .method = "POST",
                .body = {task->body, task->len},
                .timeout_ms = ADAPTERS_TIMEOUT_MS,
                .body_bytes_max = ADAPTERS_BODY_MAX,
                .on_done = on_told,
                .ctx = telling,
        };

        if (!telling || !target_address(target, &addr, NULL)) {
                free(telling);
                return false;
        }
        telling->side = side;
        telling->task = task;
        if (target_request(target, task->path, target->auth == REPLICA_AUTH_PASS ? task->credentials : NULL,
                           true, &path, &headers)) {
                spec.target = text_string(&path);
                spec.headers = text_string(&headers);
                telling->request = net_request_send(side->client, &spec);
        }
        text_free(&path);
        text_free(&headers);
        if (!telling->request) {
                free(telling);
                return false;
        }
        telling->target = target_ref(target);
        telling->next = side->tellings;
        side->tellings = telling;
        task->open++;
        return true;
}

/* Ranks behind one port are one process. */
static bool may_be_told(const struct target *target)
{
        int state = atomic_load(&target->shown_state);

        return (state == KVR_READY || state == KVR_TRIAL) && target->spec.rank <= 0;
}

static void task_begin(struct adapters_side *side, struct task *task)
{
        for (size_t i = 0; i < side->fleet->count; i++)
                if (may_be_told(side->fleet->targets[i]))
                        (void)tell(side, task, side->fleet->targets[i]);
        if (task->open == 0)
                task_finish(side, task);
}

/* ---- replicas that lack one ---- */

static bool lacks(struct target *target, const char *name)
{
        bool lacking;

        pthread_mutex_lock(&target->lock);
        lacking = target->models && !engine_models_find(target->models, slice_of(name));
        pthread_mutex_unlock(&target->lock);
        return lacking;
}

static void tell_missing(struct adapters_side *side, struct target *target, uint64_t now_ms)
{
        struct told *told = NULL;

        for (const struct wanted *wanted = side->wanted; wanted; wanted = wanted->next) {
                struct task *task;

                if (!lacks(target, wanted->name))
                        continue;
                if (!told)
                        told = told_get(side, target->id);
                /* Another process knows nothing of what the last one was told. */
                if (!told || (now_ms < told->again_ms && told->restarts == atomic_load(&target->restarts)))
                        return;
                task = adapters_task_new(side->adapters, wanted->path, strlen(wanted->path),
                                         (struct kvr_slice){wanted->body, wanted->len});
                if (!task)
                        break;
                memcpy(task->name, wanted->name, sizeof task->name);
                if (!tell(side, task, target))
                        adapters_task_free(task);
        }
}

static void told_forget_removed(struct adapters_side *side)
{
        for (struct told **at = &side->told; *at;) {
                struct told *told = *at;

                if (fleet_snapshot_find(side->fleet, told->id)) {
                        at = &told->next;
                        continue;
                }
                *at = told->next;
                free(told);
        }
}

/* ---- the control thread ---- */

/* The next of those that wait, once nobody is being told anything. */
static void begin_next(struct adapters_side *side)
{
        while (side->waiting_head && !side->tellings) {
                struct task *task = side->waiting_head;

                side->waiting_head = task->next;
                if (!side->waiting_head)
                        side->waiting_tail = NULL;
                task->next = NULL;
                task_begin(side, task);
        }
}

static void take_asked(struct adapters_side *side)
{
        struct adapters *adapters = side->adapters;

        pthread_mutex_lock(&adapters->lock);
        if (adapters->asked_head) {
                if (side->waiting_tail)
                        side->waiting_tail->next = adapters->asked_head;
                else
                        side->waiting_head = adapters->asked_head;
                side->waiting_tail = adapters->asked_tail;
                adapters->asked_head = adapters->asked_tail = NULL;
        }
        pthread_mutex_unlock(&adapters->lock);
}

bool adapters_step(struct adapters_side *side, uint64_t now_ms)
{
        bool news = side->news;

        side->news = false;
        take_asked(side);
        if (!side->waiting_head && !side->wanted)
                return news;
        fleet_refresh(side->options.fleet, &side->fleet);
        told_forget_removed(side);
        begin_next(side);
        for (size_t i = 0; side->wanted && !side->tellings && i < side->fleet->count; i++)
                if (may_be_told(side->fleet->targets[i]))
                        tell_missing(side, side->fleet->targets[i], now_ms);
        return news;
}

struct adapters_side *adapters_side_new(struct adapters *adapters, const struct control_options *options)
{
        struct adapters_side *side = calloc(1, sizeof *side);

        if (!side)
                return NULL;
        side->adapters = adapters;
        side->options = *options;
        side->client = net_client_new(options->loop, 1, 3000);
        if (side->client)
                return side;
        free(side);
        return NULL;
}

void adapters_side_free(struct adapters_side *side)
{
        if (!side)
                return;
        while (side->tellings) {
                struct telling *telling = side->tellings;
                struct task *task = telling->task;

                net_request_cancel(telling->request);
                telling_free(side, telling);
                if (--task->open == 0)
                        adapters_task_free(task); /* workers have ended: nobody waits for it */
        }
        adapters_tasks_free(side->waiting_head); /* likewise */
        while (side->wanted)
                wanted_drop(side, side->wanted->name);
        while (side->told) {
                struct told *told = side->told;

                side->told = told->next;
                free(told);
        }
        net_client_free(side->client);
        fleet_snapshot_unref(side->fleet);
        free(side);
}
