/* SPDX-License-Identifier: Apache-2.0 */
#include "ledger_virtual.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "policy.h"

#define PREFILL_DEFAULT 8000.0 /* tokens a second, until a speed is learned */
#define WORK_S          60.0   /* recent work fades over so long */

const char *kvr__virtual_name(uint32_t number)
{
        static const char *const names[KVR__VIRTUALS] = {"round_robin", "least_tokens", "prefix_hash"};

        return number < KVR__VIRTUALS ? names[number] : NULL;
}

/* ---- runs ---- */

static uint32_t tag_of(const struct kvr__arrival *arrival, uint32_t at)
{
        return (uint32_t)arrival->points[at].key;
}

static uint32_t *head_of(struct kvr__virtual *fleet, uint32_t tag, uint32_t slot)
{
        uint64_t x = ((uint64_t)slot << 32 | tag) * 0x9e3779b97f4a7c15ULL;

        return &fleet->heads[(uint32_t)(x >> 40) & fleet->mask];
}

static uint32_t run_find(struct kvr__virtual *fleet, uint32_t tag, uint32_t slot)
{
        uint32_t number = *head_of(fleet, tag, slot);

        while (number && (fleet->runs[number].tags[0] != tag || fleet->runs[number].slot != slot))
                number = fleet->runs[number].next;
        return number;
}

static void order_leave(struct kvr__virtual *fleet, uint32_t number)
{
        struct kvr__run *run = &fleet->runs[number];
        struct kvr__virtual_replica *replica = &fleet->replicas[run->slot];

        *(run->older ? &fleet->runs[run->older].newer : &replica->oldest) = run->newer;
        *(run->newer ? &fleet->runs[run->newer].older : &replica->newest) = run->older;
}

/* Right behind `before`, which is a little newer; 0: as the newest of all. */
static void order_join(struct kvr__virtual *fleet, uint32_t joining, uint32_t before)
{
        struct kvr__run *run = &fleet->runs[joining];
        struct kvr__virtual_replica *replica = &fleet->replicas[run->slot];

        run->newer = before;
        run->older = before ? fleet->runs[before].older : replica->newest;
        *(run->older ? &fleet->runs[run->older].newer : &replica->oldest) = joining;
        *(before ? &fleet->runs[before].older : &replica->newest) = joining;
}

static void run_drop(struct kvr__virtual *fleet, uint32_t number)
{
        struct kvr__run *run = &fleet->runs[number];
        uint32_t *link = head_of(fleet, run->tags[0], run->slot);

        while (*link != number)
                link = &fleet->runs[*link].next;
        *link = run->next;
        order_leave(fleet, number);
        fleet->replicas[run->slot].tokens -= run->tokens;
        run->count = 0;
        run->next = fleet->free;
        fleet->free = number;
        fleet->count--;
}

/* The replica that has most, roughly: some other than `slot` that has anything. */
static uint32_t slot_to_rob(const struct kvr__virtual *fleet, uint32_t slot)
{
        uint32_t best = slot;

        for (uint32_t i = 0; i < KVR_LEDGER_REPLICAS_MAX; i++)
                if (i != slot &&
                    fleet->replicas[i].tokens > (best == slot ? 0 : fleet->replicas[best].tokens))
                        best = i;
        return best;
}

static bool run_ready(const struct kvr__virtual *fleet)
{
        return fleet->free || fleet->fresh <= fleet->mask;
}

/* A run with one point, in its chain but in no order. `keep` is one that must not go; 0 when there is no
 * room. */
static uint32_t run_make(struct kvr__virtual *fleet, uint32_t tag, uint32_t slot, uint32_t tokens,
                         uint32_t keep)
{
        if (!run_ready(fleet)) {
                uint32_t oldest = fleet->replicas[slot].oldest;

                fleet->crowded++;
                if (!oldest || oldest == keep)
                        oldest = fleet->replicas[slot_to_rob(fleet, slot)].oldest;
                if (!oldest || oldest == keep)
                        return 0;
                run_drop(fleet, oldest);
        }
        if (!fleet->free) {
                fleet->runs[++fleet->fresh].next = 0;
                fleet->free = fleet->fresh;
        }
        uint32_t number = fleet->free, *head = head_of(fleet, tag, slot);
        struct kvr__run *run = &fleet->runs[number];

        fleet->free = run->next;
        *run = (struct kvr__run){.next = *head, .tokens = tokens, .slot = (uint16_t)slot, .count = 1};
        run->tags[0] = tag;
        *head = number;
        fleet->count++;
        fleet->replicas[slot].tokens += tokens;
        return number;
}

/* Leaves the first `count` points, which are `tokens` tokens, and makes the rest a run of its own in the same
 * place. */
static void run_split(struct kvr__virtual *fleet, uint32_t number, uint32_t count, uint32_t tokens)
{
        struct kvr__run *run = &fleet->runs[number];
        uint32_t rest_tokens = run->tokens > tokens ? run->tokens - tokens : 0, left = run->count - count;

        fleet->replicas[run->slot].tokens -= rest_tokens;
        run->tokens -= rest_tokens;
        run->count = (uint16_t)count;
        /* Nothing may go for it that the prompt at hand passes; then rather the rest. */
        uint32_t rest = run_ready(fleet) ? run_make(fleet, run->tags[count], run->slot, rest_tokens, 0) : 0;

        if (!rest)
                return;
        memcpy(&fleet->runs[rest].tags[1], &run->tags[count + 1], (left - 1) * sizeof(uint32_t));
        fleet->runs[rest].count = (uint16_t)left;
        fleet->runs[rest].follow = run->follow;
        /* What is behind is used up to when the whole was, but a little earlier. */
        order_join(fleet, rest, number);
}

/* Down to the capacity: the oldest run goes, or loses its last points. */
static void replica_trim(struct kvr__virtual *fleet, struct kvr__virtual_replica *replica, double capacity)
{
        while (capacity > 0 && (double)replica->tokens > capacity && replica->oldest) {
                struct kvr__run *run = &fleet->runs[replica->oldest];
                double excess = (double)replica->tokens - capacity;

                __builtin_prefetch(&fleet->runs[run->newer]);

                if (excess >= run->tokens || run->count == 1) {
                        run_drop(fleet, replica->oldest);
                        continue;
                }
                uint32_t points = (uint32_t)ceil(excess * run->count / run->tokens);

                points = points < run->count ? points : run->count - 1U;
                uint32_t tokens = (uint32_t)((uint64_t)run->tokens * points / run->count);

                run->count = (uint16_t)(run->count - points);
                run->tokens -= tokens;
                replica->tokens -= tokens;
                if (!tokens)
                        run_drop(fleet, replica->oldest);
        }
}

/* ---- the prompt at hand ---- */

static uint32_t tokens_until(const struct kvr__arrival *arrival, uint32_t at)
{
        return (uint32_t)(arrival->points[at].end * arrival->tokens_per_unit + 0.5);
}

/* Of the points from `from` on, before `to`. */
static uint32_t tokens_of(const struct kvr__arrival *arrival, uint32_t from, uint32_t to)
{
        return tokens_until(arrival, to - 1) - (from ? tokens_until(arrival, from - 1) : 0);
}

/* ---- rules ---- */

static double token_s_of(const struct kvr__virtuals *virtuals, uint32_t slot)
{
        double token_s = virtuals->twins[slot].token_s;

        if (token_s <= 0)
                token_s = virtuals->token_s;
        return token_s > 0 ? token_s : 1 / PREFILL_DEFAULT;
}

static void replica_advance(const struct kvr__virtuals *virtuals, struct kvr__virtual *fleet, uint32_t slot,
                            uint64_t at_ns)
{
        struct kvr__virtual_replica *replica = &fleet->replicas[slot];

        if (at_ns <= replica->at_ns)
                return;
        double passed_s = (double)(at_ns - replica->at_ns) / 1e9;

        replica->at_ns = at_ns;
        replica->backlog = fmax(0, replica->backlog - passed_s / token_s_of(virtuals, slot));
        replica->work *= WORK_S / (WORK_S + passed_s);
}

static uint32_t choose_in_turn(const uint64_t *candidates, uint64_t turn)
{
        uint32_t count = 0;

        for (uint32_t word = 0; word < KVR__SLOT_WORDS; word++)
                count += (uint32_t)__builtin_popcountll(candidates[word]);
        uint32_t at = (uint32_t)(turn % count);

        for (uint32_t word = 0;; word++) {
                uint64_t bits = candidates[word];
                uint32_t here = (uint32_t)__builtin_popcountll(bits);

                if (at >= here) {
                        at -= here;
                        continue;
                }
                while (at--)
                        bits &= bits - 1;
                return word * 64 + (uint32_t)__builtin_ctzll(bits);
        }
}

static uint32_t choose_least(const struct kvr__virtuals *virtuals, struct kvr__virtual *fleet,
                             const struct kvr__arrival *arrival)
{
        uint32_t best = KVR_LEDGER_REPLICAS_MAX;

        for (uint32_t word = 0; word < KVR__SLOT_WORDS; word++)
                for (uint64_t bits = arrival->candidates[word]; bits; bits &= bits - 1) {
                        uint32_t slot = word * 64 + (uint32_t)__builtin_ctzll(bits);
                        const struct kvr__virtual_replica *replica = &fleet->replicas[slot];

                        replica_advance(virtuals, fleet, slot, arrival->at_ns);
                        if (best == KVR_LEDGER_REPLICAS_MAX ||
                            replica->backlog < fleet->replicas[best].backlog ||
                            (replica->backlog <= fleet->replicas[best].backlog &&
                             replica->work < fleet->replicas[best].work))
                                best = slot;
                }
        return best;
}

/* The highest draw, as in policy.h. */
static uint32_t choose_hash(const struct kvr__virtuals *virtuals, const struct kvr__arrival *arrival)
{
        uint64_t best_draw = 0;
        uint32_t best = KVR_LEDGER_REPLICAS_MAX;

        if (!arrival->count)
                return choose_in_turn(arrival->candidates, arrival->turn);
        uint64_t key = arrival->points[arrival->count > 1].key;

        for (uint32_t word = 0; word < KVR__SLOT_WORDS; word++)
                for (uint64_t bits = arrival->candidates[word]; bits; bits &= bits - 1) {
                        uint32_t slot = word * 64 + (uint32_t)__builtin_ctzll(bits);
                        uint64_t draw = kvr__draw_of(key, virtuals->twins[slot].name_hash);

                        if (best == KVR_LEDGER_REPLICAS_MAX || draw > best_draw) {
                                best = slot;
                                best_draw = draw;
                        }
                }
        return best;
}

/* ---- one prompt on one fleet ---- */

/* Is this the run that begins with this tag there? */
static bool run_begins(const struct kvr__run *run, uint32_t tag, uint32_t slot)
{
        return run->tags[0] == tag && run->slot == slot && run->count;
}

/* One run further; false at the end of what the replica has. */
static bool walk_step(struct kvr__virtual *fleet, const struct kvr__arrival *arrival, struct kvr__walk *walk)
{
        uint32_t at = walk->points, number = walk->guess, same = 1;

        if (at >= arrival->count)
                return false;
        if (!number || !run_begins(&fleet->runs[number], tag_of(arrival, at), walk->slot))
                number = run_find(fleet, tag_of(arrival, at), walk->slot);
        if (!number)
                return false;
        const struct kvr__run *run = &fleet->runs[number];

        while (same < run->count && at + same < arrival->count &&
               run->tags[same] == tag_of(arrival, at + same))
                same++;
        walk->inside[walk->count] = (unsigned char)same;
        walk->runs[walk->count++] = number;
        walk->points += same;
        walk->guess = run->follow;
        __builtin_prefetch(&fleet->runs[run->follow]);
        return true;
}

/* All fleets side by side: while one waits for its memory the others go on. */
static void walk_all(struct kvr__virtuals *virtuals, const struct kvr__arrival *arrival)
{
        uint32_t going = (1U << KVR__VIRTUALS) - 1;

        while (going)
                for (uint32_t i = 0; i < KVR__VIRTUALS; i++)
                        if (going >> i & 1 && !walk_step(&virtuals->fleets[i], arrival, &virtuals->walks[i]))
                                going &= ~(1U << i);
}

/* As an engine counts hits. */
static uint32_t match_tokens(const struct kvr__arrival *arrival, uint32_t points, uint32_t block)
{
        uint32_t tokens = points ? tokens_until(arrival, points - 1) : 0;

        if (tokens >= arrival->prompt_tokens)
                tokens = arrival->prompt_tokens - 1;
        return block > 1 ? tokens - tokens % block : tokens;
}

/* The points behind the last run go into what room it has, and into new runs; deeper ones are older. */
static void path_extend(struct kvr__virtual *fleet, const struct kvr__arrival *arrival,
                        const struct kvr__walk *walk, bool fork)
{
        uint32_t at = walk->points, number = walk->count ? walk->runs[walk->count - 1] : 0;

        for (uint32_t i = at; i < arrival->count; i += KVR__RUN_POINTS)
                __builtin_prefetch(head_of(fleet, tag_of(arrival, i), walk->slot));
        while (at < arrival->count) {
                struct kvr__run *run = &fleet->runs[number];
                uint32_t from = at;

                if (!number || fork || run->count == KVR__RUN_POINTS) {
                        uint32_t fresh = run_make(fleet, tag_of(arrival, at), walk->slot, 0, number);

                        if (!fresh)
                                return;
                        order_join(fleet, fresh, number);
                        run->follow = fresh;
                        number = fresh;
                        fork = false;
                        run = &fleet->runs[number];
                        at++;
                }
                while (run->count < KVR__RUN_POINTS && at < arrival->count)
                        run->tags[run->count++] = tag_of(arrival, at++);
                uint32_t tokens = tokens_of(arrival, from, at);

                run->tokens += tokens;
                fleet->replicas[walk->slot].tokens += tokens;
        }
}

/* From the end on, so that a prefix outlives what it is a prefix of. */
static void path_use(struct kvr__virtual *fleet, const struct kvr__arrival *arrival,
                     const struct kvr__walk *walk, double capacity)
{
        uint32_t end = walk->points, follow = 0;
        bool fork = false; /* what was split is not filled up again with one of its branches */

        for (uint32_t i = walk->count; i-- > 0;) {
                uint32_t number = walk->runs[i], inside = walk->inside[i];

                if (inside < fleet->runs[number].count) {
                        run_split(fleet, number, inside, tokens_of(arrival, end - inside, end));
                        fork |= i + 1 == walk->count;
                }
                end -= inside;
                order_leave(fleet, number);
                order_join(fleet, number, 0);
                if (follow)
                        fleet->runs[number].follow = follow;
                follow = number;
        }
        path_extend(fleet, arrival, walk, fork);
        replica_trim(fleet, &fleet->replicas[walk->slot], capacity);
}

static uint32_t choose(const struct kvr__virtuals *virtuals, struct kvr__virtual *fleet,
                       const struct kvr__arrival *arrival)
{
        switch (fleet->rule) {
        case KVR__VIRTUAL_LEAST_TOKENS:
                return choose_least(virtuals, fleet, arrival);
        case KVR__VIRTUAL_PREFIX_HASH:
                return choose_hash(virtuals, arrival);
        default:
                return choose_in_turn(arrival->candidates, arrival->turn);
        }
}

static void fleet_book(struct kvr__virtuals *virtuals, struct kvr__virtual *fleet,
                       const struct kvr__arrival *arrival, const struct kvr__walk *walk)
{
        struct kvr__virtual_replica *replica = &fleet->replicas[walk->slot];
        const struct kvr__twin *twin = &virtuals->twins[walk->slot];
        uint32_t won = match_tokens(arrival, walk->points, twin->block_tokens);
        uint32_t computed = arrival->prompt_tokens - won;
        struct kvr__booking booking = {
                .sums =
                        {
                                .requests = 1,
                                .computed = 1,
                                .prompt_tokens = arrival->prompt_tokens,
                                .predicted_tokens = won,
                                .won_tokens = won,
                                .avoided_ns = twin->token_s > 0 ? (uint64_t)(won * twin->token_s * 1e9) : 0,
                                .untimed_tokens = twin->token_s > 0 ? 0 : won,
                        },
        };

        path_use(fleet, arrival, walk, twin->capacity);
        replica_advance(virtuals, fleet, walk->slot, arrival->at_ns);
        replica->backlog += computed;
        replica->work += computed;
        kvr__account_book(&fleet->account, &booking, arrival->now_ns);
        kvr__balance_book(&fleet->balance, walk->slot, computed, arrival->candidates, arrival->now_ns);
}

void kvr__virtuals_see(struct kvr__virtuals *virtuals, const struct kvr__arrival *arrival)
{
        for (uint32_t i = 0; i < KVR__VIRTUALS; i++) {
                struct kvr__walk *walk = &virtuals->walks[i];

                walk->slot = choose(virtuals, &virtuals->fleets[i], arrival);
                walk->points = walk->count = walk->guess = 0;
                if (arrival->count)
                        __builtin_prefetch(head_of(&virtuals->fleets[i], tag_of(arrival, 0), walk->slot));
        }
        walk_all(virtuals, arrival);
        for (uint32_t i = 0; i < KVR__VIRTUALS; i++)
                fleet_book(virtuals, &virtuals->fleets[i], arrival, &virtuals->walks[i]);
}

/* ---- life ---- */

static bool fleet_init(struct kvr__virtual *fleet, enum kvr__virtual_rule rule, uint32_t runs_max)
{
        fleet->rule = rule;
        fleet->mask = runs_max - 1;
        fleet->runs = calloc((size_t)runs_max + 1, sizeof(*fleet->runs));
        fleet->heads = calloc(runs_max, sizeof(*fleet->heads));
        memcpy(fleet->account.name, kvr__virtual_name(rule), strlen(kvr__virtual_name(rule)));
        return fleet->runs && fleet->heads;
}

struct kvr__virtuals *kvr__virtuals_new(uint32_t runs_max, uint64_t *bytes)
{
        struct kvr__virtuals *virtuals = calloc(1, sizeof(*virtuals));
        bool done = virtuals != NULL;

        for (uint32_t i = 0; done && i < KVR__VIRTUALS; i++)
                done = fleet_init(&virtuals->fleets[i], (enum kvr__virtual_rule)i, runs_max);
        if (!done) {
                kvr__virtuals_free(virtuals);
                return NULL;
        }
        *bytes += sizeof(*virtuals) + KVR__VIRTUALS * (((uint64_t)runs_max + 1) * sizeof(struct kvr__run) +
                                                       (uint64_t)runs_max * sizeof(uint32_t));
        return virtuals;
}

void kvr__virtuals_free(struct kvr__virtuals *virtuals)
{
        for (uint32_t i = 0; virtuals && i < KVR__VIRTUALS; i++) {
                free(virtuals->fleets[i].runs);
                free(virtuals->fleets[i].heads);
        }
        free(virtuals);
}

void kvr__virtuals_forget(struct kvr__virtuals *virtuals, uint32_t slot)
{
        for (uint32_t i = 0; i < KVR__VIRTUALS; i++) {
                struct kvr__virtual *fleet = &virtuals->fleets[i];

                while (fleet->replicas[slot].oldest)
                        run_drop(fleet, fleet->replicas[slot].oldest);
        }
}

void kvr__virtuals_clear(struct kvr__virtuals *virtuals, uint32_t slot)
{
        kvr__virtuals_forget(virtuals, slot);
        for (uint32_t i = 0; i < KVR__VIRTUALS; i++) {
                struct kvr__virtual *fleet = &virtuals->fleets[i];

                fleet->replicas[slot] = (struct kvr__virtual_replica){0};
                kvr__balance_clear(&fleet->balance, slot);
        }
        virtuals->twins[slot] = (struct kvr__twin){0};
}
