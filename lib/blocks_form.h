/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two changes that come by the million, storing and removing, compiled for several instruction sets: a line of
 * a table is compared in one step, in two, or in pieces. Each blocks_form*.c switches its set on, defines
 *
 *     KVR__LINE_FORM    what blocks_table.h may use
 *     FORM_NAME         of its struct kvr__block_form
 *
 * and includes blocks_form_body.h, which has the rest.
 */
#ifndef KVROUTE_LIB_BLOCKS_FORM_H
#define KVROUTE_LIB_BLOCKS_FORM_H

#include "blocks.h"

/* As kvr__blocks_store and kvr__blocks_remove, for an open lane; figures are not told. */
struct kvr__block_form {
        const char *name; /* "any", "avx2", "avx512" */
        void (*store)(struct kvr__blocks *blocks, uint16_t lane, const struct kvr_blocks_stored *stored,
                      struct kvr_events_account *account);
        void (*remove)(struct kvr__blocks *blocks, uint16_t lane, const uint64_t *hashes, uint32_t count,
                       struct kvr_events_account *account);
};

/* The forms this CPU can run, slowest first: at least one; then NULL. */
const struct kvr__block_form *kvr__block_form_at(uint32_t number);
const struct kvr__block_form *kvr__block_form_best(void);

#if defined(__x86_64__) && !defined(KVR_NO_SIMD)
#define KVR__BLOCK_FORMS_X86
extern const struct kvr__block_form kvr__block_form_avx2, kvr__block_form_avx512;
#endif

#endif
