/* SPDX-License-Identifier: Apache-2.0 */
#include "ledger_spoiler.h"

#define REST_BYTES  1024 /* what less lies behind a place is not worth a report */
#define REST_TOKENS 256
#define BITS_SURE   32 /* lengths that say so much in a row are no chance */
#define BITS_MAX    10 /* that one length says at most: texts are cut to size, too */
#define HITS_SURE   2  /* a length must come back so often, */
#define SHARE_SURE  8  /* and be one in so many of the long messages that part here */

static uint64_t mix(uint64_t print, uint64_t figure)
{
        uint64_t x = (print ^ figure) * 0xbf58476d1ce4e5b9ULL;

        return x ^ x >> 29;
}

static bool is_end(const struct kvr__layout_ask *ask, uint32_t at)
{
        uint32_t grid = ask->by_tokens ? KVR_GRID_MIN_TOKENS : KVR_GRID_MIN_BYTES;

        /* Points of the grid lie at multiples of its first step, ends of messages hardly ever do. */
        return ask->points[at].end % grid || at + 1 == ask->count;
}

/*
 * How much it says that two messages are equally long: lengths spread over about a quarter of what they are.
 */
static uint32_t bits_of(const struct kvr__layout_ask *ask, uint32_t length)
{
        uint32_t spread = (ask->by_tokens ? 4 * length : length) / 4 + 1;
        uint32_t bits = 31U - (uint32_t)__builtin_clz(spread);

        return bits < BITS_MAX ? bits : BITS_MAX;
}

/*
 * Long messages that parted at a place so far, this one included; 0: not counted, for the table has no room.
 * Places that come again and again push out those that were met once.
 */
static uint32_t place_seen(struct kvr__spoilers *spoilers, uint64_t place)
{
        struct kvr__place *at = &spoilers->seen[(place * 0x9e3779b97f4a7c15ULL >> 40) % KVR__PLACES_SEEN];

        if (at->place != place) {
                if (at->weight) {
                        at->weight--;
                        return 0;
                }
                *at = (struct kvr__place){.place = place};
        }
        at->weight += at->weight < UINT32_MAX;
        return at->seen += at->seen < UINT32_MAX;
}

static struct kvr__layout *layout_of(struct kvr__spoilers *spoilers, uint64_t print)
{
        return &spoilers->layouts[(print * 0x9e3779b97f4a7c15ULL >> 40) % KVR_LEDGER_LAYOUTS_MAX];
}

static void place_count(struct kvr__spoilers *spoilers, const struct kvr__layout_ask *ask, uint32_t from)
{
        uint32_t to = ask->points[ask->known].end, end = ask->points[ask->count - 1].end;
        struct kvr__spoiler *least = spoilers->places;
        uint64_t tokens = (uint64_t)((end - from) * ask->tokens_per_unit);

        for (uint32_t i = 0; i < KVR_LEDGER_SPOILERS_MAX; i++) {
                struct kvr__spoiler *place = &spoilers->places[i];

                if (place->count && place->family == ask->family && place->from == from && place->to == to &&
                    place->by_tokens == ask->by_tokens) {
                        place->count++;
                        place->tokens += tokens;
                        place->last_ns = ask->now_ns;
                        return;
                }
                if (place->count < least->count ||
                    (place->count == least->count && place->last_ns < least->last_ns))
                        least = place;
        }
        *least = (struct kvr__spoiler){ask->family, from, to, ask->by_tokens, 1, tokens, ask->now_ns};
}

/*
 * The messages behind the one with the place: does this prompt go on where an earlier one of other text
 * ended? Shapes that several prompts have are no sign: whoever makes texts of one length makes them all alike.
 */
static bool tail_see(struct kvr__spoilers *spoilers, const struct kvr__layout_ask *ask, uint32_t spot,
                     uint64_t place, uint64_t *ret_tail)
{
        uint64_t print = place;
        uint32_t messages = 0, bits = 0, last = ask->points[spot].end;
        uint32_t end_key = (uint32_t)ask->points[ask->count - 1].key;
        bool found = false;

        for (uint32_t i = spot + 1; i < ask->count; i++) {
                if (!is_end(ask, i))
                        continue;
                uint32_t length = ask->points[i].end - last;

                print = mix(print, length);
                bits += bits_of(ask, length);
                last = ask->points[i].end;
                messages++;
                if (i + 1 == ask->count || found || bits < BITS_SURE)
                        continue;
                const struct kvr__layout *layout = layout_of(spoilers, print);

                found = layout->print == print && !layout->common &&
                        layout->end_key != (uint32_t)ask->points[i].key;
        }
        *ret_tail = print;
        if (messages) {
                struct kvr__layout *layout = layout_of(spoilers, print);
                bool common = layout->print == print && (layout->common || layout->end_key != end_key);

                *layout = (struct kvr__layout){.print = print, .end_key = end_key, .common = common};
        }
        return found;
}

/*
 * The message with the place: is it long, and as long as many others that part here and that other messages
 * followed?
 */
static bool message_see(struct kvr__spoilers *spoilers, const struct kvr__layout_ask *ask, uint32_t spot,
                        uint64_t place, uint32_t sure, uint64_t tail)
{
        uint32_t start = 0, length, seen, shared = ask->known ? ask->points[ask->known - 1].end : 0;

        for (uint32_t i = ask->known; i-- > 0;)
                if (is_end(ask, i)) {
                        start = ask->points[i].end;
                        break;
                }
        length = ask->points[spot].end - start;
        if (length < sure || shared - start > length / 2 || spot + 1 == ask->count)
                return false;
        seen = place_seen(spoilers, place);
        if (!seen)
                return false;
        uint64_t print = mix(mix(place, length), 1);
        struct kvr__layout *layout = layout_of(spoilers, print);
        uint32_t key = (uint32_t)ask->points[spot].key, folded = (uint32_t)(tail ^ tail >> 32);

        if (layout->print != print || layout->first_seen > seen) {
                *layout = (struct kvr__layout){
                        .print = print, .end_key = key, .tail = folded, .first_seen = seen};
                return false;
        }
        layout->hits += layout->end_key != key && layout->tail != folded;
        bool found = layout->end_key != key && layout->tail != folded && layout->hits >= HITS_SURE &&
                     (uint64_t)layout->hits * SHARE_SURE >= seen - layout->first_seen;

        layout->end_key = key;
        layout->tail = folded;
        return found;
}

void kvr__spoilers_see(struct kvr__spoilers *spoilers, const struct kvr__layout_ask *ask)
{
        uint32_t sure = ask->by_tokens ? REST_TOKENS : REST_BYTES, spot = ask->known;

        if (ask->known >= ask->count)
                return;
        uint32_t from = ask->known ? ask->points[ask->known - 1].end : 0;
        uint32_t end = ask->points[ask->count - 1].end;

        if (from > end / 2 || end - from < sure)
                return;
        while (!is_end(ask, spot))
                spot++;
        /* Lengths are compared between prompts that part at one place only. */
        uint64_t place = mix(ask->known ? ask->points[ask->known - 1].key : ask->model, ask->known), tail;
        bool goes_on = tail_see(spoilers, ask, spot, place, &tail);
        bool same_length = message_see(spoilers, ask, spot, place, sure, tail);

        if (goes_on || same_length)
                place_count(spoilers, ask, from);
}
