/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GET /kvroute/ledger: what became of the prompts (kvroute/ledger.h, docs/ledger.md). The fields are those of the
 * library's structs, so that one page explains both. ?by=NAME gives one kind of account only.
 */
#include "admin_int.h"
#include "workload.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SPOILERS_SHOWN 64

static const char *const window_names[KVR_LEDGER_WINDOWS] = {"life", "1m", "10m", "1h"};

static void add_integer(struct text *out, const char *key, uint64_t value)
{
        text_adds(out, ",\"");
        text_adds(out, key);
        text_adds(out, "\":");
        text_addu(out, value);
}

/* As admin_add_number, for the first member of an object. */
static void add_first_number(struct text *out, const char *key, double value)
{
        size_t at = out->len;

        admin_add_number(out, key, value);
        if (!out->failed && out->len > at)
                out->data[at] = '{';
}

/* On a virtual fleet nothing is observed: what was won is all there is. */
static double hit_rate_tokens(enum kvr_ledger_by by, const struct kvr_ledger_sums *sums)
{
        if (by != KVR_LEDGER_VIRTUAL)
                return kvr_ledger_hit_tokens(sums);
        return sums->prompt_tokens ? (double)sums->won_tokens / (double)sums->prompt_tokens : NAN;
}

static void add_sums(struct text *out, enum kvr_ledger_by by, const struct kvr_ledger_sums *sums,
                     double covered_s)
{
        bool real = by != KVR_LEDGER_VIRTUAL;

        add_first_number(out, "covered_s", covered_s);
#define ADD_SUM(name) add_integer(out, #name, sums->name);
        KVR_LEDGER_SUM_LIST(ADD_SUM)
#undef ADD_SUM
        admin_add_number(out, "hit_rate_tokens", hit_rate_tokens(by, sums));
        admin_add_number(out, "hit_rate_blocks", real ? kvr_ledger_hit_blocks(sums) : NAN);
        admin_add_number(out, "hit_rate_requests", real ? kvr_ledger_hit_requests(sums) : NAN);
        text_add(out, "}", 1);
}

/* Up to the last bucket that has something. */
static void add_histogram(struct text *out, const char *key, const uint64_t *buckets)
{
        unsigned count = KVR_LEDGER_LOG_BUCKETS;

        while (count && !buckets[count - 1])
                count--;
        text_addf(out, ",\"%s\":[", key);
        for (unsigned i = 0; i < count; i++)
                text_addf(out, "%s%llu", i ? "," : "", (unsigned long long)buckets[i]);
        text_add(out, "]", 1);
}

/* ,"label":...: the name that the configuration gives a family. */
static void add_label(struct text *out, const struct router_config *config, const char *family)
{
        const char *label = config_family(config, family);

        if (label)
                admin_add_string(out, "label", label);
}

static void add_account(struct text *out, const struct router_config *config, enum kvr_ledger_by by,
                        const struct kvr_ledger_account *account, uint64_t now_ns)
{
        text_adds(out, "{\"name\":\"");
        text_add_json(out, (struct kvr_slice){account->name, strlen(account->name)});
        text_add(out, "\"", 1);
        if (by == KVR_LEDGER_REPLICA)
                text_addf(out, ",\"present\":%s", account->present ? "true" : "false");
        if (by == KVR_LEDGER_FAMILY) {
                add_label(out, config, account->name);
                admin_add_number(out, "family_tokens", account->family_tokens);
        }
        admin_add_number(out, "idle_s",
                         account->last_ns && now_ns >= account->last_ns
                                 ? (double)(now_ns - account->last_ns) / 1e9
                                 : NAN);
        text_adds(out, ",\"windows\":{");
        for (unsigned window = 0; window < KVR_LEDGER_WINDOWS; window++) {
                text_addf(out, "%s\"%s\":", window ? "," : "", window_names[window]);
                add_sums(out, by, &account->sums[window], account->covered_s[window]);
        }
        text_add(out, "}", 1);
        add_histogram(out, "shared_tokens", account->shared_tokens);
        add_histogram(out, "reuse_ms", account->reuse_ms);
        add_integer(out, "reuse_unknown", account->reuse_unknown);
        text_add(out, "}", 1);
}

static void add_accounts(struct text *out, const struct router_config *config, struct kvr_ledger *ledger,
                         enum kvr_ledger_by by, uint64_t now_ns)
{
        struct kvr_ledger_account *account = malloc(sizeof *account);
        uint32_t cursor = 0;

        if (!account) {
                out->failed = true;
                return;
        }
        text_addf(out, "\"%s\":[", kvr_ledger_by_name(by));
        for (bool first = true; kvr_ledger_account(ledger, by, now_ns, &cursor, account); first = false) {
                if (!first)
                        text_add(out, ",", 1);
                add_account(out, config, by, account, now_ns);
        }
        text_add(out, "]", 1);
        free(account);
}

static void add_spread(struct text *out, const char *key, const struct kvr_ledger_spread *spread)
{
        text_addf(out, ",\"%s\":", key);
        add_first_number(out, "max_mean", spread->max_mean);
        admin_add_number(out, "cv", spread->cv);
        admin_add_number(out, "jain", spread->jain);
        admin_add_number(out, "p95_max_mean", spread->p95_max_mean);
        text_add(out, "}", 1);
}

/* Of the real fleet (name NULL) or a virtual one. */
static void add_balance(struct text *out, struct kvr_ledger *ledger, const char *name, uint64_t now_ns)
{
        struct kvr_ledger_balance balance;

        if (kvr_ledger_balance(ledger, name, now_ns, &balance) != KVR_OK)
                return;
        text_addf(out, "%s\"%s\":{\"replicas\":%u", name ? "," : "", name ? name : "real", balance.replicas);
        add_integer(out, "windows", balance.windows);
        add_spread(out, "requests", &balance.requests);
        add_spread(out, "computed_tokens", &balance.computed_tokens);
        text_add(out, "}", 1);
}

static void add_balances(struct text *out, struct kvr_ledger *ledger, uint64_t now_ns)
{
        struct kvr_ledger_account *account = malloc(sizeof *account);
        uint32_t cursor = 0;

        text_adds(out, ",\"balance\":{");
        add_balance(out, ledger, NULL, now_ns);
        while (account && kvr_ledger_account(ledger, KVR_LEDGER_VIRTUAL, now_ns, &cursor, account))
                add_balance(out, ledger, account->name, now_ns);
        text_add(out, "}", 1);
        free(account);
}

static void add_curve(struct text *out, struct kvr_ledger *ledger, enum kvr_ledger_window window,
                      uint64_t now_ns)
{
        struct kvr_ledger_curve curve;
        bool first = true;

        kvr_ledger_curve(ledger, window, now_ns, &curve);
        text_addf(out, "\"%s\":", window_names[window]);
        add_first_number(out, "ideal", curve.ideal);
        admin_add_number(out, "sample_rate", curve.sample_rate);
        add_integer(out, "sampled_keys", curve.sampled_keys);
        add_integer(out, "prompt_tokens", curve.prompt_tokens);
        text_adds(out, ",\"points\":[");
        for (unsigned i = 0; i < KVR_LEDGER_CURVE_POINTS; i++) {
                if (!isfinite(curve.hit_rate[i]))
                        continue;
                text_addf(out, "%s[%llu,%.6g]", first ? "" : ",", (unsigned long long)curve.cache_tokens[i],
                          curve.hit_rate[i]);
                first = false;
        }
        text_adds(out, "]}");
}

static void add_spoilers(struct text *out, const struct router_config *config, struct kvr_ledger *ledger,
                         uint64_t now_ns)
{
        struct kvr_ledger_spoiler spoilers[SPOILERS_SHOWN];
        size_t count = kvr_ledger_spoilers(ledger, spoilers, SPOILERS_SHOWN);

        text_adds(out, ",\"spoilers\":[");
        for (size_t i = 0; i < count && i < SPOILERS_SHOWN; i++) {
                const struct kvr_ledger_spoiler *spoiler = &spoilers[i];

                text_addf(out, "%s{\"family\":\"", i ? "," : "");
                text_add_json(out, (struct kvr_slice){spoiler->family, strlen(spoiler->family)});
                text_add(out, "\"", 1);
                add_label(out, config, spoiler->family);
                text_addf(out, ",\"unit\":\"%s\"", spoiler->unit == KVR_UNIT_TOKENS ? "tokens" : "bytes");
                add_integer(out, "from", spoiler->from);
                add_integer(out, "to", spoiler->to);
                add_integer(out, "count", spoiler->count);
                add_integer(out, "tokens", spoiler->tokens);
                admin_add_number(out, "idle_s",
                                 now_ns >= spoiler->last_ns ? (double)(now_ns - spoiler->last_ns) / 1e9 : 0);
                text_add(out, "}", 1);
        }
        text_add(out, "]", 1);
}

static void add_reasons(struct text *out, struct kvr_router *router)
{
        static const enum kvr_reason reasons[] = {
#define REASON(code, name) code,
                KVR_REASON_LIST(REASON)
#undef REASON
        };

        text_adds(out, "\"reasons\":[");
        for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++) {
                struct kvr_reason_account account;

                kvr_router_account(router, reasons[i], &account);
                text_addf(out, "%s{\"reason\":\"%s\"", i ? "," : "", kvr_reason_name(reasons[i]));
                add_integer(out, "requests", account.requests);
                add_integer(out, "prompt_tokens", account.prompt_tokens);
                add_integer(out, "best_tokens", account.best_tokens);
                add_integer(out, "predicted_tokens", account.predicted_tokens);
                add_integer(out, "observed_tokens", account.observed_tokens);
                add_integer(out, "unobserved_prompt_tokens", account.unobserved_prompt_tokens);
                text_add(out, "}", 1);
        }
        text_add(out, "]", 1);
}

/* Names of the configuration that nothing answers to. */
static void add_unseen(struct text *out, const struct router_config *config, const struct families *families)
{
        bool first = true;

        text_adds(out, ",\"families_unseen\":[");
        for (size_t i = 0; i < config->families.count; i++) {
                if (!families_unseen(families, config, i))
                        continue;
                text_adds(out, first ? "\"" : ",\"");
                text_add_json(out, slice_of(config->families.items[i].name));
                text_add(out, "\"", 1);
                first = false;
        }
        text_add(out, "]", 1);
}

static void add_ledger(struct text *out, struct kvr_ledger *ledger, const struct router_config *config,
                       const struct families *families)
{
        struct kvr_ledger_info info;

        kvr_ledger_info(ledger, &info);
        text_addf(out, ",\"ledger\":{\"bytes\":%llu", (unsigned long long)info.bytes);
        add_integer(out, "entries", info.entries);
        add_integer(out, "families", info.families);
        add_integer(out, "families_given_up", info.families_given_up);
        add_unseen(out, config, families);
        text_addf(out, ",\"counterfactual\":%s,\"detail_paused\":%s", info.counterfactual ? "true" : "false",
                  info.detail_paused ? "true" : "false");
        add_integer(out, "detail_left_out", info.detail_left_out);
        text_add(out, "}", 1);
}

/* The kind of account that ?by= asks for; -1: all, -2: there is no such. */
static int wanted(struct kvr_slice query)
{
        static const char key[] = "by=";

        if (query.len < sizeof key - 1 || memcmp(query.data, key, sizeof key - 1) != 0)
                return -1;
        for (int by = KVR_LEDGER_ALL; by <= KVR_LEDGER_VIRTUAL; by++) {
                const char *name = kvr_ledger_by_name((enum kvr_ledger_by)by);

                if (strlen(name) == query.len - (sizeof key - 1) &&
                    memcmp(name, query.data + sizeof key - 1, strlen(name)) == 0)
                        return by;
        }
        return -2;
}

void admin_ledger(struct admin *admin, struct net_exchange *exchange)
{
        struct kvr_ledger *ledger = admin->options.proxy->ledger;
        struct kvr_router *router = admin->options.proxy->router;
        const struct router_config *config = atomic_load(&admin->options.proxy->config);
        int by = wanted(net_exchange_head(exchange)->query);
        uint64_t now_ns = uv_hrtime();
        struct kvr_index_info index;
        struct text json = {0};

        if (by == -2) {
                admin_respond_error(exchange, 400, "invalid_request",
                                    "by: all, workload, family, model, replica or virtual");
                return;
        }
        text_add(&json, "{", 1);
        add_reasons(&json, router);
        kvr_router_index_info(router, &index);
        add_integer(&json, "lookups", index.lookups);
        add_integer(&json, "lookups_without_match", index.lookups_without_match);
        add_integer(&json, "partial", index.partial);
        admin_add_shadow(admin->options.proxy, &json, now_ns);
        if (!ledger) {
                text_adds(&json, ",\"ledger\":null}");
                admin_respond_json(exchange, 200, &json);
                return;
        }
        add_ledger(&json, ledger, config, &admin->options.proxy->families);
        text_adds(&json, ",\"accounts\":{");
        for (int one = KVR_LEDGER_ALL; one <= KVR_LEDGER_VIRTUAL; one++) {
                if (by >= 0 && by != one)
                        continue;
                if (by < 0 && one > KVR_LEDGER_ALL)
                        text_add(&json, ",", 1);
                add_accounts(&json, config, ledger, (enum kvr_ledger_by)one, now_ns);
        }
        text_add(&json, "}", 1);
        add_balances(&json, ledger, now_ns);
        text_adds(&json, ",\"curve\":{");
        add_curve(&json, ledger, KVR_LEDGER_LIFE, now_ns);
        text_add(&json, ",", 1);
        add_curve(&json, ledger, KVR_LEDGER_HOUR, now_ns);
        text_add(&json, "}", 1);
        add_spoilers(&json, config, ledger, now_ns);
        text_add(&json, "}", 1);
        admin_respond_json(exchange, 200, &json);
}

/* ---- for /metrics ------------------------------------------------------------------------------------- */

/* A sum of the library: the whole value is set at each scrape. */
static void set_metric(struct proxy *proxy, enum metric_id id, const char *label, const char *part,
                       double value)
{
        struct kvr_slice labels[2] = {{label, strlen(label)}, {part, part ? strlen(part) : 0}};
        metrics_series_id series = metrics_series(proxy->metrics, proxy->worker_count, id, labels);

        metrics_set(proxy->metrics, series, value);
}

static void set_parts(struct proxy *proxy, const char *name, const struct kvr_ledger_sums *sums)
{
        set_metric(proxy, METRIC_ACCOUNT_TOKENS, name, "won", (double)sums->won_tokens);
        set_metric(proxy, METRIC_ACCOUNT_TOKENS, name, "placement", (double)sums->placement_tokens);
        set_metric(proxy, METRIC_ACCOUNT_TOKENS, name, "staleness", (double)sums->staleness_tokens);
        set_metric(proxy, METRIC_ACCOUNT_TOKENS, name, "workload", (double)sums->workload_tokens);
}

/* What the ledger has no room for is "other" here, as is what the router had no name for. */
static void set_workloads(struct proxy *proxy, struct kvr_ledger_account *account, uint64_t now_ns)
{
        struct kvr_ledger_sums other = {0};
        uint32_t cursor = 0;

        while (kvr_ledger_account(proxy->ledger, KVR_LEDGER_WORKLOAD, now_ns, &cursor, account)) {
                const struct kvr_ledger_sums *sums = &account->sums[KVR_LEDGER_LIFE];

                if (strcmp(account->name, "(other)") != 0 && strcmp(account->name, WORKLOAD_OTHER) != 0) {
                        set_parts(proxy, account->name, sums);
                        continue;
                }
                other.won_tokens += sums->won_tokens;
                other.placement_tokens += sums->placement_tokens;
                other.staleness_tokens += sums->staleness_tokens;
                other.workload_tokens += sums->workload_tokens;
                set_parts(proxy, WORKLOAD_OTHER, &other);
        }
}

/* balance: the rule's name there; NULL: the real fleet. */
static void set_rule(struct proxy *proxy, const struct kvr_ledger_account *account, const char *policy,
                     const char *balance, uint64_t now_ns)
{
        const struct kvr_ledger_sums *sums = &account->sums[KVR_LEDGER_LIFE];
        struct kvr_ledger_balance spread;

        set_metric(proxy, METRIC_RULE_PROMPT, policy, NULL, (double)sums->prompt_tokens);
        set_metric(proxy, METRIC_RULE_CACHED, policy, NULL, (double)sums->won_tokens);
        set_metric(proxy, METRIC_RULE_AVOIDED, policy, NULL, (double)sums->avoided_ns / 1e9);
        if (kvr_ledger_balance(proxy->ledger, balance, now_ns, &spread) == KVR_OK)
                set_metric(proxy, METRIC_RULE_BUSIEST, policy, NULL, spread.computed_tokens.max_mean);
}

void admin_ledger_metrics(struct proxy *proxy)
{
        struct kvr_ledger_account *account = proxy->ledger ? malloc(sizeof *account) : NULL;
        uint64_t now_ns = uv_hrtime();
        uint32_t cursor = 0;

        if (!account)
                return;
        set_workloads(proxy, account, now_ns);
        if (kvr_ledger_account(proxy->ledger, KVR_LEDGER_ALL, now_ns, &cursor, account))
                set_rule(proxy, account, "actual", NULL, now_ns);
        cursor = 0;
        while (kvr_ledger_account(proxy->ledger, KVR_LEDGER_VIRTUAL, now_ns, &cursor, account))
                set_rule(proxy, account, account->name, account->name, now_ns);
        free(account);
}
