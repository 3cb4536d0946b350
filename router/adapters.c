/* SPDX-License-Identifier: Apache-2.0 */
/* Requests for adapters on the workers' side: taken over, and answered when all replicas have answered. */
#include "adapters.h"

#include <stdlib.h>
#include <string.h>
#include <yyjson.h>

#include "adapters_int.h"
#include "identify.h"

/* ---- tasks ---- */

void adapters_task_free(struct task *task)
{
        free(task->body);
        free(task->credentials);
        text_free(&task->answer);
        free(task);
}

void adapters_tasks_free(struct task *task)
{
        while (task) {
                struct task *next = task->next;

                adapters_task_free(task);
                task = next;
        }
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

struct task *adapters_task_new(struct adapters *adapters, const char *path, size_t path_len,
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

static bool push(struct adapters *adapters, struct task *task)
{
        bool room;

        pthread_mutex_lock(&adapters->lock);
        room = adapters->asked_count < ADAPTERS_WAITING_MAX;
        if (room) {
                adapters->asked_count++;
                if (adapters->asked_tail)
                        adapters->asked_tail->next = task;
                else
                        adapters->asked_head = task;
                adapters->asked_tail = task;
        }
        pthread_mutex_unlock(&adapters->lock);
        return room;
}

void adapters_ask(struct exchange *exchange)
{
        struct adapters *adapters = exchange->worker->proxy->adapters;
        struct task *task;

        struct kvr_slice body = identify_body(exchange);

        if (body.len > ADAPTERS_BODY_MAX) {
                reply_error(exchange, 413, "body_too_large", "a request for an adapter has at most 64 KiB",
                            0);
                return;
        }
        task = adapters_task_new(adapters, exchange->path.data, exchange->path.len, body);
        if (task && exchange->credentials.len) {
                task->credentials = strndup(exchange->credentials.data, exchange->credentials.len);
                if (!task->credentials) {
                        adapters_task_free(task);
                        task = NULL;
                }
        }
        if (!task) {
                reply_error(exchange, 503, "overloaded", "no memory to pass the request on", 1);
                return;
        }
        if (!read_name(task)) {
                adapters_task_free(task);
                reply_error_field(exchange, 400, "invalid_request",
                                  "lora_name must be a string of 1 to 255 bytes", "lora_name");
                return;
        }
        task->worker = exchange->worker;
        task->exchange = exchange;
        exchange->adapter_task = task;
        if (push(adapters, task))
                return;
        exchange->adapter_task = NULL;
        adapters_task_free(task);
        reply_error(exchange, 503, "overloaded", "too many requests for adapters wait for their turn", 1);
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
                adapters_task_free(task);
        }
}

/* ---- life ---- */

struct adapters *adapters_new(void)
{
        struct adapters *adapters = calloc(1, sizeof *adapters);

        if (adapters)
                pthread_mutex_init(&adapters->lock, NULL);
        return adapters;
}

void adapters_free(struct adapters *adapters)
{
        if (!adapters)
                return;
        adapters_tasks_free(adapters->asked_head);
        adapters_tasks_free(adapters->done);
        pthread_mutex_destroy(&adapters->lock);
        free(adapters);
}
