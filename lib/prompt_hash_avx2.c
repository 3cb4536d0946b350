/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/prompt_hash_x86.h"

#ifdef KVR__HASH_X86

#include <assert.h>
#include <immintrin.h>
#include <stdlib.h>
#include <string.h>

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2")
#endif

#define FORM_VECTOR 2 /* XXH_AVX2, which is defined only later */
#define FORM_64     kvr__hash64_avx2
#define FORM_128    kvr__hash128_avx2
#include "lib/prompt_hash_form.h"

_Static_assert(FORM_VECTOR == XXH_AVX2, "the number of the AVX2 form");

#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif
