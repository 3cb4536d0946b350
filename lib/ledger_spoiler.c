/* SPDX-License-Identifier: Apache-2.0 */
#include "ledger_spoiler.h"

#define REST_BYTES    1024 /* what less lies behind a place is not worth a report */
#define REST_TOKENS   256
#define MESSAGES_SURE 2 /* equal lengths of so many messages in a row, or of so much text, are no chance */

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

/* The messages behind the one with the place: does this prompt go on where an earlier one of other text
 * ended? */
static bool tail_see(struct kvr__spoilers *spoilers, const struct kvr__layout_ask *ask, uint32_t spot,
                     uint64_t place, uint32_t sure, uint64_t *ret_tail)
{
        uint64_t print = place;
        uint32_t messages = 0, last = ask->points[spot].end;
        bool found = false;

        for (uint32_t i = spot + 1; i < ask->count; i++) {
                if (!is_end(ask, i))
                        continue;
                print = mix(print, ask->points[i].end - last);
                last = ask->points[i].end;
                messages++;
                if (i + 1 == ask->count || found ||
                    (messages < MESSAGES_SURE && last - ask->points[spot].end < sure))
                        continue;
                const struct kvr__layout *layout = layout_of(spoilers, print);

                found = layout->print == print && layout->end_key != (uint32_t)ask->points[i].key;
        }
        *ret_tail = print;
        if (messages)
                *layout_of(spoilers, print) =
                        (struct kvr__layout){print, (uint32_t)ask->points[ask->count - 1].key, 0};
        return found;
}

/* The message with the place: is it long, and as long as an earlier one that others followed? */
static bool message_see(struct kvr__spoilers *spoilers, const struct kvr__layout_ask *ask, uint32_t spot,
                        uint64_t place, uint32_t sure, uint64_t tail)
{
        uint32_t start = 0, length, shared = ask->known ? ask->points[ask->known - 1].end : 0;

        for (uint32_t i = ask->known; i-- > 0;)
                if (is_end(ask, i)) {
                        start = ask->points[i].end;
                        break;
                }
        length = ask->points[spot].end - start;
        if (length < sure || shared - start > length / 2 || spot + 1 == ask->count)
                return false;
        uint64_t print = mix(mix(place, length), 1);
        struct kvr__layout *layout = layout_of(spoilers, print);
        uint32_t key = (uint32_t)ask->points[spot].key, folded = (uint32_t)(tail ^ tail >> 32);
        bool found = layout->print == print && layout->end_key != key && layout->tail != folded;

        *layout = (struct kvr__layout){print, key, folded};
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
        bool goes_on = tail_see(spoilers, ask, spot, place, sure, &tail);
        bool same_length = message_see(spoilers, ask, spot, place, sure, tail);

        if (goes_on || same_length)
                place_count(spoilers, ask, from);
}
