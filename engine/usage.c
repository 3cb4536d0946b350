/* SPDX-License-Identifier: Apache-2.0 */
#include "usage.h"

#include <stdlib.h>
#include <string.h>

#include "proto/find.h"
#include "rows.h"
#include "usage_object.h"

/*
 * The window holds the last bytes of the answer in one piece:
 *
 *      0            object        pos           scanned            len         cap
 *      |.............{"prompt_tok..|..............|.................|...........|
 *        looked at     open object, looked at to pos                 fed, free
 *
 * When it is full the front is dropped: all but the open object, or else the last TAIL_BYTES, where the
 * finish reason and the beginning of a key may stand.
 */
#define FIRST_CAP        1024
#define TAIL_BYTES       1024
#define ID_SEARCH        (16 * 1024)      /* a response names itself within its first bytes */
#define OBJECT_POOL(len) ((len)*12 + 256) /* yyjson's own bound for reading so many bytes */
#define SMALL_OBJECT     512              /* nearly all are smaller */

enum key { KEY_USAGE, KEY_TIMINGS, KEY_META, KEY_COUNT };

static const struct {
        const char *text;
        size_t len;
} keys[KEY_COUNT] = {
        [KEY_USAGE] = {"\"usage\"", 7},
        [KEY_TIMINGS] = {"\"timings\"", 9},
        [KEY_META] = {"\"meta_info\"", 11},
};

const char *usage_finish_name(enum usage_finish finish)
{
        switch (finish) {
        case USAGE_FINISH_STOP:
                return "stop";
        case USAGE_FINISH_LENGTH:
                return "length";
        case USAGE_FINISH_TOOL:
                return "tool";
        case USAGE_FINISH_ABORT:
                return "abort";
        default:
                return "unknown";
        }
}

void usage_tap_init(struct usage_tap *tap, enum engine_kind kind, enum kvr_api api, bool several)
{
        *tap = (struct usage_tap){
                .kind = kind,
                .api = api,
                .several = several,
                .input = -1,
                .output = -1,
                .cache_read = -1,
                .cache_creation = -1,
                .cached = -1,
                .total_prompt = -1,
                .timings_cached = -1,
                .timings_prompt = -1,
                .timings_predicted = -1,
        };
}

void usage_tap_fini(struct usage_tap *tap)
{
        free(tap->window);
        tap->window = NULL;
        tap->len = tap->cap = 0;
}

void usage_tap_rest(struct usage_tap *tap)
{
        if (tap->cap > FIRST_CAP)
                usage_tap_fini(tap);
}

void usage_tap_again(struct usage_tap *tap, enum engine_kind kind, enum kvr_api api, bool several)
{
        char *window = tap->window;
        uint32_t cap = tap->cap;

        usage_tap_init(tap, kind, api, several);
        tap->window = window;
        tap->cap = cap;
}

/* Only keys that this engine and API use: each costs a search. */
static bool key_wanted(const struct usage_tap *tap, enum key key)
{
        if (key == KEY_META)
                return tap->api == KVR_API_SGLANG;
        if (key == KEY_TIMINGS)
                return tap->kind == ENGINE_LLAMACPP || tap->kind == ENGINE_OPENAI || tap->kind == ENGINE_AUTO;
        return tap->api != KVR_API_SGLANG || tap->kind != ENGINE_SGLANG;
}

/* ---- reading one object ----------------------------------------------------------------------------- */

static void keep(int64_t *into, int64_t n)
{
        if (n >= 0)
                *into = n;
}

static void read_details(struct usage_tap *tap, struct engine_object details)
{
        int64_t cached = engine_object_count(details, "cached_tokens");

        if (cached < 0)
                return;
        tap->cached = cached;
        tap->details_seen = true;
}

/*
 * Continuous usage tells the cached count in some chunks only: members that are absent leave what was known.
 */
static bool read_usage(struct usage_tap *tap, struct engine_object usage)
{
        int64_t prompt = engine_object_count(usage, "prompt_tokens"),
                input = engine_object_count(usage, "input_tokens");
        int64_t output = engine_object_count(usage, "completion_tokens");

        if (output < 0)
                output = engine_object_count(usage, "output_tokens");
        if (prompt < 0 && input < 0 && output < 0)
                return false;
        keep(&tap->output, output);
        keep(&tap->total_prompt, prompt);
        read_details(tap, engine_object_of(usage, "prompt_tokens_details"));
        if (input >= 0) {
                struct engine_object details = engine_object_of(usage, "input_tokens_details");
                int64_t read = engine_object_count(usage, "cache_read_input_tokens");
                int64_t creation = engine_object_count(usage, "cache_creation_input_tokens");

                /*
                 * The three belong together: the split in message_delta replaces the whole in message_start.
                 */
                tap->input = input;
                tap->cache_read = read;
                tap->cache_creation = creation;
                read_details(tap, details);
        }
        return true;
}

static bool read_timings(struct usage_tap *tap, struct engine_object timings)
{
        int64_t prompt = engine_object_count(timings, "prompt_n"),
                cached = engine_object_count(timings, "cache_n");

        if (prompt < 0)
                return false;
        tap->timings_prompt = prompt;
        tap->timings_cached = cached;
        keep(&tap->timings_predicted, engine_object_count(timings, "predicted_n"));
        return true;
}

static bool read_meta(struct usage_tap *tap, struct engine_object meta)
{
        int64_t prompt = engine_object_count(meta, "prompt_tokens");
        yyjson_val *id = yyjson_obj_get(meta.val, "id");

        if (prompt < 0)
                return false;
        tap->total_prompt = prompt;
        keep(&tap->output, engine_object_count(meta, "completion_tokens"));
        read_details(tap, meta);
        if (tap->id[0] == 0 && yyjson_is_str(id) && yyjson_get_len(id) < sizeof tap->id)
                memcpy(tap->id, yyjson_get_str(id), yyjson_get_len(id) + 1);
        return true;
}

static void read_with(struct usage_tap *tap, const char *text, size_t len, char *pool, size_t pool_size)
{
        yyjson_alc alc;

        if (!yyjson_alc_pool_init(&alc, pool, pool_size))
                return;
        yyjson_doc *doc = yyjson_read_opts((char *)(uintptr_t)text, len, 0, &alc, NULL);
        yyjson_val *root = yyjson_doc_get_root(doc);
        if (!yyjson_is_obj(root))
                return;
        struct engine_object object = {.val = root};

        switch ((enum key)tap->object_key) {
        case KEY_TIMINGS:
                read_timings(tap, object);
                break;
        case KEY_META:
                read_meta(tap, object);
                break;
        default:
                read_usage(tap, object);
        }
}

/* Apart, so that the usual case does not walk over the stack of the others. */
static __attribute__((noinline)) void read_large(struct usage_tap *tap, const char *text, size_t len)
{
        char pool[OBJECT_POOL(USAGE_OBJECT_MAX)];

        read_with(tap, text, len, pool, sizeof pool);
}

static __attribute__((noinline)) void read_small(struct usage_tap *tap, const char *text, size_t len)
{
        char pool[OBJECT_POOL(SMALL_OBJECT)];

        read_with(tap, text, len, pool, sizeof pool);
}

static void read_object(struct usage_tap *tap, const char *text, size_t len)
{
        struct engine_flat flat;

        if (len > USAGE_OBJECT_MAX)
                return;
        if (tap->object_key == KEY_USAGE && engine_flat_read(text, len, &flat))
                read_usage(tap, (struct engine_object){NULL, &flat, 0});
        else if (len <= SMALL_OBJECT)
                read_small(tap, text, len);
        else
                read_large(tap, text, len);
}

/* ---- finding objects in the window ------------------------------------------------------------------ */

/* Bytes at which object_end stops outside and inside strings. */
static const bool structural[256] = {['"'] = true, ['{'] = true, ['['] = true, ['}'] = true, [']'] = true};
static const bool string_end[256] = {['"'] = true, ['\\'] = true};

/* Walks on to the object's end; false if it is not in the window yet. */
static bool object_end(struct usage_tap *tap)
{
        while (tap->pos < tap->len) {
                const unsigned char *at = (const unsigned char *)tap->window + tap->pos;
                const unsigned char *end = (const unsigned char *)tap->window + tap->len;
                const bool *stops = tap->in_string ? string_end : structural;

                if (tap->escape) {
                        tap->escape = false;
                        tap->pos++;
                        continue;
                }
                while (at < end && !stops[*at])
                        at++;
                tap->pos = (uint32_t)(at - (const unsigned char *)tap->window);
                if (at == end)
                        return false;
                tap->pos++;
                if (*at == '"')
                        tap->in_string = !tap->in_string;
                else if (*at == '\\')
                        tap->escape = true;
                else if (*at == '{' || *at == '[')
                        tap->depth++;
                else if (--tap->depth == 0)
                        return true;
        }
        return false;
}

static bool is_space(char c)
{
        return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static uint32_t blanks_before(const struct usage_tap *tap, uint32_t at)
{
        while (at > 0 && is_space(tap->window[at - 1]))
                at--;
        return at;
}

/* The key that the object at `value` stands behind, KEY_COUNT: none that is wanted. */
static enum key key_before(const struct usage_tap *tap, uint32_t value)
{
        value = blanks_before(tap, value);
        if (value == 0 || tap->window[value - 1] != ':')
                return KEY_COUNT;
        value = blanks_before(tap, value - 1);
        for (unsigned key = 0; key < KEY_COUNT; key++) {
                size_t len = keys[key].len;

                if (value >= len && memcmp(tap->window + value - len, keys[key].text, len) == 0 &&
                    key_wanted(tap, (enum key)key))
                        return (enum key)key;
        }
        return KEY_COUNT;
}

/* Opening braces are few: looking back from each is cheaper than a search for every key. */
static bool find_object(struct usage_tap *tap)
{
        const char *at;

        while ((at = memchr(tap->window + tap->scanned, '{', tap->len - tap->scanned)) != NULL) {
                uint32_t value = (uint32_t)(at - tap->window);
                enum key key = key_before(tap, value);

                tap->scanned = value + 1;
                if (key == KEY_COUNT)
                        continue;
                tap->open = true;
                tap->object = tap->pos = value;
                tap->object_key = (uint8_t)key;
                tap->depth = 0;
                tap->in_string = tap->escape = false;
                return true;
        }
        tap->scanned = tap->len;
        return false;
}

static void scan(struct usage_tap *tap)
{
        while (tap->open || find_object(tap)) {
                if (!object_end(tap))
                        return;
                read_object(tap, tap->window + tap->object, tap->pos - tap->object);
                tap->open = false;
                tap->scanned = tap->pos;
        }
}

/* ids of parts of the answer, where an engine writes those before its own */
static bool is_part_id(const char *id, size_t len)
{
        return (len >= 5 && memcmp(id, "call_", 5) == 0) || (len >= 6 && memcmp(id, "toolu_", 6) == 0) ||
               (len >= 3 && memcmp(id, "fc_", 3) == 0);
}

static void find_id(struct usage_tap *tap)
{
        static const char key[] = "\"id\":";
        const char *at, *from = tap->window + tap->id_scanned, *end = tap->window + tap->len;

        while ((at = find_text(from, (size_t)(end - from), key, sizeof key - 1)) != NULL) {
                from = at;
                at += sizeof key - 1;
                while (at < end && is_space(*at))
                        at++;
                const char *quote =
                        at < end && *at == '"' ? memchr(at + 1, '"', (size_t)(end - at - 1)) : NULL;
                if (at == end || (*at == '"' && !quote))
                        break; /* not all of it is here yet */
                from = at;
                if (!quote)
                        continue;
                size_t len = (size_t)(quote - ++at);
                from = quote;
                if (len > 0 && len < sizeof tap->id && !is_part_id(at, len) && !memchr(at, '\\', len)) {
                        memcpy(tap->id, at, len);
                        tap->id[len] = 0;
                        return;
                }
        }
        if (!at && (size_t)(end - from) >= sizeof key)
                from = end - (sizeof key - 2);
        tap->id_scanned = (uint32_t)(from - tap->window);
}

/* ---- the finish reason ------------------------------------------------------------------------------ */

static enum usage_finish finish_of(const char *text, size_t len)
{
        static const struct {
                const char *word;
                enum usage_finish finish;
        } words[] = {
                {"stop", USAGE_FINISH_STOP},          {"end_turn", USAGE_FINISH_STOP},
                {"stop_sequence", USAGE_FINISH_STOP}, {"eos_token", USAGE_FINISH_STOP},
                {"completed", USAGE_FINISH_STOP},     {"length", USAGE_FINISH_LENGTH},
                {"max_tokens", USAGE_FINISH_LENGTH},  {"max_output_tokens", USAGE_FINISH_LENGTH},
                {"tool_calls", USAGE_FINISH_TOOL},    {"tool_use", USAGE_FINISH_TOOL},
                {"function_call", USAGE_FINISH_TOOL}, {"abort", USAGE_FINISH_ABORT},
                {"error", USAGE_FINISH_ABORT},        {"failed", USAGE_FINISH_ABORT},
                {"cancelled", USAGE_FINISH_ABORT},    {"content_filter", USAGE_FINISH_ABORT},
                {"refusal", USAGE_FINISH_ABORT},
        };

        for (size_t i = 0; i < sizeof words / sizeof *words; i++)
                if (len == strlen(words[i].word) && memcmp(text, words[i].word, len) == 0)
                        return words[i].finish;
        return USAGE_FINISH_UNKNOWN;
}

/* The last string value of this key in the text that is a finish reason; backwards, as it stands near the
 * end. */
static enum usage_finish last_finish(const char *text, size_t len, const char *key)
{
        const char *at, *end = text + len, *stop = end;
        size_t n = strlen(key);

        while (stop > text && (at = memrchr(text, key[0], (size_t)(stop - text))) != NULL) {
                stop = at;
                if ((size_t)(end - at) < n || at[n - 1] != key[n - 1] || memcmp(at, key, n) != 0)
                        continue;
                at += n;
                while (at < end && is_space(*at))
                        at++;
                if (at == end || *at != '"')
                        continue;
                const char *quote = memchr(at + 1, '"', (size_t)(end - at - 1));
                enum usage_finish finish =
                        quote ? finish_of(at + 1, (size_t)(quote - at - 1)) : USAGE_FINISH_UNKNOWN;
                if (finish != USAGE_FINISH_UNKNOWN)
                        return finish;
        }
        return USAGE_FINISH_UNKNOWN;
}

/*
 * finish_reason, stop_reason (messages), the type inside SGLang's finish_reason object; for responses the
 * reason of incomplete_details, else the status.
 */
static enum usage_finish find_finish(const struct usage_tap *tap, const char *text, size_t len)
{
        enum usage_finish finish;

        if (len == 0)
                return tap->finish; /* text may be NULL */
        finish = last_finish(text, len, "_reason\":");

        if (finish == USAGE_FINISH_UNKNOWN && tap->api == KVR_API_SGLANG)
                finish = last_finish(text, len, "_reason\":{\"type\":");
        if (tap->api == KVR_API_RESPONSES) {
                finish = last_finish(text, len, "\"incomplete_details\":{\"reason\":");
                if (finish == USAGE_FINISH_UNKNOWN && tap->finish == USAGE_FINISH_UNKNOWN)
                        finish = last_finish(text, len, "\"status\":");
        }
        return finish != USAGE_FINISH_UNKNOWN ? finish : tap->finish;
}

/* ---- feeding ---------------------------------------------------------------------------------------- */

/* Drops what is no longer needed from the window's front. */
static void slide(struct usage_tap *tap)
{
        uint32_t from = tap->len > TAIL_BYTES ? tap->len - TAIL_BYTES : 0;

        if (tap->open && tap->len - tap->object > USAGE_OBJECT_MAX) {
                tap->open = false; /* too large to be read; look for keys behind it */
                tap->scanned = tap->len;
        }
        if (tap->open && tap->object < from)
                from = tap->object;
        if (!tap->open && tap->scanned < from)
                from = tap->scanned;
        tap->finish = find_finish(tap, tap->window, tap->len);
        memmove(tap->window, tap->window + from, tap->len - from);
        tap->len -= from;
        tap->scanned = tap->scanned > from ? tap->scanned - from : 0;
        if (tap->open) {
                tap->object -= from;
                tap->pos -= from;
        }
}

static bool make_room(struct usage_tap *tap, size_t want)
{
        if (tap->cap - tap->len >= want)
                return true;
        if (tap->cap < USAGE_WINDOW_BYTES) {
                size_t cap = tap->cap ? tap->cap : FIRST_CAP;

                while (cap < tap->len + want && cap < USAGE_WINDOW_BYTES)
                        cap *= 2;
                char *window = realloc(tap->window, cap);

                if (!window)
                        return false;
                tap->window = window;
                tap->cap = (uint32_t)cap;
        }
        if (tap->len == tap->cap)
                slide(tap);
        return tap->len < tap->cap;
}

void usage_tap_feed(struct usage_tap *tap, const char *data, size_t len)
{
        while (len > 0 && !tap->broken) {
                if (!make_room(tap, len)) {
                        tap->broken = true;
                        return;
                }
                size_t piece = tap->cap - tap->len;

                if (piece > len)
                        piece = len;
                memcpy(tap->window + tap->len, data, piece);
                tap->len += (uint32_t)piece;
                tap->total += piece;
                data += piece;
                len -= piece;
                if (tap->id[0] == 0 && tap->total <= ID_SEARCH && tap->total == tap->len)
                        find_id(tap);
                scan(tap);
        }
}

/* ---- the result ------------------------------------------------------------------------------------- */

/* The prompt's size, before any doubt about the cached part. */
static int64_t prompt_of(const struct usage_tap *tap)
{
        if (tap->total_prompt >= 0)
                return tap->total_prompt;
        if (tap->input >= 0) {
                int64_t sum = tap->input;

                if (tap->api != KVR_API_RESPONSES) {
                        sum += tap->cache_read > 0 ? tap->cache_read : 0;
                        sum += tap->cache_creation > 0 ? tap->cache_creation : 0;
                }
                return sum;
        }
        if (tap->timings_cached >= 0)
                return tap->timings_cached + tap->timings_prompt;
        return -1;
}

/* What the answer says was cached; -1 if it says nothing. */
static int64_t cached_of(const struct usage_tap *tap)
{
        if (tap->details_seen)
                return tap->cached;
        if (tap->timings_cached >= 0)
                return tap->timings_cached;
        if (tap->cache_read >= 0)
                return tap->cache_read;
        /* Older llama.cpp: what was not evaluated was there. */
        if (tap->kind == ENGINE_LLAMACPP && tap->timings_prompt >= 0 &&
            tap->total_prompt >= tap->timings_prompt)
                return tap->total_prompt - tap->timings_prompt;
        return -1;
}

static enum engine_report report_of(const struct usage_tap *tap)
{
        const struct engine_traits *row = engine_traits(tap->kind);

        if (tap->api == KVR_API_RESPONSES)
                return row->report_responses;
        /* SGLang's own API always tells. */
        if (tap->api == KVR_API_SGLANG && tap->kind == ENGINE_SGLANG)
                return ENGINE_REPORT_ALWAYS;
        return row->report;
}

static bool is_complete(enum usage_finish finish)
{
        return finish != USAGE_FINISH_UNKNOWN && finish != USAGE_FINISH_ABORT;
}

void usage_tap_result(const struct usage_tap *tap, bool report_known, struct usage *ret)
{
        enum usage_finish finish = find_finish(tap, tap->window, tap->len);
        enum engine_report report = report_of(tap);
        int64_t cached = cached_of(tap), prompt = prompt_of(tap);
        bool flag = report == ENGINE_REPORT_FLAG || report == ENGINE_REPORT_FLAG_ZERO;
        bool proved =
                report == ENGINE_REPORT_FLAG ? cached >= 0 : report == ENGINE_REPORT_FLAG_ZERO && cached > 0;

        if (report == ENGINE_REPORT_NEVER)
                cached = -1;
        if (report == ENGINE_REPORT_FLAG_ZERO && cached == 0 && !report_known)
                cached = -1;
        /* Older versions leave a count of 0 out. A stream that was cut has not come to its count yet. */
        if (cached < 0 && prompt >= 0 && flag && report_known && is_complete(finish))
                cached = 0;
        /* More than there is: a number of another meaning. */
        if (cached > prompt || tap->several)
                cached = -1;
        *ret = (struct usage){
                .prompt_tokens = prompt,
                .cached_tokens = cached,
                .completion_tokens = tap->output >= 0 ? tap->output : tap->timings_predicted,
                .report_proved = proved && !tap->several,
                .finish = finish,
        };
        memcpy(ret->id, tap->id, sizeof ret->id);
}
