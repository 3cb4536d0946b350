/* SPDX-License-Identifier: Apache-2.0 */
/* The files of the dashboard, as web/embed.c put them into the program. */
#ifndef KVROUTE_ROUTER_ADMIN_PAGE_H
#define KVROUTE_ROUTER_ADMIN_PAGE_H

#include <stddef.h>

struct page_file {
        const char *path; /* "/" */
        const char *content_type;
        const char *tag; /* of its bytes, as an ETag has it, quotes included */
        const unsigned char *data;
        size_t len;
};

extern const struct page_file page_files[];
extern const unsigned page_file_count;

#endif
