/* SPDX-License-Identifier: Apache-2.0 */
#include "demo_int.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#define PROCESSORS_FINE 0.75  /* of those there are */
#define LATE_FINE_S     0.002 /* mean; timers of a millisecond are half of one late on an idle machine */
#define LATE_P99_FINE_S 0.01
#define WAIT_FINE       0.1 /* of the best policy's mean time to first token */

void demo_print_head(const struct demo *demo)
{
        const struct demo_arguments *a = &demo->arguments;
        uint32_t requests = sim_workload_requests(demo->workload);

        printf("%" PRIu64 " mock replicas (%s), each with a cache of %.0f thousand tokens; %" PRIu64
               " applications with system prompts\nof %" PRIu64
               " tokens and Zipf shares; sessions of %" PRIu64 " turns; %.3g requests a second%s, %" PRIu32
               " in all.\n"
               "Every policy gets the same requests at the same times, through the real router. Seconds are "
               "the\n"
               "engines' (time-lapse x %g).\n\n",
               a->replicas, a->preset, (double)a->capacity_blocks * 16 / 1000, a->groups, a->prefix_tokens,
               a->turns, a->rate, a->overload ? " (--overload)" : "", requests, a->speed);
        printf("%-16s %8s %14s %9s %8s %8s %8s %9s %7s\n", "policy", "token", "prefill tokens", "TTFT mean",
               "p50", "p90", "p99", "requests", "errors");
        printf("%-16s %8s %14s %9s %8s %8s %8s %9s %7s\n", "", "hit rate", "avoided", "s", "s", "s", "s",
               "max/mean", "");
        fflush(stdout);
}

/* Right-justified; "-" for what is not known. */
static void print_number(int width, int digits, double value, const char *unit)
{
        char text[64] = "-";

        if (isfinite(value))
                snprintf(text, sizeof(text), "%.*f%s", digits, value, unit);
        printf(" %*s", width, text);
}

static bool grew(const struct demo_row *row, struct sim_growth *ret)
{
        return sim_result_growth(&row->result, ret) && ret->growing;
}

void demo_print_row(struct demo_row *row, uint64_t replicas)
{
        struct sim_result *r = &row->result;
        struct sim_growth growth;

        printf("%-16s", row->policy);
        print_number(8, 1, 100 * sim_result_hit_rate(r), "%");
        print_number(14, 0, r->observed_requests ? (double)r->observed_cached_tokens : (double)NAN, "");
        print_number(9, 3, sim_samples_mean(&r->ttft), "");
        print_number(8, 3, sim_samples_percentile(&r->ttft, 0.5), "");
        print_number(8, 3, sim_samples_percentile(&r->ttft, 0.9), "");
        print_number(8, 3, sim_samples_percentile(&r->ttft, 0.99), "");
        print_number(9, 2, sim_result_max_over_mean(r, replicas), "");
        printf(" %7" PRIu64 "%s\n", r->errors + r->rejected, grew(row, &growth) ? " *" : "");
        fflush(stdout);
}

static void print_growth(const struct demo *demo)
{
        struct sim_growth growth;
        bool any = false;

        for (size_t i = 0; i < demo->row_count; i++) {
                if (!grew(&demo->rows[i], &growth))
                        continue;
                printf("%s%s %.2f", any ? ", " : "\n* Time to first token still rose (seconds per second): ",
                       demo->rows[i].policy, growth.slope);
                any = true;
        }
        if (any)
                printf(".\n  The fleet takes less than %.3g requests a second that way, so such a row says "
                       "how "
                       "long the run was.\n  A lower --rate gives times to quote.\n",
                       demo->arguments.rate);
}

static struct demo_row *best_row(struct demo *demo, const struct demo_row *except)
{
        struct demo_row *best = NULL;

        for (size_t i = 0; i < demo->row_count; i++) {
                struct demo_row *row = &demo->rows[i];

                if (row != except && row->result.ttft.seen &&
                    (!best || sim_samples_mean(&row->result.ttft) < sim_samples_mean(&best->result.ttft)))
                        best = row;
        }
        return best;
}

static void print_of(struct demo_row *row)
{
        double hit_rate = sim_result_hit_rate(&row->result);

        printf("%s with %.2f s", row->policy, sim_samples_mean(&row->result.ttft));
        if (isfinite(hit_rate))
                printf(" at a hit rate of %.0f %%", 100 * hit_rate);
}

void demo_print_end(struct demo *demo)
{
        struct demo_row *best = best_row(demo, NULL), *second = best ? best_row(demo, best) : NULL;

        print_growth(demo);
        if (second) {
                printf("\nLowest mean time to first token: ");
                print_of(best);
                printf("; next is ");
                print_of(second);
                printf(".\n");
        }
        printf("%sFor your own replicas: kvroute serve http://HOST:8000 http://HOST:8001, then kvroute bench "
               "http://127.0.0.1:8080.\n",
               second ? "" : "\n");
        fflush(stdout);
}

/* ---- was the machine fit for it? ---------------------------------------------------------------------- */

static double waited_s(const struct demo_row *row)
{
        return row->load.waited_s + row->engines.waited_s + row->router.waited_s;
}

void demo_busy(struct demo *demo, double processors, struct demo_busy *ret)
{
        struct demo_row *best = best_row(demo, NULL);
        double first_s = best ? sim_samples_mean(&best->result.ttft) / demo->arguments.speed : (double)NAN;

        *ret = (struct demo_busy){.late_s = (double)NAN, .late_p99_s = (double)NAN, .waited_s = (double)NAN};
        for (size_t i = 0; i < demo->row_count; i++) {
                struct demo_row *row = &demo->rows[i];

                /* fmax takes the number where one of two is unknown. */
                ret->late_s = fmax(ret->late_s, sim_samples_mean(&row->result.late));
                ret->late_p99_s = fmax(ret->late_p99_s, sim_samples_percentile(&row->result.late, 0.99));
                if (row->result.requests)
                        ret->waited_s = fmax(ret->waited_s, waited_s(row) / (double)row->result.requests);
                if (row->wall_s > 0)
                        ret->used = fmax(ret->used,
                                         (row->load.used_s + row->engines.used_s + row->router.used_s) /
                                                 row->wall_s);
        }
        /* A comparison with an unknown is false. */
        ret->too_busy = ret->late_s > LATE_FINE_S || ret->late_p99_s > LATE_P99_FINE_S ||
                        ret->waited_s > WAIT_FINE * first_s || ret->used > PROCESSORS_FINE * processors;
}

void demo_print_json(struct demo *demo)
{
        struct sim_buf buf = {0};

        sim_buf_puts(&buf, "{\"policies\":[");
        for (size_t i = 0; i < demo->row_count; i++) {
                sim_buf_puts(&buf, i ? ",\n{\"policy\":" : "{\"policy\":");
                sim_buf_json(&buf, sim_slice(demo->rows[i].policy));
                sim_buf_puts(&buf, ",");
                sim_result_json(&demo->rows[i].result, &buf);
                sim_buf_puts(&buf, ",\"processor_wait_s\":");
                sim_number_json(&buf, waited_s(&demo->rows[i]));
                sim_buf_puts(&buf, "}");
        }
        sim_buf_puts(&buf, "]}\n");
        fwrite(buf.data, 1, buf.len, stdout);
        fflush(stdout);
        sim_buf_fini(&buf);
}
