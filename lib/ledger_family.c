/* SPDX-License-Identifier: Apache-2.0 */
#include "ledger_family.h"

#include <stdlib.h>
#include <string.h>

#define SETS          (KVR_LEDGER_SIGHTS_MAX / KVR__SIGHT_WAYS)
#define EXIT_NS       60000000000ULL /* a fork is worth so much youth per branch when a place is needed */
#define EXITS_COUNT   64             /* at most so many times */
#define SHARED_STEP   (1.0 / 16)
#define FADE_REQUESTS 16384 /* weights of families are halved after so many */
#define NAME_BYTES    16    /* "family-" and 8 digits */

/* ---- sights ---- */

static uint64_t spread(uint64_t key)
{
        return key * 0x9e3779b97f4a7c15ULL;
}

static struct kvr__sight *set_of(const struct kvr__families *families, uint64_t key)
{
        return &families->sights[(spread(key) >> 40) % SETS * KVR__SIGHT_WAYS];
}

void kvr__families_prefetch(const struct kvr__families *families, uint64_t key)
{
        const struct kvr__sight *set = set_of(families, key);

        __builtin_prefetch(set, 1);
        __builtin_prefetch(set + KVR__SIGHT_WAYS - 1, 1);
}

static struct kvr__sight *sight_find(const struct kvr__families *families, uint64_t key)
{
        struct kvr__sight *set = set_of(families, key);

        for (uint32_t i = 0; i < KVR__SIGHT_WAYS; i++)
                if (set[i].key == key)
                        return &set[i];
        return NULL;
}

static uint64_t worth(const struct kvr__sight *sight)
{
        uint64_t exits = sight->exits < EXITS_COUNT ? sight->exits : EXITS_COUNT;

        return sight->key ? sight->used_ns + exits * EXIT_NS : 0;
}

static struct kvr__sight *sight_make(struct kvr__families *families, uint64_t key, uint64_t now_ns)
{
        struct kvr__sight *set = set_of(families, key), *least = set;

        for (uint32_t i = 1; i < KVR__SIGHT_WAYS; i++)
                if (worth(&set[i]) < worth(least))
                        least = &set[i];
        *least = (struct kvr__sight){.key = key, .used_ns = now_ns};
        return least;
}

/* ---- trunks ---- */

static void filter_set(struct kvr__families *families, uint64_t key)
{
        uint64_t bit = spread(key) >> 51;

        families->filter[bit / 64] |= 1ULL << bit % 64;
}

static bool filter_has(const struct kvr__families *families, uint64_t key)
{
        uint64_t bit = spread(key) >> 51;

        return families->filter[bit / 64] >> bit % 64 & 1;
}

static void filter_build(struct kvr__families *families)
{
        const struct kvr__accounts *accounts = &families->accounts;

        memset(families->filter, 0, sizeof(families->filter));
        families->points_max = 0;
        for (uint32_t i = KVR__ACCOUNT_OWN; i < accounts->count; i++) {
                if (!accounts->items[i].key)
                        continue;
                filter_set(families, accounts->items[i].key);
                if (families->families[i].points > families->points_max)
                        families->points_max = families->families[i].points;
        }
}

static uint32_t trunk_find(const struct kvr__families *families, const struct kvr_point *points,
                           uint32_t count)
{
        uint32_t from = count < families->points_max ? count : families->points_max;

        for (uint32_t i = from; i-- > 0;) {
                if (!filter_has(families, points[i].key))
                        continue;
                uint32_t number = kvr__accounts_find(&families->accounts, points[i].key);

                if (number >= KVR__ACCOUNT_OWN)
                        return number;
        }
        return KVR__ACCOUNT_NONE;
}

static bool is_trunk(const struct kvr__sight *sight)
{
        return sight->exits + 1 >= KVR_LEDGER_BRANCHES + (uint32_t)sight->children;
}

static void family_name(uint64_t key, char *ret)
{
        static const char digits[] = "0123456789abcdef";
        uint32_t number = (uint32_t)(key >> 32);

        memcpy(ret, "family-", 7);
        for (int i = 0; i < 8; i++)
                ret[7 + i] = digits[number >> (28 - 4 * i) & 15];
}

/* A free number, or that of the family with the fewest requests if these are fewer than `weight`: whoever
 * replaces one has shown more, so that two of a size do not take turns. KVR__ACCOUNT_NONE when there is none.
 */
static uint32_t number_take(struct kvr__families *families, uint64_t weight)
{
        struct kvr__accounts *accounts = &families->accounts;
        uint32_t least = KVR__ACCOUNT_OWN;

        for (uint32_t i = KVR__ACCOUNT_OWN; i < accounts->count; i++)
                if (!accounts->items[i].key)
                        return i;
        if (accounts->count < accounts->max)
                return accounts->count++;
        for (uint32_t i = KVR__ACCOUNT_OWN; i < accounts->count; i++)
                if (families->families[i].weight < families->families[least].weight)
                        least = i;
        if (families->families[least].weight >= weight)
                return KVR__ACCOUNT_NONE;
        families->given_up++;
        return least;
}

static void family_drop(struct kvr__families *families, uint32_t number, uint64_t now_ns)
{
        kvr__accounts_replace(&families->accounts, number, 0, (struct kvr_slice){0}, now_ns);
        families->families[number] = (struct kvr__family){0};
}

/* The nearest fork above the new trunk has one branch less of its own. */
static void parent_tell(struct kvr__families *families, const struct kvr__sighting *sighting, uint32_t trunk)
{
        for (uint32_t i = trunk; i-- > 0;) {
                struct kvr__sight *above = sight_find(families, sighting->points[i].key);

                if (!above || !above->exits)
                        continue;
                if (above->children < UINT16_MAX)
                        above->children++;
                uint32_t number = kvr__accounts_find(&families->accounts, above->key);

                if (number >= KVR__ACCOUNT_OWN && !is_trunk(above))
                        family_drop(families, number, sighting->now_ns);
                return;
        }
}

static void family_make(struct kvr__families *families, const struct kvr__sighting *sighting, uint32_t trunk,
                        struct kvr__sight *sight)
{
        uint64_t key = sighting->points[trunk].key;
        char name[NAME_BYTES];

        if (kvr__accounts_find(&families->accounts, key) >= KVR__ACCOUNT_OWN)
                return;
        /* The one above first: it may make room. */
        if (!sight->counted)
                parent_tell(families, sighting, trunk);
        sight->counted = true;
        uint32_t number = number_take(families, sight->exits);

        if (number == KVR__ACCOUNT_NONE)
                return;
        family_name(key, name);
        kvr__accounts_replace(&families->accounts, number, key, (struct kvr_slice){name, NAME_BYTES - 1},
                              sighting->now_ns);
        families->families[number] = (struct kvr__family){
                .weight = sight->exits,
                .shared_tokens = sighting->points[trunk].end * sighting->tokens_per_unit,
                .points = trunk + 1,
        };
        filter_build(families);
}

/* ---- one prompt ---- */

static void fork_see(struct kvr__families *families, const struct kvr__sighting *sighting,
                     struct kvr__sighted *ret)
{
        uint32_t at = sighting->known - 1;
        struct kvr__sight *sight = sight_find(families, sighting->points[at].key);

        if (sight) {
                ret->reuse_known = true;
                ret->reuse_ns = sighting->now_ns > sight->used_ns ? sighting->now_ns - sight->used_ns : 0;
        } else {
                sight = sight_make(families, sighting->points[at].key, sighting->now_ns);
        }
        if (sighting->now_ns > sight->used_ns)
                sight->used_ns = sighting->now_ns;
        if (sighting->known == sighting->count)
                return; /* the same prompt again */
        if (sight->end) {
                sight->end = false;
                return;
        }
        sight->exits++;
        if (is_trunk(sight))
                family_make(families, sighting, at, sight);
}

static void end_see(struct kvr__families *families, const struct kvr__sighting *sighting)
{
        uint64_t key = sighting->points[sighting->count - 1].key;
        struct kvr__sight *sight = sight_find(families, key);

        if (sight) {
                sight->used_ns = sighting->now_ns;
                return;
        }
        sight_make(families, key, sighting->now_ns)->end = sighting->known < sighting->count;
}

void kvr__families_see(struct kvr__families *families, const struct kvr__sighting *sighting,
                       struct kvr__sighted *ret)
{
        *ret = (struct kvr__sighted){0};
        if (!sighting->count)
                return;
        if (++families->seen % FADE_REQUESTS == 0)
                for (uint32_t i = KVR__ACCOUNT_OWN; i < families->accounts.count; i++)
                        families->families[i].weight /= 2;
        if (sighting->known)
                fork_see(families, sighting, ret);
        end_see(families, sighting);
        ret->family = trunk_find(families, sighting->points, sighting->count);
        if (ret->family == KVR__ACCOUNT_NONE)
                return;
        struct kvr__family *family = &families->families[ret->family];
        double shared = sighting->points[family->points - 1].end * sighting->tokens_per_unit;

        family->weight++;
        family->shared_tokens += (shared - family->shared_tokens) * SHARED_STEP;
}

/* ---- life ---- */

bool kvr__families_init(struct kvr__families *families, uint64_t *bytes)
{
        families->sights = calloc(KVR_LEDGER_SIGHTS_MAX, sizeof(*families->sights));
        *bytes += KVR_LEDGER_SIGHTS_MAX * sizeof(*families->sights);
        return kvr__accounts_init(&families->accounts, KVR_LEDGER_FAMILIES_MAX, bytes) && families->sights;
}

void kvr__families_fini(struct kvr__families *families)
{
        kvr__accounts_fini(&families->accounts);
        free(families->sights);
}
