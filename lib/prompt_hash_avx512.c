/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/prompt_hash_x86.h"

#ifdef KVR__HASH_X86

#include <assert.h>
#include <immintrin.h>
#include <stdlib.h>
#include <string.h>

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f")
#endif

#define FORM_VECTOR 3 /* XXH_AVX512, which is defined only later */
#define FORM_64     kvr__hash64_avx512
#define FORM_128    kvr__hash128_avx512
#include "lib/prompt_hash_form.h"

_Static_assert(FORM_VECTOR == XXH_AVX512, "the number of the AVX512 form");

#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif
