/* SPDX-License-Identifier: Apache-2.0 */
#include "run.h"
#include "options.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>
#include <yyjson.h>

#define GET_TIMEOUT_MS 10000
#define GET_BYTES_MAX  (8 * 1024 * 1024)
#define BAR_WIDTH      40
#define DRAW_NS        100000000u

bool sim_url_parse(const char *text, struct sim_url *ret, char *message, size_t size)
{
        static const char scheme[] = "http://";
        const char *at = text, *slash;
        char endpoint[280];
        size_t len;

        *ret = (struct sim_url){.port = 80};
        if (strncmp(text, "https://", 8) == 0) {
                snprintf(message, size,
                         "'%s': only http:// is spoken; put a TLS proxy in between or use the plain port",
                         text);
                return false;
        }
        if (strncmp(text, scheme, sizeof(scheme) - 1) == 0)
                at += sizeof(scheme) - 1;
        slash = strchr(at, '/');
        len = slash ? (size_t)(slash - at) : strlen(at);
        if (len == 0 || len >= sizeof(endpoint) || strstr(at, "://") || strpbrk(at, " @?#")) {
                snprintf(message, size, "'%s' is not a URL like http://127.0.0.1:8080", text);
                return false;
        }
        memcpy(endpoint, at, len);
        endpoint[len] = 0;
        snprintf(ret->authority, sizeof(ret->authority), "%s", endpoint);
        if (slash)
                snprintf(ret->base, sizeof(ret->base), "%s", slash);
        while (ret->base[0] && ret->base[strlen(ret->base) - 1] == '/')
                ret->base[strlen(ret->base) - 1] = 0;
        if (!strchr(endpoint, ':') || endpoint[len - 1] == ']')
                snprintf(endpoint + len, sizeof(endpoint) - len, ":80");
        if (sim_parse_endpoint(endpoint, ret->host, sizeof(ret->host), &ret->port) && ret->port)
                return true;
        snprintf(message, size, "'%s' is not a URL like http://127.0.0.1:8080", text);
        return false;
}

/* ---- progress ----------------------------------------------------------------------------------------- */

void sim_progress_init(struct sim_progress *progress, const char *title, bool off)
{
        *progress = (struct sim_progress){
                .title = title, .off = off, .start_ns = uv_hrtime(), .terminal = isatty(2)};
}

static void draw_bar(struct sim_progress *progress, uint32_t done, uint32_t total, double elapsed)
{
        uint32_t full = (uint32_t)((uint64_t)done * BAR_WIDTH / total);
        char bar[BAR_WIDTH + 1];

        memset(bar, '.', BAR_WIDTH);
        memset(bar, '#', full);
        bar[BAR_WIDTH] = 0;
        fprintf(stderr, "\r%-20s [%s] %u/%u %.0f s ", progress->title, bar, done, total, elapsed);
        fflush(stderr);
}

void sim_progress_show(struct sim_progress *progress, uint32_t done, uint32_t total)
{
        uint64_t now = uv_hrtime();
        double elapsed = (double)(now - progress->start_ns) * 1e-9;
        uint32_t tenth = (uint32_t)((uint64_t)done * 10 / (total ? total : 1));

        if (progress->off || total == 0)
                return;
        if (progress->terminal) {
                if (done < total && now - progress->drawn_ns < DRAW_NS)
                        return;
                progress->drawn_ns = now;
                draw_bar(progress, done, total, elapsed);
        } else if (tenth > progress->tenth) {
                progress->tenth = tenth;
                fprintf(stderr, "%s: %u%% (%u of %u) after %.1f s\n", progress->title, tenth * 10, done,
                        total, elapsed);
        }
}

void sim_progress_end(struct sim_progress *progress)
{
        if (progress->terminal && !progress->off && progress->drawn_ns)
                fprintf(stderr, "\r%*s\r", BAR_WIDTH + 60, "");
}

/* ---- a load, to its end ------------------------------------------------------------------------------- */

struct run {
        struct net_loop loop;
        uv_signal_t signals[2];
        struct sim_load *load;
        struct sim_progress *progress;
        bool interrupted;
};

static void on_load_done(void *ctx)
{
        struct run *run = ctx;

        uv_stop(&run->loop.uv);
}

static void on_progress(void *ctx, uint32_t done, uint32_t total)
{
        struct run *run = ctx;

        sim_progress_show(run->progress, done, total);
}

static void on_signal(uv_signal_t *handle, int number)
{
        struct run *run = handle->data;

        (void)number;
        run->interrupted = true;
        sim_load_stop(run->load);
}

enum sim_run_status sim_run_load(const struct sim_load_options *given, struct sim_progress *progress,
                                 struct sim_result *ret)
{
        static const int numbers[] = {SIGINT, SIGTERM};
        struct run *run = calloc(1, sizeof(*run));
        struct sim_load_options options = *given;
        enum sim_run_status status = SIM_RUN_NO_MEMORY;

        if (!run || net_loop_init(&run->loop)) {
                free(run);
                return status;
        }
        run->progress = progress;
        options.loop = &run->loop;
        options.on_progress = on_progress;
        options.on_done = on_load_done;
        options.ctx = run;
        run->load = sim_load_start(&options);
        if (run->load) {
                for (size_t i = 0; i < 2; i++) {
                        (void)uv_signal_init(&run->loop.uv, &run->signals[i]);
                        run->signals[i].data = run;
                        (void)uv_signal_start(&run->signals[i], on_signal, numbers[i]);
                }
                uv_run(&run->loop.uv, UV_RUN_DEFAULT);
                for (size_t i = 0; i < 2; i++)
                        uv_close((uv_handle_t *)&run->signals[i], NULL);
                status = run->interrupted ? SIM_RUN_INTERRUPTED : SIM_RUN_DONE;
                *ret = *sim_load_result(run->load);
                *sim_load_result(run->load) = (struct sim_result){0};
                sim_load_free(run->load);
        }
        net_loop_fini(&run->loop);
        free(run);
        return status;
}

/* ---- small things ------------------------------------------------------------------------------------- */

struct get {
        bool done;
        enum net_request_error error;
        unsigned status;
        struct sim_buf *body;
};

static void on_get_done(void *ctx, enum net_request_error error, unsigned status, struct kvr_slice body)
{
        struct get *get = ctx;

        get->done = true;
        get->error = error;
        get->status = status;
        sim_buf_add(get->body, body.data, body.len);
}

bool sim_run_get(const struct sockaddr_storage *addr, const char *authority, const char *target,
                 const char *headers, struct sim_buf *ret_body, unsigned *ret_status, char *message,
                 size_t size)
{
        struct net_loop loop;
        struct get get = {.error = NET_REQUEST_CONNECT, .body = ret_body};
        struct net_request_spec spec = {
                .addr = (const struct sockaddr *)addr,
                .host = authority,
                .method = "GET",
                .target = target,
                .headers = headers,
                .timeout_ms = GET_TIMEOUT_MS,
                .body_bytes_max = GET_BYTES_MAX,
                .fresh = true,
                .on_done = on_get_done,
                .ctx = &get,
        };
        struct net_client *client;

        if (net_loop_init(&loop)) {
                snprintf(message, size, "out of memory");
                return false;
        }
        client = net_client_new(&loop, 0, 0);
        if (client && net_request_send(client, &spec)) {
                while (!get.done)
                        uv_run(&loop.uv, UV_RUN_ONCE);
        }
        net_client_free(client);
        net_loop_fini(&loop);
        if (get.error != NET_REQUEST_OK) {
                snprintf(message, size, "GET http://%s%s: %s", authority, target,
                         net_request_error_text(get.error));
                return false;
        }
        *ret_status = get.status;
        return true;
}

void sim_first_model(struct kvr_slice body, char *ret, size_t size)
{
        yyjson_doc *doc = body.len ? yyjson_read(body.data, body.len, 0) : NULL;
        yyjson_val *first = yyjson_arr_get_first(yyjson_obj_get(yyjson_doc_get_root(doc), "data"));
        const char *id = yyjson_get_str(yyjson_obj_get(first, "id"));

        snprintf(ret, size, "%s", id ? id : "");
        yyjson_doc_free(doc);
}

void sim_raise_descriptor_limit(void)
{
        struct rlimit limit;

        if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
                limit.rlim_cur = limit.rlim_max;
                (void)setrlimit(RLIMIT_NOFILE, &limit);
        }
}
