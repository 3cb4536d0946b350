/* SPDX-License-Identifier: Apache-2.0 */
#include "bodies.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * Text comes in records of equal length, each valid by itself inside a JSON string, so that any run of
 * records is: a slice of the pool may begin and end at any of them. Every so many records one ends a message
 * and begins the next.
 */
#define RECORD         64
#define MESSAGE_AFTER  32 /* records */
#define POOL_BYTES_MIN (1u << 20)

static const char message_end[] = "\"},{\"role\":\"%s\",\"content\":\"";
static const char body_end[] = "\"}]}";

struct bodies {
        struct bodies_settings settings;
        size_t prefix_len, tail_len; /* tail: the slice of the pool */
        char *prefixes;
        char *pool;
        size_t pool_records;
        size_t end_len;
        char end[RECORD + sizeof body_end]; /* dots up to the wanted size, then the end */
};

/* SplitMix64 */
static uint64_t next(uint64_t *state)
{
        uint64_t z = *state += 0x9E3779B97F4A7C15ull;

        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
        return z ^ (z >> 31);
}

static const char *const words[] = {
        "the",    "cache",  "of",     "request", "which", "because",  "latency", "replica",
        "then",   "a",      "prefix", "is",      "to",    "measured", "between", "buffer",
        "should", "return", "queue",  "array",   "and",   "native",   "if",      "function",
        "with",   "[i]",    "= 0;",   "when",    "token", "server",   "(len)",   "answer",
};
static const char *const rare[] = {"\\\"key\\\"", "\\\"value\\\"", "Größe", "naïve",
                                   "→",           "\\\"name\\\"",  "“so”",  "\\t"};
#define RARE_ONE_IN 40 /* words */

/* Fills exactly `len` bytes with words; two of three end a line. */
static void put_words(char *at, size_t len, uint64_t *rng)
{
        size_t used = 0, end = len - 2;

        for (;;) {
                uint64_t r = next(rng);
                const char *word = r % RARE_ONE_IN ? words[(r >> 32) % (sizeof words / sizeof *words)]
                                                   : rare[(r >> 32) % (sizeof rare / sizeof *rare)];
                size_t n = strlen(word);

                if (used + n + 1 > end)
                        break;
                memcpy(at + used, word, n);
                at[used + n] = ' ';
                used += n + 1;
        }
        memset(at + used, '.', end - used);
        memcpy(at + end, next(rng) % 3 ? "\\n" : ". ", 2);
}

static void put_record(char *at, size_t number, uint64_t *rng)
{
        char begin[RECORD] = "";
        size_t len = 0;

        if (number % MESSAGE_AFTER == MESSAGE_AFTER - 1)
                len = (size_t)snprintf(begin, sizeof begin, message_end,
                                       number / MESSAGE_AFTER % 2 ? "user" : "assistant");
        memcpy(at, begin, len);
        put_words(at + len, RECORD - len, rng);
}

/* Exactly `len` bytes: whole records, the rest in dots. */
static void put_text(char *at, size_t len, uint64_t *rng)
{
        size_t records = len / RECORD;

        for (size_t i = 0; i < records; i++)
                put_record(at + i * RECORD, i, rng);
        memset(at + records * RECORD, '.', len - records * RECORD);
}

static void make_prefix(const struct bodies *bodies, char *at, unsigned group)
{
        uint64_t rng = bodies->settings.seed + group * 1000003ull;
        char begin[200];
        int len = snprintf(begin, sizeof begin,
                           "{\"model\":\"bench\",\"stream\":%s,\"temperature\":0.7,\"messages\":"
                           "[{\"role\":\"system\",\"content\":\"Group %u. ",
                           bodies->settings.stream ? "true" : "false", group);

        memcpy(at, begin, (size_t)len);
        put_text(at + len, bodies->prefix_len - (size_t)len, &rng);
}

static void put_number(struct body *body, uint64_t number)
{
        snprintf(body->number, sizeof body->number, "\"},{\"role\":\"user\",\"content\":\"%012llu ",
                 (unsigned long long)number % 1000000000000ull);
}

static bool settings_are_fine(const struct bodies_settings *settings)
{
        return settings->bytes >= BODIES_BYTES_MIN && settings->bytes <= BODIES_BYTES_MAX &&
               settings->groups && settings->groups <= 4096 && settings->share_percent >= 50 &&
               settings->share_percent <= 75;
}

struct bodies *bodies_new(const struct bodies_settings *settings)
{
        struct bodies *bodies = settings_are_fine(settings) ? calloc(1, sizeof *bodies) : NULL;
        uint64_t rng = settings->seed ^ 0x706F6F6Cu;
        struct body body = {0};

        if (!bodies)
                return NULL;
        put_number(&body, 0);
        bodies->settings = *settings;
        bodies->prefix_len = settings->bytes * settings->share_percent / 100;
        bodies->tail_len = settings->bytes - bodies->prefix_len - strlen(body.number) - (sizeof body_end - 1);
        bodies->end_len = bodies->tail_len % RECORD + sizeof body_end - 1;
        bodies->tail_len -= bodies->tail_len % RECORD;
        memset(bodies->end, '.', bodies->end_len);
        memcpy(bodies->end + bodies->end_len - (sizeof body_end - 1), body_end, sizeof body_end - 1);
        bodies->pool_records = (POOL_BYTES_MIN + 4 * bodies->tail_len) / RECORD;
        bodies->prefixes = malloc(bodies->prefix_len * settings->groups);
        bodies->pool = malloc(bodies->pool_records * RECORD);
        if (!bodies->prefixes || !bodies->pool) {
                bodies_free(bodies);
                return NULL;
        }
        for (unsigned i = 0; i < settings->groups; i++)
                make_prefix(bodies, bodies->prefixes + i * bodies->prefix_len, i);
        for (size_t i = 0; i < bodies->pool_records; i++)
                put_record(bodies->pool + i * RECORD, i, &rng);
        return bodies;
}

void bodies_free(struct bodies *bodies)
{
        if (!bodies)
                return;
        free(bodies->prefixes);
        free(bodies->pool);
        free(bodies);
}

void bodies_get(const struct bodies *bodies, uint64_t number, struct body *ret)
{
        uint64_t rng = bodies->settings.seed ^ number;
        size_t group = next(&rng) % bodies->settings.groups;
        size_t start = next(&rng) % (bodies->pool_records - bodies->tail_len / RECORD + 1);

        put_number(ret, number);
        ret->pieces[0] = (struct iovec){bodies->prefixes + group * bodies->prefix_len, bodies->prefix_len};
        ret->pieces[1] = (struct iovec){ret->number, strlen(ret->number)};
        ret->pieces[2] = (struct iovec){bodies->pool + start * RECORD, bodies->tail_len};
        ret->pieces[3] = (struct iovec){(char *)(uintptr_t)bodies->end, bodies->end_len};
}
