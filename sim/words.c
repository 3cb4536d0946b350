/* SPDX-License-Identifier: Apache-2.0 */
#include "words.h"

#define WORDS          64
#define WORDS_PER_DRAW 10 /* of 6 bits each */

static const char words[WORDS][SIM_WORD_BYTES + 1] = {
        "the ", "and ", "for ", "are ", "but ", "not ", "you ", "all ", "any ", "can ", "had ",
        "her ", "was ", "one ", "our ", "out ", "day ", "get ", "has ", "him ", "his ", "how ",
        "man ", "new ", "now ", "old ", "see ", "two ", "way ", "who ", "boy ", "did ", "its ",
        "let ", "put ", "say ", "she ", "too ", "use ", "dad ", "mom ", "act ", "add ", "age ",
        "ago ", "air ", "arm ", "art ", "ask ", "bad ", "bag ", "bed ", "big ", "bit ", "box ",
        "bus ", "buy ", "car ", "cut ", "dog ", "eat ", "end ", "eye ", "far ",
};

const char *sim_word(uint64_t number)
{
        return words[number % WORDS];
}

void sim_words_add(struct sim_buf *buf, struct sim_rng *rng, uint32_t count)
{
        size_t len = (size_t)count * SIM_WORD_BYTES;
        char *at = count ? sim_buf_room(buf, len) : NULL;
        uint64_t draw = 0;

        if (!at)
                return;
        for (uint32_t i = 0; i < count; i++, at += SIM_WORD_BYTES, draw /= WORDS) {
                if (i % WORDS_PER_DRAW == 0)
                        draw = sim_rng_next(rng);
                memcpy(at, words[draw % WORDS], SIM_WORD_BYTES);
        }
        buf->len += len;
}
