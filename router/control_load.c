/* SPDX-License-Identifier: Apache-2.0 */
/* What an engine says of its load, page by page. */
#include "control_int.h"

#include <stdio.h>
#include <string.h>

#define PAGES_AGAIN_ROUNDS 30 /* a group without a page that works is tried anew after so many rounds */

bool probe_load_expected(const struct probe *probe)
{
        return probe->detected && probe->control->config->metrics_interval_ms &&
               probe_traits(probe)->polls[0].path;
}

/* The first page of a group, in hope that it works. Of a group that does not exist it is one of another
 * group. */
static uint8_t first_page(const struct probe *probe, unsigned group)
{
        const struct engine_traits *traits = probe_traits(probe);

        for (unsigned i = 0; i < ENGINE_POLLS_MAX; i++) {
                if (traits->polls[i].path && traits->polls[i].group == group)
                        return (uint8_t)i;
        }
        return 0;
}

void probe_start_polling(struct probe *probe)
{
        memset(probe->group_dead, 0, sizeof probe->group_dead);
        for (unsigned group = 0; group < PROBE_GROUPS; group++)
                probe->page[group] = first_page(probe, group);
        probe->group = 0;
        probe->round = 0;
        probe->health_path = 0;
        probe->load_known = false;
        probe->load_at_ns = 0;
        engine_load_init(&probe->load);
        probe->jobs[JOB_LOAD].due_ms = 0;
}

/* A page can come back: a gateway was set right, or answered 404 while it was restarted. */
static void hope_again(struct probe *probe)
{
        for (unsigned group = 0; group < PROBE_GROUPS; group++) {
                if (!probe->group_dead[group])
                        continue;
                probe->group_dead[group] = false;
                probe->page[group] = first_page(probe, group);
        }
}

const struct engine_rank_load *probe_rank_load(const struct probe *probe)
{
        static const struct engine_rank_load unknown = {-1, -1, -1, -1, -1, -1};
        int32_t rank = probe->target->spec.rank;

        if (rank < 0)
                return &probe->load.sum;
        for (uint32_t i = 0; i < probe->load.rank_count; i++)
                if (probe->load.ranks[i].rank == rank)
                        return &probe->load.ranks[i];
        return &unknown;
}

static void report_load(struct probe *probe)
{
        const struct engine_rank_load *load = probe_rank_load(probe);
        struct kvr_load_report report = {
                .at_ns = probe->poll_start_ns,
                .running = load->running,
                .waiting = load->waiting,
                .kv_usage = load->kv_usage,
                .waiting_tokens = load->waiting_tokens,
        };

        /* Other pages than that of the load say nothing of it: what it was must not pass for what it is. */
        if (probe->load_known) {
                kvr_replica_report(probe->control->options.fleet->router, probe->target->id, &report);
                shadow_replica_report(probe->control->options.fleet->shadow, probe->target->id, &report);
        }
        if (probe->load.cache_report > 0)
                atomic_store(&probe->target->reports_cached, true);
        probe_tell_library(probe);
}

/* The next page due in this round, NULL when the round is over. */
static const struct engine_poll *load_page(struct probe *probe)
{
        const struct engine_traits *traits = probe_traits(probe);

        for (; probe->group < PROBE_GROUPS; probe->group++) {
                const struct engine_poll *poll = &traits->polls[probe->page[probe->group]];

                if (!poll->path || poll->group != probe->group || probe->group_dead[probe->group])
                        continue;
                if (probe->round == 0 || (poll->every && probe->round % poll->every == 0))
                        return poll;
        }
        return NULL;
}

/* The probe of rank 0 of the same URL, whose pages speak of all ranks; NULL for that one, and for others. */
static const struct probe *first_rank(const struct probe *probe)
{
        const struct probe *at = probe->control->probes;

        if (probe->target->spec.rank <= 0)
                return NULL;
        while (at && !(at->target->spec.rank == 0 &&
                       strcmp(at->target->spec.group, probe->target->spec.group) == 0))
                at = at->next;
        return at && at->detected ? at : NULL;
}

static void share_load(struct probe *probe, const struct probe *first)
{
        bool news = first->load_known && first->load_at_ns != probe->load_at_ns;

        probe->load = first->load;
        probe->load_known = first->load_known;
        memcpy(probe->load_error, first->load_error, sizeof probe->load_error);
        if (!news)
                return;
        probe->poll_start_ns = probe->load_at_ns = first->load_at_ns;
        report_load(probe);
}

void probe_load(struct probe *probe, uint64_t now_ms)
{
        const struct probe *first = first_rank(probe);

        if (first) {
                share_load(probe, first);
                probe->jobs[JOB_LOAD].due_ms = now_ms + probe->control->config->metrics_interval_ms;
                return;
        }
        const struct engine_poll *poll = load_page(probe);

        if (!poll) {
                probe->group = 0;
                probe->round++;
                if (probe->round % PAGES_AGAIN_ROUNDS == 0)
                        hope_again(probe);
                probe->jobs[JOB_LOAD].due_ms = now_ms + probe->control->config->metrics_interval_ms;
                return;
        }
        if (probe->group == 0)
                probe->poll_start_ns = uv_hrtime();
        probe_send(probe, JOB_LOAD, "GET", poll->path, (struct kvr_slice){NULL, 0}, PROBE_POLL_TIMEOUT_MS,
                   poll->body_bytes_max);
}

static void load_missing(struct probe *probe, const struct engine_poll *poll, unsigned status)
{
        const struct engine_traits *traits = probe_traits(probe);

        for (unsigned i = probe->page[probe->group] + 1u; i < ENGINE_POLLS_MAX; i++) {
                if (traits->polls[i].path && traits->polls[i].group == poll->group) {
                        probe->page[probe->group] = (uint8_t)i;
                        return;
                }
        }
        probe->group_dead[probe->group] = true;
        if (poll->group == 0) { /* the alarm load_missing or load_stale will say so, if it stays like this */
                probe->load_known = false;
                snprintf(probe->load_error, sizeof probe->load_error, "no load page (%s answered %u)",
                         poll->path, status);
        }
}

void probe_load_done(struct probe *probe, enum net_request_error error, unsigned status,
                     struct kvr_slice body, uint64_t now_ms)
{
        const struct engine_traits *traits = probe_traits(probe);
        const struct engine_poll *poll = &traits->polls[probe->page[probe->group % PROBE_GROUPS]];

        probe->jobs[JOB_LOAD].due_ms = now_ms;
        if (error != NET_REQUEST_OK) {
                probe->load_known = false;
                snprintf(probe->load_error, sizeof probe->load_error, "%.60s: %s", poll->path,
                         net_request_error_text(error));
                probe->jobs[JOB_LOAD].due_ms = now_ms + probe->control->config->metrics_interval_ms;
                probe->group = 0;
                return;
        }
        if (status == 404 || status == 405 || status == 501) {
                load_missing(probe, poll, status);
                return;
        }
        if (status == 200 && engine_parse_load(traits->kind, poll->path, body, &probe->load)) {
                if (poll->group == 0) {
                        probe->load_known = true;
                        probe->load_at_ns = probe->poll_start_ns;
                        probe->load_error[0] = '\0';
                }
                report_load(probe);
        } else if (poll->group == 0) {
                probe->load_known = false;
                snprintf(probe->load_error, sizeof probe->load_error,
                         status == 200 ? "%.60s has no figures that are understood" : "%.60s answered %u",
                         poll->path, status);
                log_say(probe->control->options.log, LOG_INFO, probe_name(probe),
                        "replica %s: load unknown: %s", probe_name(probe), probe->load_error);
        }
        probe->group++;
}
