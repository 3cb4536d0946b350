/* SPDX-License-Identifier: Apache-2.0 */
#include "explain_log.h"

#include <math.h>

#include "log.h"

static void add_seconds(struct text *line, const char *name, double seconds)
{
        /* Policies that do not price have no figure. */
        if (!isnan(seconds))
                text_addf(line, " %s %.6f", name, seconds);
}

void explain_log(struct exchange *exchange, const struct kvr_request *request)
{
        struct worker *worker = exchange->worker;
        struct kvr_candidate candidates[EXPLAIN_LOG_CANDIDATES];
        struct kvr_decision decision;
        struct text *line = &worker->scratch;
        size_t count;

        if (!log_enabled(worker->proxy->log, LOG_DEBUG) ||
            kvr_explain(worker->proxy->router, request, &decision, candidates, EXPLAIN_LOG_CANDIDATES, &count,
                        NULL) != KVR_OK)
                return;
        text_clear(line);
        for (size_t i = 0; i < count && i < EXPLAIN_LOG_CANDIDATES; i++) {
                const struct kvr_candidate *candidate = &candidates[i];
                struct target *target = fleet_snapshot_find(worker->fleet, candidate->replica);

                text_addf(line, "%s %s%s: match %u due %u", i ? ";" : "",
                          candidate->replica == decision.replica ? "*" : "", target ? target->spec.name : "?",
                          candidate->match_tokens, candidate->due_tokens);
                add_seconds(line, "wait", candidate->wait_s);
                add_seconds(line, "own", candidate->own_s);
                add_seconds(line, "toll", candidate->toll_s);
        }
        log_say(worker->proxy->log, LOG_DEBUG, NULL, "request %s, %u tokens, %s:%s%s", exchange->request_id,
                decision.prompt_tokens, kvr_reason_name(decision.reason), text_string(line),
                count > EXPLAIN_LOG_CANDIDATES ? "; ..." : "");
}
