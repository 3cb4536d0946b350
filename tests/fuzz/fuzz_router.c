/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The router's brain under any sequence of calls. Each step takes a few bytes: what to do, and to what.
 * Promises checked against plain arrays: books are exact at every moment and zero at the end, nobody is
 * chosen who may not be, nothing is predicted that was not sent there since the replica was last forgotten,
 * memory stays below its cap, and the index is consistent.
 */
#include "fuzz.h"

#include "lib/brain_test.h"
#include "lib/router_int.h"

#define REPLICAS 6
#define OPEN     24
#define TEXTS    8
#define SENT_MAX 4096

struct oracle {
        kvr_replica_id id;
        enum kvr_state state;
        uint32_t in_flight, prefilling, trials, max_running;
        uint64_t booked, paused_until_ns;
        bool sent[TEXTS]; /* first text of a prompt */
};

struct open {
        struct kvr_ticket *ticket;
        kvr_replica_id id;
        uint32_t booked;
        bool first, trial;
};

struct run {
        struct brain_env env;
        struct kvr_router *router;
        struct oracle replicas[REPLICAS];
        struct open open[OPEN];
        struct brain_prompt prompt;
        const uint8_t *bytes;
        size_t left;
        uint32_t names;
};

static uint8_t next(struct run *run)
{
        if (!run->left)
                return 0;
        run->left--;
        return *run->bytes++;
}

static struct oracle *replica_of(struct run *run, kvr_replica_id id)
{
        for (int i = 0; i < REPLICAS; i++)
                if (id && run->replicas[i].id == id)
                        return &run->replicas[i];
        return NULL;
}

static void replica_add(struct run *run, struct oracle *replica)
{
        char name[16];
        uint8_t how = next(run);
        struct kvr_replica_spec spec = {
                .name = name,
                .cache = how & 1 ? KVR_CACHE_SLOTS : KVR_CACHE_BLOCKS,
                .block_tokens = how & 2 ? 16 : 0,
                .capacity_tokens = how & 4 ? 3000 : 0,
                .slots = how >> 3 & 3,
                .max_running = how & 32 ? 3 : 0,
        };

        snprintf(name, sizeof(name), "r%u", run->names++);
        *replica = (struct oracle){.state = KVR_STARTING, .max_running = spec.max_running};
        FUZZ_CHECK(kvr_replica_add(run->router, &spec, &replica->id, NULL) == KVR_OK);
}

static bool may_be_tried(const struct run *run, const struct oracle *replica,
                         const struct kvr_request *request)
{
        for (uint32_t i = 0; i < request->tried_count; i++)
                if (request->tried[i] == replica->id)
                        return false;
        if (replica->paused_until_ns > run->env.now_ns)
                return false;
        if (replica->max_running && replica->in_flight >= replica->max_running)
                return false;
        if (request->last_resort)
                return replica->state != KVR_DRAINING;
        return replica->state == KVR_READY || (replica->state == KVR_TRIAL && !replica->trials);
}

static void decide(struct run *run, struct open *open)
{
        uint8_t how = next(run), what = next(run);
        struct kvr_request request = {.last_resort = how & 1};
        struct kvr_decision decision = {0};
        uint64_t first = what % TEXTS;

        if (how & 2)
                request.affinity = brain_slice(how & 4 ? "a" : "b");
        if (how & 8)
                request.pinned = run->replicas[what % REPLICAS].id;
        if (how & 16) {
                request.tried[0] = run->replicas[what / 8 % REPLICAS].id;
                request.tried_count = 1;
        }
        if (how & 224) {
                brain_prompt_init(&run->prompt);
                brain_message(&run->prompt, first, 300 + (uint64_t)(what >> 3 & 1) * 2000);
                brain_message(&run->prompt, what >> 4, 100 + (how >> 5) * 400U);
                run->prompt.prompt.choices = 1 + (how == 255);
                request.prompt = brain_prompt_done(&run->prompt);
        }
        enum kvr_status status = kvr_decide(run->router, &request, &decision, &open->ticket, NULL);

        if (status != KVR_OK) {
                FUZZ_CHECK(status == KVR_E_NO_REPLICA || status == KVR_E_BUSY);
                FUZZ_CHECK(status != KVR_E_BUSY || decision.retry_after_ns > 0);
                for (int i = 0; i < REPLICAS; i++)
                        FUZZ_CHECK(!run->replicas[i].id || !may_be_tried(run, &run->replicas[i], &request) ||
                                   (run->replicas[i].state != KVR_READY && status == KVR_E_BUSY));
                open->ticket = NULL;
                return;
        }
        struct oracle *replica = replica_of(run, decision.replica);

        FUZZ_CHECK(replica != NULL && may_be_tried(run, replica, &request));
        FUZZ_CHECK(decision.match_tokens <= decision.best_match_tokens);
        FUZZ_CHECK(!decision.match_tokens || decision.match_tokens < decision.prompt_tokens);
        FUZZ_CHECK(!decision.match_tokens || (request.prompt && replica->sent[first]));
        *open = (struct open){
                .ticket = open->ticket,
                .id = replica->id,
                .booked = (decision.prompt_tokens ? decision.prompt_tokens : KVR__UNKNOWN_TOKENS) -
                          decision.match_tokens,
                .trial = replica->state == KVR_TRIAL,
        };
        replica->in_flight++;
        replica->prefilling++;
        replica->booked += open->booked;
        replica->trials += open->trial;
        if (request.prompt)
                replica->sent[first] = true;
}

static void first_token(struct run *run, struct open *open)
{
        struct oracle *replica = replica_of(run, open->id);

        kvr_ticket_first_token(open->ticket);
        if (replica && !open->first) {
                replica->prefilling--;
                replica->booked -= open->booked;
        }
        open->first = true;
}

static void settle(struct run *run, struct open *open)
{
        struct oracle *replica = replica_of(run, open->id);
        uint8_t how = next(run);
        struct kvr_outcome outcome = {
                .end = (enum kvr_end)(how & 3),
                .prompt_tokens = how & 4 ? next(run) * 8 : -1,
                .cached_tokens = how & 8 ? next(run) * 8 : -1,
                .completion_tokens = how & 16 ? next(run) : -1,
                .response_id = how & 32 ? brain_slice("resp") : (struct kvr_slice){0},
        };
        struct kvr_settlement settlement;

        kvr_ticket_settle(open->ticket, &outcome, &settlement);
        FUZZ_CHECK(settlement.replica == open->id);
        FUZZ_CHECK(!settlement.predicted_tokens || settlement.predicted_tokens < settlement.prompt_tokens);
        if (replica) {
                replica->in_flight--;
                replica->trials -= open->trial;
                if (!open->first) {
                        replica->prefilling--;
                        replica->booked -= open->booked;
                }
        }
        *open = (struct open){0};
}

static void replica_change(struct run *run, struct oracle *replica)
{
        uint8_t how = next(run);

        switch (how % 8) {
        case 0:
        case 1:
                replica->state = (enum kvr_state)(how / 8 % 5);
                FUZZ_CHECK(kvr_replica_set_state(run->router, replica->id, replica->state) == KVR_OK);
                break;
        case 2:
                memset(replica->sent, 0, sizeof(replica->sent));
                FUZZ_CHECK(kvr_replica_forget(run->router, replica->id) == KVR_OK);
                break;
        case 3:
                FUZZ_CHECK(kvr_replica_remove(run->router, replica->id) == KVR_OK);
                replica_add(run, replica);
                break;
        case 4:
                replica->paused_until_ns = how & 8 ? run->env.now_ns + how * 1000000ULL : 0;
                FUZZ_CHECK(kvr_replica_pause(run->router, replica->id, replica->paused_until_ns) == KVR_OK);
                break;
        case 5: {
                struct kvr_load_report report = {run->env.now_ns, how & 8 ? 3 : -1, how & 16 ? how : NAN,
                                                 how & 32 ? 0.99 : 0, how & 64 ? how * 10 : NAN};

                FUZZ_CHECK(kvr_replica_report(run->router, replica->id, &report) == KVR_OK);
                break;
        }
        case 6: {
                struct kvr_replica_spec spec = {.cache = how & 8 ? KVR_CACHE_SLOTS : KVR_CACHE_BLOCKS,
                                                .slots = how >> 4 & 3,
                                                .capacity_tokens = how};

                replica->max_running = 0;
                FUZZ_CHECK(kvr_replica_configure(run->router, replica->id, &spec) == KVR_OK);
                break;
        }
        default:
                FUZZ_CHECK(kvr_router_set_policy(run->router, kvr_policy_name(how / 8 % kvr_policy_count()),
                                                 NULL) == KVR_OK);
                break;
        }
}

static void books_check(struct run *run)
{
        struct kvr_replica_info infos[REPLICAS];
        struct kvr_index_info index;

        FUZZ_CHECK(kvr_router_replicas(run->router, infos, REPLICAS) == REPLICAS);
        for (int i = 0; i < REPLICAS; i++) {
                const struct oracle *replica = replica_of(run, infos[i].id);

                FUZZ_CHECK(replica != NULL);
                FUZZ_CHECK(infos[i].in_flight == replica->in_flight);
                FUZZ_CHECK(infos[i].prefilling == replica->prefilling);
                FUZZ_CHECK(infos[i].uncached_tokens_booked == replica->booked);
        }
        kvr_router_index_info(run->router, &index);
        FUZZ_CHECK(index.bytes <= index.bytes_max);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
        static struct run run;
        struct kvr_settings settings = {.index_memory_bytes = 1 << 20};

        run = (struct run){.env = {.now_ns = BRAIN_S(1000)}, .bytes = bytes, .left = len};
        struct kvr_env env = brain_env_of(&run.env);

        FUZZ_CHECK(kvr_router_new(&settings, &env, &run.router, NULL) == KVR_OK);
        for (int i = 0; i < REPLICAS; i++) {
                replica_add(&run, &run.replicas[i]);
                run.replicas[i].state = KVR_READY;
                FUZZ_CHECK(kvr_replica_set_state(run.router, run.replicas[i].id, KVR_READY) == KVR_OK);
        }
        while (run.left) {
                uint8_t step = next(&run);
                struct open *open = &run.open[step / 8 % OPEN];

                run.env.now_ns += step * 1000000ULL;
                if (step % 8 == 7)
                        replica_change(&run, &run.replicas[step / 8 % REPLICAS]);
                else if (!open->ticket)
                        decide(&run, open);
                else if (step % 2)
                        first_token(&run, open);
                else
                        settle(&run, open);
                books_check(&run);
        }
        for (int i = 0; i < OPEN; i++)
                if (run.open[i].ticket)
                        settle(&run, &run.open[i]);
        books_check(&run);
        for (int i = 0; i < REPLICAS; i++)
                FUZZ_CHECK(run.replicas[i].in_flight == 0 && run.replicas[i].booked == 0);
        FUZZ_CHECK(kvr__index_check(run.router->index));
        kvr_router_free(run.router);
        return 0;
}
