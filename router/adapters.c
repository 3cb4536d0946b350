/* SPDX-License-Identifier: Apache-2.0 */
#include "adapters.h"

#include <stdlib.h>
#include <string.h>
#include <yyjson.h>

#include "engine/models.h"
#include "net/client.h"
#include "proxy.h"

#define SHOWN_BYTES 400 /* of a replica's answer that are shown */

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
        unsigned open, good, bad; /* replicas that have not answered, that did it, that did not */
        unsigned status;          /* of the first that did not */
        struct text answer;       /* JSON, one object per replica */
};

/* An adapter that every replica should have. */
struct wanted {
        struct wanted *next;
        char name[KVR_NAME_MAX];
        char path[64];
        char *body;
        size_t len;
};

struct adapters {
        pthread_mutex_t lock;
        struct task *asked_head, *asked_tail; /* for the control thread */
        struct task *done;                    /* for workers */
};

/* A request to one replica. */
struct telling {
        struct telling *next;
        struct adapters_side *side;
        struct task *task;
        struct target *target;
        struct net_request *request;
        char path[REPLICA_PREFIX_MAX + 64];
        char headers[REPLICA_SECRET_MAX + 128];
};

/* When a replica was last told something of its own. */
struct told {
        struct told *next;
        kvr_replica_id id;
        uint64_t again_ms;
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
        bool news; /* a replica's list of models has changed */
};

/* ---- tasks ---- */

static void task_free(struct task *task)
{
        free(task->body);
        text_free(&task->answer);
        free(task);
}

static bool ends_with(struct kvr_slice text, const char *end)
{
        size_t len = strlen(end);

        return text.len >= len && memcmp(text.data + text.len - len, end, len) == 0;
}

bool adapters_takes(const struct exchange *exchange)
{
        return exchange->worker->proxy->adapters && exchange->worker->config->allow_engine_admin &&
               strcmp(exchange->method, "POST") == 0 && exchange->path.len < sizeof((struct task *)0)->path &&
               (ends_with(exchange->path, "/load_lora_adapter") ||
                ends_with(exchange->path, "/unload_lora_adapter"));
}

/* The adapter's name; false: the body has none. */
static bool read_name(struct task *task)
{
        yyjson_doc *doc = yyjson_read(task->body, task->len, 0);
        yyjson_val *name = yyjson_obj_get(yyjson_doc_get_root(doc), "lora_name");
        size_t len = yyjson_get_len(name);
        bool good = yyjson_is_str(name) && len > 0 && len < sizeof task->name &&
                    !memchr(yyjson_get_str(name), 0, len);

        if (good)
                memcpy(task->name, yyjson_get_str(name), len);
        yyjson_doc_free(doc);
        return good;
}

static struct task *task_new(struct adapters *adapters, const char *path, size_t path_len,
                             struct kvr_slice body)
{
        struct task *task = calloc(1, sizeof *task);
        char *copy = malloc(body.len + 1);

        if (!task || !copy) {
                free(task);
                free(copy);
                return NULL;
        }
        if (body.len)
                memcpy(copy, body.data, body.len);
        memcpy(task->path, path, path_len);
        task->adapters = adapters;
        task->load = !ends_with((struct kvr_slice){path, path_len}, "/unload_lora_adapter");
        task->body = copy;
        task->len = body.len;
        text_adds(&task->answer, "{\"replicas\":[");
        return task;
}

/* ---- a worker's thread ---- */

void adapters_ask(struct exchange *exchange)
{
        struct adapters *adapters = exchange->worker->proxy->adapters;
        struct task *task;

        if (exchange->body.len > ADAPTERS_BODY_MAX) {
                reply_error(exchange, 413, "body_too_large", "a request for an adapter has at most 64 KiB",
                            0);
                return;
        }
        task = task_new(adapters, exchange->path.data, exchange->path.len, text_slice(&exchange->body));
        if (!task) {
                reply_error(exchange, 503, "overloaded", "no memory to pass the request on", 1);
                return;
        }
        if (!read_name(task)) {
                task_free(task);
                reply_error_field(exchange, 400, "invalid_request",
                                  "lora_name must be a string of 1 to 255 bytes", "lora_name");
                return;
        }
        task->worker = exchange->worker;
        task->exchange = exchange;
        exchange->adapter_task = task;
        pthread_mutex_lock(&adapters->lock);
        if (adapters->asked_tail)
                adapters->asked_tail->next = task;
        else
                adapters->asked_head = task;
        adapters->asked_tail = task;
        pthread_mutex_unlock(&adapters->lock);
}

void adapters_leave(struct exchange *exchange)
{
        struct task *task = exchange->adapter_task;

        if (!task)
                return;
        pthread_mutex_lock(&task->adapters->lock);
        task->exchange = NULL;
        pthread_mutex_unlock(&task->adapters->lock);
        exchange->adapter_task = NULL;
}

/* The next that is done for this worker, out of the list. */
static struct task *done_take(struct adapters *adapters, const struct worker *worker,
                              struct exchange **ret_exchange)
{
        struct task **at, *task;

        pthread_mutex_lock(&adapters->lock);
        for (at = &adapters->done; *at && (*at)->worker != worker;)
                at = &(*at)->next;
        task = *at;
        if (task) {
                *at = task->next;
                *ret_exchange = task->exchange;
        }
        pthread_mutex_unlock(&adapters->lock);
        return task;
}

void adapters_answer(struct worker *worker)
{
        struct exchange *exchange;
        struct task *task;

        while ((task = done_take(worker->proxy->adapters, worker, &exchange))) {
                if (exchange) {
                        exchange->adapter_task = NULL;
                        if (!task->good && !task->bad)
                                reply_error(exchange, 503, "no_replica",
                                            "no replica is ready that could take an adapter", 1);
                        else
                                reply_body(exchange, task->bad ? task->status : 200, "application/json",
                                           text_slice(&task->answer));
                }
                task_free(task);
        }
}

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
                task_free(task);
                return;
        }
        /* Woken within the lock: a worker without answers to wait for may end. */
        pthread_mutex_lock(&adapters->lock);
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

        telling_free(side, telling);
        if (--task->open == 0)
                task_finish(side, task);
}

static bool tell(struct adapters_side *side, struct task *task, struct target *target)
{
        struct telling *telling = calloc(1, sizeof *telling);
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
        snprintf(telling->path, sizeof telling->path, "%s%s", target->spec.prefix, task->path);
        snprintf(telling->headers, sizeof telling->headers, "%s%s%sContent-Type: application/json\r\n",
                 target->key ? "Authorization: Bearer " : "", target->key ? target->key : "",
                 target->key ? "\r\n" : "");
        spec.target = telling->path;
        spec.headers = telling->headers;
        telling->side = side;
        telling->task = task;
        telling->request = net_request_send(side->client, &spec);
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
                if (!told || now_ms < told->again_ms)
                        return;
                task = task_new(side->adapters, wanted->path, strlen(wanted->path),
                                (struct kvr_slice){wanted->body, wanted->len});
                if (!task)
                        break;
                memcpy(task->name, wanted->name, sizeof task->name);
                if (!tell(side, task, target))
                        task_free(task);
        }
        if (told)
                told->again_ms = now_ms + ADAPTERS_AGAIN_MS;
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

bool adapters_step(struct adapters_side *side, uint64_t now_ms)
{
        struct task *task;
        bool news = side->news;

        side->news = false;
        pthread_mutex_lock(&side->adapters->lock);
        task = side->adapters->asked_head;
        side->adapters->asked_head = side->adapters->asked_tail = NULL;
        pthread_mutex_unlock(&side->adapters->lock);
        if (!task && !side->wanted)
                return news;
        fleet_refresh(side->options.fleet, &side->fleet);
        while (task) {
                struct task *next = task->next;

                task->next = NULL;
                task_begin(side, task);
                task = next;
        }
        told_forget_removed(side);
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
                        task_free(task); /* workers have ended: nobody waits for it */
        }
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

/* ---- life ---- */

struct adapters *adapters_new(void)
{
        struct adapters *adapters = calloc(1, sizeof *adapters);

        if (adapters)
                pthread_mutex_init(&adapters->lock, NULL);
        return adapters;
}

static void tasks_free(struct task *task)
{
        while (task) {
                struct task *next = task->next;

                task_free(task);
                task = next;
        }
}

void adapters_free(struct adapters *adapters)
{
        if (!adapters)
                return;
        tasks_free(adapters->asked_head);
        tasks_free(adapters->done);
        pthread_mutex_destroy(&adapters->lock);
        free(adapters);
}
