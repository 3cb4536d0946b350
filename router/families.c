/* SPDX-License-Identifier: Apache-2.0 */
#include "families.h"

#include <stdlib.h>
#include <string.h>

static void mark(struct families *families, const char *family)
{
        const struct config_aliases *list = &families->config->families;

        for (size_t i = 0; i < list->count && i < FAMILIES_MAX; i++)
                if (strcmp(list->items[i].target, family) == 0)
                        families->seen[i] = true;
}

static void mark_all(struct families *families, struct kvr_ledger *ledger, uint64_t now_ns)
{
        struct kvr_ledger_account *account = malloc(sizeof *account);
        uint32_t cursor = 0;

        /* Without memory the next look does it. */
        while (account && kvr_ledger_account(ledger, KVR_LEDGER_FAMILY, now_ns, &cursor, account))
                mark(families, account->name);
        free(account);
}

void families_look(struct families *families, const struct router_config *config, struct kvr_ledger *ledger,
                   uint64_t now_ns, struct logger *log)
{
        const struct config_aliases *list = &config->families;
        struct kvr_ledger_info info;

        if (!ledger || !list->count)
                return;
        kvr_ledger_info(ledger, &info);
        if (families->config != config)
                *families = (struct families){.config = config, .since = info.entries};
        mark_all(families, ledger, now_ns);
        if (families->told || info.entries - families->since < FAMILIES_UNSEEN_REQUESTS)
                return;
        families->told = true;
        for (size_t i = 0; i < list->count; i++) {
                if (families_unseen(families, config, i))
                        log_say(log, LOG_WARN, NULL,
                                "family %s: no prompt of %s in %llu requests; is it written as in GET "
                                "/kvroute/ledger?by=family, and --seed the same as when it was read there?",
                                list->items[i].name, list->items[i].target,
                                (unsigned long long)(info.entries - families->since));
        }
}

bool families_unseen(const struct families *families, const struct router_config *config, size_t number)
{
        return families->config == config && families->told && number < FAMILIES_MAX &&
               !families->seen[number];
}
