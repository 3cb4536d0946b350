/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `kvroute top` shows, worked out of the admin API's answers: a screen for people, a JSON object for
 * scripts. No I/O. Names come from clients and engines: what a terminal would take as a command is shown
 * as '?'.
 */
#ifndef KVROUTE_SIM_TOP_H
#define KVROUTE_SIM_TOP_H

#include "buf.h"

#include <yyjson.h>

/* The paths that are asked, in this order. */
#define SIM_TOP_PAGE_LIST(X)                               \
        X(SIM_TOP_REPLICAS, "/kvroute/replicas")           \
        X(SIM_TOP_ALARMS, "/kvroute/alarms")               \
        X(SIM_TOP_ALL, "/kvroute/ledger?by=all")           \
        X(SIM_TOP_WORKLOAD, "/kvroute/ledger?by=workload") \
        X(SIM_TOP_VIRTUAL, "/kvroute/ledger?by=virtual")
enum sim_top_page {
#define SIM_TOP_PAGE(code, path) code,
        SIM_TOP_PAGE_LIST(SIM_TOP_PAGE)
#undef SIM_TOP_PAGE
                SIM_TOP_PAGES
};
const char *sim_top_path(enum sim_top_page page);

struct sim_top {
        yyjson_doc *pages[SIM_TOP_PAGES]; /* NULL: not there */
};
void sim_top_fini(struct sim_top *top);

struct sim_top_look {
        const char *url;    /* for the head line */
        const char *window; /* "1m", "10m", "1h", "life" */
        bool colour;        /* ANSI */
        unsigned width;     /* of a line, longer ones are cut; 0: as long as they come */
        unsigned workloads; /* shown at most; 0: all */
};
/* What a shadow adds to the screen. */
unsigned sim_top_shadow_lines(const struct sim_top *top);
void sim_top_text(const struct sim_top *top, const struct sim_top_look *look, struct sim_buf *ret);

/*
 * One line: {"window","replicas","alarms","accounts":{"all","workload","virtual"},"balance","shadow","reasons"},
 * each part as the admin API has it; parts that are not there are null. False: out of memory.
 */
KVR_MUST_USE bool sim_top_json(const struct sim_top *top, const char *window, struct sim_buf *ret);

#endif
