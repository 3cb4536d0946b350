/* SPDX-License-Identifier: Apache-2.0 */
#include "ask.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

static bool read_file(const char *file, char *ret, size_t ret_size, char *message, size_t size)
{
        FILE *in = fopen(file, "re");
        bool good = in && (fgets(ret, (int)ret_size, in) || !ferror(in));

        if (!good)
                snprintf(message, size, "admin token: %s: %s", file, strerror(errno));
        if (in)
                fclose(in);
        return good;
}

static bool read_token(const char *file, struct sim_ask *ret, char *message, size_t size)
{
        char token[SIM_ASK_TOKEN_MAX] = "";
        const char *given = getenv("KVROUTE_ADMIN_TOKEN"),
                   *from = file ? "--token-file" : "KVROUTE_ADMIN_TOKEN";

        if (!file && given && strncmp(given, "env:", 4) == 0)
                given = getenv(given + 4);
        if (!file && given && strncmp(given, "file:", 5) == 0)
                file = given + 5;
        if (file) {
                if (!read_file(file, token, sizeof token, message, size))
                        return false;
        } else if (given) {
                snprintf(token, sizeof token, "%s", given);
        }
        token[strcspn(token, "\r\n")] = 0; /* a file's line has an end; the header field must not */
        if (*token) {
                snprintf(ret->headers, sizeof ret->headers, "authorization: Bearer %s\r\n", token);
                ret->token_from = from;
        }
        return true;
}

static void say_token(const struct sim_ask *ask, char *message, size_t size)
{
        if (ask->token_from)
                snprintf(message, size,
                         "%s has another admin token than the one from %s: give the one that the router was "
                         "started "
                         "with (--admin-token, or its KVROUTE_ADMIN_TOKEN)",
                         ask->url.authority, ask->token_from);
        else
                snprintf(message, size,
                         "%s wants its admin token, the one of the router's --admin-token: in "
                         "KVROUTE_ADMIN_TOKEN or "
                         "a file for --token-file",
                         ask->url.authority);
}

enum sim_ask_status sim_ask_begin(const char *url, const char *token_file, struct sim_ask *ret, char *message,
                                  size_t size)
{
        int error;

        *ret = (struct sim_ask){0};
        if (!sim_url_parse(url, &ret->url, message, size) || !read_token(token_file, ret, message, size))
                return SIM_ASK_USAGE;
        error = net_resolve(ret->url.host, ret->url.port, &ret->addr);
        if (!error)
                return SIM_ASK_OK;
        snprintf(message, size, "cannot resolve '%s': %s", ret->url.host, uv_strerror(error));
        return SIM_ASK_FAILED;
}

enum sim_ask_status sim_ask_get(const struct sim_ask *ask, const char *path, yyjson_doc **ret, char *message,
                                size_t size)
{
        struct sim_buf body = {0};
        const char *authority = ask->url.authority;
        char target[700];
        unsigned status = 0;
        yyjson_doc *doc = NULL;
        bool good;

        snprintf(target, sizeof target, "%s%s", ask->url.base, path);
        good = sim_run_get(&ask->addr, authority, target, ask->headers, &body, &status, message, size);
        if (good && status == 200)
                doc = yyjson_read(body.len ? body.data : "", body.len, 0);
        sim_buf_fini(&body);
        if (!good)
                return SIM_ASK_FAILED;
        if (doc) {
                *ret = doc;
                return SIM_ASK_OK;
        }
        if (status == 401)
                say_token(ask, message, size);
        else if (status == 200)
                snprintf(message, size, "GET http://%s%s: the answer is no JSON", authority, target);
        else
                snprintf(message, size, "GET http://%s%s answered %u%s", authority, target, status,
                         status == 404 ? ": this is no admin listener of kvroute (--admin)" : "");
        return status == 401 || status == 404 ? SIM_ASK_FINAL : SIM_ASK_FAILED;
}
