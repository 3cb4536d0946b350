/* SPDX-License-Identifier: Apache-2.0 */
#include "workload.h"

#include <stdlib.h>
#include <string.h>

static bool is_name(const char *known, struct kvr_slice name)
{
        return strlen(known) == name.len && memcmp(known, name.data, name.len) == 0;
}

bool workload_admit(struct workload_names *names, struct kvr_slice name)
{
        char *copy = NULL;

        for (size_t i = 0; i < WORKLOAD_NAMES_MAX; i++) {
                char *known = atomic_load_explicit(&names->names[i], memory_order_acquire);

                if (!known) {
                        if (!copy)
                                copy = strndup(name.data, name.len);
                        if (!copy)
                                return false;
                        /* On failure `known` is what another thread has put there meanwhile. */
                        if (atomic_compare_exchange_strong(&names->names[i], &known, copy))
                                return true;
                }
                if (is_name(known, name)) {
                        free(copy);
                        return true;
                }
        }
        free(copy);
        return false;
}

void workload_names_fini(struct workload_names *names)
{
        for (size_t i = 0; i < WORKLOAD_NAMES_MAX; i++)
                free(atomic_exchange(&names->names[i], NULL));
}
