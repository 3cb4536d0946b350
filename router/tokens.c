/* SPDX-License-Identifier: Apache-2.0 */
#include "tokens.h"

#include <kvroute/events.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tokenize.h"
#include "net/client.h"
#include "proto/text.h"

#define CANDIDATES_MAX 64 /* replicas that are looked at for one question */

struct job {
        struct job *next;
        struct kvr_outline *outline;
        enum kvr_api api;
        char *body;
        size_t len;
        char model[KVR_NAME_MAX];
        uint64_t since_ms; /* when the control thread took it */
};

/* An engine as somebody to ask. */
struct asked {
        struct asked *next;
        struct tokens *tokens;
        kvr_replica_id id;
        char name[KVR_NAME_MAX];
        unsigned lacking; /* bits of enum engine_tokenizer */
        uint64_t lacking_since_ms, rest_until_ms, sent_ms;
        struct net_request *request; /* NULL: idle */
        struct job *job;
        struct engine_question question;
        struct tokens_view view;
};

struct tokens {
        struct tokens_options options;
        struct net_client *client;
        pthread_mutex_t lock; /* of what workers touch: */
        struct job *fresh_head, *fresh_tail;
        size_t count, bytes; /* of all jobs, fresh and waiting */
        /* control thread: */
        struct job *waiting_head, *waiting_tail;
        struct asked *asked;
        unsigned running;
        struct fleet_snapshot *fleet;
};

/* ---- jobs ---- */

static void count_result(struct tokens *tokens, unsigned thread, const char *result)
{
        struct metrics *metrics = tokens->options.metrics;
        struct kvr_slice label = {result, strlen(result)};

        metrics_add(metrics, thread, metrics_series(metrics, thread, METRIC_TOKENIZE, &label), 1);
}

static void job_free(struct job *job)
{
        kvr_outline_free(job->outline);
        free(job->body);
        free(job);
}

static void job_end(struct tokens *tokens, struct job *job, const char *result)
{
        count_result(tokens, tokens->options.metrics_thread, result);
        pthread_mutex_lock(&tokens->lock);
        tokens->count--;
        tokens->bytes -= job->len;
        pthread_mutex_unlock(&tokens->lock);
        job_free(job);
}

static void job_give_up(struct tokens *tokens, struct job *job, const char *result)
{
        kvr_tokens_drop(tokens->options.router, job->outline);
        job_end(tokens, job, result);
}

static struct job *job_new(const struct tokens_prompt *prompt, struct kvr_outline *outline)
{
        struct job *job = calloc(1, sizeof *job);

        if (!job)
                return NULL;
        job->api = prompt->api;
        job->len = prompt->body.len;
        job->body = malloc(job->len + 1);
        if (!job->body || prompt->model.len >= sizeof job->model) {
                free(job->body);
                free(job);
                return NULL;
        }
        memcpy(job->body, prompt->body.data, job->len);
        if (prompt->model.len)
                memcpy(job->model, prompt->model.data, prompt->model.len);
        job->outline = outline;
        return job;
}

/* False when there is no room. */
static bool push(struct tokens *tokens, struct job *job)
{
        bool room;

        pthread_mutex_lock(&tokens->lock);
        room = tokens->count < TOKENS_QUEUE_MAX && tokens->bytes + job->len <= TOKENS_BYTES_MAX;
        if (room) {
                tokens->count++;
                tokens->bytes += job->len;
                if (tokens->fresh_tail)
                        tokens->fresh_tail->next = job;
                else
                        tokens->fresh_head = job;
                tokens->fresh_tail = job;
        }
        pthread_mutex_unlock(&tokens->lock);
        return room;
}

void tokens_offer(struct tokens *tokens, const struct tokens_prompt *prompt)
{
        struct kvr_router *router = tokens->options.router;
        struct kvr_outline *outline;
        struct job *job;

        outline = kvr_outline_new(prompt->prompt, prompt->model, prompt->adapter, prompt->salt);
        if (!outline)
                return; /* wanted again when the library's patience with us is over */
        job = job_new(prompt, outline);
        if (job && push(tokens, job))
                return;
        kvr_tokens_drop(router, outline);
        if (job)
                job_free(job);
        else
                kvr_outline_free(outline);
        count_result(tokens, prompt->metrics_thread, "dropped");
}

/* ---- whom to ask ---- */

static struct asked *asked_get(struct tokens *tokens, const struct target *target)
{
        struct asked *asked = tokens->asked;

        while (asked && asked->id != target->id)
                asked = asked->next;
        if (asked)
                return asked;
        asked = calloc(1, sizeof *asked);
        if (!asked)
                return NULL;
        asked->tokens = tokens;
        asked->id = target->id;
        asked->next = tokens->asked;
        tokens->asked = asked;
        return asked;
}

static void asked_forget_removed(struct tokens *tokens)
{
        for (struct asked **at = &tokens->asked; *at;) {
                struct asked *asked = *at;

                if (asked->request || fleet_snapshot_find(tokens->fleet, asked->id)) {
                        at = &asked->next;
                        continue;
                }
                *at = asked->next;
                free(asked);
        }
}

/* What asking for one job comes to. */
struct search {
        struct asked *asked;
        struct target *target;
        struct engine_question question; /* body NULL: nothing can be asked now */
        bool hopeless;                   /* nor ever */
};

/* Somebody who may be asked now. */
struct choice {
        struct asked *asked;
        struct target *target;
        double wait_s;
};

static int by_wait(const void *a, const void *b)
{
        double x = ((const struct choice *)a)->wait_s, y = ((const struct choice *)b)->wait_s;

        return (x > y) - (x < y);
}

/* Fills `choices` with those who may be asked now, the idlest first; tells whether others may be later. */
static size_t choices_find(struct tokens *tokens, const struct job *job, uint64_t now_ms,
                           struct choice choices[CANDIDATES_MAX], bool *ret_later)
{
        struct kvr_candidate candidates[CANDIDATES_MAX];
        struct kvr_request request = {.model = {job->model, strlen(job->model)}};
        struct kvr_decision decision;
        double limit_s = now_ms < job->since_ms + TOKENS_PATIENCE_MS ? TOKENS_BUSY_S : INFINITY;
        size_t count = 0, found = 0;

        *ret_later = kvr_explain(tokens->options.router, &request, &decision, candidates, CANDIDATES_MAX,
                                 &count, NULL) != KVR_OK;
        for (size_t i = 0; i < count && i < CANDIDATES_MAX; i++) {
                struct target *target = fleet_snapshot_find(tokens->fleet, candidates[i].replica);
                struct asked *asked = target ? asked_get(tokens, target) : NULL;

                if (!asked || !engine_tokenizes((enum engine_kind)atomic_load(&target->engine), job->api))
                        continue;
                if (now_ms >= asked->lacking_since_ms + TOKENS_AGAIN_MS)
                        asked->lacking = 0;
                if (asked->request || now_ms < asked->rest_until_ms || candidates[i].wait_s > limit_s)
                        *ret_later = true;
                else
                        choices[found++] = (struct choice){asked, target, candidates[i].wait_s};
        }
        qsort(choices, found, sizeof *choices, by_wait);
        return found;
}

static void look_for(struct tokens *tokens, const struct job *job, uint64_t now_ms, struct search *search)
{
        struct choice choices[CANDIDATES_MAX] = {0};
        bool later;
        size_t count = choices_find(tokens, job, now_ms, choices, &later);
        unsigned tried = ~0U; /* what was lacking where the last try found no way */

        for (size_t i = 0; i < count; i++) {
                enum engine_kind kind = (enum engine_kind)atomic_load(&choices[i].target->engine);

                /* Of two alike the second has no way either. */
                if (choices[i].asked->lacking == tried)
                        continue;
                if (engine_tokenize_ask(kind, job->api, (struct kvr_slice){job->body, job->len},
                                        (struct kvr_slice){job->model, strlen(job->model)},
                                        choices[i].asked->lacking, &search->question) == KVR_OK) {
                        search->asked = choices[i].asked;
                        search->target = choices[i].target;
                        return;
                }
                tried = choices[i].asked->lacking;
        }
        search->hopeless = !later;
}

/* ---- asking ---- */

static void waiting_push(struct tokens *tokens, struct job *job)
{
        job->next = NULL;
        if (tokens->waiting_tail)
                tokens->waiting_tail->next = job;
        else
                tokens->waiting_head = job;
        tokens->waiting_tail = job;
}

static void failed(struct asked *asked, struct job *job, const char *why)
{
        asked->view.failed++;
        snprintf(asked->view.error, sizeof asked->view.error, "%s: %s", asked->question.path, why);
        job_give_up(asked->tokens, job, "failed");
}

static void learn(struct asked *asked, struct job *job, struct kvr_slice body)
{
        uint32_t *ids = NULL, count = 0;
        enum kvr_status status = engine_tokenize_read(body, &ids, &count);

        if (status != KVR_OK) {
                failed(asked, job, "its answer has no token ids");
                return;
        }
        asked->view.learned++;
        asked->view.error[0] = '\0';
        status = kvr_tokens_learn(asked->tokens->options.router, job->outline, ids, count);
        free(ids);
        if (status == KVR_OK)
                job_end(asked->tokens, job, "learned");
        else
                job_give_up(asked->tokens, job, "failed");
}

static void on_answer(void *ctx, enum net_request_error error, unsigned status, struct kvr_slice body)
{
        struct asked *asked = ctx;
        struct tokens *tokens = asked->tokens;
        struct job *job = asked->job;
        uint64_t now_ms = net_now_ms(tokens->options.loop), took_ms = now_ms - asked->sent_ms;
        uint64_t rest_ms = took_ms * TOKENS_REST;

        asked->request = NULL;
        asked->job = NULL;
        free(asked->question.body);
        asked->question.body = NULL;
        asked->rest_until_ms = now_ms + (rest_ms < TOKENS_REST_MS_MAX ? rest_ms : TOKENS_REST_MS_MAX);
        tokens->running--;
        if (error == NET_REQUEST_OK && status == 200) {
                learn(asked, job, body);
        } else if (error == NET_REQUEST_OK &&
                   (status == 401 || status == 403 || status == 404 || status == 405 || status == 501)) {
                asked->lacking |= 1U << asked->question.tokenizer;
                asked->lacking_since_ms = now_ms;
                log_say(tokens->options.log, LOG_INFO, asked->name,
                        "replica %s: %s answered %u; prompts that only it could tokenize are matched by "
                        "history",
                        asked->name, asked->question.path, status);
                waiting_push(tokens, job); /* another path, or another replica */
        } else {
                char why[64];

                snprintf(why, sizeof why, "status %u", status);
                failed(asked, job, error == NET_REQUEST_OK ? why : net_request_error_text(error));
        }
}

static bool ask(struct tokens *tokens, struct job *job, struct search *search, uint64_t now_ms)
{
        struct asked *asked = search->asked;
        struct target *target = search->target;
        struct text path = {0}, headers = {0};
        struct sockaddr_storage addr;
        struct net_request_spec spec = {
                .addr = (const struct sockaddr *)&addr,
                .host = target->spec.authority,
                .method = "POST",
                .body = {search->question.body, search->question.len},
                .timeout_ms = TOKENS_TIMEOUT_MS,
                .body_bytes_max = ENGINE_IDS_BODY_MAX,
                .on_done = on_answer,
                .ctx = asked,
        };

        if (!target_address(target, &addr, NULL))
                return false;
        if (target_request(target, search->question.path, NULL, true, &path, &headers)) {
                spec.target = text_string(&path);
                spec.headers = text_string(&headers);
                asked->request = net_request_send(tokens->client, &spec);
        }
        text_free(&path);
        text_free(&headers);
        if (!asked->request)
                return false;
        snprintf(asked->name, sizeof asked->name, "%s", target->spec.name);
        asked->question = search->question;
        asked->job = job;
        asked->sent_ms = now_ms;
        tokens->running++;
        return true;
}

/* True when the job is out of the queue. */
static bool job_step(struct tokens *tokens, struct job *job, uint64_t now_ms)
{
        struct search search = {0};

        look_for(tokens, job, now_ms, &search);
        if (search.asked && ask(tokens, job, &search, now_ms))
                return true;
        free(search.question.body);
        if (!search.hopeless && now_ms < job->since_ms + TOKENS_LIFE_MS)
                return false;
        job_give_up(tokens, job, search.hopeless ? "unsupported" : "dropped");
        return true;
}

static void fresh_take(struct tokens *tokens, uint64_t now_ms)
{
        struct job *job;

        pthread_mutex_lock(&tokens->lock);
        job = tokens->fresh_head;
        tokens->fresh_head = tokens->fresh_tail = NULL;
        pthread_mutex_unlock(&tokens->lock);
        while (job) {
                struct job *next = job->next;

                job->since_ms = now_ms;
                waiting_push(tokens, job);
                job = next;
        }
}

void tokens_step(struct tokens *tokens, uint64_t now_ms)
{
        struct job *job, *first = NULL;          /* that was put behind */
        unsigned looks = 2 * TOKENS_RUNNING_MAX; /* each look reads a body */

        fresh_take(tokens, now_ms);
        if (!tokens->waiting_head)
                return;
        fleet_refresh(tokens->options.fleet, &tokens->fleet);
        asked_forget_removed(tokens);
        /* What cannot be asked now goes behind the others, which may be for engines that are idle. */
        while (tokens->waiting_head && tokens->waiting_head != first &&
               tokens->running < TOKENS_RUNNING_MAX && looks-- > 0) {
                job = tokens->waiting_head;
                tokens->waiting_head = job->next;
                if (!tokens->waiting_head)
                        tokens->waiting_tail = NULL;
                job->next = NULL;
                if (job_step(tokens, job, now_ms))
                        continue;
                waiting_push(tokens, job);
                first = first ? first : job;
        }
}

bool tokens_view(const struct tokens *tokens, kvr_replica_id id, struct tokens_view *ret)
{
        const struct asked *asked = tokens->asked;

        while (asked && asked->id != id)
                asked = asked->next;
        if (asked)
                *ret = asked->view;
        return asked != NULL;
}

/* ---- life ---- */

struct tokens *tokens_new(const struct tokens_options *options)
{
        struct tokens *tokens = calloc(1, sizeof *tokens);

        if (!tokens)
                return NULL;
        tokens->options = *options;
        tokens->client = net_client_new(options->loop, TOKENS_RUNNING_MAX, 3000);
        if (!tokens->client) {
                free(tokens);
                return NULL;
        }
        pthread_mutex_init(&tokens->lock, NULL);
        return tokens;
}

void tokens_free(struct tokens *tokens)
{
        if (!tokens)
                return;
        fresh_take(tokens, 0);
        while (tokens->waiting_head) {
                struct job *job = tokens->waiting_head;

                tokens->waiting_head = job->next;
                job_free(job);
        }
        while (tokens->asked) {
                struct asked *asked = tokens->asked;

                tokens->asked = asked->next;
                if (asked->request)
                        net_request_cancel(asked->request);
                if (asked->job)
                        job_free(asked->job);
                free(asked->question.body);
                free(asked);
        }
        net_client_free(tokens->client);
        fleet_snapshot_unref(tokens->fleet);
        pthread_mutex_destroy(&tokens->lock);
        free(tokens);
}
