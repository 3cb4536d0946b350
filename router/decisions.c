/* SPDX-License-Identifier: Apache-2.0 */
#include "decisions.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct entry {
        struct decision_note note; /* its names point into the arrays below */
        char model[KVR_NAME_MAX], workload[KVR_NAME_MAX], replica[KVR_NAME_MAX];
};

struct decisions {
        pthread_mutex_t lock;
        uint64_t count; /* ever noted; the next one goes to count % DECISIONS_KEPT */
        struct entry entries[DECISIONS_KEPT];
};

struct decisions *decisions_new(void)
{
        struct decisions *decisions = calloc(1, sizeof *decisions);

        if (decisions && pthread_mutex_init(&decisions->lock, NULL) != 0) {
                free(decisions);
                return NULL;
        }
        return decisions;
}

void decisions_free(struct decisions *decisions)
{
        if (!decisions)
                return;
        pthread_mutex_destroy(&decisions->lock);
        free(decisions);
}

static const char *keep(char into[KVR_NAME_MAX], const char *name)
{
        size_t len = strnlen(name, KVR_NAME_MAX - 1);

        memcpy(into, name, len);
        into[len] = 0;
        return into;
}

void decisions_add(struct decisions *decisions, const struct decision_note *note)
{
        struct entry *entry;

        if (pthread_mutex_trylock(&decisions->lock) != 0)
                return;
        entry = &decisions->entries[decisions->count++ % DECISIONS_KEPT];
        entry->note = *note;
        entry->note.model = keep(entry->model, note->model);
        entry->note.workload = keep(entry->workload, note->workload);
        entry->note.replica = keep(entry->replica, note->replica);
        pthread_mutex_unlock(&decisions->lock);
}

static void add_string(struct text *out, const char *key, const char *value)
{
        text_addf(out, ",\"%s\":\"", key);
        text_add_json(out, (struct kvr_slice){value, strlen(value)});
        text_add(out, "\"", 1);
}

static void add_seconds(struct text *out, const char *key, double seconds)
{
        if (isnan(seconds))
                text_addf(out, ",\"%s\":null", key);
        else
                text_addf(out, ",\"%s\":%.6g", key, seconds);
}

static void add_note(struct text *out, const struct decision_note *note, uint64_t now_ns)
{
        text_addf(out, "{\"age_s\":%.3f", now_ns > note->at_ns ? (double)(now_ns - note->at_ns) / 1e9 : 0.0);
        add_string(out, "model", note->model);
        add_string(out, "workload", note->workload);
        add_string(out, "replica", note->replica);
        add_string(out, "reason", kvr_reason_name(note->reason));
        add_seconds(out, "wait_s", note->wait_s);
        add_seconds(out, "own_s", note->own_s);
        add_seconds(out, "toll_s", note->toll_s);
        text_addf(out, ",\"due_tokens\":%u", note->due_tokens);
        text_addf(out, ",\"status\":%u,\"prompt_tokens\":%u,\"best_tokens\":%u,\"predicted_tokens\":%u",
                  note->status, note->prompt_tokens, note->best_tokens, note->predicted_tokens);
        if (note->observed_tokens < 0)
                text_adds(out, ",\"observed_tokens\":null}");
        else
                text_addf(out, ",\"observed_tokens\":%lld}", (long long)note->observed_tokens);
}

void decisions_json(struct decisions *decisions, uint64_t now_ns, struct text *ret)
{
        uint64_t count;

        text_adds(ret, "{\"decisions\":[");
        pthread_mutex_lock(&decisions->lock);
        count = decisions->count;
        for (uint64_t i = 0; i < count && i < DECISIONS_KEPT; i++) {
                if (i)
                        text_add(ret, ",", 1);
                add_note(ret, &decisions->entries[(count - 1 - i) % DECISIONS_KEPT].note, now_ns);
        }
        pthread_mutex_unlock(&decisions->lock);
        text_adds(ret, "]}");
}
