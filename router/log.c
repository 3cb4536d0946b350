/* SPDX-License-Identifier: Apache-2.0 */
#include "log.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <xxhash.h>

#include "proto/text.h"

/* A message that was said: until it is LOG_REPEAT_NS old the same key is only counted. */
struct repeat {
        uint64_t key;     /* 0: free */
        uint64_t said_ns; /* when it was last said */
        uint64_t count;   /* left out since */
};

struct logger {
        struct log_options options;
        atomic_int level;
        pthread_mutex_t lock; /* repeats */
        struct repeat repeats[LOG_KEYS_MAX];
};

static const char *const level_names[] = {"error", "warn", "info", "debug"};

uint64_t log_now_ns(void *ctx)
{
        struct timespec now;

        (void)ctx;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t log_unix_time_ms(void *ctx)
{
        struct timespec now;

        (void)ctx;
        clock_gettime(CLOCK_REALTIME, &now);
        return (uint64_t)now.tv_sec * 1000u + (uint64_t)now.tv_nsec / 1000000u;
}

struct logger *log_new(const struct log_options *options)
{
        struct logger *logger = calloc(1, sizeof *logger);

        if (!logger)
                return NULL;
        if (pthread_mutex_init(&logger->lock, NULL) != 0) {
                free(logger);
                return NULL;
        }
        logger->options = *options;
        atomic_init(&logger->level, (int)options->level);
        return logger;
}

void log_free(struct logger *logger)
{
        if (!logger)
                return;
        pthread_mutex_destroy(&logger->lock);
        free(logger);
}

void log_set_level(struct logger *logger, enum log_level level)
{
        if (logger)
                atomic_store_explicit(&logger->level, (int)level, memory_order_relaxed);
}

bool log_enabled(const struct logger *logger, enum log_level level)
{
        return logger && (int)level <= atomic_load_explicit(&logger->level, memory_order_relaxed);
}

/* ---- repeats ---------------------------------------------------------------------------------------- */

static uint64_t hash_key(const char *key, const char *format)
{
        /* The same key in another message is another matter: a replica's name may stand in several. */
        uint64_t hash = XXH3_64bits_withSeed(key, strlen(key), XXH3_64bits(format, strlen(format)));

        return hash ? hash : 1;
}

/* The entry of this key, or else the one to give up for it. Caller holds the lock. */
static struct repeat *find_repeat(struct logger *logger, uint64_t key)
{
        struct repeat *oldest = &logger->repeats[0];

        for (size_t i = 0; i < LOG_KEYS_MAX; i++) {
                struct repeat *r = &logger->repeats[i];

                if (r->key == key)
                        return r;
                if (r->key == 0 || (oldest->key != 0 && r->said_ns < oldest->said_ns))
                        oldest = oldest->key == 0 ? oldest : r;
        }
        return oldest;
}

/* False: it was said a short while ago. *ret_left_out tells how many were not said since. */
static bool may_say(struct logger *logger, const char *key, const char *format, uint64_t *ret_left_out)
{
        uint64_t hash = hash_key(key, format), now = logger->options.now_ns(logger->options.ctx);
        bool say = true;

        pthread_mutex_lock(&logger->lock);
        struct repeat *r = find_repeat(logger, hash);
        if (r->key != hash)
                *r = (struct repeat){.key = hash};
        else
                say = now - r->said_ns >= LOG_REPEAT_NS;
        if (say) {
                *ret_left_out = r->count;
                r->count = 0;
                r->said_ns = now;
        } else {
                r->count++;
        }
        pthread_mutex_unlock(&logger->lock);
        return say;
}

void log_clear(struct logger *logger, const char *key, const char *format)
{
        if (!logger)
                return;
        uint64_t hash = hash_key(key, format);

        pthread_mutex_lock(&logger->lock);
        struct repeat *r = find_repeat(logger, hash);
        if (r->key == hash)
                *r = (struct repeat){0};
        pthread_mutex_unlock(&logger->lock);
}

/* ---- lines ------------------------------------------------------------------------------------------ */

static void format_time(uint64_t unix_ms, char *ret, size_t size)
{
        time_t seconds = (time_t)(unix_ms / 1000);
        struct tm tm;
        char date[32];

        if (!gmtime_r(&seconds, &tm) || strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &tm) == 0)
                date[0] = 0;
        snprintf(ret, size, "%s.%03uZ", date, (unsigned)(unix_ms % 1000));
}

/* One line stays one line: what came from outside must not be able to forge another. */
static void flatten(char *text)
{
        for (; *text; text++)
                if ((unsigned char)*text < 0x20 || *text == 0x7f)
                        *text = ' ';
}

static void write_all(int fd, const char *data, size_t len)
{
        while (len > 0) {
                ssize_t n = write(fd, data, len);

                if (n < 0 && errno == EINTR)
                        continue;
                if (n <= 0)
                        return; /* nobody is left to tell */
                data += n;
                len -= (size_t)n;
        }
}

static void emit(struct logger *logger, enum log_level level, char *message, uint64_t left_out)
{
        struct text line = {.limit = 8 * LOG_LINE_MAX};
        char time[64];

        format_time(logger->options.unix_time_ms(logger->options.ctx), time, sizeof time);
        if (logger->options.json) {
                text_addf(&line, "{\"time\":\"%s\",\"level\":\"%s\",\"message\":\"", time,
                          level_names[level]);
                text_add_json(&line, (struct kvr_slice){message, strlen(message)});
                text_adds(&line, "\"");
                if (left_out > 0)
                        text_addf(&line, ",\"left_out\":%" PRIu64, left_out);
                text_adds(&line, "}\n");
        } else {
                flatten(message);
                text_addf(&line, "%s %-5s %s", time, level_names[level], message);
                if (left_out > 0)
                        text_addf(&line, " (%" PRIu64 " more like this since)", left_out);
                text_adds(&line, "\n");
        }
        /* One write per line, so that lines of several threads do not mix. */
        if (!line.failed)
                write_all(logger->options.fd, line.data, line.len);
        text_free(&line);
}

void log_say(struct logger *logger, enum log_level level, const char *key, const char *format, ...)
{
        char message[LOG_LINE_MAX];
        uint64_t left_out = 0;
        va_list args;

        if (!log_enabled(logger, level) || (key && !may_say(logger, key, format, &left_out)))
                return;
        va_start(args, format);
        vsnprintf(message, sizeof message, format, args);
        va_end(args);
        emit(logger, level, message, left_out);
}
