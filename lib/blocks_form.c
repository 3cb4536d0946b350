/* SPDX-License-Identifier: Apache-2.0 */
/* The form for any CPU, and the choice. */
#include "blocks_form.h"

#define FORM_NAME    kvr__block_form_any
#define FORM_TEXT    "any"
#define FORM_LINKAGE static

#include "blocks_form_body.h"

const struct kvr__block_form *kvr__block_form_at(uint32_t number)
{
#ifdef KVR__BLOCK_FORMS_X86
        bool bits = __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");

        if (number == 1 && bits && __builtin_cpu_supports("avx2"))
                return &kvr__block_form_avx2;
        if (number == 2 && bits && __builtin_cpu_supports("avx512f"))
                return &kvr__block_form_avx512;
#endif
        return number ? NULL : &kvr__block_form_any;
}

const struct kvr__block_form *kvr__block_form_best(void)
{
        uint32_t last = 0;

        while (kvr__block_form_at(last + 1))
                last++;
        return kvr__block_form_at(last);
}
