/* SPDX-License-Identifier: Apache-2.0 */
#include "ledger_stack.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ALL_KEYS       (1ULL << 32)
#define CURVE_FIRST    10 /* the smallest cache is 2^10 tokens */
#define QUARTERS       4
#define SHARE_SMALLEST 64 /* the limit is not halved below this: 2^-26 of all prefixes */

/* ---- tree ---- */

static void tree_add(struct kvr__stack *stack, uint32_t position, uint64_t tokens)
{
        for (uint32_t i = position + 1; i <= KVR__STACK_POSITIONS; i += i & -i)
                stack->tree[i] += tokens; /* wraps around for what is taken away */
        stack->held += tokens;
}

/* Tokens at positions 0 .. position. */
static uint64_t tree_sum(const struct kvr__stack *stack, uint32_t position)
{
        uint64_t sum = 0;

        for (uint32_t i = position + 1; i; i -= i & -i)
                sum += stack->tree[i];
        return sum;
}

static void tree_build(struct kvr__stack *stack)
{
        memset(stack->tree, 0, sizeof(stack->tree));
        for (uint32_t i = 0; i < stack->top; i++)
                if (stack->owners[i])
                        stack->tree[i + 1] = stack->keys[stack->owners[i]].tokens;
        for (uint32_t i = 1; i <= KVR__STACK_POSITIONS; i++) {
                uint32_t up = i + (i & -i);

                if (up <= KVR__STACK_POSITIONS)
                        stack->tree[up] += stack->tree[i];
        }
}

/* Positions are used up: those in use move together, in their order. */
static void positions_pack(struct kvr__stack *stack)
{
        uint32_t to = 0;

        for (uint32_t from = stack->bottom; from < stack->top; from++) {
                uint32_t number = stack->owners[from];

                if (!number)
                        continue;
                stack->owners[from] = 0;
                stack->owners[to] = number;
                stack->keys[number].position = to++;
        }
        stack->top = to;
        stack->bottom = 0;
        tree_build(stack);
}

/* ---- keys ---- */

/* Keys are hashes: their upper half says whether they are sampled, their lower half where they lie. */
static uint32_t *head_of(struct kvr__stack *stack, uint64_t key)
{
        return &stack->heads[(uint32_t)key % KVR_LEDGER_CURVE_KEYS];
}

static uint32_t key_find(struct kvr__stack *stack, uint64_t key)
{
        uint32_t number = *head_of(stack, key);

        while (number && stack->keys[number].key != key)
                number = stack->keys[number].next;
        return number;
}

static void key_drop(struct kvr__stack *stack, uint32_t number)
{
        struct kvr__stack_key *key = &stack->keys[number];
        uint32_t *link = head_of(stack, key->key);

        while (*link != number)
                link = &stack->keys[*link].next;
        *link = key->next;
        tree_add(stack, key->position, 0 - (uint64_t)key->tokens);
        stack->owners[key->position] = 0;
        key->key = 0;
        key->next = stack->free;
        stack->free = number;
        stack->count--;
}

static bool is_sampled(const struct kvr__stack *stack, uint64_t key)
{
        return key >> 32 < stack->limit;
}

static double share_of(const struct kvr__stack *stack)
{
        return (double)stack->limit / (double)ALL_KEYS;
}

static void share_halve(struct kvr__stack *stack)
{
        stack->limit /= 2;
        for (uint32_t i = stack->bottom; i < stack->top; i++)
                if (stack->owners[i] && !is_sampled(stack, stack->keys[stack->owners[i]].key))
                        key_drop(stack, stack->owners[i]);
}

static void room_make(struct kvr__stack *stack)
{
        while (stack->count == KVR_LEDGER_CURVE_KEYS) {
                if ((double)stack->held / share_of(stack) < (double)stack->tokens_max &&
                    stack->limit > SHARE_SMALLEST) {
                        share_halve(stack);
                        continue;
                }
                while (!stack->owners[stack->bottom])
                        stack->bottom++;
                key_drop(stack, stack->owners[stack->bottom]);
        }
}

static uint32_t key_make(struct kvr__stack *stack, uint64_t key, uint32_t tokens)
{
        uint32_t number = stack->free, *head = head_of(stack, key);

        stack->free = stack->keys[number].next;
        stack->keys[number] = (struct kvr__stack_key){.key = key, .next = *head, .tokens = tokens};
        *head = number;
        stack->count++;
        return number;
}

/* ---- booking ---- */

/* A distance of 2^n, or a quarter of it more, is the largest of its number. */
static uint32_t distance_number(uint64_t distance)
{
        uint64_t below = distance ? distance - 1 : 0;
        uint32_t bits = below ? 63 - (uint32_t)__builtin_clzll(below) : 0;
        uint32_t number = bits * QUARTERS + (bits > 1 ? (uint32_t)(below >> (bits - 2)) & 3 : 0);

        return number < KVR__STACK_DISTANCES ? number : KVR__STACK_DISTANCES - 1;
}

static uint32_t span_tokens(const struct kvr_point *points, uint32_t at, double tokens_per_unit)
{
        double from = at ? points[at - 1].end * tokens_per_unit : 0;
        double to = points[at].end * tokens_per_unit;

        /* Rounded at the ends, so that spans of a prompt sum to its tokens. */
        return (uint32_t)(floor(to + 0.5) - floor(from + 0.5));
}

/* Where the prefix was last used, as the number of a distance; KVR__STACK_DISTANCES: too far away, or never.
 */
static uint32_t measure(struct kvr__stack *stack, uint32_t number)
{
        const struct kvr__stack_key *key = &stack->keys[number];

        if (!number)
                return KVR__STACK_DISTANCES;
        double distance =
                (double)(stack->held - tree_sum(stack, key->position) + key->tokens) / share_of(stack);

        return distance > (double)stack->tokens_max ? KVR__STACK_DISTANCES
                                                    : distance_number((uint64_t)ceil(distance));
}

static struct kvr__stack_part *recent_of(struct kvr__stack *stack, uint64_t now_ns)
{
        uint64_t number = now_ns / KVR__STACK_NS, at = number % KVR__STACK_SLOTS;

        if (stack->recent[at].stamp < number + 1) {
                stack->recent[at].stamp = number + 1;
                memset(stack->recent[at].parts, 0, sizeof(stack->recent[at].parts));
        }
        return stack->recent[at].parts;
}

static void use(struct kvr__stack *stack, uint64_t key, uint32_t number, uint32_t tokens)
{
        /* Making room for those behind it may have dropped it. */
        if (number && stack->keys[number].key != key)
                number = 0;
        if (number) {
                tree_add(stack, stack->keys[number].position, 0 - (uint64_t)stack->keys[number].tokens);
                stack->owners[stack->keys[number].position] = 0;
        } else {
                room_make(stack);
                if (!is_sampled(stack, key))
                        return;
                number = key_make(stack, key, tokens);
        }
        if (stack->top == KVR__STACK_POSITIONS)
                positions_pack(stack);
        stack->keys[number].position = stack->top;
        stack->owners[stack->top] = number;
        tree_add(stack, stack->top++, stack->keys[number].tokens);
}

static void part_add(struct kvr__stack_part *part, uint32_t distance, double weight)
{
        if (distance < KVR__STACK_DISTANCES)
                part->distances[distance] += weight;
        else
                part->never += weight;
}

static double tokens_until(const struct kvr_point *points, uint32_t count, double tokens_per_unit)
{
        return count ? floor(points[count - 1].end * tokens_per_unit + 0.5) : 0;
}

void kvr__stack_book(struct kvr__stack *stack, const struct kvr_point *points, uint32_t count, uint32_t known,
                     double tokens_per_unit, uint64_t now_ns)
{
        struct kvr__stack_part *recent = recent_of(stack, now_ns);
        double all = tokens_until(points, count, tokens_per_unit);
        double held = tokens_until(points, known, tokens_per_unit);
        uint32_t sampled = 0;

        stack->life[0].exact += held;
        stack->life[1].exact += all - held;
        recent[0].exact += held;
        recent[1].exact += all - held;
        for (uint32_t i = 0; i < count; i++)
                if (is_sampled(stack, points[i].key))
                        stack->sampled[sampled++] = i;
        for (uint32_t i = 0; i < sampled; i++)
                __builtin_prefetch(head_of(stack, points[stack->sampled[i]].key));
        for (uint32_t i = 0; i < sampled; i++) {
                uint32_t at = stack->sampled[i], part = at >= known;

                stack->numbers[i] = key_find(stack, points[at].key);
                uint32_t distance = measure(stack, stack->numbers[i]);
                double weight = span_tokens(points, at, tokens_per_unit) / share_of(stack);

                part_add(&stack->life[part], distance, weight);
                part_add(&recent[part], distance, weight);
        }
        /* From the end on, so that a prefix is always used later than what it is a prefix of: as in an LRU of
         * blocks. */
        for (uint32_t i = sampled; i-- > 0;) {
                uint32_t at = stack->sampled[i];

                if (is_sampled(stack, points[at].key))
                        use(stack, points[at].key, stack->numbers[i],
                            span_tokens(points, at, tokens_per_unit));
        }
}

/* ---- life and reading ---- */

struct kvr__stack *kvr__stack_new(uint64_t tokens_max)
{
        struct kvr__stack *stack = calloc(1, sizeof(*stack));

        if (!stack)
                return NULL;
        stack->tokens_max = tokens_max;
        stack->limit = ALL_KEYS;
        for (uint32_t i = KVR_LEDGER_CURVE_KEYS; i > 0; i--) {
                stack->keys[i].next = stack->free;
                stack->free = i;
        }
        return stack;
}

static void parts_add(struct kvr__stack_part *parts, const struct kvr__stack_part *more)
{
        for (uint32_t p = 0; p < KVR__STACK_PARTS; p++) {
                for (uint32_t i = 0; i < KVR__STACK_DISTANCES; i++)
                        parts[p].distances[i] += more[p].distances[i];
                parts[p].never += more[p].never;
                parts[p].exact += more[p].exact;
        }
}

/* Tokens of the part that a cache finds whose size is the upper end of distance `number` - 1, as the sample has it; and all
 * that it has. */
static double part_found(const struct kvr__stack_part *part, uint32_t number, double *ret_seen)
{
        double found = 0;

        *ret_seen = part->never;
        for (uint32_t i = 0; i < KVR__STACK_DISTANCES; i++) {
                found += i < number ? part->distances[i] : 0;
                *ret_seen += part->distances[i];
        }
        return found;
}

static double rate(const struct kvr__stack_part *parts, uint32_t number)
{
        double held_seen, rest_seen;
        double held = part_found(&parts[0], number, &held_seen),
               rest = part_found(&parts[1], number, &rest_seen);

        /* What the sample has too much or too little of is mostly a few busy prefixes, and these are found soonest. */
        held = fmin(parts[0].exact, fmax(0, held + parts[0].exact - held_seen));
        rest = rest_seen > 0 ? rest / rest_seen * parts[1].exact : 0;
        return (held + rest) / (parts[0].exact + parts[1].exact);
}

void kvr__stack_read(const struct kvr__stack *stack, bool recent, uint64_t now_ns,
                     struct kvr_ledger_curve *ret)
{
        struct kvr__stack_part parts[KVR__STACK_PARTS] = {{{0}, 0, 0}};
        uint64_t now = now_ns / KVR__STACK_NS;

        if (!recent)
                parts_add(parts, stack->life);
        for (uint32_t i = 0; recent && i < KVR__STACK_SLOTS; i++)
                if (stack->recent[i].stamp && stack->recent[i].stamp + KVR__STACK_SLOTS > now + 1)
                        parts_add(parts, stack->recent[i].parts);
        bool any = parts[0].exact + parts[1].exact > 0;

        *ret = (struct kvr_ledger_curve){
                .ideal = any ? rate(parts, KVR__STACK_DISTANCES) : NAN,
                .sample_rate = share_of(stack),
                .sampled_keys = stack->count,
                .tokens_max = stack->tokens_max,
                .prompt_tokens = (uint64_t)(parts[0].exact + parts[1].exact),
        };
        for (uint32_t i = 0; i < KVR_LEDGER_CURVE_POINTS; i++) {
                uint32_t number = CURVE_FIRST * QUARTERS + i;
                uint64_t size = 1ULL << number / QUARTERS;

                ret->cache_tokens[i] = size + size / QUARTERS * (number % QUARTERS);
                ret->hit_rate[i] =
                        any && ret->cache_tokens[i] <= stack->tokens_max ? rate(parts, number) : NAN;
        }
}
