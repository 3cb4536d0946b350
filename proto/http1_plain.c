/* SPDX-License-Identifier: Apache-2.0 */
#include "http1_plain.h"

#define LENGTH_DIGITS_MAX 15
#define STATUS_AT         9  /* "HTTP/1.1 " */
#define REASON_AT         13 /* "HTTP/1.1 200 " */

enum {
        IN_NAME = 1,
        IN_TARGET = 2,
};

static const unsigned char classes[256] = {
        ['0' ... '9'] = IN_NAME | IN_TARGET,
        ['A' ... 'Z'] = IN_NAME | IN_TARGET,
        ['a' ... 'z'] = IN_NAME | IN_TARGET,
        ['-'] = IN_NAME | IN_TARGET,
        ['_'] = IN_NAME | IN_TARGET,
        ['/'] = IN_TARGET,
        ['.'] = IN_TARGET,
        ['~'] = IN_TARGET,
        ['%'] = IN_TARGET,
        ['='] = IN_TARGET,
        ['&'] = IN_TARGET,
        [':'] = IN_TARGET,
        ['+'] = IN_TARGET,
        [','] = IN_TARGET,
};

static const char *skip_class(const char *at, const char *end, unsigned char class)
{
        while (at < end && classes[(unsigned char)*at] & class)
                at++;
        return at;
}

/* To the first byte that is not printable ASCII. */
static const char *skip_printable(const char *at, const char *end)
{
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        const uint64_t ones = 0x0101010101010101u, tops = ones << 7;

        /* The top bit of each byte that is 0x7F, or below 0x20, or above 0x7F; the lowest of them is exact. */
        for (; end - at >= 8; at += 8) {
                uint64_t bytes, del, odd;

                memcpy(&bytes, at, 8);
                del = bytes ^ ones * 0x7F;
                odd = (((bytes - ones * 0x20) | (del - ones)) | bytes) & tops;
                if (odd)
                        return at + __builtin_ctzll(odd) / 8;
        }
#endif
        while (at < end && *at >= 0x20 && *at < 0x7F)
                at++;
        return at;
}

static bool is_line_end(const char *at, const char *end)
{
        return end - at >= 2 && at[0] == '\r' && at[1] == '\n';
}

/* The start line; behind it, or NULL. */
static const char *request_line(const char *at, const char *end, struct http1_head *head)
{
        static const char version[] = " HTTP/1.1\r\n";
        const char *target, *mark;
        size_t method;

        if (end - at < 5)
                return NULL;
        if (memcmp(at, "POST ", 5) == 0)
                method = 4;
        else if (memcmp(at, "GET /", 5) == 0)
                method = 3;
        else
                return NULL;
        target = at + method + 1;
        if (target == end || *target != '/')
                return NULL;
        head->method = (struct kvr_slice){at, method};
        at = mark = skip_class(target, end, IN_TARGET);
        if (at < end && *at == '?')
                at = skip_class(at + 1, end, IN_TARGET);
        if ((size_t)(end - at) < sizeof version - 1 || memcmp(at, version, sizeof version - 1) != 0)
                return NULL;
        head->target = (struct kvr_slice){target, (size_t)(at - target)};
        head->path = (struct kvr_slice){target, (size_t)(mark - target)};
        head->query = mark < at ? (struct kvr_slice){mark + 1, (size_t)(at - mark - 1)}
                                : (struct kvr_slice){NULL, 0};
        head->reason = (struct kvr_slice){NULL, 0};
        head->status = 0;
        return at + sizeof version - 1;
}

static bool is_digit(char byte)
{
        return byte >= '0' && byte <= '9';
}

static const char *status_line(const char *at, const char *end, struct http1_head *head)
{
        const char *reason = at + REASON_AT;
        const char *code = at + STATUS_AT;

        if (end - at <= REASON_AT || memcmp(at, "HTTP/1.1 ", STATUS_AT) != 0 || code[0] < '2' ||
            code[0] > '5' || !is_digit(code[1]) || !is_digit(code[2]) || code[3] != ' ')
                return NULL;
        head->status = (uint16_t)((code[0] - '0') * 100 + (code[1] - '0') * 10 + (code[2] - '0'));
        /* These have no body, whatever their length says. */
        if (head->status == 204 || head->status == 304)
                return NULL;
        at = skip_printable(reason, end);
        if (at == reason || !is_line_end(at, end))
                return NULL;
        head->reason = (struct kvr_slice){reason, (size_t)(at - reason)};
        head->method = head->target = head->path = head->query = (struct kvr_slice){NULL, 0};
        return at + 2;
}

/* What is known of the fields so far. */
struct seen {
        unsigned hosts;
        bool connection;
        int64_t length; /* -1: none */
};

static bool read_length(struct kvr_slice value, int64_t *ret)
{
        int64_t length = 0;

        if (value.len > LENGTH_DIGITS_MAX)
                return false;
        for (size_t i = 0; i < value.len; i++) {
                if (!is_digit(value.data[i]))
                        return false;
                length = length * 10 + (value.data[i] - '0');
        }
        *ret = length;
        return true;
}

/* False: a field whose meaning is not plain. */
static bool look_at(const struct http1_field *field, struct seen *seen)
{
        struct kvr_slice name = field->name;

        switch (name.len) {
        case 4:
                seen->hosts += http1_is(name, "host");
                return true;
        case 6:
                return !http1_is(name, "expect");
        case 7:
                return !http1_is(name, "upgrade");
        case 10:
                if (!http1_is(name, "connection"))
                        return true;
                seen->connection = true;
                return field->value.len == 10 && strncasecmp(field->value.data, "keep-alive", 10) == 0;
        case 14:
                if (!http1_is(name, "content-length"))
                        return true;
                return seen->length < 0 && read_length(field->value, &seen->length);
        case 16:
                return !http1_is(name, "proxy-connection");
        case 17:
                return !http1_is(name, "transfer-encoding");
        default:
                return true;
        }
}

/* One line "Name: value"; behind it, or NULL. */
static const char *field_line(const char *at, const char *end, struct http1_field *ret)
{
        const char *name = at, *value, *last;

        at = skip_class(at, end, IN_NAME);
        if (at == name || at == end || *at != ':')
                return NULL;
        ret->name = (struct kvr_slice){name, (size_t)(at - name)};
        for (at++; at < end && *at == ' '; at++)
                ;
        value = at;
        at = last = skip_printable(at, end);
        while (last > value && last[-1] == ' ')
                last--;
        if (last == value || !is_line_end(at, end))
                return NULL;
        ret->value = (struct kvr_slice){value, (size_t)(last - value)};
        return at + 2;
}

bool http1_plain(const char *buf, size_t len, enum http1_kind kind, struct http1_head *ret_head,
                 size_t *ret_used)
{
        const char *end = buf + (len < HTTP1_HEAD_BYTES_MAX ? len : HTTP1_HEAD_BYTES_MAX), *at;
        struct seen seen = {.length = -1};
        uint32_t count = 0;

        at = kind == HTTP1_REQUEST ? request_line(buf, end, ret_head) : status_line(buf, end, ret_head);
        if (!at)
                return false;
        while (!is_line_end(at, end)) {
                if (count == HTTP1_FIELDS_MAX)
                        return false;
                at = field_line(at, end, &ret_head->fields[count]);
                if (!at || !look_at(&ret_head->fields[count++], &seen))
                        return false;
        }
        if (kind == HTTP1_REQUEST ? seen.hosts != 1 : seen.length < 0)
                return false;
        ret_head->field_count = count;
        ret_head->content_length = seen.length;
        ret_head->has_connection = seen.connection;
        ret_head->minor = 1;
        ret_head->keep_alive = true;
        ret_head->chunked = ret_head->expect_continue = ret_head->upgrade = ret_head->no_body = false;
        *ret_used = (size_t)(at - buf) + 2;
        return true;
}
