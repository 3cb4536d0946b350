/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls of the allocator come here first (linked with --wrap): the test says by alloc_admit whether a call gets
 * memory. Included by one file of a program.
 */
#ifndef KVROUTE_LIB_ALLOC_TEST_H
#define KVROUTE_LIB_ALLOC_TEST_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
int __real_posix_memalign(void **ret, size_t alignment, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);
int __wrap_posix_memalign(void **ret, size_t alignment, size_t size);

/* The test's: whether so many bytes are given. Called once for each call. */
static bool alloc_admit(size_t size);

void *__wrap_malloc(size_t size)
{
        return alloc_admit(size) ? __real_malloc(size) : NULL;
}

void *__wrap_calloc(size_t count, size_t size)
{
        return alloc_admit(count * size) ? __real_calloc(count, size) : NULL;
}

void *__wrap_realloc(void *old, size_t size)
{
        return alloc_admit(size) ? __real_realloc(old, size) : NULL;
}

int __wrap_posix_memalign(void **ret, size_t alignment, size_t size)
{
        return alloc_admit(size) ? __real_posix_memalign(ret, alignment, size) : ENOMEM;
}

#endif
