/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a fuzz target offers: one function that feeds these bytes to a parser. It must return for every input,
 * and end the program (FUZZ_CHECK) where the parser broke a promise of its header that no sanitizer sees.
 */
#ifndef TESTS_FUZZ_FUZZ_H
#define TESTS_FUZZ_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

#define FUZZ_CHECK(promise)                                                                           \
        do {                                                                                          \
                if (!(promise)) {                                                                     \
                        fprintf(stderr, "%s:%d: broken promise: %s\n", __FILE__, __LINE__, #promise); \
                        abort();                                                                      \
                }                                                                                     \
        } while (0)

#endif
