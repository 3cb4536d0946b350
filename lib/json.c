/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/json.h"
#include "kvroute/prompt.h"

#include <stdlib.h>
#include <string.h>

#if defined(__SSE2__) && !defined(KVR_NO_SIMD)
#include <emmintrin.h>
#endif

#define TOKENS_MIN 64

/* A container that is being read. */
struct open_container {
        uint32_t token;
        uint32_t dirt; /* cursor.dirt when it began: unchanged at its end means that its text is canonical */
};

/*
 * Where the reader is. It lives in registers: everything that takes a pointer to it is inlined into
 * read_document, and the rest gets and gives values.
 */
struct cursor {
        const unsigned char *text;
        uint32_t len;
        uint32_t pos;
        struct kvr__json_token *out; /* the next token; room for a few is checked once per turn */
        uint32_t dirt;               /* counts white space and strings that are not canonical */
};

/* How far a slow path came, and whether it was right so far. */
struct step {
        uint32_t pos;
        enum kvr_status status;
};

#define TOKENS_PER_TURN 4 /* a container and its end, or a scalar; the next key */

#define INLINE static inline __attribute__((always_inline))

/* More room behind the first `used` tokens. */
static enum kvr_status grow(struct kvr__json *json, size_t used)
{
        size_t want = used * 2 < TOKENS_MIN ? TOKENS_MIN : used * 2;
        struct kvr__json_token *tokens = realloc(json->tokens, want * sizeof(*tokens));

        if (!tokens)
                return KVR_E_NOMEM;
        json->tokens = tokens;
        json->capacity = (uint32_t)want; /* a text below 2^29 bytes has at most 2/3 tokens per byte */
        return KVR_OK;
}

INLINE bool has_room(struct kvr__json *json, struct cursor *c, size_t count)
{
        size_t used = (size_t)(c->out - json->tokens);

        if (json->capacity - used >= count)
                return true;
        if (grow(json, used))
                return false;
        c->out = json->tokens + used;
        return true;
}

INLINE void put(struct cursor *c, enum kvr__json_type type, uint32_t offset, uint32_t arg)
{
        *c->out++ = (struct kvr__json_token){offset | (uint32_t)type << 29, arg};
}

INLINE bool is_space(unsigned char byte)
{
        return byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r';
}

/* Behind white space. Returns the byte there, 0 at the end: nothing begins with that. */
INLINE unsigned char skip_space(struct cursor *c)
{
        if (c->pos >= c->len)
                return 0;
        if (c->text[c->pos] > ' ')
                return c->text[c->pos];
        c->dirt++;
        while (c->pos < c->len && is_space(c->text[c->pos]))
                c->pos++;
        return c->pos < c->len ? c->text[c->pos] : 0;
}

/*
 * Length of a string body at `pos` that ends within the next 16 bytes and has nothing in it that needs care;
 * -1 when that cannot be told. Object keys and most values of small fields end here.
 */
INLINE int short_string(const unsigned char *text, uint32_t pos, uint32_t len)
{
#if defined(__SSE2__) && !defined(KVR_NO_SIMD)
        if (len - pos >= 16) {
                __m128i v = _mm_loadu_si128((const __m128i *)(const void *)(text + pos));
                unsigned quotes = (unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(v, _mm_set1_epi8('"')));
                /* Signed: bytes from 0x80 on are below 0x20 too. */
                __m128i odd = _mm_or_si128(_mm_cmplt_epi8(v, _mm_set1_epi8(0x20)),
                                           _mm_cmpeq_epi8(v, _mm_set1_epi8('\\')));
                unsigned odds = (unsigned)_mm_movemask_epi8(odd);

                /* The lowest quote, if nothing odd stands below it. */
                if (quotes && !(odds & (quotes ^ (quotes - 1))))
                        return __builtin_ctz(quotes);
        }
        return -1;
#else
        for (uint32_t i = 0; i < 16 && pos + i < len; i++) {
                unsigned char byte = text[pos + i];

                if (byte == '"')
                        return (int)i;
                if (byte < 0x20 || byte >= 0x80 || byte == '\\')
                        return -1;
        }
        return -1;
#endif
}

/* The string whose opening quote is at c->pos. */
INLINE enum kvr_status read_string(struct kvr__json *json, struct cursor *c)
{
        uint32_t start = ++c->pos;
        int length = short_string(c->text, start, c->len);
        struct kvr__scan scan;

        if (length >= 0) {
                put(c, KVR__JSON_STRING, start, (uint32_t)length);
                c->pos = start + (uint32_t)length + 1;
                return KVR_OK;
        }
        scan = json->scan(c->text, start, c->len);
        c->pos = scan.end;
        if (scan.flags) {
                if (scan.flags & KVR__SCAN_ERROR)
                        return KVR_E_JSON;
                if (scan.flags & KVR__SCAN_BAD_UTF8)
                        json->flags |= KVR__JSON_BAD_UTF8;
                if (scan.flags & KVR__SCAN_LONE)
                        json->flags |= KVR__JSON_LONE_SURROGATE;
        }
        if (scan.flags & KVR__SCAN_REWRITE)
                c->dirt++;
        put(c, scan.flags & KVR__SCAN_REWRITE ? KVR__JSON_STRING_X : KVR__JSON_STRING, start,
            scan.end - start);
        c->pos++;
        return KVR_OK;
}

INLINE bool is_digit(const unsigned char *text, uint32_t pos, uint32_t len)
{
        return pos < len && (unsigned)(text[pos] - '0') <= 9;
}

/* How many digits are at `pos`. Eight bytes are looked at once: most numbers are short, of many lengths. */
INLINE uint32_t count_digits(const unsigned char *text, uint32_t pos, uint32_t len)
{
        uint32_t start = pos;

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        if (len - pos >= 8) {
                uint64_t word, others;

                memcpy(&word, text + pos, sizeof(word));
                word ^= 0x3030303030303030ull; /* digits become 0 to 9 */
                others = ((word + 0x7676767676767676ull) | word) & 0x8080808080808080ull;
                if (others)
                        return (uint32_t)__builtin_ctzll(others) / 8;
                pos += 8;
        }
#endif
        while (is_digit(text, pos, len))
                pos++;
        return pos - start;
}

static struct step read_word(const unsigned char *text, uint32_t pos, uint32_t len, const char *word)
{
        for (; *word; word++, pos++)
                if (pos >= len || text[pos] != (unsigned char)*word)
                        return (struct step){pos, KVR_E_JSON};
        return (struct step){pos, KVR_OK};
}

/* The fraction and exponent of a number, from `pos` on. */
static struct step read_fraction(const unsigned char *text, uint32_t pos, uint32_t len)
{
        if (pos < len && text[pos] == '.') {
                if (!is_digit(text, ++pos, len))
                        return (struct step){pos, KVR_E_JSON};
                while (is_digit(text, pos, len))
                        pos++;
        }
        if (pos < len && (text[pos] | 0x20) == 'e') {
                pos++;
                if (pos < len && (text[pos] == '+' || text[pos] == '-'))
                        pos++;
                if (!is_digit(text, pos, len))
                        return (struct step){pos, KVR_E_JSON};
                while (is_digit(text, pos, len))
                        pos++;
        }
        return (struct step){pos, KVR_OK};
}

/* A literal, or something that cannot stand here. */
static struct step read_literal(struct kvr__json *json, const unsigned char *text, uint32_t pos, uint32_t len)
{
        switch (text[pos]) {
        case 't':
                return read_word(text, pos, len, "true");
        case 'f':
                return read_word(text, pos, len, "false");
        case 'n':
                return read_word(text, pos, len, "null");
        case 'N':
                json->flags |= KVR__JSON_NOT_FINITE;
                return read_word(text, pos, len, "NaN");
        case 'I':
                json->flags |= KVR__JSON_NOT_FINITE;
                return read_word(text, pos, len, "Infinity");
        case '-':
                json->flags |= KVR__JSON_NOT_FINITE;
                return read_word(text, pos, len, "-Infinity");
        default:
                return (struct step){pos, KVR_E_JSON};
        }
}

INLINE enum kvr_status read_number(struct kvr__json *json, struct cursor *c)
{
        uint32_t pos = c->pos + (c->text[c->pos] == '-');
        uint32_t digits = count_digits(c->text, pos, c->len);
        struct step step;

        if (!digits) {
                if (pos < c->len && c->text[pos] == 'I')
                        step = read_literal(json, c->text, c->pos, c->len);
                else
                        step = (struct step){pos, KVR_E_JSON};
                put(c, KVR__JSON_LITERAL, c->pos, step.pos - c->pos);
        } else {
                pos += c->text[pos] == '0' ? 1 : digits; /* nothing may follow a leading zero */
                step = (struct step){pos, KVR_OK};
                /* Integers are nearly all numbers there are. */
                if (pos < c->len && (c->text[pos] == '.' || (c->text[pos] | 0x20) == 'e'))
                        step = read_fraction(c->text, pos, c->len);
                put(c, KVR__JSON_NUMBER, c->pos, step.pos - c->pos);
        }
        c->pos = step.pos;
        return step.status;
}

/* A value that begins with `byte` and is no container. */
INLINE enum kvr_status read_scalar(struct kvr__json *json, struct cursor *c, unsigned char byte)
{
        struct step step;

        if (byte == '"')
                return read_string(json, c);
        if (byte == '-' || (unsigned)(byte - '0') <= 9)
                return read_number(json, c);
        if (c->pos >= c->len)
                return KVR_E_JSON;
        step = read_literal(json, c->text, c->pos, c->len);
        put(c, KVR__JSON_LITERAL, c->pos, step.pos - c->pos);
        c->pos = step.pos;
        return step.status;
}

/* A member's key and colon, up to its value. */
INLINE enum kvr_status read_key(struct kvr__json *json, struct cursor *c)
{
        enum kvr_status status;

        if (skip_space(c) != '"')
                return KVR_E_JSON;
        status = read_string(json, c);
        if (status)
                return status;
        if (skip_space(c) != ':')
                return KVR_E_JSON;
        c->pos++;
        return KVR_OK;
}

INLINE void close_container(struct kvr__json *json, struct cursor *c, const struct open_container *open)
{
        json->tokens[open->token].arg = (uint32_t)(c->out - json->tokens);
        put(c, KVR__JSON_END, c->pos++, open->dirt == c->dirt);
}

INLINE bool is_object(const struct kvr__json *json, const struct open_container *open)
{
        return json->tokens[open->token].head >> 29 == KVR__JSON_OBJECT;
}

/*
 * One turn reads a value, or the start of a container; then, behind a value, closes what ends here and goes
 * to the next value.
 */
INLINE enum kvr_status read_values(struct kvr__json *json, struct cursor *c,
                                   const struct kvr__json_state *from)
{
        struct open_container open[KVR_JSON_DEPTH_MAX];
        uint32_t depth = 0;
        enum kvr_status status;

        if (from)
                for (; depth < from->depth; depth++)
                        open[depth] = (struct open_container){from->open[depth], 0};
        for (;;) {
                unsigned char byte = skip_space(c);

                if (!has_room(json, c, TOKENS_PER_TURN))
                        return KVR_E_NOMEM;
                if (byte == '{' || byte == '[') {
                        bool object = byte == '{';

                        if (depth == KVR_JSON_DEPTH_MAX)
                                return KVR_E_LIMIT;
                        open[depth++] = (struct open_container){(uint32_t)(c->out - json->tokens), c->dirt};
                        put(c, object ? KVR__JSON_OBJECT : KVR__JSON_ARRAY, c->pos++, 0);
                        /* Two bytes further on in ASCII: the bracket that closes this one. */
                        if (skip_space(c) != byte + 2) {
                                status = object ? read_key(json, c) : KVR_OK;
                                if (status)
                                        return status;
                                continue;
                        }
                        close_container(json, c, &open[--depth]);
                } else {
                        status = read_scalar(json, c, byte);
                        if (status)
                                return status;
                }
                for (;;) {
                        bool object;

                        if (!depth)
                                return KVR_OK;
                        object = is_object(json, &open[depth - 1]);
                        byte = skip_space(c);
                        if (byte == ',') {
                                c->pos++;
                                status = object ? read_key(json, c) : KVR_OK;
                                if (status)
                                        return status;
                                break;
                        }
                        if (byte != (object ? '}' : ']'))
                                return KVR_E_JSON;
                        /* The end, and the key that may follow it. */
                        if (!has_room(json, c, 2))
                                return KVR_E_NOMEM;
                        close_container(json, c, &open[--depth]);
                }
        }
}

/* One document with white space around it. The cursor is this function's own, so that it needs no memory. */
static struct step read_document(struct kvr__json *json, const unsigned char *text, uint32_t len,
                                 const struct kvr__json_state *from)
{
        struct cursor c = {.text = text, .len = len, .out = json->tokens};
        struct step step;

        if (from) {
                c.pos = from->pos;
                c.out += from->token;
                c.dirt = from->dirty;
        } else if (len >= 3 && !memcmp(text, "\xEF\xBB\xBF", 3)) {
                json->flags |= KVR__JSON_BOM;
                c.pos = 3;
        }
        step.status = read_values(json, &c, from);
        if (!step.status) {
                skip_space(&c);
                if (c.pos < len)
                        step.status = KVR_E_JSON;
        }
        step.pos = c.pos;
        json->count = (uint32_t)(c.out - json->tokens);
        json->dirty = c.dirt != 0;
        return step;
}

enum kvr_status kvr__json_read_on(struct kvr__json *json, struct kvr_slice text,
                                  const struct kvr__json_state *from, const struct kvr__json_token *tokens,
                                  size_t *ret_offset)
{
        struct step step;

        json->text = text.data;
        json->count = 0;
        json->flags = 0;
        *ret_offset = 0;
        if (text.len >= KVR__JSON_LENGTH_MAX)
                return KVR_E_LIMIT;
        if (from && json->capacity < from->token && grow(json, from->token))
                return KVR_E_NOMEM;
        if (from)
                memcpy(json->tokens, tokens, from->token * sizeof(*tokens));
        step = read_document(json, (const unsigned char *)text.data, (uint32_t)text.len, from);
        *ret_offset = step.pos;
        return step.status;
}

enum kvr_status kvr__json_read(struct kvr__json *json, struct kvr_slice text, size_t *ret_offset)
{
        return kvr__json_read_on(json, text, NULL, NULL, ret_offset);
}

void kvr__json_state_move(const struct kvr__json *json, struct kvr__json_state *state, uint32_t pos)
{
        uint32_t open[KVR_JSON_DEPTH_MAX];
        uint32_t depth = state->depth, token = state->token;

        memcpy(open, state->open, depth * sizeof(*open));
        state->dirty = json->dirty;
        for (;;) {
                uint32_t start = kvr__json_offset(json, token) - (uint32_t)kvr__json_is_string(json, token);

                if (start >= pos)
                        return;
                if (depth <= KVR__JSON_OPEN_KEPT) {
                        state->token = token;
                        state->pos = start;
                        state->depth = depth;
                        memcpy(state->open, open, depth * sizeof(*open));
                }
                if (kvr__json_is_container(json, token))
                        open[depth++] = token;
                token++;
                /* On to the next value: over ends, and over a key. */
                for (; depth && kvr__json_type(json, token) == KVR__JSON_END; token++)
                        depth--;
                if (!depth)
                        return;
                token += kvr__json_type(json, open[depth - 1]) == KVR__JSON_OBJECT;
        }
}

void kvr__json_fini(struct kvr__json *json)
{
        free(json->tokens);
        json->tokens = NULL;
        json->count = 0;
        json->capacity = 0;
}
