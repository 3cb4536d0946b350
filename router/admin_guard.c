/* SPDX-License-Identifier: Apache-2.0 */
#include "admin_guard.h"

#include <arpa/inet.h>
#include <string.h>
#include <strings.h>

/* Host and Origin without their port: "[::1]:8081" -> "::1". */
static struct kvr_slice host_of(struct kvr_slice authority, bool *ret_bracketed)
{
        const char *end;

        *ret_bracketed = authority.len && authority.data[0] == '[';
        if (*ret_bracketed) {
                end = memchr(authority.data, ']', authority.len);
                return end ? (struct kvr_slice){authority.data + 1, (size_t)(end - authority.data) - 1}
                           : (struct kvr_slice){authority.data, 0};
        }
        end = authority.len ? memchr(authority.data, ':', authority.len) : NULL;
        return (struct kvr_slice){authority.data, end ? (size_t)(end - authority.data) : authority.len};
}

static bool is_word(struct kvr_slice text, const char *word)
{
        return text.len == strlen(word) && strncasecmp(text.data, word, text.len) == 0;
}

static bool is_address(struct kvr_slice host, bool v6)
{
        unsigned char unused[16];
        char text[INET6_ADDRSTRLEN];

        if (host.len == 0 || host.len >= sizeof text)
                return false;
        memcpy(text, host.data, host.len);
        text[host.len] = '\0';
        return inet_pton(v6 ? AF_INET6 : AF_INET, text, unused) == 1;
}

/* An address needs no name server that could be made to lie; localhost never is one's business. */
static bool is_own(const struct admin_guard_source *source, struct kvr_slice authority)
{
        static const char local[] = ".localhost";
        bool v6;
        struct kvr_slice host = host_of(authority, &v6);

        if (is_address(host, v6))
                return true;
        if (v6)
                return false;
        if (is_word(host, "localhost") ||
            (host.len > sizeof local - 1 &&
             strncasecmp(host.data + host.len - (sizeof local - 1), local, sizeof local - 1) == 0))
                return true;
        for (size_t i = 0; i < sizeof source->names / sizeof *source->names; i++) {
                if (source->names[i] && source->names[i][0] && is_word(host, source->names[i]))
                        return true;
        }
        return false;
}

static bool same_origin(struct kvr_slice origin, struct kvr_slice authority)
{
        size_t scheme = origin.len > 8 && strncasecmp(origin.data, "https://", 8) == 0  ? 8
                        : origin.len > 7 && strncasecmp(origin.data, "http://", 7) == 0 ? 7
                                                                                        : 0;

        return scheme && origin.len - scheme == authority.len &&
               strncasecmp(origin.data + scheme, authority.data, authority.len) == 0;
}

static bool is_json(struct kvr_slice type)
{
        static const char json[] = "application/json";
        size_t len = sizeof json - 1;

        return type.len >= len && strncasecmp(type.data, json, len) == 0 &&
               (type.len == len || type.data[len] == ';' || type.data[len] == ' ');
}

enum admin_guard admin_guard(const struct admin_guard_source *source)
{
        const struct http1_field *host = http1_find(source->head, "host");
        const struct http1_field *origin = http1_find(source->head, "origin");
        const struct http1_field *type = http1_find(source->head, "content-type");

        if (host && !source->token && !is_own(source, host->value))
                return ADMIN_GUARD_HOST;
        if (origin && (!host || !same_origin(origin->value, host->value)))
                return ADMIN_GUARD_ORIGIN;
        if (source->has_body && (!type || !is_json(type->value)))
                return ADMIN_GUARD_TYPE;
        return ADMIN_GUARD_FINE;
}
