/* SPDX-License-Identifier: Apache-2.0 */
/* The account of an access log, for a terminal and for programs. */
#include "analyze_log.h"

#include <math.h>
#include <stdio.h>

#define REASON_MAX 480

static double share(double part, double whole)
{
        return whole > 0 ? part / whole : 0;
}

static void reason_work(const struct sim_log *log, char *ret, size_t size)
{
        snprintf(ret, size,
                 "Cache-aware routing takes off %.1f %% of the prefill work at most: by the preset, a router "
                 "that meets "
                 "each beginning's holder once in %u times leaves %.3g replica-hours, one that always goes "
                 "where most is "
                 "held %.3g. This one left %.3g.",
                 100 * log->gain, log->replica_count, log->blind_s / 3600, log->best_s / 3600,
                 log->now_s / 3600);
}

static const char reason_latency[] = "A log tells of one fleet under one rule and has no keys to play it "
                                     "again: no ladder, and no verdict by latency. "
                                     "The router's ledger has the other rules beside this one, live.";

void sim_log_text(struct sim_log *log, struct sim_buf *buf)
{
        char reason[REASON_MAX];
        double observed = log->prompt_tokens - log->unobserved_prompt_tokens;

        reason_work(log, reason, sizeof(reason));
        sim_buf_printf(buf,
                       "%s (access log)\ncache-aware routing: at most %s by work, no verdict by latency\n\n",
                       log->name, sim_verdict_name(log->by_work_verdict));
        sim_report_wrap(buf, reason);
        sim_report_wrap(buf, reason_latency);
        sim_buf_printf(buf,
                       "\nrequests %.0f answered, %.0f not, in %.0f s; prompt tokens %.0f; replicas %u\n"
                       "hit rate by tokens: observed %.4f of what engines told of (%.1f %% of tokens), "
                       "predicted %.4f; by "
                       "requests %.4f\n",
                       log->requests, log->failed, log->last_s - log->first_s, log->prompt_tokens,
                       log->replica_count, share(log->observed_tokens, observed),
                       100 * share(observed, log->prompt_tokens),
                       share(log->predicted_tokens, log->prompt_tokens), share(log->hits, log->requests));
        sim_buf_printf(buf,
                       "of the prompt tokens: won %.1f %%, lost to staleness %.1f %%, to placement %.1f %%, "
                       "not cached "
                       "anywhere %.1f %%\n",
                       100 * share(log->won, log->prompt_tokens),
                       100 * share(log->staleness, log->prompt_tokens),
                       100 * share(log->placement, log->prompt_tokens),
                       100 * share(log->workload, log->prompt_tokens));
        sim_buf_printf(buf, "prefill by the preset: %.3g replica-hours without a cache, %.3g saved\n",
                       log->none_s / 3600, (log->none_s - log->now_s) / 3600);
        if (log->ttft.seen)
                sim_buf_printf(
                        buf,
                        "time to first token: p50 %.3f s, p90 %.3f s, p99 %.3f s; in the router's queue p90 "
                        "%.3f s\n",
                        sim_samples_percentile(&log->ttft, 0.5), sim_samples_percentile(&log->ttft, 0.9),
                        sim_samples_percentile(&log->ttft, 0.99), sim_samples_percentile(&log->queue, 0.9));
        sim_buf_printf(buf,
                       "over replicas: requests max/mean %.2f CV %.2f Jain %.3f 10s p95 %.2f; computed "
                       "tokens max/mean "
                       "%.2f CV %.2f Jain %.3f 10s p95 %.2f\n",
                       log->by_requests.max_over_mean, log->by_requests.cv, log->by_requests.jain,
                       log->by_requests.hot_p95, log->by_work.max_over_mean, log->by_work.cv,
                       log->by_work.jain, log->by_work.hot_p95);
        for (uint32_t i = 0; i < log->replica_count; i++)
                sim_buf_printf(buf, "  %-24s requests %8.0f  computed tokens %12.0f\n", log->replicas[i].name,
                               log->replicas[i].requests, log->replicas[i].computed_tokens);
}

static void figure(struct sim_buf *buf, const char *key, double value)
{
        sim_buf_printf(buf, ",\"%s\":", key);
        if (isfinite(value))
                sim_buf_printf(buf, "%.10g", value);
        else
                sim_buf_puts(buf, "null");
}

static void spread(struct sim_buf *buf, const char *key, const struct sim_rung_spread *of)
{
        sim_buf_printf(buf, ",\"%s\":{\"max_over_mean\":%.10g", key, of->max_over_mean);
        figure(buf, "cv", of->cv);
        figure(buf, "jain", of->jain);
        figure(buf, "max_over_mean_10s_p95", of->hot_p95);
        sim_buf_puts(buf, "}");
}

static void verdict(const struct sim_log *log, struct sim_buf *buf)
{
        char reason[REASON_MAX];

        reason_work(log, reason, sizeof(reason));
        sim_buf_printf(buf,
                       ",\"verdict\":{\"by_work\":\"%s\",\"by_latency\":\"%s\",\"bound\":true,\"reasons\":[",
                       sim_verdict_name(log->by_work_verdict), sim_verdict_name(SIM_VERDICT_NO));
        sim_buf_json(buf, sim_slice(reason));
        sim_buf_puts(buf, ",");
        sim_buf_json(buf, sim_slice(reason_latency));
        sim_buf_puts(buf, "]");
        figure(buf, "work_gain_at_most", log->gain);
        sim_buf_puts(buf, "}");
}

static void account(const struct sim_log *log, struct sim_buf *buf)
{
        double observed = log->prompt_tokens - log->unobserved_prompt_tokens;

        sim_buf_printf(buf, ",\"account\":{\"requests\":%.0f", log->requests);
        figure(buf, "not_answered", log->failed);
        figure(buf, "span_s", log->last_s - log->first_s);
        figure(buf, "prompt_tokens", log->prompt_tokens);
        figure(buf, "predicted_tokens", log->predicted_tokens);
        figure(buf, "observed_tokens", log->observed_tokens);
        figure(buf, "unobserved_prompt_tokens", log->unobserved_prompt_tokens);
        figure(buf, "hit_rate", observed > 0 ? log->observed_tokens / observed : (double)NAN);
        figure(buf, "request_hit_rate", log->hits / log->requests);
        figure(buf, "won_tokens", log->won);
        figure(buf, "staleness_tokens", log->staleness);
        figure(buf, "placement_tokens", log->placement);
        figure(buf, "workload_tokens", log->workload);
        figure(buf, "replica_hours_without_cache", log->none_s / 3600);
        figure(buf, "saved_replica_hours", (log->none_s - log->now_s) / 3600);
        spread(buf, "requests_over_replicas", &log->by_requests);
        spread(buf, "work_over_replicas", &log->by_work);
}

void sim_log_json(struct sim_log *log, struct sim_buf *buf)
{
        if (buf->len && buf->data[buf->len - 1] == '}')
                sim_buf_puts(buf, ",");
        sim_buf_puts(buf, "{\"trace\":");
        sim_buf_json(buf, sim_slice(log->name));
        sim_buf_puts(buf, ",\"kind\":\"access_log\"");
        verdict(log, buf);
        account(log, buf);
        sim_buf_puts(buf, ",\"ttft_s\":");
        sim_samples_json(&log->ttft, buf);
        sim_buf_puts(buf, ",\"replicas\":{");
        for (uint32_t i = 0; i < log->replica_count; i++) {
                sim_buf_puts(buf, i ? "," : "");
                sim_buf_json(buf, sim_slice(log->replicas[i].name));
                sim_buf_printf(buf, ":{\"requests\":%.0f,\"computed_tokens\":%.0f}",
                               log->replicas[i].requests, log->replicas[i].computed_tokens);
        }
        sim_buf_puts(buf, "}},\"ladder\":[]}");
}
