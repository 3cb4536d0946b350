/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chat bodies for benchmarks: distinct prompts in groups, where the prompts of a group begin with the same
 * share of their bytes. Text is words with a line end every 96 bytes on average, some quotes and little
 * beyond ASCII, in messages of about 2 KB. The same settings give the same bodies in every run.
 *
 *     |{"model":...,"messages":[{system}{user}{assistant}...| {user: "Request 17 ... | |"}]}| shared by the
 * group                                    number of the request    slice of a text pool  end
 *
 * A body is pieces for writev: it is never copied together, so that the sender costs little.
 */
#ifndef KVROUTE_BENCH_BODIES_H
#define KVROUTE_BENCH_BODIES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#define BODIES_BYTES_MIN 300
#define BODIES_BYTES_MAX (16u << 20)
#define BODIES_PIECES    4

struct bodies_settings {
        size_t bytes; /* of each body */
        unsigned groups;
        unsigned share_percent; /* of the body, common to a group */
        bool stream;
        uint64_t seed;
};

struct bodies;

struct body {
        struct iovec pieces[BODIES_PIECES];
        char number[48]; /* what makes it unlike all others; a piece points here, so do not copy a body */
};

/* NULL: settings outside their limits, or out of memory. */
struct bodies *bodies_new(const struct bodies_settings *settings);
void bodies_free(struct bodies *bodies);
/* Body number `number` (its group is drawn from the number). Pieces live as long as bodies and ret. */
void bodies_get(const struct bodies *bodies, uint64_t number, struct body *ret);

#endif
