/* SPDX-License-Identifier: Apache-2.0 */
#include "sse.h"

#include <string.h>

#include "find.h"

const char *sse_kind_name(enum sse_kind kind)
{
        switch (kind) {
        case SSE_COMMENT:
                return "comment";
        case SSE_DATA:
                return "data";
        case SSE_EARLY:
                return "early";
        case SSE_USAGE:
                return "usage";
        case SSE_DONE:
                return "done";
        case SSE_ERROR:
                return "error";
        }
        return "unknown";
}

void sse_init(struct sse_scanner *scanner)
{
        /* keep[] is written before it is read: 4 KB of zeros per stream would be wasted. */
        memset(scanner, 0, offsetof(struct sse_scanner, keep));
}

bool sse_at_boundary(const struct sse_scanner *scanner)
{
        return !scanner->event_started;
}

/* ---- what an event is, from its first SSE_KEEP_BYTES ------------------------------------------------ */

static bool starts(struct kvr_slice text, const char *with, size_t len)
{
        return text.len >= len && memcmp(text.data, with, len) == 0;
}

#define STARTS(text, literal) starts(text, literal, sizeof(literal) - 1)

static bool equals(struct kvr_slice text, const char *with)
{
        return text.len == strlen(with) && memcmp(text.data, with, text.len) == 0;
}

static struct kvr_slice skip_space(struct kvr_slice text)
{
        while (text.len > 0 && (*text.data == ' ' || *text.data == '\t')) {
                text.data++;
                text.len--;
        }
        return text;
}

static struct kvr_slice skip(struct kvr_slice text, size_t n)
{
        return (struct kvr_slice){text.data + n, text.len - n};
}

/* What stands behind `"key":` (and spaces) anywhere in the text; empty if the key is not there. */
static struct kvr_slice behind_key(struct kvr_slice text, const char *key, size_t key_len)
{
        const char *at = find_text(text.data, text.len, key, key_len);
        if (!at)
                return (struct kvr_slice){0};
        return skip_space(skip(text, (size_t)(at - text.data) + key_len));
}

#define BEHIND_KEY(text, literal) behind_key(text, literal, sizeof(literal) - 1)

/* The value of the object's first member if that is called key, else empty. */
static struct kvr_slice first_member(struct kvr_slice data, const char *key, size_t key_len)
{
        struct kvr_slice none = {0};
        data = skip_space(data);
        if (!STARTS(data, "{"))
                return none;
        data = skip_space(skip(data, 1));
        if (!starts(data, key, key_len))
                return none;
        data = skip_space(skip(data, key_len));
        if (!STARTS(data, ":"))
                return none;
        return skip_space(skip(data, 1));
}

#define FIRST_MEMBER(data, literal) first_member(data, literal, sizeof(literal) - 1)

/*
 * Engines write their error objects with the telling member first. A search at any depth would take the
 * `"error":null` of every Responses object for one.
 */
static bool is_error(struct kvr_slice name, struct kvr_slice data)
{
        if (equals(name, "error") || equals(name, "response.failed"))
                return true;
        struct kvr_slice value = FIRST_MEMBER(data, "\"error\"");
        if (value.len > 0)
                return !STARTS(value, "null");
        value = FIRST_MEMBER(data, "\"object\"");
        if (value.len > 0)
                return STARTS(value, "\"error\"");
        value = FIRST_MEMBER(data, "\"type\"");
        return STARTS(value, "\"error\"") || STARTS(value, "\"response.failed\"");
}

/* The event's type: its name, or what the data says first where the sender leaves names out. */
static struct kvr_slice event_type(struct kvr_slice name, struct kvr_slice data)
{
        if (name.len > 0)
                return name;
        struct kvr_slice value = FIRST_MEMBER(data, "\"type\"");
        if (!STARTS(value, "\""))
                return name;
        value = skip(value, 1);
        size_t span = value.len < SSE_NAME_MAX ? value.len : SSE_NAME_MAX;
        const char *quote = memchr(value.data, '"', span);
        if (!quote)
                return name;
        return (struct kvr_slice){value.data, (size_t)(quote - value.data)};
}

static bool is_early(struct kvr_slice type, struct kvr_slice data, bool first_token_seen)
{
        if (type.len > 0)
                return equals(type, "response.created") || equals(type, "response.in_progress") ||
                       equals(type, "response.queued") || equals(type, "ping");
        /* llama.cpp's return_progress: chunks that come during the prefill */
        return !first_token_seen && BEHIND_KEY(data, "\"prompt_progress\":").len > 0;
}

/* Whether `at`, an opening bracket of the text, is the value of a member called choices. */
static bool opens_choices(struct kvr_slice text, const char *at)
{
        static const char key[] = "\"choices\":";
        const size_t len = sizeof key - 1;

        while (at > text.data && (at[-1] == ' ' || at[-1] == '\t'))
                at--;
        return (size_t)(at - text.data) >= len && memcmp(at - len, key, len) == 0;
}

/* Looks at brackets, which are few: twice as fast as searching for the key in every chunk. */
static bool is_usage_chunk(struct kvr_slice data)
{
        struct kvr_slice rest = data;
        const char *at;

        while ((at = memchr(rest.data, '[', rest.len)) != NULL) {
                rest = skip(rest, (size_t)(at - rest.data) + 1);
                if (!opens_choices(data, at))
                        continue;
                return STARTS(skip_space(rest), "]") && STARTS(BEHIND_KEY(data, "\"usage\":"), "{");
        }
        return false;
}

/* Responses announces items and parts before their first text. */
static bool shows_token(struct kvr_slice type)
{
        return !(STARTS(type, "response.") && type.len > 6 &&
                 memcmp(type.data + type.len - 6, ".added", 6) == 0);
}

struct fields {
        struct kvr_slice name, data;
        bool has_data, has_error;
};

static void read_line(struct kvr_slice line, struct fields *f)
{
        if (STARTS(line, "data:")) {
                if (!f->has_data)
                        f->data = skip_space(skip(line, 5));
                f->has_data = true;
        } else if (STARTS(line, "event:")) {
                f->name = skip_space(skip(line, 6));
                if (f->name.len > SSE_NAME_MAX)
                        f->name.len = SSE_NAME_MAX;
        } else if (STARTS(line, "error:")) {
                f->has_error = true; /* older llama.cpp: a field of its own */
        }
}

static void read_fields(struct kvr_slice text, struct fields *f)
{
        while (text.len > 0) {
                const char *nl = memchr(text.data, '\n', text.len);
                struct kvr_slice line = {text.data, nl ? (size_t)(nl - text.data) : text.len};
                text = skip(text, nl ? line.len + 1 : line.len);
                if (line.len > 0 && line.data[line.len - 1] == '\r')
                        line.len--;
                read_line(line, f);
        }
}

static enum sse_kind judge(const struct sse_scanner *s, const struct fields *f, struct kvr_slice type,
                           bool truncated)
{
        if (f->has_error)
                return SSE_ERROR;
        if (!f->has_data)
                return equals(f->name, "error") ? SSE_ERROR : SSE_COMMENT;
        if (STARTS(f->data, "[DONE]"))
                return SSE_DONE;
        if (is_error(f->name, f->data))
                return SSE_ERROR;
        if (is_early(type, f->data, s->first_token_seen))
                return SSE_EARLY;
        if (type.len == 0 && !truncated && is_usage_chunk(f->data))
                return SSE_USAGE;
        return SSE_DATA;
}

static void classify(struct sse_scanner *s, struct kvr_slice text, bool truncated, struct sse_event *ev)
{
        struct fields f = {.name = {"", 0}, .data = {"", 0}};
        read_fields(text, &f);
        struct kvr_slice type = event_type(f.name, f.data);
        ev->name = f.name;
        ev->data = f.data;
        ev->truncated = truncated;
        ev->kind = judge(s, &f, type, truncated);
        ev->first_token = ev->kind == SSE_DATA && !s->first_token_seen && shows_token(type);

        s->events++;
        s->first_token_seen |= ev->first_token;
        s->done_seen |= ev->kind == SSE_DONE;
        s->error_seen |= ev->kind == SSE_ERROR;
        if (ev->kind == SSE_DATA || ev->kind == SSE_EARLY || ev->kind == SSE_USAGE)
                s->data_events++;
}

/* ---- where events end ------------------------------------------------------------------------------- */

static void keep(struct sse_scanner *s, const char *data, size_t len)
{
        size_t room = SSE_KEEP_BYTES - s->keep_len;
        if (len > room) {
                s->truncated = true;
                len = room;
        }
        memcpy(s->keep + s->keep_len, data, len);
        s->keep_len += (uint32_t)len;
}

/* Bytes of an unfinished line, seen from its beginning or further on. */
static void note_line(struct sse_scanner *s, const char *data, size_t len)
{
        if (len == 0 || s->line_started)
                return;
        if (len == 1 && data[0] == '\r' && !s->line_cr)
                s->line_cr = true;
        else
                s->line_started = true;
}

static void finish_event(struct sse_scanner *s, const char *data, size_t start, size_t end,
                         struct sse_event *ev)
{
        *ev = (struct sse_event){.start = start, .end = end, .carried = s->event_started};
        if (s->event_started) {
                keep(s, data + start, end - start);
                classify(s, (struct kvr_slice){s->keep, s->keep_len}, s->truncated, ev);
        } else {
                size_t len = end - start;
                bool truncated = len > SSE_KEEP_BYTES;
                classify(s, (struct kvr_slice){data + start, truncated ? SSE_KEEP_BYTES : len}, truncated,
                         ev);
        }
        s->event_started = false;
        s->truncated = false;
        s->keep_len = 0;
}

bool sse_next(struct sse_scanner *s, const char *data, size_t len, size_t *pos, struct sse_event *ret_event)
{
        size_t start = *pos, line = *pos;
        while (line < len) {
                const char *nl = memchr(data + line, '\n', len - line);
                if (!nl)
                        break;
                size_t n = (size_t)(nl - data) - line;
                bool blank = !s->line_started && (n == 0 || (n == 1 && data[line] == '\r' && !s->line_cr));
                s->line_started = false;
                s->line_cr = false;
                line += n + 1;
                if (blank) {
                        finish_event(s, data, start, line, ret_event);
                        *pos = line;
                        return true;
                }
        }
        *pos = len;
        if (start < len) {
                note_line(s, data + line, len - line);
                keep(s, data + start, len - start);
                s->event_started = true;
        }
        return false;
}

/* ---- hiding ----------------------------------------------------------------------------------------- */

void sse_filter(struct sse_scanner *s, const char *data, size_t len,
                bool (*on_event)(void *ctx, const struct sse_event *event),
                void (*out)(void *ctx, const char *data, size_t len), void *ctx)
{
        size_t pos = 0, run = 0; /* data[run .. ) passes and was not given out */
        bool released =
                s->event_started && !s->held; /* its beginning has passed: too late to hide the rest */
        size_t held_len = s->held ? s->keep_len : 0;
        struct sse_event ev;

        while (sse_next(s, data, len, &pos, &ev)) {
                bool pass = !on_event || on_event(ctx, &ev) || released;
                if (pass && held_len > 0)
                        out(ctx, s->keep, held_len);
                if (!pass && ev.start > run)
                        out(ctx, data + run, ev.start - run);
                if (!pass)
                        run = ev.end;
                s->held = false;
                released = false;
                held_len = 0;
        }
        /* data[rest .. len) is the unfinished event, in keep[] as well unless it is too long. */
        size_t rest = len;
        if (s->event_started && !released) {
                size_t here = s->keep_len - held_len;
                if (!s->truncated) {
                        rest = len - here;
                        s->held = true;
                } else {
                        if (held_len > 0)
                                out(ctx, s->keep, held_len);
                        s->held = false;
                }
        }
        if (rest > run)
                out(ctx, data + run, rest - run);
}

void sse_filter_end(struct sse_scanner *s, void (*out)(void *ctx, const char *data, size_t len), void *ctx)
{
        if (s->held && s->keep_len > 0)
                out(ctx, s->keep, s->keep_len);
        s->held = false;
}
