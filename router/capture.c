/* SPDX-License-Identifier: Apache-2.0 */
#include "capture.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "capture_file.h"

#define WRITE_BYTES ((size_t)64 * 1024) /* lines gathered for one write */
#define LOOK_MS \
        100 /* between two looks at the queue: to wake the thread each time would cost a request more, */
#define WAKE_COUNT 256 /* so that is only done when so many wait */

struct capture_entry {
        struct capture_entry *next;
        size_t bytes;
        struct capture_facts facts;
        char model[CAPTURE_NAME_MAX], workload[CAPTURE_NAME_MAX];
        uint32_t count;
        struct kvr_point points[];
};

struct capture {
        struct capture_options options;
        struct capture_file file; /* the thread's, as the next two */
        struct capture_lines *lines;
        struct text gathered;
        uint64_t gathered_lines;
        pthread_t thread;
        pthread_mutex_t lock; /* of what follows, up to the atomics */
        pthread_cond_t news;
        struct capture_entry *first, **last;
        unsigned waiting; /* entries in the queue */
        bool ending, reopen;
        uint64_t file_bytes;
        unsigned files;
        atomic_size_t bytes; /* of all entries */
        atomic_ullong written, dropped;
};

struct siphash_key capture_key(bool seed_given, uint64_t seed, uint64_t (*random64)(void *ctx), void *ctx)
{
        static const struct siphash_key domain = {0x6361707475726531ull, 0x6b65792d6f662d69ull};

        if (!seed_given)
                return (struct siphash_key){random64(ctx), random64(ctx)};
        return (struct siphash_key){siphash_pair(&domain, seed, 1), siphash_pair(&domain, seed, 2)};
}

/* ---- the workers' side ---- */

struct capture_entry *capture_begin(struct capture *capture, const struct kvr_prompt *prompt,
                                    struct kvr_slice session, uint64_t arrived_ns)
{
        size_t bytes = sizeof(struct capture_entry) + prompt->point_count * sizeof(struct kvr_point);
        struct capture_entry *entry = NULL;

        if (!prompt->point_count)
                return NULL;
        if (atomic_fetch_add_explicit(&capture->bytes, bytes, memory_order_relaxed) + bytes <=
            CAPTURE_MEMORY_MAX)
                entry = malloc(bytes);
        if (!entry) {
                atomic_fetch_sub_explicit(&capture->bytes, bytes, memory_order_relaxed);
                atomic_fetch_add_explicit(&capture->dropped, 1, memory_order_relaxed);
                return NULL;
        }
        *entry = (struct capture_entry){.bytes = bytes, .count = prompt->point_count};
        entry->facts.arrived_ms = arrived_ns > capture->options.start_ns
                                          ? (arrived_ns - capture->options.start_ns) / 1000000
                                          : 0;
        entry->facts.unix_ms = log_unix_time_ms(NULL) - (log_now_ns(NULL) - arrived_ns) / 1000000;
        entry->facts.session = session.len ? capture_session(&capture->options.key, session) : 0;
        memcpy(entry->points, prompt->points, prompt->point_count * sizeof(struct kvr_point));
        return entry;
}

void capture_forget(struct capture *capture, struct capture_entry *entry)
{
        if (!entry)
                return;
        atomic_fetch_sub_explicit(&capture->bytes, entry->bytes, memory_order_relaxed);
        free(entry);
}

void capture_end(struct capture *capture, struct capture_entry *entry, const struct capture_facts *facts)
{
        struct capture_facts known = entry->facts;

        entry->facts = *facts;
        entry->facts.arrived_ms = known.arrived_ms;
        entry->facts.unix_ms = known.unix_ms;
        entry->facts.session = known.session;
        snprintf(entry->model, sizeof entry->model, "%s", facts->model);
        snprintf(entry->workload, sizeof entry->workload, "%s", facts->workload);
        entry->facts.model = entry->model;
        entry->facts.workload = entry->workload;
        entry->next = NULL;
        pthread_mutex_lock(&capture->lock);
        *capture->last = entry;
        capture->last = &entry->next;
        if (++capture->waiting == WAKE_COUNT)
                pthread_cond_signal(&capture->news);
        pthread_mutex_unlock(&capture->lock);
}

void capture_reopen(struct capture *capture)
{
        pthread_mutex_lock(&capture->lock);
        capture->reopen = true;
        pthread_cond_signal(&capture->news);
        pthread_mutex_unlock(&capture->lock);
}

void capture_set_limits(struct capture *capture, uint64_t file_bytes, unsigned files)
{
        pthread_mutex_lock(&capture->lock);
        capture->file_bytes = file_bytes;
        capture->files = files;
        pthread_mutex_unlock(&capture->lock);
}

void capture_counts(const struct capture *capture, struct capture_counts *ret)
{
        ret->lines = atomic_load_explicit(&capture->written, memory_order_relaxed);
        ret->dropped = atomic_load_explicit(&capture->dropped, memory_order_relaxed);
}

/* ---- the thread ---- */

static uint64_t lines_in(struct kvr_slice text)
{
        uint64_t count = 0;

        for (size_t i = 0; i < text.len; i++)
                count += text.data[i] == '\n';
        return count;
}

static void flush(struct capture *capture, uint64_t file_bytes, unsigned files)
{
        struct kvr_slice text = text_slice(&capture->gathered);
        size_t written;
        uint64_t lines;
        int error;

        if (!text.len)
                return;
        error = capture_file_write(&capture->file, text, file_bytes, files, &written);
        lines = lines_in((struct kvr_slice){text.data, written});
        atomic_fetch_add_explicit(&capture->written, lines, memory_order_relaxed);
        if (error) {
                atomic_fetch_add_explicit(&capture->dropped, capture->gathered_lines - lines,
                                          memory_order_relaxed);
                log_say(capture->options.log, LOG_WARN, "capture",
                        "the capture %s cannot be written, its lines are dropped and counted: %s",
                        capture->options.path, strerror(error));
        }
        text_clear(&capture->gathered);
        capture->gathered_lines = 0;
}

static void gather(struct capture *capture, const struct capture_entry *entry)
{
        uint64_t dropped = atomic_load_explicit(&capture->dropped, memory_order_relaxed);

        if (capture_line_add(capture->lines, entry->points, entry->count, &entry->facts, dropped,
                             &capture->gathered))
                capture->gathered_lines++;
        else
                atomic_fetch_add_explicit(&capture->dropped, 1, memory_order_relaxed);
}

static void open_again(struct capture *capture)
{
        int error = capture_file_reopen(&capture->file);

        if (error)
                log_say(capture->options.log, LOG_ERROR, NULL,
                        "the capture %s cannot be opened again, the old file stays in use: %s",
                        capture->options.path,
                        error == EBUSY ? "another process writes to it" : strerror(error));
        else
                log_say(capture->options.log, LOG_INFO, NULL, "the capture was opened again");
}

/* What has come since the last look, and what else was asked for. */
struct news {
        struct capture_entry *entries;
        bool ending, reopen;
        uint64_t file_bytes;
        unsigned files;
};

static struct news wait_for_news(struct capture *capture)
{
        struct timespec due;
        struct news news;

        clock_gettime(CLOCK_MONOTONIC, &due);
        due.tv_nsec += LOOK_MS * 1000000;
        if (due.tv_nsec >= 1000000000) {
                due.tv_nsec -= 1000000000;
                due.tv_sec++;
        }
        pthread_mutex_lock(&capture->lock);
        while (capture->waiting < WAKE_COUNT && !capture->ending && !capture->reopen &&
               pthread_cond_timedwait(&capture->news, &capture->lock, &due) != ETIMEDOUT)
                ;
        news = (struct news){capture->first, capture->ending, capture->reopen, capture->file_bytes,
                             capture->files};
        capture->first = NULL;
        capture->last = &capture->first;
        capture->waiting = 0;
        capture->reopen = false;
        pthread_mutex_unlock(&capture->lock);
        return news;
}

static void *run(void *arg)
{
        struct capture *capture = arg;
        bool ending = false;

        while (!ending) {
                struct news news = wait_for_news(capture);

                if (news.reopen)
                        open_again(capture);
                while (news.entries) {
                        struct capture_entry *entry = news.entries;

                        news.entries = entry->next;
                        gather(capture, entry);
                        capture_forget(capture, entry);
                        if (capture->gathered.len >= WRITE_BYTES)
                                flush(capture, news.file_bytes, news.files);
                }
                flush(capture, news.file_bytes, news.files);
                ending = news.ending;
        }
        return NULL;
}

/* ---- life ---- */

/* So that a step of the system's clock does not hold it up. */
static int init_news(struct capture *capture)
{
        pthread_condattr_t attributes;
        int error = pthread_condattr_init(&attributes);

        if (error)
                return error;
        (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        error = pthread_cond_init(&capture->news, &attributes);
        pthread_condattr_destroy(&attributes);
        return error;
}

/* Signals are the main thread's. */
static int start_thread(struct capture *capture)
{
        sigset_t all, before;
        int error;

        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        error = pthread_create(&capture->thread, NULL, run, capture);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        return error;
}

struct capture *capture_new(const struct capture_options *options, char *ret_why, size_t ret_size)
{
        struct capture *capture = calloc(1, sizeof *capture);
        int error = ENOMEM;

        if (!capture)
                goto failed;
        capture->options = *options;
        capture->file_bytes = options->file_bytes;
        capture->files = options->files;
        capture->last = &capture->first;
        capture->file.fd = -1;
        capture->lines = capture_lines_new(&options->key, options->block_tokens);
        if (!capture->lines)
                goto failed;
        /* A file tells the times of one router's life: those of an earlier one stay apart. */
        error = capture_file_open(&capture->file, options->path, true, options->files);
        if (error)
                goto failed;
        error = init_news(capture);
        if (error)
                goto failed;
        pthread_mutex_init(&capture->lock, NULL);
        error = start_thread(capture);
        if (!error)
                return capture;
        pthread_cond_destroy(&capture->news);
        pthread_mutex_destroy(&capture->lock);
failed:
        snprintf(ret_why, ret_size, "%s",
                 error == EBUSY
                         ? "another kvroute writes to it: give each router a file of its own, or stop the "
                           "other one first"
                         : strerror(error));
        if (capture) {
                capture_file_close(&capture->file);
                capture_lines_free(capture->lines);
        }
        free(capture);
        return NULL;
}

void capture_free(struct capture *capture)
{
        if (!capture)
                return;
        pthread_mutex_lock(&capture->lock);
        capture->ending = true;
        pthread_cond_signal(&capture->news);
        pthread_mutex_unlock(&capture->lock);
        pthread_join(capture->thread, NULL);
        capture_file_close(&capture->file);
        capture_lines_free(capture->lines);
        text_free(&capture->gathered);
        pthread_cond_destroy(&capture->news);
        pthread_mutex_destroy(&capture->lock);
        free(capture);
}
