/* SPDX-License-Identifier: Apache-2.0 */
#include "result.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

void sim_result_fini(struct sim_result *result)
{
        for (size_t i = 0; i < result->replica_count; i++)
                free(result->replicas[i].name);
        free(result->replicas);
        sim_samples_fini(&result->ttft);
        sim_samples_fini(&result->itl);
        sim_samples_fini(&result->e2e);
        sim_samples_fini(&result->late);
        *result = (struct sim_result){0};
}

static struct sim_replica_share *share_of(struct sim_result *result, struct kvr_slice name)
{
        struct sim_replica_share *grown;

        for (size_t i = 0; i < result->replica_count; i++) {
                if (sim_slice_is(name, result->replicas[i].name))
                        return &result->replicas[i];
        }
        if (result->replica_count == SIM_REPLICAS_MAX)
                return NULL;
        grown = realloc(result->replicas, (result->replica_count + 1) * sizeof(*grown));
        if (!grown)
                return NULL;
        result->replicas = grown;
        grown += result->replica_count;
        *grown = (struct sim_replica_share){.name = strndup(name.data, name.len)};
        if (!grown->name)
                return NULL;
        result->replica_count++;
        return grown;
}

static size_t bin_of(double share)
{
        size_t bin = share <= 0 ? 0 : 1 + (size_t)(ceil(share * (SIM_SHARE_BINS - 1)) - 1);

        return bin < SIM_SHARE_BINS ? bin : SIM_SHARE_BINS - 1;
}

static void add_tokens(struct sim_result *result, const struct sim_outcome *o)
{
        uint64_t prompt = o->prompt_tokens > 0 ? (uint64_t)o->prompt_tokens : 0;
        struct sim_replica_share *share = o->replica.len ? share_of(result, o->replica) : NULL;

        result->prompt_tokens += prompt;
        result->completion_tokens += o->completion_tokens > 0 ? (uint64_t)o->completion_tokens : 0;
        if (o->cached_tokens >= 0) {
                result->observed_requests++;
                result->observed_prompt_tokens += prompt;
                result->observed_cached_tokens += (uint64_t)o->cached_tokens;
        } else {
                result->unobserved_requests++;
                result->unobserved_prompt_tokens += prompt;
        }
        if (o->predicted_tokens >= 0) {
                result->predicted_requests++;
                result->predicted_tokens += (uint64_t)o->predicted_tokens;
        }
        if (o->predicted_tokens >= 0 && o->cached_tokens >= 0 && prompt) {
                struct sim_share_bin *bin =
                        &result->bins[bin_of((double)o->predicted_tokens / (double)prompt)];

                bin->requests++;
                bin->prompt_tokens += prompt;
                bin->predicted_tokens += (uint64_t)o->predicted_tokens;
                bin->observed_tokens += (uint64_t)o->cached_tokens;
                bin->error_tokens += fabs((double)(o->predicted_tokens - o->cached_tokens));
        }
        if (share) {
                share->requests++;
                share->prompt_tokens += prompt;
                share->cached_tokens += o->cached_tokens > 0 ? (uint64_t)o->cached_tokens : 0;
        }
}

void sim_result_add(struct sim_result *result, const struct sim_outcome *outcome)
{
        result->requests++;
        if (outcome->status == 429 || outcome->status == 503) {
                result->rejected++;
                return;
        }
        if (outcome->broken || outcome->status != 200) {
                result->errors++;
                return;
        }
        add_tokens(result, outcome);
        if (isfinite(outcome->ttft_s))
                sim_samples_add(&result->ttft, outcome->ttft_s);
        sim_samples_add(&result->e2e, outcome->e2e_s);
}

void sim_result_itl(struct sim_result *result, double seconds)
{
        sim_samples_add(&result->itl, seconds);
}

double sim_result_hit_rate(const struct sim_result *result)
{
        if (result->observed_prompt_tokens == 0)
                return (double)NAN;
        return (double)result->observed_cached_tokens / (double)result->observed_prompt_tokens;
}

double sim_result_max_over_mean(const struct sim_result *result, size_t count)
{
        uint64_t sum = 0, max = 0;

        for (size_t i = 0; i < result->replica_count; i++) {
                sum += result->replicas[i].requests;
                max = result->replicas[i].requests > max ? result->replicas[i].requests : max;
        }
        if (sum == 0)
                return (double)NAN;
        if (count < result->replica_count)
                count = result->replica_count;
        return (double)max * (double)count / (double)sum;
}

static int by_name(const void *a, const void *b)
{
        return strcmp(((const struct sim_replica_share *)a)->name,
                      ((const struct sim_replica_share *)b)->name);
}

static void sort_replicas(struct sim_result *result)
{
        if (result->replica_count)
                qsort(result->replicas, result->replica_count, sizeof(*result->replicas), by_name);
}

static void known_json(struct sim_buf *buf, const char *name, bool known, uint64_t value)
{
        if (known)
                sim_buf_printf(buf, ",\"%s\":%" PRIu64, name, value);
        else
                sim_buf_printf(buf, ",\"%s\":null", name);
}

void sim_result_json(struct sim_result *result, struct sim_buf *buf)
{
        sim_buf_printf(buf, "\"requests\":%" PRIu64 ",\"errors\":%" PRIu64 ",\"rejected\":%" PRIu64,
                       result->requests, result->errors, result->rejected);
        sim_buf_puts(buf, ",\"duration_s\":");
        sim_number_json(buf, result->duration_s);
        sim_buf_puts(buf, ",\"ttft_s\":");
        sim_samples_json(&result->ttft, buf);
        sim_buf_puts(buf, ",\"itl_s\":");
        sim_samples_json(&result->itl, buf);
        sim_buf_puts(buf, ",\"e2e_s\":");
        sim_samples_json(&result->e2e, buf);
        sim_buf_printf(buf, ",\"prompt_tokens\":%" PRIu64, result->prompt_tokens);
        known_json(buf, "observed_cached_tokens", result->observed_requests > 0,
                   result->observed_cached_tokens);
        known_json(buf, "predicted_cached_tokens", result->predicted_requests > 0, result->predicted_tokens);
        sim_buf_puts(buf, ",\"observed_hit_rate\":");
        sim_number_json(buf, sim_result_hit_rate(result));
        sim_buf_puts(buf, ",\"replicas\":{");
        sort_replicas(result);
        for (size_t i = 0; i < result->replica_count; i++) {
                sim_buf_puts(buf, i ? "," : "");
                sim_buf_json(buf, sim_slice(result->replicas[i].name));
                sim_buf_printf(buf, ":%" PRIu64, result->replicas[i].requests);
        }
        sim_buf_puts(buf, "}");
}

/* ---- for people --------------------------------------------------------------------------------------- */

static void samples_line(struct sim_buf *buf, const char *name, struct sim_samples *samples)
{
        if (samples->seen == 0) {
                sim_buf_printf(buf, "  %-22s        -\n", name);
                return;
        }
        sim_buf_printf(buf, "  %-22s %8.1f %8.1f %8.1f %8.1f\n", name, sim_samples_mean(samples) * 1000,
                       sim_samples_percentile(samples, 0.5) * 1000,
                       sim_samples_percentile(samples, 0.9) * 1000,
                       sim_samples_percentile(samples, 0.99) * 1000);
}

static double percent(uint64_t part, uint64_t whole)
{
        return whole ? 100 * (double)part / (double)whole : 0;
}

static void hits_text(const struct sim_result *r, struct sim_buf *buf)
{
        sim_buf_printf(buf, "\nPrompt tokens            %12" PRIu64 "\n", r->prompt_tokens);
        if (r->observed_requests)
                sim_buf_printf(buf, "  of these from a cache  %12" PRIu64 "   %.1f %% (the answers' usage)\n",
                               r->observed_cached_tokens, 100 * sim_result_hit_rate(r));
        if (r->unobserved_requests)
                sim_buf_printf(buf,
                               "  unknown                %12" PRIu64 "   in %" PRIu64
                               " answers that do not tell%s\n",
                               r->unobserved_prompt_tokens, r->unobserved_requests,
                               r->observed_requests ? ""
                                                    : " (vLLM tells with --enable-prompt-tokens-details)");
        if (r->predicted_requests)
                sim_buf_printf(buf, "  predicted by router    %12" PRIu64 "   %.1f %%\n", r->predicted_tokens,
                               percent(r->predicted_tokens, r->prompt_tokens));
}

static void bins_text(const struct sim_result *r, struct sim_buf *buf)
{
        static const char *const names[SIM_SHARE_BINS] = {"none", "up to 25 %", "25 to 50 %", "50 to 75 %",
                                                          "over 75 %"};
        bool any = false;

        for (size_t i = 0; i < SIM_SHARE_BINS; i++)
                any = any || r->bins[i].requests;
        if (!any)
                return;
        sim_buf_puts(buf,
                     "\nPredicted share  requests   prompt tokens   predicted    observed   mean error\n");
        for (size_t i = 0; i < SIM_SHARE_BINS; i++) {
                const struct sim_share_bin *bin = &r->bins[i];

                if (bin->requests)
                        sim_buf_printf(buf,
                                       "  %-13s %9" PRIu64 " %15" PRIu64 " %10.1f%% %10.1f%% %8.0f tokens\n",
                                       names[i], bin->requests, bin->prompt_tokens,
                                       percent(bin->predicted_tokens, bin->prompt_tokens),
                                       percent(bin->observed_tokens, bin->prompt_tokens),
                                       bin->error_tokens / (double)bin->requests);
        }
}

static void replicas_text(struct sim_result *r, struct sim_buf *buf)
{
        uint64_t sum = 0;

        if (r->replica_count == 0)
                return;
        sort_replicas(r);
        for (size_t i = 0; i < r->replica_count; i++)
                sum += r->replicas[i].requests;
        sim_buf_puts(buf, "\nReplica                            requests    share   from cache\n");
        for (size_t i = 0; i < r->replica_count; i++) {
                const struct sim_replica_share *s = &r->replicas[i];

                sim_buf_printf(buf, "  %-32s %8" PRIu64 " %7.1f%% %10.1f%%\n", s->name, s->requests,
                               percent(s->requests, sum), percent(s->cached_tokens, s->prompt_tokens));
        }
        sim_buf_printf(buf, "  busiest over mean: %.2f\n", sim_result_max_over_mean(r, 0));
}

void sim_result_text(struct sim_result *r, struct sim_buf *buf)
{
        uint64_t good = r->requests - r->errors - r->rejected;

        sim_buf_printf(buf,
                       "Requests %" PRIu64 " in %.1f s (%.1f/s): %" PRIu64 " answered, %" PRIu64
                       " errors, %" PRIu64 " rejected (429, 503)\n",
                       r->requests, r->duration_s,
                       r->duration_s > 0 ? (double)r->requests / r->duration_s : 0, good, r->errors,
                       r->rejected);
        if (r->first_error[0])
                sim_buf_printf(buf, "First error: %s\n", r->first_error);
        sim_buf_puts(buf, "\n  milliseconds               mean      p50      p90      p99\n");
        samples_line(buf, "time to first token", &r->ttft);
        samples_line(buf, "between chunks", &r->itl);
        samples_line(buf, "whole answer", &r->e2e);
        if (r->late.seen)
                samples_line(buf, "sent late by", &r->late);
        hits_text(r, buf);
        bins_text(r, buf);
        replicas_text(r, buf);
}
