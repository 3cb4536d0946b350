/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What it costs to get from a request body to its keys, beside what yyjson takes to parse the same bytes.
 *
 *     bench_prompt [ROUNDS]
 *
 * Bodies: "chat" is an agent's conversation (tools, code with escapes, some UTF-8), "spaced" the same as
 * Python writes it by default (blanks, \u escapes), "text" one long plain message, "ids" a prompt of token
 * ids.
 */
#include <kvroute/prompt.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <yyjson.h>

#define ROUNDS 201

struct text {
        char *data;
        size_t len, capacity;
};

static void add(struct text *t, const char *bytes)
{
        size_t len = strlen(bytes);

        if (!t->data || t->len + len > t->capacity) {
                t->capacity = (t->len + len + 1) * 2;
                t->data = realloc(t->data, t->capacity);
                if (!t->data)
                        abort();
        }
        memcpy(t->data + t->len, bytes, len);
        t->len += len;
}

/* Numerical Recipes' generator: the bodies must be the same in every run. */
static uint32_t next(uint32_t *state)
{
        *state = *state * 1664525u + 1013904223u;
        return *state >> 8;
}

static const char *const words[] = {"the",     "cache",   "of",       "request", "which",     "because",
                                    "latency", "replica", "then",     "a",       "prefix",    "is",
                                    "to",      "and",     "measured", "between", "tokenizer", "buffer",
                                    "should",  "return",  "queue"};
static const char *const foreign[] = {"Größe", "naïve", "→", "größer", "“quoted”", "缓存", "пример", "é"};

static void add_prose(struct text *t, size_t len, uint32_t *rng)
{
        size_t end = t->len + len;
        size_t line = 0;

        while (t->len < end) {
                uint32_t r = next(rng);

                add(t, r % 97 == 0 ? foreign[r / 97 % 8] : words[r % 21]);
                if (++line % 40 == 0)
                        add(t, "\\n\\n");
                else
                        add(t, r % 11 == 0 ? ", " : " ");
        }
}

static void add_code(struct text *t, size_t len, uint32_t *rng)
{
        size_t end = t->len + len;

        while (t->len < end) {
                char line[200];
                uint32_t r = next(rng);

                switch (r % 4) {
                case 0:
                        snprintf(line, sizeof(line), "        if (%s->%s == %u)\\n", words[r / 7 % 21],
                                 words[r / 11 % 21], r % 1000);
                        break;
                case 1:
                        snprintf(line, sizeof(line), "\\tprintf(\\\"%s: %%d\\\\n\\\", %s_%s[%u]);\\n",
                                 words[r / 7 % 21], words[r / 13 % 21], words[r / 5 % 21], r % 64);
                        break;
                case 2:
                        snprintf(line, sizeof(line), "        /* %s %s %s %s %s */\\n", words[r / 3 % 21],
                                 words[r / 5 % 21], words[r / 7 % 21], words[r / 11 % 21],
                                 words[r / 13 % 21]);
                        break;
                default:
                        snprintf(line, sizeof(line), "static int %s_%s(struct %s *%s, size_t len)\\n{\\n",
                                 words[r / 3 % 21], words[r / 5 % 21], words[r / 7 % 21], words[r / 11 % 21]);
                }
                add(t, line);
        }
}

static void add_tool(struct text *t, unsigned number, uint32_t *rng)
{
        char head[200];

        snprintf(head, sizeof(head),
                 "%s{\"type\":\"function\",\"function\":{\"name\":\"tool_%u\",\"description\":\"",
                 number ? "," : "", number);
        add(t, head);
        add_prose(t, 300, rng);
        add(t, "\",\"parameters\":{\"type\":\"object\",\"properties\":{");
        for (unsigned i = 0; i < 4; i++) {
                snprintf(head, sizeof(head), "%s\"argument_%u\":{\"type\":\"string\",\"description\":\"",
                         i ? "," : "", i);
                add(t, head);
                add_prose(t, 60, rng);
                add(t, "\"}");
        }
        add(t, "},\"required\":[\"argument_0\",\"argument_1\"]}}}");
}

/* `code` of three messages are code, the others prose. */
static void make_conversation(struct text *t, size_t size, unsigned code)
{
        uint32_t rng = 1;
        unsigned turn = 0;

        add(t, "{\"model\":\"meta-llama/"
               "Llama-3.1-8B-Instruct\",\"temperature\":0.7,\"stream\":true,\"max_tokens\":512,");
        if (size >= 4096) {
                add(t, "\"tools\":[");
                for (unsigned i = 0; i < 12 && t->len < size / 3; i++)
                        add_tool(t, i, &rng);
                add(t, "],");
        }
        add(t, "\"messages\":[{\"role\":\"system\",\"content\":\"");
        add_prose(t, size / 20, &rng);
        add(t, "\"}");
        while (t->len + 100 < size) {
                size_t left = size - t->len;
                size_t len = 400 + next(&rng) % 2400;

                add(t, turn % 2 ? ",{\"role\":\"assistant\",\"content\":\""
                                : ",{\"role\":\"user\",\"content\":\"");
                if (len > left)
                        len = left;
                if (turn++ % 3 < code)
                        add_code(t, len, &rng);
                else
                        add_prose(t, len, &rng);
                add(t, "\"}");
        }
        add(t, "]}");
}

static void make_chat(struct text *t, size_t size)
{
        make_conversation(t, size, 1);
}

static void make_code(struct text *t, size_t size)
{
        make_conversation(t, size, 3);
}

/* As Python's json.dumps spells it by default. */
static void make_spaced(struct text *t, size_t size)
{
        struct text chat = {0};
        struct text escaped = {0};
        yyjson_doc *doc;
        char *written;
        bool in_string = false;

        make_chat(&chat, size);
        doc = yyjson_read(chat.data, chat.len, 0);
        written = yyjson_write(doc, YYJSON_WRITE_ESCAPE_UNICODE, NULL);
        if (!written)
                abort();
        for (const char *p = written; *p; p++) {
                char one[4] = {*p, 0, 0, 0};

                if (*p == '\\' && in_string)
                        one[1] = *++p;
                else if (*p == '"')
                        in_string = !in_string;
                else if (!in_string && (*p == ',' || *p == ':'))
                        one[1] = ' ';
                add(&escaped, one);
        }
        *t = escaped;
        free(written);
        yyjson_doc_free(doc);
        free(chat.data);
}

static void make_text(struct text *t, size_t size)
{
        uint32_t rng = 2;

        add(t, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"");
        while (t->len + 20 < size) {
                add(t, words[next(&rng) % 21]);
                add(t, " ");
        }
        add(t, "\"}]}");
}

static void make_ids(struct text *t, size_t size)
{
        uint32_t rng = 3;

        add(t, "{\"model\":\"m\",\"prompt\":[1");
        while (t->len + 20 < size) {
                char id[16];

                snprintf(id, sizeof(id), ",%u", next(&rng) % 128000);
                add(t, id);
        }
        add(t, "]}");
}

static double now_us(void)
{
        struct timespec t;

        clock_gettime(CLOCK_MONOTONIC, &t);
        return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int by_value(const void *a, const void *b)
{
        double x = *(const double *)a, y = *(const double *)b;

        return x < y ? -1 : x > y;
}

struct figure {
        double median, min;
};

static struct figure figure_of(double *samples, size_t count)
{
        qsort(samples, count, sizeof(*samples), by_value);
        return (struct figure){samples[count / 2], samples[0]};
}

static void measure(const char *name, const struct text *t, enum kvr_api api, size_t rounds)
{
        struct kvr_parser *parser = kvr_parser_new();
        struct kvr_prompt_options options = {.seed = 42};
        struct kvr_prompt prompt = {0};
        struct kvr_error err = {0};
        double *ours = calloc(rounds, sizeof(*ours)), *theirs = calloc(rounds, sizeof(*theirs));
        unsigned repeat = t->len < 4096 ? 100 : 1; /* the clock takes part of a microsecond itself */
        struct figure a, b;

        if (!parser || !ours || !theirs)
                abort();
        for (size_t i = 0; i < rounds; i++) {
                double start = now_us();

                for (unsigned n = 0; n < repeat; n++) {
                        if (kvr_prompt_parse(parser, api, (struct kvr_slice){t->data, t->len}, &options,
                                             &prompt, &err)) {
                                printf("failed: %s\n", err.message);
                                exit(1);
                        }
                }
                ours[i] = (now_us() - start) / repeat;
                start = now_us();
                for (unsigned n = 0; n < repeat; n++)
                        yyjson_doc_free(yyjson_read(t->data, t->len, 0));
                theirs[i] = (now_us() - start) / repeat;
        }
        a = figure_of(ours, rounds);
        b = figure_of(theirs, rounds);
        printf("%-7s %8zu B  %5u points  kvroute %8.2f us (min %8.2f) %6.2f GB/s   yyjson parse alone %8.2f "
               "us (min %8.2f)\n",
               name, t->len, prompt.point_count, a.median, a.min, (double)t->len / a.median / 1e3, b.median,
               b.min);
        kvr_parser_free(parser);
        free(ours);
        free(theirs);
}

int main(int argc, char **argv)
{
        static const size_t sizes[] = {300, 8 << 10, 32 << 10, 128 << 10, 512 << 10};
        static const struct {
                const char *name;
                void (*make)(struct text *, size_t);
                enum kvr_api api;
        } kinds[] = {{"chat", make_chat, KVR_API_CHAT},
                     {"code", make_code, KVR_API_CHAT},
                     {"text", make_text, KVR_API_CHAT},
                     {"spaced", make_spaced, KVR_API_CHAT},
                     {"ids", make_ids, KVR_API_COMPLETIONS}};
        size_t rounds = argc > 1 ? (size_t)strtoul(argv[1], NULL, 10) : ROUNDS;

        if (!rounds)
                rounds = 1;
        for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
                for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
                        struct text t = {0};

                        kinds[k].make(&t, sizes[s]);
                        measure(kinds[k].name, &t, kinds[k].api, rounds);
                        free(t.data);
                }
        }
        return 0;
}
