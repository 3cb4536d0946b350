/* SPDX-License-Identifier: Apache-2.0 */
#include "result.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
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
        bool told = o->prompt_tokens >= 0, observed = told && o->cached_tokens >= 0;
        uint64_t prompt = told ? (uint64_t)o->prompt_tokens : 0;
        struct sim_replica_share *share = o->replica.len ? share_of(result, o->replica) : NULL;

        result->prompt_requests += told;
        result->prompt_tokens += prompt;
        result->completion_tokens += o->completion_tokens > 0 ? (uint64_t)o->completion_tokens : 0;
        if (observed) {
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
                result->predicted_known_tokens += told ? (uint64_t)o->predicted_tokens : 0;
                result->predicted_prompt_tokens += prompt;
        }
        if (o->predicted_tokens >= 0 && observed && prompt) {
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
                share->observed_requests += observed;
                share->observed_prompt_tokens += observed ? prompt : 0;
                share->observed_cached_tokens += observed ? (uint64_t)o->cached_tokens : 0;
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

bool sim_result_growth(const struct sim_result *result, struct sim_growth *ret)
{
        return sim_trend_growth(&result->trend, ret);
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

static void growth_json(const struct sim_result *result, struct sim_buf *buf)
{
        struct sim_growth growth;

        if (!sim_result_growth(result, &growth)) {
                sim_buf_puts(buf, ",\"growth\":null");
                return;
        }
        sim_buf_puts(buf, ",\"growth\":{\"slope\":");
        sim_number_json(buf, growth.slope);
        sim_buf_printf(buf, ",\"growing\":%s}", growth.growing ? "true" : "false");
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
        known_json(buf, "prompt_tokens", result->prompt_requests > 0, result->prompt_tokens);
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
        sim_buf_puts(buf, "},\"late_s\":");
        sim_samples_json(&result->late, buf);
        growth_json(result, buf);
}

/* ---- for people --------------------------------------------------------------------------------------- */

static void samples_line(struct sim_buf *buf, const char *name, struct sim_samples *samples)
{
        if (samples->seen == 0) {
                sim_buf_printf(buf, "  %-22s %8s %8s %8s %8s\n", name, "-", "-", "-", "-");
                return;
        }
        sim_buf_printf(buf, "  %-22s %8.1f %8.1f %8.1f %8.1f\n", name, sim_samples_mean(samples) * 1000,
                       sim_samples_percentile(samples, 0.5) * 1000,
                       sim_samples_percentile(samples, 0.9) * 1000,
                       sim_samples_percentile(samples, 0.99) * 1000);
}

/* "12.3" and the unit, right-justified; a share of nothing is unknown, and no zero. */
static void percent_text(struct sim_buf *buf, int width, uint64_t part, uint64_t whole, const char *unit)
{
        char text[40] = "-";

        if (whole)
                snprintf(text, sizeof(text), "%.1f%s", 100 * (double)part / (double)whole, unit);
        sim_buf_printf(buf, "%*s", width, text);
}

static void count_text(struct sim_buf *buf, const char *name, bool known, uint64_t value)
{
        if (known)
                sim_buf_printf(buf, "%-25s%12" PRIu64, name, value);
        else
                sim_buf_printf(buf, "%-25s%12s", name, "-");
}

static void hits_text(const struct sim_result *r, struct sim_buf *buf)
{
        if (r->prompt_requests + r->unobserved_requests + r->predicted_requests == 0)
                return;
        sim_buf_puts(buf, "\n");
        count_text(buf, "Prompt tokens", r->prompt_requests > 0, r->prompt_tokens);
        sim_buf_puts(buf, "\n");
        if (r->observed_requests) {
                count_text(buf, "  of these from a cache", true, r->observed_cached_tokens);
                sim_buf_puts(buf, "   ");
                percent_text(buf, 0, r->observed_cached_tokens, r->observed_prompt_tokens, " %");
                sim_buf_puts(buf, " (the answers' usage)\n");
        }
        if (r->unobserved_requests) {
                count_text(buf, "  unknown", r->unobserved_prompt_tokens > 0, r->unobserved_prompt_tokens);
                sim_buf_printf(buf, "   in %" PRIu64 " answers that do not tell%s\n", r->unobserved_requests,
                               r->observed_requests ? ""
                                                    : " (vLLM tells with --enable-prompt-tokens-details)");
        }
        if (r->predicted_requests) {
                count_text(buf, "  predicted by router", true, r->predicted_tokens);
                sim_buf_puts(buf, "   ");
                percent_text(buf, 0, r->predicted_known_tokens, r->predicted_prompt_tokens, " %");
                sim_buf_puts(buf, "\n");
        }
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

                if (!bin->requests)
                        continue;
                sim_buf_printf(buf, "  %-13s %9" PRIu64 " %15" PRIu64 " ", names[i], bin->requests,
                               bin->prompt_tokens);
                percent_text(buf, 11, bin->predicted_tokens, bin->prompt_tokens, "%");
                percent_text(buf, 12, bin->observed_tokens, bin->prompt_tokens, "%");
                sim_buf_printf(buf, " %8.0f tokens\n", bin->error_tokens / (double)bin->requests);
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

                sim_buf_printf(buf, "  %-32s %8" PRIu64 " ", s->name, s->requests);
                percent_text(buf, 8, s->requests, sum, "%");
                percent_text(buf, 12, s->observed_cached_tokens, s->observed_prompt_tokens, "%");
                sim_buf_puts(buf, "\n");
        }
        sim_buf_printf(buf, "  busiest over mean: %.2f\n", sim_result_max_over_mean(r, 0));
}

static void requests_text(const struct sim_result *r, struct sim_buf *buf)
{
        char per_second[40] = "-";

        if (r->duration_s > 0)
                snprintf(per_second, sizeof(per_second), "%.1f", (double)r->requests / r->duration_s);
        sim_buf_printf(buf,
                       "Requests %" PRIu64 " in %.1f s (%s/s): %" PRIu64 " answered, %" PRIu64
                       " errors, %" PRIu64 " rejected (429, 503)\n",
                       r->requests, r->duration_s, per_second, r->requests - r->errors - r->rejected,
                       r->errors, r->rejected);
        if (r->first_error[0])
                sim_buf_printf(buf, "First error: %s\n", r->first_error);
}

static void growth_text(const struct sim_result *r, struct sim_buf *buf)
{
        struct sim_growth growth;

        if (!sim_result_growth(r, &growth) || !growth.growing)
                return;
        sim_buf_printf(
                buf,
                "\nThe load was more than the server takes: %s still rose by %.0f ms per second\n"
                "at the end of the run. Quote the times of a lower load: these tell how long it was.\n",
                r->ttft.seen ? "time to first token" : "the time of an answer", growth.slope * 1000);
}

void sim_result_text(struct sim_result *r, struct sim_buf *buf)
{
        requests_text(r, buf);
        sim_buf_puts(buf, "\n  milliseconds               mean      p50      p90      p99\n");
        samples_line(buf, "time to first token", &r->ttft);
        samples_line(buf, "between chunks", &r->itl);
        samples_line(buf, "whole answer", &r->e2e);
        if (r->late.seen)
                samples_line(buf, "sent late by", &r->late);
        hits_text(r, buf);
        bins_text(r, buf);
        replicas_text(r, buf);
        growth_text(r, buf);
}
