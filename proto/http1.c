/* SPDX-License-Identifier: Apache-2.0 */
#include "http1.h"

#include <limits.h>
#include <string.h>
#include <strings.h>

#include "http1_plain.h"

static struct http1_parser *parser_of(llhttp_t *llhttp)
{
        return (struct http1_parser *)llhttp->data;
}

/* A head is handed over whole, so every span comes in one piece. */

static int on_url(llhttp_t *llhttp, const char *at, size_t len)
{
        struct http1_head *head = parser_of(llhttp)->head;
        const char *mark = memchr(at, '?', len);

        head->target = (struct kvr_slice){at, len};
        head->path = (struct kvr_slice){at, mark ? (size_t)(mark - at) : len};
        if (mark)
                head->query = (struct kvr_slice){mark + 1, (size_t)(at + len - mark - 1)};
        return 0;
}

static int on_method(llhttp_t *llhttp, const char *at, size_t len)
{
        parser_of(llhttp)->head->method = (struct kvr_slice){at, len};
        return 0;
}

static int on_status(llhttp_t *llhttp, const char *at, size_t len)
{
        parser_of(llhttp)->head->reason = (struct kvr_slice){at, len};
        return 0;
}

static int on_field(llhttp_t *llhttp, const char *at, size_t len)
{
        struct http1_parser *parser = parser_of(llhttp);
        struct http1_head *head = parser->head;

        if (!head) /* a trailer: dropped */
                return 0;
        if (head->field_count == HTTP1_FIELDS_MAX) {
                parser->overflow = true;
                return HPE_USER;
        }
        head->fields[head->field_count++] = (struct http1_field){{at, len}, {NULL, 0}};
        return 0;
}

static int on_value(llhttp_t *llhttp, const char *at, size_t len)
{
        struct http1_head *head = parser_of(llhttp)->head;

        if (!head)
                return 0;
        /* llhttp leaves blanks behind a value to the reader. */
        while (len && (at[len - 1] == ' ' || at[len - 1] == '\t'))
                len--;
        head->fields[head->field_count - 1].value = (struct kvr_slice){at, len};
        return 0;
}

/* Pausing here lets the caller look at the head before any of the body is read. */
static int on_headers_complete(llhttp_t *llhttp)
{
        struct http1_parser *parser = parser_of(llhttp);
        struct http1_head *head = parser->head;

        parser->head_complete = true;
        head->status = (uint16_t)llhttp->status_code;
        head->minor = llhttp->http_minor;
        head->chunked = (llhttp->flags & F_CHUNKED) != 0;
        head->content_length = -1;
        if (llhttp->flags & F_CONTENT_LENGTH)
                head->content_length =
                        llhttp->content_length > INT64_MAX ? INT64_MAX : (int64_t)llhttp->content_length;
        head->no_body = llhttp->type == HTTP_RESPONSE && (parser->head_request || head->status / 100 == 1 ||
                                                          head->status == 204 || head->status == 304);
        return parser->head_request ? 1 : 0;
}

static int on_body(llhttp_t *llhttp, const char *at, size_t len)
{
        struct http1_parser *parser = parser_of(llhttp);

        parser->sink(parser->sink_ctx, at, len);
        return 0;
}

static int on_message_complete(llhttp_t *llhttp)
{
        parser_of(llhttp)->complete = true;
        return HPE_PAUSED;
}

static const llhttp_settings_t settings = {
        .on_url = on_url,
        .on_method = on_method,
        .on_status = on_status,
        .on_header_field = on_field,
        .on_header_value = on_value,
        .on_headers_complete = on_headers_complete,
        .on_body = on_body,
        .on_message_complete = on_message_complete,
};

void http1_init(struct http1_parser *parser, enum http1_kind kind)
{
        parser->kind = kind;
        parser->left = 0;
        parser->head = NULL;
        parser->sink = NULL;
        parser->sink_ctx = NULL;
        parser->error = NULL;
        parser->head_request = false;
        parser->complete = false;
        parser->overflow = false;
        parser->head_complete = false;
        parser->plain = false;
        parser->no_plain = false;
}

void http1_move(struct http1_parser *parser, const struct http1_parser *from)
{
        *parser = *from;
        if (!parser->plain)
                parser->llhttp.data = parser;
}

const struct http1_field *http1_find(const struct http1_head *head, const char *name)
{
        size_t len = strlen(name);

        for (uint32_t i = 0; i < head->field_count; i++) {
                const struct http1_field *field = &head->fields[i];

                if (field->name.len == len && ((field->name.data[0] ^ name[0]) & 0xDF) == 0 &&
                    strncasecmp(field->name.data, name, len) == 0)
                        return field;
        }
        return NULL;
}

static bool list_has(struct kvr_slice list, const char *token, size_t token_len)
{
        const char *at = list.data, *end = list.data + list.len;

        while (at < end) {
                const char *comma = memchr(at, ',', (size_t)(end - at));
                const char *stop = comma ? comma : end;
                const char *last = stop;

                while (at < last && (*at == ' ' || *at == '\t'))
                        at++;
                while (last > at && (last[-1] == ' ' || last[-1] == '\t'))
                        last--;
                if ((size_t)(last - at) == token_len && strncasecmp(at, token, token_len) == 0)
                        return true;
                at = stop + 1;
        }
        return false;
}

bool http1_list_has(const struct http1_head *head, const char *name, const char *token)
{
        size_t token_len = strlen(token);

        for (uint32_t i = 0; i < head->field_count; i++) {
                if (http1_is(head->fields[i].name, name) && list_has(head->fields[i].value, token, token_len))
                        return true;
        }
        return false;
}

bool http1_hop_by_hop(const struct http1_head *head, struct kvr_slice name)
{
        bool always = false;

        switch (name.len) {
        case 2:
                always = http1_is(name, "te");
                break;
        case 6:
                always = http1_is(name, "expect");
                break;
        case 7:
                always = http1_is(name, "trailer") || http1_is(name, "upgrade");
                break;
        case 10:
                always = http1_is(name, "connection") || http1_is(name, "keep-alive");
                break;
        case 14:
                always = http1_is(name, "http2-settings");
                break;
        case 16:
                always = http1_is(name, "proxy-connection");
                break;
        case 17:
                always = http1_is(name, "transfer-encoding");
                break;
        case 18:
                always = http1_is(name, "proxy-authenticate");
                break;
        case 19:
                always = http1_is(name, "proxy-authorization");
                break;
        default:
                break;
        }
        if (always || !head->has_connection)
                return always;
        for (uint32_t i = 0; i < head->field_count; i++) {
                const struct http1_field *field = &head->fields[i];

                if (http1_is(field->name, "connection") && list_has(field->value, name.data, name.len))
                        return true;
        }
        return false;
}

/* Length of the head including its blank line, 0 if that is not there yet. */
static size_t head_length(const char *buf, size_t len)
{
        const char *end = buf + len;

        /* By lines: a search for the four bytes looks at every one of them. */
        for (const char *at = buf; (at = memchr(at, '\n', (size_t)(end - at))); at++) {
                if (end - at >= 3 && at[1] == '\r' && at[2] == '\n' && at != buf && at[-1] == '\r')
                        return (size_t)(at - buf) + 3;
        }
        return 0;
}

/* A bare LF as line end never completes a head by the rule above; without this it would only fail by
 * time-out. */
static bool has_bare_lf(const char *buf, size_t len)
{
        for (const char *at = buf, *end = buf + len; (at = memchr(at, '\n', (size_t)(end - at))); at++) {
                if (at == buf || at[-1] != '\r')
                        return true;
        }
        return false;
}

/*
 * A server of another protocol says something short and then waits: its first bytes tell, no head ever will.
 */
static bool may_be_response(const char *buf, size_t len)
{
        static const char start[] = "HTTP/";

        return len == 0 || *buf == '\r' ||
               memcmp(buf, start, len < sizeof start - 1 ? len : sizeof start - 1) == 0;
}

__attribute__((cold)) static enum http1_result bad(struct http1_parser *parser, enum http1_result result,
                                                   const char *why)
{
        parser->error = why;
        return result;
}

/* What the framing fields and Connection say, gathered in one walk. */
struct summary {
        unsigned lengths, codings, hosts;
        bool close, keep_alive, upgrade; /* options of Connection */
        bool expect_continue, has_upgrade;
        bool only_chunked; /* that is what Transfer-Encoding says, and nothing more */
};

static void summarize(struct http1_head *head, struct summary *ret)
{
        *ret = (struct summary){0};
        head->has_connection = false;
        for (uint32_t i = 0; i < head->field_count; i++) {
                struct kvr_slice name = head->fields[i].name, value = head->fields[i].value;

                switch (name.len) {
                case 4:
                        ret->hosts += http1_is(name, "host");
                        break;
                case 6:
                        ret->expect_continue |=
                                http1_is(name, "expect") && list_has(value, "100-continue", 12);
                        break;
                case 7:
                        ret->has_upgrade |= http1_is(name, "upgrade");
                        break;
                case 10:
                        if (!http1_is(name, "connection"))
                                break;
                        head->has_connection = true;
                        ret->close |= list_has(value, "close", 5);
                        ret->keep_alive |= list_has(value, "keep-alive", 10);
                        ret->upgrade |= list_has(value, "upgrade", 7);
                        break;
                case 14:
                        ret->lengths += http1_is(name, "content-length");
                        break;
                case 17:
                        if (!http1_is(name, "transfer-encoding"))
                                break;
                        ret->codings++;
                        ret->only_chunked = value.len == 7 && strncasecmp(value.data, "chunked", 7) == 0;
                        break;
                default:
                        break;
                }
        }
}

/* What llhttp lets pass and a proxy must not guess about. */
static const char *check_head(const struct http1_head *head, const struct summary *summary, bool request)
{
        if (summary->lengths && summary->codings)
                return "both Content-Length and Transfer-Encoding";
        if (summary->lengths > 1 || summary->codings > 1)
                return "Content-Length or Transfer-Encoding given twice";
        if (summary->codings && (!head->chunked || !summary->only_chunked))
                return "a transfer coding other than chunked";
        if (summary->codings && head->minor == 0) /* RFC 9112 6.1: faulty framing */
                return "Transfer-Encoding in HTTP/1.0";
        if (!request && head->status < 100)
                return "a status below 100";
        if (request && head->target.data != head->method.data + head->method.len + 1)
                return "more than one space in the request line";
        if (request && summary->hosts > 1)
                return "Host given twice";
        if (request && summary->hosts == 0 && head->minor >= 1)
                return "no Host";
        /* llhttp takes any byte there; it is passed on to clients. */
        for (size_t i = 0; i < head->reason.len; i++) {
                unsigned char byte = (unsigned char)head->reason.data[i];

                if ((byte < 0x20 && byte != '\t') || byte == 0x7F)
                        return "a control byte in the reason phrase";
        }
        return NULL;
}

enum http1_result http1_head(struct http1_parser *parser, const char *buf, size_t len,
                             struct http1_head *ret_head, size_t *ret_used)
{
        bool request = parser->kind == HTTP1_REQUEST;
        size_t skip = 0, head_len;
        struct summary summary;
        llhttp_errno_t error;
        const char *why;

        if (!parser->head_request && !parser->no_plain &&
            http1_plain(buf, len, parser->kind, ret_head, ret_used)) {
                parser->plain = true;
                parser->left = ret_head->content_length > 0 ? (uint64_t)ret_head->content_length : 0;
                parser->complete = parser->left == 0;
                return HTTP1_DONE;
        }
        while (request && len - skip >= 2 && buf[skip] == '\r' && buf[skip + 1] == '\n')
                skip += 2;
        head_len = head_length(buf + skip, len - skip);
        if (head_len > HTTP1_HEAD_BYTES_MAX || (head_len == 0 && len - skip >= HTTP1_HEAD_BYTES_MAX))
                return bad(parser, HTTP1_TOO_LARGE, "head over the size limit");
        if (head_len == 0) {
                if (has_bare_lf(buf + skip, len - skip))
                        return bad(parser, HTTP1_BAD, "a line does not end in CRLF");
                if (!request && !may_be_response(buf, len))
                        return bad(parser, HTTP1_BAD, "not an HTTP response");
                return HTTP1_MORE;
        }

        ret_head->method = ret_head->target = ret_head->path = ret_head->query = (struct kvr_slice){NULL, 0};
        ret_head->reason = (struct kvr_slice){NULL, 0};
        ret_head->field_count = 0;
        ret_head->content_length = -1;
        ret_head->chunked = false;
        parser->head = ret_head;
        llhttp_init(&parser->llhttp, request ? HTTP_REQUEST : HTTP_RESPONSE, &settings);
        parser->llhttp.data = parser;
        error = llhttp_execute(&parser->llhttp, buf + skip, head_len);
        parser->head = NULL;
        if (parser->overflow)
                return bad(parser, HTTP1_TOO_LARGE, "too many header fields");
        if (error != HPE_OK && !(error == HPE_PAUSED && parser->complete) && error != HPE_PAUSED_UPGRADE)
                return bad(parser, HTTP1_BAD, llhttp_get_error_reason(&parser->llhttp));
        if (!parser->head_complete) /* llhttp passes over empty lines before an answer, we do not */
                return bad(parser, HTTP1_BAD, "empty lines in place of a status line");
        summarize(ret_head, &summary);
        why = check_head(ret_head, &summary, request);
        if (why)
                return bad(parser, HTTP1_BAD, why);

        ret_head->keep_alive = !summary.close && (ret_head->minor >= 1 || summary.keep_alive);
        ret_head->expect_continue = request && ret_head->minor >= 1 && summary.expect_continue;
        ret_head->upgrade = request ? ret_head->minor >= 1 && summary.upgrade && summary.has_upgrade
                                    : ret_head->status == 101;
        *ret_used = skip + head_len;
        return HTTP1_DONE;
}

enum http1_result http1_body(struct http1_parser *parser, const char *buf, size_t len,
                             void (*sink)(void *ctx, const char *data, size_t len), void *ctx,
                             size_t *ret_used)
{
        llhttp_errno_t error;

        if (parser->complete) {
                *ret_used = 0;
                return HTTP1_DONE;
        }
        if (len == 0) {
                *ret_used = 0;
                return HTTP1_MORE;
        }
        if (parser->plain) {
                size_t take = len < parser->left ? len : (size_t)parser->left;

                sink(ctx, buf, take);
                parser->left -= take;
                parser->complete = parser->left == 0;
                *ret_used = take;
                return parser->complete ? HTTP1_DONE : HTTP1_MORE;
        }
        parser->sink = sink;
        parser->sink_ctx = ctx;
        error = llhttp_execute(&parser->llhttp, buf, len);
        if (parser->complete) {
                const char *stop = llhttp_get_error_pos(&parser->llhttp);

                *ret_used = stop ? (size_t)(stop - buf) : len;
                return HTTP1_DONE;
        }
        if (error != HPE_OK)
                return bad(parser, HTTP1_BAD, llhttp_get_error_reason(&parser->llhttp));
        *ret_used = len;
        return HTTP1_MORE;
}

bool http1_eof(struct http1_parser *parser)
{
        if (parser->complete || parser->plain)
                return parser->complete;
        (void)llhttp_finish(&parser->llhttp); /* its result is our pause; only the callback tells */
        return parser->complete;
}
