/* SPDX-License-Identifier: Apache-2.0 */
/* The command `kvroute mock`. */
#include "commands.h"
#include "mock.h"
#include "options.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#define MOCKS_MAX 256

struct arguments {
        const char *listen, *models, *preset, *fault;
        const char *events, *replay, *events_topic, *events_format, *events_hash;
        uint64_t events_buffer;
        uint64_t count, block_tokens, capacity_blocks, max_running, max_waiting, step_tokens;
        uint64_t max_model_len, output_tokens, stream_interval, max_body, record;
        double speed, keep_alive;
        bool prefix_cache, details, store_responses, record_bodies;
};

#define O(field, name, type, min, max, word, fallback, help) \
        SIM_OPTION(struct arguments, field, name, type, min, max, word, fallback, help)

static const struct sim_option options[] = {
        SIM_OPTION_GROUP("Serving"),
        O(listen, "listen", SIM_OPT_STRING, 0, 0, "HOST:PORT", "127.0.0.1:8000",
          "address; port 0 takes a free one"),
        O(count, "count", SIM_OPT_COUNT, 1, MOCKS_MAX, "N", "1",
          "engines in this process, each with its own cache, on ports from PORT on"),
        O(models, "model", SIM_OPT_STRING, 0, 0, "NAME[,NAME...]", "mock",
          "model served; further names are its adapters"),
        O(keep_alive, "keep-alive", SIM_OPT_SECONDS, 0, 86400, "TIME", "5s",
          "idle connections are closed after; 0 never"),
        O(max_body, "max-body", SIM_OPT_SIZE, 1024, 1073741824, "SIZE", "64MiB", "413 beyond"),
        SIM_OPTION_GROUP("Engine"),
        O(preset, "preset", SIM_OPT_STRING, 0, 0, "NAME", "llama3-70b-h100",
          "how long work takes: llama3-70b-h100, llama3-70b-a100, mistral-7b-a6000, llama3-8b-h100, dynamo"),
        O(speed, "speed", SIM_OPT_NUMBER, 0.001, 100000, "X", "1", "run X times faster than that"),
        O(block_tokens, "block-tokens", SIM_OPT_COUNT, 1, 65536, "N", "16", "tokens per cache block"),
        O(capacity_blocks, "capacity-blocks", SIM_OPT_COUNT, 2, 67108864, "N", "16384",
          "blocks of the KV cache"),
        O(prefix_cache, "prefix-cache", SIM_OPT_FLAG, 0, 0, "", "on", "reuse cached prefixes"),
        O(step_tokens, "step-tokens", SIM_OPT_COUNT, 1, 16777216, "N", "8192",
          "token budget of a step (vLLM's max-num-batched-tokens)"),
        O(max_running, "max-running", SIM_OPT_COUNT, 1, 65536, "N", "256",
          "requests computed at a time (max-num-seqs)"),
        O(max_waiting, "max-waiting", SIM_OPT_COUNT, 0, 1000000, "N", "0",
          "requests queued, 503 beyond; 0 no limit"),
        O(max_model_len, "max-model-len", SIM_OPT_COUNT, 2, 16777216, "N", "131072",
          "tokens of prompt and answer"),
        SIM_OPTION_GROUP("Answers"),
        O(output_tokens, "output-tokens", SIM_OPT_COUNT, 1, 1000000, "N", "64",
          "of answers whose request sets no limit"),
        O(stream_interval, "stream-interval", SIM_OPT_COUNT, 1, 1000000, "N", "1",
          "tokens per streamed chunk; the first token always goes at once"),
        O(details, "prompt-tokens-details", SIM_OPT_FLAG, 0, 0, "", "on", "report cached tokens in usage"),
        O(store_responses, "store-responses", SIM_OPT_FLAG, 0, 0, "", "off",
          "keep answers of /v1/responses, so that they can be continued and fetched"),
        SIM_OPTION_GROUP("Events"),
        O(events, "events", SIM_OPT_STRING, 0, 0, "ENDPOINT", "",
          "publish KV cache events: tcp://*:PORT to listen (the next engine on the next port), "
          "tcp://HOST:PORT to "
          "connect to a router; none by default"),
        O(replay, "replay", SIM_OPT_STRING, 0, 0, "ENDPOINT", "", "answer replay requests there"),
        O(events_topic, "events-topic", SIM_OPT_STRING, 0, 0, "TEXT", "", "topic of the batches"),
        O(events_format, "events-format", SIM_OPT_STRING, 0, 0, "map|array", "map",
          "as vLLM from 0.26 on, or as older ones and SGLang"),
        O(events_hash, "events-hash", SIM_OPT_STRING, 0, 0, "int|bytes", "int",
          "how block hashes are written"),
        O(events_buffer, "events-buffer", SIM_OPT_COUNT, 1, 1000000, "N", "10000", "batches kept for replay"),
        SIM_OPTION_GROUP("Tests"),
        O(fault, "fault", SIM_OPT_STRING, 0, 0, "JSON", "", "faults from the start, as for POST /mock/fault"),
        O(record, "record", SIM_OPT_COUNT, 1, 1000000, "N", "1024",
          "requests remembered for GET /mock/requests"),
        O(record_bodies, "record-bodies", SIM_OPT_FLAG, 0, 0, "", "off", "remember their bodies, too"),
};
#undef O

static const struct sim_command command = {
        .name = "mock",
        .arguments = "",
        .summary = "Serves a simulated vLLM engine: its endpoints, prefix cache, batching and timing, "
                   "without a model.\n"
                   "Tests set faults and read counts under /mock/ (docs/mock.md).",
        .examples = "  kvroute mock --listen 127.0.0.1:8000\n"
                    "  kvroute mock --count 4 --listen 127.0.0.1:9000 --preset llama3-8b-h100 --speed 10\n"
                    "  kvroute mock --fault '{\"status\":503,\"count\":3}'\n",
        .options = options,
        .option_count = sizeof(options) / sizeof(options[0]),
};

struct fleet {
        struct net_loop loop;
        struct sim_mock *mocks[MOCKS_MAX];
        size_t count;
        uv_signal_t signals[2];
};

static void to_options(const struct arguments *a, const struct sim_cost *cost, struct sim_mock_options *ret)
{
        *ret = (struct sim_mock_options){
                .engine =
                        {
                                .block_tokens = (uint32_t)a->block_tokens,
                                .capacity_blocks = (uint32_t)a->capacity_blocks,
                                .max_running = (uint32_t)a->max_running,
                                .max_waiting = (uint32_t)a->max_waiting,
                                .step_tokens = (uint32_t)a->step_tokens,
                                .no_prefix_cache = !a->prefix_cache,
                                .cost = *cost,
                        },
                .speed = a->speed,
                .models = a->models,
                .max_model_len = (uint32_t)a->max_model_len,
                .output_tokens = (uint32_t)a->output_tokens,
                .stream_interval = (uint32_t)a->stream_interval,
                .prompt_tokens_details = a->details,
                .store_responses = a->store_responses,
                .keep_alive_ms = (uint32_t)(a->keep_alive * 1000),
                .body_bytes_max = a->max_body,
                .events =
                        {
                                .endpoint = a->events,
                                .replay = a->replay,
                                .topic = a->events_topic,
                                .format = {.arrays = strcmp(a->events_format, "array") == 0,
                                           .bytes = strcmp(a->events_hash, "bytes") == 0},
                                .buffer = (uint32_t)a->events_buffer,
                        },
                .record_max = (uint32_t)a->record,
                .record_bodies = a->record_bodies,
        };
}

static void on_signal(uv_signal_t *handle, int number)
{
        struct fleet *fleet = handle->data;

        (void)number;
        for (size_t i = 0; i < fleet->count; i++)
                sim_mock_close(fleet->mocks[i], NULL, NULL);
        fleet->count = 0;
        for (size_t i = 0; i < 2; i++) {
                if (!uv_is_closing((uv_handle_t *)&fleet->signals[i]))
                        uv_close((uv_handle_t *)&fleet->signals[i], NULL);
        }
}

static void set_port(struct sockaddr_storage *addr, uint16_t port)
{
        if (addr->ss_family == AF_INET6)
                ((struct sockaddr_in6 *)addr)->sin6_port = htons(port);
        else
                ((struct sockaddr_in *)addr)->sin_port = htons(port);
}

static uint16_t port_of(const struct sockaddr_storage *addr)
{
        return ntohs(addr->ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)addr)->sin6_port
                                                 : ((const struct sockaddr_in *)addr)->sin_port);
}

static int refuse(const char *host, uint16_t port, int error)
{
        const char *open = strchr(host, ':') ? "[" : "", *shut = *open ? "]" : "";

        fprintf(stderr, "kvroute mock: --listen %s%s%s:%u: %s\n", open, host, shut, port,
                error == UV_EADDRINUSE ? "the port is in use; choose another, or stop what listens there"
                                       : uv_strerror(error));
        return 2;
}

/* All ports before the first engine, so that none is said to be ready when the fleet cannot be. */
static int check_ports(const struct sockaddr_storage *base, uint64_t count, const char *host, uint16_t port)
{
        for (uint64_t i = 0; i < count && port; i++) {
                struct sockaddr_storage addr = *base;
                int error;

                set_port(&addr, (uint16_t)(port + i));
                error = net_port_is_free(&addr);
                if (error)
                        return refuse(host, (uint16_t)(port + i), error);
        }
        return 0;
}

/* 0, or an exit status after a message on stderr. */
static int start(struct fleet *fleet, const struct arguments *arguments,
                 const struct sim_mock_options *mock_options, const char *host, uint16_t port,
                 const struct sim_fault *fault)
{
        struct sockaddr_storage base;
        int error = net_resolve(host, port, &base), status;

        if (error) {
                fprintf(stderr, "kvroute mock: --listen: cannot resolve '%s': %s\n", host,
                        uv_strerror(error));
                return 2;
        }
        status = check_ports(&base, arguments->count, host, port);
        if (status)
                return status;
        for (uint64_t i = 0; i < arguments->count; i++) {
                struct sockaddr_storage addr = base;
                const char *open = strchr(host, ':') ? "[" : "", *shut = *open ? "]" : "";

                if (port)
                        set_port(&addr, (uint16_t)(port + i));
                struct sim_mock_options own = *mock_options;

                own.events.port_plus = (uint32_t)i;
                fleet->mocks[i] = sim_mock_new(&fleet->loop, &addr, &own, &error);
                if (!fleet->mocks[i] && error == UV_EINVAL)
                        return 2; /* said already */
                if (!fleet->mocks[i])
                        return refuse(host, port_of(&addr), error);
                fleet->count++;
                sim_mock_set_fault(fleet->mocks[i], fault);
                fprintf(stderr, "kvroute mock: ready on http://%s%s%s:%u (%s, %llu blocks of %llu tokens)\n",
                        open, host, shut, port_of(&addr), arguments->preset,
                        (unsigned long long)arguments->capacity_blocks,
                        (unsigned long long)arguments->block_tokens);
        }
        return 0;
}

static int serve(const struct arguments *arguments, const struct sim_mock_options *mock_options,
                 const char *host, uint16_t port, const struct sim_fault *fault)
{
        struct fleet *fleet = calloc(1, sizeof(*fleet));
        static const int numbers[] = {SIGINT, SIGTERM};
        int status;

        if (!fleet || net_loop_init(&fleet->loop)) {
                fprintf(stderr, "kvroute mock: out of memory\n");
                free(fleet);
                return 1;
        }
        (void)signal(SIGPIPE, SIG_IGN);
        for (size_t i = 0; i < 2; i++) {
                (void)uv_signal_init(&fleet->loop.uv, &fleet->signals[i]);
                fleet->signals[i].data = fleet;
                (void)uv_signal_start(&fleet->signals[i], on_signal, numbers[i]);
                uv_unref((uv_handle_t *)&fleet->signals[i]);
        }
        uv_unref((uv_handle_t *)&fleet->loop.async);
        status = start(fleet, arguments, mock_options, host, port, fault);
        if (status)
                on_signal(&fleet->signals[0], 0);
        uv_run(&fleet->loop.uv, UV_RUN_DEFAULT);
        net_loop_fini(&fleet->loop);
        free(fleet);
        return status;
}

/* The number behind the last colon; 0: none. */
static unsigned long endpoint_port(const char *endpoint)
{
        const char *colon = endpoint ? strrchr(endpoint, ':') : NULL;

        return colon ? strtoul(colon + 1, NULL, 10) : 0;
}

static bool ports_overlap(const struct arguments *a)
{
        unsigned long events = endpoint_port(a->events), replay = endpoint_port(a->replay);

        return events && replay && (events > replay ? events - replay : replay - events) < a->count;
}

int sim_mock_main(int argc, char **argv)
{
        struct arguments arguments;
        struct sim_mock_options mock_options;
        const struct sim_cost *cost;
        struct sim_fault fault;
        unsigned positional = 0;
        char host[256], message[200];
        uint16_t port;
        int status = sim_options_main(&command, argc, argv, &arguments, NULL, &positional);

        if (status >= 0)
                return status;
        cost = sim_cost_find(arguments.preset ? arguments.preset : "");
        if (!cost)
                return sim_usage_error(&command, "--preset: there is no '%s'; --help lists the presets",
                                       arguments.preset);
        if (!arguments.models || arguments.models[0] == ',')
                return sim_usage_error(&command,
                                       "--model: the first name is empty; for example --model mock");
        if (!arguments.listen || !sim_parse_endpoint(arguments.listen, host, sizeof(host), &port))
                return sim_usage_error(&command,
                                       "--listen: '%s' is not HOST:PORT, as in --listen 127.0.0.1:8000",
                                       arguments.listen ? arguments.listen : "");
        if (port && port + arguments.count > 65536)
                return sim_usage_error(&command, "--count: %llu ports from %u on go beyond 65535",
                                       (unsigned long long)arguments.count, port);
        if (!arguments.events_format ||
            (strcmp(arguments.events_format, "map") != 0 && strcmp(arguments.events_format, "array") != 0))
                return sim_usage_error(&command, "--events-format: '%s' is not map or array",
                                       arguments.events_format);
        if (!arguments.events_hash ||
            (strcmp(arguments.events_hash, "int") != 0 && strcmp(arguments.events_hash, "bytes") != 0))
                return sim_usage_error(&command, "--events-hash: '%s' is not int or bytes",
                                       arguments.events_hash);
        if (arguments.replay && arguments.replay[0] && !(arguments.events && arguments.events[0]))
                return sim_usage_error(&command, "--replay: means nothing without --events");
        if (ports_overlap(&arguments))
                return sim_usage_error(
                        &command,
                        "--replay: with --count %llu each engine takes the next port, and those from "
                        "%s and from %s on overlap; choose one further away",
                        (unsigned long long)arguments.count, arguments.events, arguments.replay);
        sim_fault_init(&fault);
        if (arguments.fault && !sim_fault_parse(&fault, sim_slice(arguments.fault), message, sizeof(message)))
                return sim_usage_error(&command, "--fault: %s", message);
        to_options(&arguments, cost, &mock_options);
        return serve(&arguments, &mock_options, host, port, &fault);
}
