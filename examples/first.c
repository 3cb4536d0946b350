/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The whole life of two requests in one page: read the prompt, choose a replica, report what came of it, and
 * see the second request follow the first to the replica that now holds their common beginning.
 *
 *     cc first.c $(pkg-config --cflags --libs libkvroute) -o first && ./first
 */
#include <kvroute/kvroute.h>

#include <stdio.h>
#include <string.h>

/* The library has no clock and no chance of its own: a host passes them in. Here both only count. */
static uint64_t now_ns(void *ctx)
{
        uint64_t *time = ctx;
        return *time += 1000000;
}

static uint64_t random64(void *ctx)
{
        uint64_t *state = ctx;
        return *state * 6364136223846793005u + 1442695040888963407u;
}

#define SYSTEM                                                                                             \
        "{\"role\":\"system\",\"content\":\"You answer questions about the manual. The manual says: keep " \
        "dry, "                                                                                            \
        "keep cool, do not open, do not drop, do not bend, do not shake, wear gloves, read the label "     \
        "twice, and "                                                                                      \
        "call the number on the back of the box if anything is unclear to you or to anybody else.\"}"

static enum kvr_status serve(struct kvr_router *router, struct kvr_parser *parser, const char *body)
{
        struct kvr_prompt_options options = {.seed = 42};
        struct kvr_prompt prompt;
        struct kvr_error err;
        enum kvr_status status;

        status = kvr_prompt_parse(parser, KVR_API_CHAT, (struct kvr_slice){body, strlen(body)}, &options,
                                  &prompt, &err);
        if (status != KVR_OK) {
                fprintf(stderr, "not understood: %s\n", err.message);
                return status;
        }

        struct kvr_request request = {.prompt = &prompt, .model = prompt.model};
        struct kvr_decision decision;
        struct kvr_ticket *ticket;

        status = kvr_decide(router, &request, &decision, &ticket, &err);
        if (status != KVR_OK) {
                fprintf(stderr, "nobody can serve it: %s\n", err.message);
                return status;
        }
        struct kvr_replica_info info;

        if (kvr_replica_info(router, decision.replica, &info) == KVR_OK)
                printf("to %s because of %s: about %u of %u prompt tokens are cached there\n", info.name,
                       kvr_reason_name(decision.reason), decision.match_tokens, decision.prompt_tokens);

        /* Here the request would be sent. The engine's answer says how many tokens it found in its cache. */
        kvr_ticket_first_token(ticket);
        struct kvr_outcome outcome = {
                .end = KVR_END_FINISHED,
                .prompt_tokens = decision.prompt_tokens,
                .cached_tokens = decision.match_tokens,
                .completion_tokens = 12,
        };
        kvr_ticket_settle(ticket, &outcome, NULL);
        return KVR_OK;
}

int main(void)
{
        static const char first[] = "{\"model\":\"m\",\"messages\":[" SYSTEM
                                    ",{\"role\":\"user\",\"content\":\"May I shake it?\"}]}";
        static const char second[] = "{\"model\":\"m\",\"messages\":[" SYSTEM
                                     ",{\"role\":\"user\",\"content\":\"And bend it?\"}]}";
        uint64_t time = 0;
        struct kvr_env env = {now_ns, random64, &time};
        struct kvr_settings settings = {0}; /* every zero is a default */
        struct kvr_error err;
        struct kvr_router *router;
        struct kvr_parser *parser = kvr_parser_new();
        enum kvr_status status = parser ? kvr_router_new(&settings, &env, &router, &err) : KVR_E_NOMEM;

        if (status != KVR_OK) {
                kvr_parser_free(parser);
                return 1;
        }
        for (int i = 0; i < 3 && status == KVR_OK; i++) {
                static const char *const names[] = {"gpu-a", "gpu-b", "gpu-c"};
                struct kvr_replica_spec spec = {
                        .name = names[i], .cache = KVR_CACHE_BLOCKS, .block_tokens = 16};
                kvr_replica_id id;

                status = kvr_replica_add(router, &spec, &id, &err);
                if (status == KVR_OK)
                        status = kvr_replica_set_state(router, id, KVR_READY);
        }
        if (status == KVR_OK)
                status = serve(router, parser, first);
        if (status == KVR_OK)
                status = serve(router, parser, second);
        kvr_router_free(router);
        kvr_parser_free(parser);
        return status == KVR_OK ? 0 : 1;
}
