/* SPDX-License-Identifier: Apache-2.0 */
#include "blocks_form.h"

#ifdef KVR__BLOCK_FORMS_X86

#include <immintrin.h>
#include <stdatomic.h>
#include <string.h>

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,bmi,bmi2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,bmi,bmi2")
#endif

#define KVR__LINE_FORM 2
#define FORM_NAME      kvr__block_form_avx2
#define FORM_TEXT      "avx2"
#define FORM_LINKAGE
#include "blocks_form_body.h"

#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif
