/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names that the configuration gives to families of the ledger (--family) and that nothing answers to: a digit is
 * wrong, or the seed is another one than when the name was looked up. Nothing else would show it. Control thread.
 */
#ifndef KVROUTE_ROUTER_FAMILIES_H
#define KVROUTE_ROUTER_FAMILIES_H

#include "config.h"
#include "log.h"

#include <kvroute/ledger.h>

#define FAMILIES_MAX             CONFIG_FAMILIES_MAX
#define FAMILIES_UNSEEN_REQUESTS 300u /* after so many without one of a family its name is doubted */

/* All zero is one that has seen no configuration. */
struct families {
        const struct router_config *config; /* that the rest is of */
        uint64_t since;                     /* requests in the ledger when it came into force */
        bool seen[FAMILIES_MAX];            /* by the configuration's order */
        bool told;
};

/* Looks at the ledger, now and then; warns once per configuration of what is unseen. */
void families_look(struct families *families, const struct router_config *config, struct kvr_ledger *ledger,
                   uint64_t now_ns, struct logger *log);
/* Whether the name is one to be doubted, as of the last look. number: the configuration's, in its order. */
bool families_unseen(const struct families *families, const struct router_config *config, size_t number);

#endif
