/* SPDX-License-Identifier: Apache-2.0 */
/* The admin API's answers as figures. */
#include "report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *sim_live_path(enum sim_live_page page)
{
        static const char *const paths[] = {
#define PATH(code, path) path,
                SIM_LIVE_PAGE_LIST(PATH)
#undef PATH
        };

        return paths[page];
}

void sim_live_fini(struct sim_live *live)
{
        free(live->workloads.items);
        free(live->families.items);
        free(live->replicas.items);
        for (size_t i = 0; i < SIM_LIVE_PAGES; i++)
                yyjson_doc_free(live->pages[i]);
        *live = (struct sim_live){0};
}

/* ---- JSON --------------------------------------------------------------------------------------------- */

static yyjson_val *root_of(const struct sim_live *live, enum sim_live_page page)
{
        return yyjson_doc_get_root(live->pages[page]);
}

static double number(yyjson_val *object, const char *key)
{
        yyjson_val *value = yyjson_obj_get(object, key);

        return yyjson_is_num(value) ? yyjson_get_num(value) : NAN;
}

static const char *string(yyjson_val *object, const char *key, const char *fallback)
{
        const char *text = yyjson_get_str(yyjson_obj_get(object, key));

        return text ? text : fallback;
}

static yyjson_val *accounts_of(const struct sim_live *live, enum sim_live_page page, const char *kind)
{
        return yyjson_obj_get(yyjson_obj_get(root_of(live, page), "accounts"), kind);
}

/* ---- accounts ----------------------------------------------------------------------------------------- */

static void read_sums(yyjson_val *object, struct kvr_ledger_sums *ret)
{
#define READ(name) ret->name = yyjson_get_uint(yyjson_obj_get(object, #name));
        KVR_LEDGER_SUM_LIST(READ)
#undef READ
}

static void read_bins(yyjson_val *list, double *ret)
{
        yyjson_val *item;
        size_t i, max;

        yyjson_arr_foreach(list, i, max, item)
        {
                if (i < KVR_LEDGER_LOG_BUCKETS)
                        ret[i] = yyjson_get_num(item);
        }
}

static void read_account(const struct sim_live *live, yyjson_val *object, struct sim_live_account *ret)
{
        yyjson_val *window = yyjson_obj_get(yyjson_obj_get(object, "windows"), live->window);
        yyjson_val *present = yyjson_obj_get(object, "present");

        *ret = (struct sim_live_account){
                .id = string(object, "name", "?"),
                .present = !present || yyjson_is_true(present),
                .covered_s = number(window, "covered_s"),
                .max_length = number(object, "family_tokens"),
        };
        ret->name = string(object, "label", ret->id);
        read_sums(window, &ret->sums);
        read_bins(yyjson_obj_get(object, "shared_tokens"), ret->shared_tokens);
        read_bins(yyjson_obj_get(object, "reuse_ms"), ret->reuse_ms);
}

static int by_tokens(const void *a, const void *b)
{
        const struct sim_live_account *left = a, *right = b;

        if (left->sums.prompt_tokens != right->sums.prompt_tokens)
                return left->sums.prompt_tokens < right->sums.prompt_tokens ? 1 : -1;
        return strcmp(left->id, right->id);
}

static bool read_accounts(const struct sim_live *live, enum sim_live_page page, const char *kind,
                          bool idle_too, struct sim_live_accounts *ret)
{
        yyjson_val *list = accounts_of(live, page, kind), *object;
        size_t i, max;

        ret->items = calloc(yyjson_arr_size(list) + 1, sizeof *ret->items);
        if (!ret->items)
                return false;
        yyjson_arr_foreach(list, i, max, object)
        {
                struct sim_live_account *account = &ret->items[ret->count];

                read_account(live, object, account);
                ret->count += account->sums.requests > 0 || (idle_too && account->present);
        }
        qsort(ret->items, ret->count, sizeof *ret->items, by_tokens);
        return true;
}

double sim_live_predicted(const struct kvr_ledger_sums *sums)
{
        return sim_live_share(sums->predicted_tokens - sums->won_unobserved_tokens,
                              sums->prompt_tokens - sums->unobserved_prompt_tokens);
}

double sim_live_observed(const struct kvr_ledger_sums *sums)
{
        return sim_live_share(sums->observed_tokens, sums->prompt_tokens - sums->unobserved_prompt_tokens);
}

/* ---- rules -------------------------------------------------------------------------------------------- */

static const struct {
        const char *id, *name, *what;
} rule_names[] = {
        {"round_robin", "round robin", "each replica in turn"},
        {"least_tokens", "least load", "the replica with the least work in its queue"},
        {"prefix_hash", "prefix hash", "a hash of the prompt's beginning picks the replica"},
};

static void read_rule(const struct sim_live *live, const struct sim_live_account *account, const char *spread,
                      struct sim_live_rule *ret)
{
        yyjson_val *balance =
                yyjson_obj_get(yyjson_obj_get(root_of(live, SIM_LIVE_VIRTUAL), "balance"), spread);
        yyjson_val *computed = yyjson_obj_get(balance, "computed_tokens");
        double reused = sim_live_share(account->sums.won_tokens, account->sums.prompt_tokens);

        *ret = (struct sim_live_rule){
                .id = account->id,
                .name = account->id,
                .what = "",
                .reused = reused,
                .computed = (1 - reused) * (double)live->all.sums.prompt_tokens,
                .avoided_s = (double)account->sums.avoided_ns / 1e9,
                .requests_max_mean = number(yyjson_obj_get(balance, "requests"), "max_mean"),
                .computed_max_mean = number(computed, "max_mean"),
                .hot_max_mean = number(computed, "p95_max_mean"),
        };
        ret->busiest = ret->computed_max_mean * ret->computed / live->replica_count;
        for (size_t i = 0; i < sizeof rule_names / sizeof *rule_names; i++) {
                if (strcmp(rule_names[i].id, ret->id) == 0) {
                        ret->name = rule_names[i].name;
                        ret->what = rule_names[i].what;
                }
        }
}

/*
 * What was measured, as far as simulated replicas could have had it: at most what earlier prompts had. How much is
 * beyond that is known of the curve's time only, and taken to be the same share in the window.
 */
static void compare_alike(struct sim_live *live, struct sim_live_rule *fact)
{
        double surplus = live->curve_reused - live->ideal, kept = fmax(0, fact->reused - surplus), computed;

        if (!(surplus > 0) || !(fact->reused > 0) || !(fact->reused < 1))
                return;
        computed = (1 - kept) / (1 - fact->reused);
        live->surplus = surplus;
        live->curve_reused = live->ideal;
        fact->computed *= computed;
        fact->busiest *= computed;
        fact->avoided_s *= kept / fact->reused;
        fact->reused = kept;
}

/* What kv would have done in a window; NULL: of all its life the section itself tells. */
static yyjson_val *shadow_of(const struct sim_live *live, const char *window)
{
        yyjson_val *shadow = yyjson_obj_get(root_of(live, SIM_LIVE_ALL), "shadow");
        yyjson_val *all = yyjson_arr_get_first(yyjson_obj_get(yyjson_obj_get(shadow, "accounts"), "all"));

        return strcmp(window, "life") == 0 ? NULL : yyjson_obj_get(yyjson_obj_get(all, "windows"), window);
}

/* Another policy is in force, and kv was tried beside it: kv is what is judged, the one in force a simpler rule. */
static void read_shadow(struct sim_live *live)
{
        yyjson_val *section = yyjson_obj_get(root_of(live, SIM_LIVE_ALL), "shadow");
        yyjson_val *kv = yyjson_obj_get(section, "kv"), *window = shadow_of(live, live->window);
        yyjson_val *balance = yyjson_obj_get(kv, "balance"),
                   *computed = yyjson_obj_get(balance, "computed_tokens");
        struct sim_live_rule shadow = {
                .id = "kv",
                .name = "kv (shadow)",
                .what = "cache-aware, tried beside the policy in force",
                /* not calibrated, as those it is compared with are not */
                .reused = window ? number(window, "kv_hit_rate") : number(kv, "hit_rate"),
                .avoided_s = window ? number(window, "kv_avoided_s") : number(kv, "avoided_s"),
                .requests_max_mean = number(yyjson_obj_get(balance, "requests"), "max_mean"),
                .computed_max_mean = number(computed, "max_mean"),
                .hot_max_mean = number(computed, "p95_max_mean"),
        };
        unsigned at = 0;

        if (isnan(shadow.reused))
                return;
        shadow.computed = (1 - shadow.reused) * (double)live->all.sums.prompt_tokens;
        shadow.busiest = shadow.computed_max_mean * shadow.computed / live->replica_count;
        /* The fact itself goes before what was simulated of the same rule. */
        while (at < live->rule_count && strcmp(live->rules[at].id, live->fact.id) != 0)
                at++;
        if (at == SIM_LIVE_RULES_MAX)
                return;
        live->rules[at] = live->fact;
        live->verdict.shadow = true;
        live->verdict.mirror = strcmp(string(section, "mode", ""), "mirror") == 0;
        if (live->verdict.mirror)
                shadow.what = "cache-aware, tried on the same requests";
        live->rules[at].what = live->verdict.mirror ? "as its policy would have routed the requests"
                                                    : "in force: as the requests were routed";
        live->rule_count += at == live->rule_count;
        live->fact = shadow;
        window = shadow_of(live, live->curve_window);
        live->curve_reused = window ? number(window, "kv_hit_rate") : shadow.reused;
}

static void read_rules(struct sim_live *live)
{
        yyjson_val *list = accounts_of(live, SIM_LIVE_VIRTUAL, "virtual"), *object;
        yyjson_val *ledger = yyjson_obj_get(root_of(live, SIM_LIVE_ALL), "ledger");
        struct sim_live_account account;
        size_t i, max;

        live->replica_count =
                number(yyjson_obj_get(yyjson_obj_get(root_of(live, SIM_LIVE_VIRTUAL), "balance"), "real"),
                       "replicas");
        live->left_out = number(ledger, "detail_left_out");
        read_rule(live, &live->all, "real", &live->fact);
        compare_alike(live, &live->fact);
        live->fact.id = string(root_of(live, SIM_LIVE_CONFIG), "policy", "kv");
        live->fact.name = live->fact.id;
        live->fact.what = "as the requests were routed";
        yyjson_arr_foreach(list, i, max, object)
        {
                if (live->rule_count == SIM_LIVE_RULES_MAX)
                        break;
                read_account(live, object, &account);
                if (account.sums.prompt_tokens)
                        read_rule(live, &account, account.id, &live->rules[live->rule_count++]);
        }
        live->verdict.policy = live->fact.id;
        live->verdict.blind =
                strcmp(live->fact.id, "kv") != 0 && strcmp(live->fact.id, "longest_prefix") != 0;
        if (strcmp(live->fact.id, "kv") != 0)
                read_shadow(live);
}

/* ---- the curve and the fleet's memory ----------------------------------------------------------------- */

static void read_capacity(struct sim_live *live)
{
        yyjson_val *list = root_of(live, SIM_LIVE_REPLICAS), *replica;
        size_t i, max;

        yyjson_arr_foreach(list, i, max, replica)
        {
                double capacity = number(replica, "capacity_tokens");

                live->capacity_asked++;
                if (isnan(capacity))
                        continue;
                live->capacity_known++;
                live->capacity += capacity;
        }
}

/* On the line between two points, as plots draw it; NAN: nothing known there. */
static double curve_at(const struct sim_live *live, double tokens)
{
        for (unsigned i = 1; i < live->curve_count; i++) {
                double from = live->curve_x[i - 1], to = live->curve_x[i];

                if (tokens >= from && tokens <= to)
                        return live->curve_y[i - 1] + (live->curve_y[i] - live->curve_y[i - 1]) *
                                                              log(tokens / from) / log(to / from);
        }
        return live->curve_count && tokens > live->curve_x[live->curve_count - 1] ? live->ideal : NAN;
}

static void read_curve(struct sim_live *live)
{
        const char *window = strcmp(live->window, "life") == 0 ? "life" : "1h";
        yyjson_val *curve = yyjson_obj_get(yyjson_obj_get(root_of(live, SIM_LIVE_ALL), "curve"), window);
        yyjson_val *points = yyjson_obj_get(curve, "points"), *point;
        yyjson_val *all = yyjson_arr_get_first(accounts_of(live, SIM_LIVE_ALL, "all"));
        struct kvr_ledger_sums sums;
        size_t i, max;

        read_sums(yyjson_obj_get(yyjson_obj_get(all, "windows"), window), &sums);
        live->curve_window = window;
        live->curve_apart = sums.prompt_tokens != live->all.sums.prompt_tokens;
        live->curve_reused = sim_live_share(sums.won_tokens, sums.prompt_tokens);
        live->ideal = number(curve, "ideal");
        yyjson_arr_foreach(points, i, max, point)
        {
                if (live->curve_count == KVR_LEDGER_CURVE_POINTS)
                        break;
                live->curve_x[live->curve_count] = yyjson_get_num(yyjson_arr_get(point, 0));
                live->curve_y[live->curve_count++] = yyjson_get_num(yyjson_arr_get(point, 1));
        }
        live->pooled = live->capacity_known > 0 ? curve_at(live, live->capacity) : NAN;
}

/* ---- all of it ---------------------------------------------------------------------------------------- */

static enum sim_live_status few(const struct sim_live *live, uint64_t wanted, char *message, size_t size)
{
        uint64_t have = live->all.sums.computed, missing = wanted - have;
        double pace = (double)have / live->all.covered_s;
        char span[64], wait[32], soon[80] = "";

        sim_live_span(live, span, sizeof span);
        sim_live_seconds((double)missing / pace, wait, sizeof wait);
        if (have && pace > 0 && isfinite(pace))
                snprintf(soon, sizeof soon, ", in about %s at their present pace", wait);
        snprintf(message, size,
                 "too few requests yet: %llu with a known prompt %s, and a report needs %llu. Come back "
                 "after %llu "
                 "more%s (--min-requests takes fewer%s)",
                 (unsigned long long)have, span, (unsigned long long)wanted, (unsigned long long)missing,
                 soon, strcmp(live->window, "life") == 0 ? "" : ", --window life looks further back");
        return SIM_LIVE_FEW;
}

enum sim_live_status sim_live_read(struct sim_live *live, uint64_t requests_min, char *message, size_t size)
{
        yyjson_val *root = root_of(live, SIM_LIVE_ALL);
        yyjson_val *all = yyjson_arr_get_first(accounts_of(live, SIM_LIVE_ALL, "all"));

        if (root && yyjson_is_null(yyjson_obj_get(root, "ledger"))) {
                snprintf(message, size,
                         "the ledger is switched off: there are no figures to report. Start the router with "
                         "--ledger on");
                return SIM_LIVE_OFF;
        }
        read_account(live, all, &live->all);
        if (live->all.sums.computed < (requests_min ? requests_min : 1) || !live->all.sums.prompt_tokens)
                return few(live, requests_min ? requests_min : 1, message, size);
        if (!read_accounts(live, SIM_LIVE_WORKLOAD, "workload", false, &live->workloads) ||
            !read_accounts(live, SIM_LIVE_FAMILY, "family", false, &live->families) ||
            !read_accounts(live, SIM_LIVE_REPLICA, "replica", true, &live->replicas)) {
                snprintf(message, size, "out of memory");
                return SIM_LIVE_NOMEM;
        }
        read_capacity(live);
        read_curve(live);
        read_rules(live);
        sim_live_judge(live);
        return SIM_LIVE_OK;
}
