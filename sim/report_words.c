/* SPDX-License-Identifier: Apache-2.0 */
/* The verdict on a live router, and its reasons in words for people who decide. */
#include "report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define SENTENCE_MAX  640
#define NOTHING_SHARE 0.01    /* an ideal hit rate below this is nothing in common */
#define SHORT_S       86400.0 /* less is no picture of a service whose traffic has a day and a night */
#define UNTOLD_SHARE  0.01    /* from here on it is said how much engines do not tell */
#define HOURS_SHOWN   0.005   /* replica-hours a month: less would be told as 0.00 */

/* ---- the verdict -------------------------------------------------------------------------------------- */

static double less_by(double before, double now)
{
        return before > 0 ? (before - now) / before : 0;
}

static double more_by(double before, double now)
{
        return now > 0 ? before / now - 1 : NAN;
}

/* Why there is no verdict; "": there is one. */
static void find_why_not(struct sim_live *live)
{
        struct sim_live_verdict *v = &live->verdict;

        if (!v->shadow && v->blind)
                snprintf(v->why_not, sizeof v->why_not,
                         "this router runs %s, which does not look at what is cached; with "
                         "--shadow the policy kv is measured beside it",
                         v->policy);
        else if (!live->rule_count)
                snprintf(v->why_not, sizeof v->why_not,
                         "the comparison with simpler rules is switched off, or has seen no request "
                         "(--counterfactual)");
        else if (live->replica_count < 1.5)
                snprintf(v->why_not, sizeof v->why_not,
                         "there was one replica to choose from, so every rule comes to the same");
        v->judged = !*v->why_not;
}

/* The router's own learned speed, as the account of time avoided has it. */
static double token_s(const struct kvr_ledger_sums *sums)
{
        uint64_t timed =
                sums->won_tokens > sums->untimed_tokens ? sums->won_tokens - sums->untimed_tokens : 0;

        return timed && sums->avoided_ns ? (double)sums->avoided_ns / 1e9 / (double)timed : NAN;
}

static void find_break_even(struct sim_live *live)
{
        struct sim_live_verdict *v = &live->verdict;
        double months = SIM_VERDICT_HOURS * 3600 / live->all.covered_s;
        const struct sim_live_rule *least = &live->rules[v->least], *calmest = &live->rules[v->calmest];

        v->even_work_month = fmax(0, least->computed - live->fact.computed) * v->token_s / 3600 * months;
        v->saved_replicas = v->idle ? NAN : live->replica_count * (calmest->busiest / live->fact.busiest - 1);
        v->even_load_month =
                isfinite(v->saved_replicas) ? fmax(0, v->saved_replicas) * SIM_VERDICT_HOURS : NAN;
}

void sim_live_judge(struct sim_live *live)
{
        struct sim_live_verdict *v = &live->verdict;

        find_why_not(live);
        v->token_s = token_s(&live->all.sums);
        v->busy = live->fact.computed * v->token_s / (live->all.covered_s * live->replica_count);
        v->idle = v->busy < SIM_VERDICT_IDLE_BUSY;
        v->work_gain = v->work_gain_next = v->points = v->load_gain = NAN;
        v->even_work_month = v->even_load_month = v->saved_replicas = NAN;
        if (!live->rule_count)
                return;
        v->next = live->rule_count - 1;
        for (unsigned i = 0; i < live->rule_count; i++) {
                const struct sim_live_rule *rule = &live->rules[i];

                v->least = rule->computed < live->rules[v->least].computed ? i : v->least;
                v->calmest = rule->busiest < live->rules[v->calmest].busiest ? i : v->calmest;
        }
        const struct sim_live_rule *least = &live->rules[v->least];

        v->work_gain = less_by(least->computed, live->fact.computed);
        v->work_gain_next = less_by(live->rules[v->next].computed, live->fact.computed);
        v->points = live->fact.reused - least->reused;
        v->load_gain = more_by(live->rules[v->calmest].busiest, live->fact.busiest);
        v->by_work = sim_verdict_work(v->work_gain_next, v->work_gain,
                                      more_by(least->busiest, live->fact.busiest));
        if (v->by_work == SIM_VERDICT_YES && v->points < SIM_LIVE_POINTS_SURE)
                v->by_work = SIM_VERDICT_MARGINAL;
        v->by_load = v->idle ? SIM_VERDICT_NO : sim_verdict_load(v->load_gain);
        find_break_even(live);
}

/* ---- words -------------------------------------------------------------------------------------------- */

void sim_live_seconds(double seconds, char *ret, size_t size)
{
        if (!isfinite(seconds))
                snprintf(ret, size, "unknown");
        else if (seconds < 0.9995)
                snprintf(ret, size, "%.0f ms", 1000 * seconds);
        else if (seconds < 99.95)
                snprintf(ret, size, "%.1f s", seconds);
        else if (seconds < 5997)
                snprintf(ret, size, "%.1f min", seconds / 60);
        else if (seconds < 172800)
                snprintf(ret, size, "%.1f h", seconds / 3600);
        else
                snprintf(ret, size, "%.1f days", seconds / 86400);
}

void sim_live_span(const struct sim_live *live, char *ret, size_t size)
{
        static const struct {
                const char *window, *name;
                double seconds;
        } spans[] = {{"1m", "in the last minute", 60},
                     {"10m", "in the last 10 minutes", 600},
                     {"1h", "in the last hour", 3600}};
        char length[32];

        /* A router that is younger than the window has no more to tell than its life. */
        for (size_t i = 0; i < sizeof spans / sizeof *spans; i++) {
                if (strcmp(spans[i].window, live->window) == 0 &&
                    !(live->all.covered_s < 0.9 * spans[i].seconds)) {
                        snprintf(ret, size, "%s", spans[i].name);
                        return;
                }
        }
        sim_live_seconds(live->all.covered_s, length, sizeof length);
        snprintf(ret, size, live->all.covered_s > 0 ? "in the last %s" : "so far", length);
}

static void say(sim_live_sentence sentence, void *ctx, const char *format, ...) KVR_PRINTF(3, 4);

static void say(sim_live_sentence sentence, void *ctx, const char *format, ...)
{
        char text[SENTENCE_MAX];
        va_list args;

        va_start(args, format);
        vsnprintf(text, sizeof text, format, args);
        va_end(args);
        sentence(ctx, text);
}

static double percent(double share)
{
        return 100 * share;
}

static void count(double value, char *ret, size_t size)
{
        static const char *const units[] = {"", " k", " M", " G", " T"};
        unsigned unit = 0;

        while (value >= 999.5 && unit < 4) {
                value /= 1000;
                unit++;
        }
        snprintf(ret, size, "%.3g%s", value, units[unit]);
}

void sim_live_headline(const struct sim_live *live, struct sim_buf *buf)
{
        const struct sim_live_verdict *v = &live->verdict;
        const char *work = sim_verdict_name(v->by_work), *load = sim_verdict_name(v->by_load);

        sim_buf_puts(buf, v->shadow ? "It would be " : "It is ");
        if (!v->judged)
                sim_buf_printf(buf, "not known from here: %s", v->why_not);
        else if (v->idle)
                sim_buf_printf(buf, "%s by work, and the replicas are too idle for a verdict by load", work);
        else if (v->by_work == v->by_load)
                sim_buf_printf(buf, "%s over every simpler rule", work);
        else if (v->by_load > v->by_work)
                sim_buf_printf(buf, "%s by load, %s by work", load, work);
        else
                sim_buf_printf(buf, "%s by work, %s by load", work, load);
}

static void short_unjudged(const struct sim_live *live, sim_live_sentence sentence, void *ctx)
{
        double most = isnan(live->pooled) ? live->ideal : live->pooled;

        if (isnan(most)) {
                say(sentence, ctx, "What could be reused at best is not known either.");
                return;
        }
        say(sentence, ctx,
            "Of the prompt tokens %.0f %% %s reused; with %s it could be %.0f %% at best%s. What lies "
            "between the two, %.0f points, is all that a cache-aware router could win.",
            percent(live->curve_reused), live->verdict.mirror ? "would be" : "were",
            isnan(live->pooled) ? "memory without limit" : "the fleet's memory in one piece", percent(most),
            live->curve_apart ? " (both in the last hour)" : "", percent(fmax(0, most - live->curve_reused)));
}

void sim_live_short(const struct sim_live *live, sim_live_sentence sentence, void *ctx)
{
        const struct sim_live_verdict *v = &live->verdict;
        const struct sim_live_rule *least = &live->rules[v->least];

        if (!v->judged)
                short_unjudged(live, sentence, ctx);
        else if (v->by_load == SIM_VERDICT_YES)
                say(sentence, ctx,
                    "With the same replicas this service can take %.0f %% more traffic until its busiest "
                    "replica is "
                    "full than with the best simpler rule, or needs fewer replicas for the same traffic.",
                    percent(v->load_gain));
        else if (v->by_work == SIM_VERDICT_YES)
                say(sentence, ctx,
                    "It takes %.0f %% of the prefill work off the replicas that %s, the best simpler rule, "
                    "would "
                    "leave them.",
                    percent(v->work_gain), least->name);
        else if (v->by_work == SIM_VERDICT_MARGINAL || v->by_load == SIM_VERDICT_MARGINAL)
                say(sentence, ctx,
                    "It gains something, but little: weigh it against what the router costs to run.");
        else
                say(sentence, ctx, "Something simpler does as well here: %s (%s) is enough.", least->name,
                    least->what);
}

/* The fact of another policy, and kv beside it. */
static void say_shadow(const struct sim_live *live, sim_live_sentence sentence, void *ctx)
{
        const struct kvr_ledger_sums *sums = &live->all.sums;

        if (live->verdict.mirror)
                say(sentence, ctx,
                    "This router only sees copies of requests (--shadow=mirror): no engine answered it, and "
                    "every figure here is predicted. %s would have reused %.1f %% of the prompt tokens, kv, "
                    "which is what is judged, %.1f %%.",
                    live->verdict.policy, percent(sim_live_share(sums->won_tokens, sums->prompt_tokens)),
                    percent(live->fact.reused));
        if (!live->verdict.shadow || live->verdict.mirror)
                return;
        say(sentence, ctx,
            "This router runs %s, and %.1f %% of the prompt tokens were reused. What is judged is the policy "
            "kv, which "
            "--shadow tried beside it on the same requests: it would have reused %.1f %%.",
            live->verdict.policy, percent(sim_live_share(sums->won_tokens, sums->prompt_tokens)),
            percent(live->fact.reused));
}

static void say_reuse(const struct sim_live *live, sim_live_sentence sentence, void *ctx)
{
        const struct kvr_ledger_sums *sums = &live->all.sums;
        bool mirror = live->verdict.mirror;
        char span[64], tokens[32], avoided[32], others[256] = "";
        double untold = sim_live_share(sums->unobserved_prompt_tokens, sums->prompt_tokens);
        size_t len = 0;

        sim_live_span(live, span, sizeof span);
        count((double)sums->prompt_tokens, tokens, sizeof tokens);
        sim_live_seconds((double)sums->avoided_ns / 1e9, avoided, sizeof avoided);
        for (unsigned i = 0; i < live->rule_count && len < sizeof others - 1; i++) {
                int more = snprintf(others + len, sizeof others - len, "%s %s %.1f %%",
                                    i == 0                      ? "; on the same requests"
                                    : i + 1 == live->rule_count ? " and"
                                                                : ",",
                                    live->rules[i].name, percent(live->rules[i].reused));

                len += more > 0 ? (size_t)more : 0;
        }
        say(sentence, ctx, "Reuse: of %s prompt tokens %s %.1f %% %s %s of replica time%s%s.", tokens, span,
            percent(sim_live_share(sums->won_tokens, sums->prompt_tokens)),
            mirror ? "would have come out of caches, which would have saved"
                   : "came out of caches, which saved",
            sums->avoided_ns ? avoided : "an unknown amount", others,
            live->rule_count ? " would have been reused" : "");
        if (untold >= UNTOLD_SHARE && !mirror)
                say(sentence, ctx,
                    "Unknown: the engines did not tell what was cached of %.0f %% of the prompt tokens; "
                    "there the "
                    "prediction stands for the fact.",
                    percent(untold));
}

static void say_work(const struct sim_live *live, sim_live_sentence sentence, void *ctx)
{
        const struct sim_live_verdict *v = &live->verdict;
        const struct sim_live_rule *least = &live->rules[v->least];
        char here[32], there[32];

        if (!v->judged || live->ideal < NOTHING_SHARE)
                return;
        count(live->fact.computed, here, sizeof here);
        count(least->computed, there, sizeof there);
        say(sentence, ctx, "Work: %s prompt tokens %s left to compute, %s with %s: %.1f %% %s: %s.", here,
            v->shadow ? "would be" : "were", there, least->name, percent(fabs(v->work_gain)),
            v->work_gain < 0 ? "more" : "less", sim_verdict_name(v->by_work));
        if (v->by_work == SIM_VERDICT_MARGINAL && v->work_gain >= SIM_VERDICT_WORK_YES)
                say(sentence, ctx,
                    "That is %.1f points of the prompt tokens, and the comparison itself can be %.0f off: so "
                    "no more "
                    "than marginal.",
                    percent(v->points), percent(SIM_LIVE_POINTS_SURE));
        else if (v->by_work == SIM_VERDICT_MARGINAL && v->work_gain < SIM_VERDICT_WORK_SOME)
                say(sentence, ctx,
                    "%s computes about as little, but piles it on one replica: for the work alone it would "
                    "do.",
                    least->name);
}

static void say_load(const struct sim_live *live, sim_live_sentence sentence, void *ctx)
{
        const struct sim_live_verdict *v = &live->verdict;
        const struct sim_live_rule *calmest = &live->rules[v->calmest];

        if (!v->judged)
                return;
        if (v->idle) {
                say(sentence, ctx,
                    "Load: the replicas %s for about %.1f %% of the time. Where nothing queues all rules "
                    "answer at once, so there is no verdict by load. --window 1h in the busiest hour asks of "
                    "that one, kvroute analyze --load what would be.",
                    v->shadow ? "would prefill" : "prefilled", percent(v->busy));
                return;
        }
        say(sentence, ctx,
            "Load: the busiest replica %s %.2f times the mean %s and %.2f times with %s, "
            "the calmest simpler rule. Until the busiest one is full the fleet carries %.0f %% "
            "%s traffic than with that rule: %s.",
            v->shadow ? "would compute" : "computed", live->fact.computed_max_mean,
            v->shadow ? "with kv" : "here", calmest->computed_max_mean, calmest->name,
            percent(fabs(v->load_gain)), v->load_gain < 0 ? "less" : "more", sim_verdict_name(v->by_load));
        if (isnan(v->busy))
                say(sentence, ctx,
                    "How busy the replicas are is unknown: no replica's speed has been learned yet. If "
                    "nothing "
                    "queues, the load is no reason.");
}

static void say_memory(const struct sim_live *live, sim_live_sentence sentence, void *ctx)
{
        char tokens[32], span[64];

        if (isnan(live->ideal))
                return;
        if (live->curve_apart) {
                sim_live_span(live, span, sizeof span);
                say(sentence, ctx,
                    "What follows of memory is of the last hour, not of what happened %s: how reuse grows "
                    "with "
                    "the cache is kept for no shorter time.",
                    span);
        }
        if (live->surplus >= NOTHING_SHARE)
                say(sentence, ctx,
                    "Another %.1f %% of the prompt tokens came out of caches although no earlier prompt here "
                    "had them: "
                    "answers that engines keep, and what was cached before the router began. Simpler rules "
                    "would find "
                    "of it too, and how much is not known, so it is left out of every comparison here.",
                    percent(live->surplus));
        if (live->ideal < NOTHING_SHARE) {
                say(sentence, ctx,
                    "Memory: the prompts have nothing in common that a cache could reuse: %.1f %% of their "
                    "tokens at "
                    "best, with unlimited memory. No routing can change that.",
                    percent(live->ideal));
                return;
        }
        if (isnan(live->pooled)) {
                say(sentence, ctx,
                    "Memory: with unlimited memory %.1f %% could be reused. What the replicas hold is "
                    "unknown, so it "
                    "cannot be told what more memory would add.",
                    percent(live->ideal));
                return;
        }
        count(live->capacity, tokens, sizeof tokens);
        say(sentence, ctx,
            "Memory: the replicas %s %s tokens; in one piece that could reuse %.1f %%, and without limit "
            "%.1f %%. So better routing could add up to %.1f points, and more memory up to %.1f.",
            live->verdict.mirror ? "are said to hold" : "hold", tokens, percent(live->pooled),
            percent(live->ideal), percent(fmax(0, live->pooled - live->curve_reused)),
            percent(fmax(0, live->ideal - live->pooled)));
        if (live->capacity_known < live->capacity_asked)
                say(sentence, ctx, "The capacity of %.0f of %.0f replicas is unknown and not in it.",
                    live->capacity_asked - live->capacity_known, live->capacity_asked);
}

static void say_truth(const struct sim_live *live, sim_live_sentence sentence, void *ctx)
{
        const struct kvr_ledger_sums *sums = &live->all.sums;
        const struct sim_live_verdict *v = &live->verdict;
        double predicted = sim_live_predicted(sums), observed = sim_live_observed(sums);
        double whole = (double)sums->prompt_tokens;
        char why[96] = "and was passed over";

        if (v->blind)
                snprintf(why, sizeof why, "and %.40s does not look", v->policy);
        if (v->mirror)
                say(sentence, ctx,
                    "Prediction: all of this is one, and nothing was checked. kvroute serve --shadow in "
                    "front "
                    "of the engines, with the same policy, would.");
        else if (isnan(observed))
                say(sentence, ctx,
                    "Prediction: no engine told what it had cached, so no prediction was checked.");
        else
                say(sentence, ctx,
                    "Prediction: %.1f %% of the prompt tokens%s were predicted to be cached, the engines "
                    "reported %.1f %%.",
                    percent(predicted),
                    sums->unobserved_prompt_tokens ? " of requests whose engine told" : "",
                    percent(observed));
        say(sentence, ctx,
            "%s: %.1f %% because another replica held it %s, %.1f %% because it was gone when expected; "
            "%.1f %% was new.",
            v->mirror   ? "Would be lost"
            : v->shadow ? "Lost as it was routed"
                        : "Lost",
            percent((double)sums->placement_tokens / whole), why,
            percent((double)sums->staleness_tokens / whole), percent((double)sums->workload_tokens / whole));
}

static void money(const struct sim_live *live, double hours, char *ret, size_t size)
{
        int decimals = hours >= 100 ? 0 : hours >= 10 ? 1 : 2;

        if (live->price > 0)
                snprintf(ret, size, "%.*f replica-hours a month (%.2f at %.2f an hour)", decimals, hours,
                         hours * live->price, live->price);
        else
                snprintf(ret, size, "%.*f replica-hours a month", decimals, hours);
}

static void say_price(const struct sim_live *live, sim_live_sentence sentence, void *ctx)
{
        const struct sim_live_verdict *v = &live->verdict;
        char work[96], fleet[96];

        if (!v->judged)
                return;
        money(live, v->even_work_month, work, sizeof work);
        money(live, v->even_load_month, fleet, sizeof fleet);
        if (isnan(v->even_work_month))
                say(sentence, ctx, "Break-even: unknown, for no replica's speed has been learned yet.");
        else if (v->even_work_month < HOURS_SHOWN && !(v->even_load_month > 0))
                say(sentence, ctx,
                    "Break-even: there is nothing to save, so a router that costs anything more than a "
                    "simpler one "
                    "costs too much.");
        else
                say(sentence, ctx,
                    "Break-even: at this pace the router may cost %s more than %s "
                    "before it eats the work it saves.",
                    work, live->rules[v->least].name);
        if (v->even_load_month > 0)
                say(sentence, ctx,
                    "If the fleet is sized by its busiest replica, %s would need %.2f "
                    "replicas more for the same traffic: %s. The two figures do not add up.",
                    live->rules[v->calmest].name, v->saved_replicas, fleet);
}

static void say_caveats(const struct sim_live *live, sim_live_sentence sentence, void *ctx)
{
        char span[32];
        size_t alarms =
                yyjson_arr_size(yyjson_obj_get(yyjson_doc_get_root(live->pages[SIM_LIVE_ALARMS]), "alarms"));

        if (live->all.covered_s < SHORT_S) {
                sim_live_seconds(live->all.covered_s, span, sizeof span);
                say(sentence, ctx,
                    "All this is of %s only, and a figure a month takes it for all days: ask again after a "
                    "whole day, or after a week.",
                    span);
        }
        if (live->left_out > 0)
                say(sentence, ctx,
                    "Left out: %.0f requests came too fast for the comparison with simpler rules, which is "
                    "of the "
                    "others.",
                    live->left_out);
        if (alarms)
                say(sentence, ctx,
                    "%zu alarm%s raised: until that is put right this router reuses less than it could.",
                    alarms, alarms == 1 ? " is" : "s are");
}

void sim_live_reasons(const struct sim_live *live, sim_live_sentence sentence, void *ctx)
{
        say_shadow(live, sentence, ctx);
        say_reuse(live, sentence, ctx);
        say_work(live, sentence, ctx);
        say_load(live, sentence, ctx);
        say_memory(live, sentence, ctx);
        say_truth(live, sentence, ctx);
        say_price(live, sentence, ctx);
        say_caveats(live, sentence, ctx);
}
