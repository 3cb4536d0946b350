/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GET / and /ui/...: the dashboard. It is served without the admin token, for it holds nothing: all figures
 * come from the JSON paths, which the page asks with the token that its reader types.
 */
#include "admin_page.h"

#include <stdio.h>
#include <string.h>

#include "admin_int.h"

/* Names and texts on the page come from clients. The page writes them as text only; should it ever fail to,
 * nothing but its own script may run, and nothing may be sent elsewhere. */
static const char page_headers[] =
        "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'; "
        "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'\r\n"
        "x-content-type-options: nosniff\r\n"
        "x-frame-options: DENY\r\n"
        "referrer-policy: no-referrer\r\n"
        "cross-origin-resource-policy: same-origin\r\n"
        "cache-control: no-cache\r\n";

void admin_decisions(struct admin *admin, struct net_exchange *exchange)
{
        struct text json = {0};

        decisions_json(admin->options.proxy->decisions, uv_hrtime(), &json);
        admin_respond_json(exchange, 200, &json);
}

static const struct page_file *find(struct kvr_slice path)
{
        for (unsigned i = 0; i < page_file_count; i++) {
                const struct page_file *file = &page_files[i];

                if (strlen(file->path) == path.len && memcmp(file->path, path.data, path.len) == 0)
                        return file;
        }
        return NULL;
}

bool admin_page(struct net_exchange *exchange)
{
        const struct http1_head *head = net_exchange_head(exchange);
        const struct http1_field *have = http1_find(head, "if-none-match");
        const struct page_file *file = find(head->path);
        char headers[sizeof page_headers + 64];

        if (!file)
                return false;
        snprintf(headers, sizeof headers, "%setag: %s\r\n", page_headers, file->tag);
        if (have && have->value.len == strlen(file->tag) &&
            memcmp(have->value.data, file->tag, have->value.len) == 0)
                net_respond(exchange, 304, file->content_type, headers, (struct kvr_slice){"", 0});
        else
                net_respond(exchange, 200, file->content_type, headers,
                            (struct kvr_slice){(const char *)file->data, file->len});
        return true;
}
