/* SPDX-License-Identifier: Apache-2.0 */
#include "report.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define PAGE_MAX (1u << 15)

#define assert_near(a, b, gap) assert_true(fabs((a) - (b)) <= (gap))

/* A router as its admin API tells of it: 4 replicas, one hour, 1000 requests, 10,000,000 prompt tokens. */
struct scene {
        const char *policy;
        unsigned long long computed, won, observed, unobserved;
        double covered_s;
        unsigned long long avoided_ns;
        /* of round robin, least load, prefix hash */
        unsigned long long rule_won[3];
        double max_mean, rule_max_mean[3];
        bool virtual_on, ledger_on, capacity_known;
        double shadow; /* hit rate of kv in the shadow; 0: there is none */
        bool mirror;
        const char *window; /* that the report is of; NULL: life */
        unsigned long long
                hour_won; /* of twice as many prompt tokens in the last hour; 0: nothing is told of it */
        double ideal;
        unsigned replicas;
};

static const struct scene usual = {
        .policy = "kv",
        .computed = 1000,
        .won = 8000000,
        .observed = 8000000,
        .covered_s = 3600,
        .avoided_ns = 16000000000000, /* 2 ms a token: 0.28 of the time is prefill */
        .rule_won = {4000000, 4500000, 7000000},
        .max_mean = 1.1,
        .rule_max_mean = {1.0, 1.02, 2.0},
        .virtual_on = true,
        .ledger_on = true,
        .capacity_known = true,
        .ideal = 0.9,
        .replicas = 4,
};

static char text[PAGE_MAX];
static size_t length;

static KVR_PRINTF(1, 2) void add(const char *format, ...)
{
        va_list args;

        va_start(args, format);
        length += (size_t)vsnprintf(text + length, sizeof(text) - length, format, args);
        va_end(args);
        assert_true(length < sizeof(text));
}

static yyjson_doc *page(void)
{
        yyjson_doc *doc = yyjson_read(text, length, 0);

        assert_non_null(doc);
        length = 0;
        return doc;
}

static void add_account(const struct scene *s, const char *name, unsigned long long won, unsigned share)
{
        unsigned long long prompt = 10000000ull * share / 100;

        won = won * share / 100;
        add("{\"name\":\"%s\",\"present\":true,\"windows\":{", name);
        if (s->hour_won)
                add("\"1h\":{\"prompt_tokens\":20000000,\"won_tokens\":%llu},", s->hour_won);
        add("\"%s\":{\"covered_s\":%g,\"requests\":%u,"
            "\"computed\":%llu,"
            "\"observed\":%llu,\"prompt_tokens\":%llu,\"predicted_tokens\":%llu,\"observed_tokens\":%llu,"
            "\"unobserved_prompt_tokens\":%llu,\"won_tokens\":%llu,\"won_unobserved_tokens\":0,"
            "\"placement_tokens\":%llu,\"staleness_tokens\":0,\"workload_tokens\":%llu,\"avoided_ns\":%llu,"
            "\"untimed_tokens\":0}},\"shared_tokens\":[10,0,0,90],\"reuse_ms\":[0,0,0,0,0,0,0,0,0,0,0,90]}",
            s->window ? s->window : "life", s->covered_s, 10 * share, s->computed * share / 100,
            s->computed * share / 100, prompt, won + prompt / 100, s->observed * share / 100,
            s->unobserved * share / 100, won, prompt / 100, prompt - won - prompt / 100,
            s->avoided_ns / 100 * share);
}

static void add_balance(const struct scene *s, const char *name, double max_mean)
{
        add("%s\"%s\":{\"replicas\":%u,\"requests\":{\"max_mean\":%g},\"computed_tokens\":{\"max_mean\":%g,"
            "\"p95_max_mean\":null}}",
            strcmp(name, "real") == 0 ? "" : ",", name, s->replicas, max_mean, max_mean);
}

static void fill(const struct scene *s, struct sim_live *live)
{
        static const char *const rules[] = {"round_robin", "least_tokens", "prefix_hash"};

        char shadow[500] = "";

        *live = (struct sim_live){.url = "http://router:8081", .window = s->window ? s->window : "life"};
        add("{\"policy\":\"%s\"}", s->policy);
        live->pages[SIM_LIVE_CONFIG] = page();
        add("[{\"name\":\"a\",\"capacity_tokens\":%s},{\"name\":\"b\",\"capacity_tokens\":null}]",
            s->capacity_known ? "100000" : "null");
        live->pages[SIM_LIVE_REPLICAS] = page();
        add("{\"alarms\":[{\"alarm\":\"no_match\",\"replica\":null,\"for_s\":90,\"text\":\"look-ups <find> "
            "nothing\"}]}");
        live->pages[SIM_LIVE_ALARMS] = page();
        if (!s->ledger_on) {
                add("{\"reasons\":[],\"ledger\":null}");
                live->pages[SIM_LIVE_ALL] = page();
                return;
        }
        if (s->shadow > 0)
                snprintf(shadow, sizeof shadow,
                         "\"shadow\":{\"mode\":\"%s\",\"kv\":{\"hit_rate\":%g,\"hit_rate_calibrated\":0.95,"
                         "\"avoided_s\":7,"
                         "\"balance\":{\"computed_tokens\":{\"max_mean\":1.1}}},\"accounts\":{\"all\":[{"
                         "\"windows\":"
                         "{\"1h\":{\"kv_hit_rate\":0.75,\"kv_avoided_s\":5},\"life\":{\"kv_hit_rate\":0.1}}}]"
                         "}},",
                         s->mirror ? "mirror" : "on", s->shadow);
        add("{%s\"reasons\":[{\"reason\":\"hit\",\"requests\":1000,\"prompt_tokens\":10000000,\"best_"
            "tokens\":"
            "8200000,"
            "\"predicted_tokens\":8100000}],\"ledger\":{\"detail_left_out\":0},\"accounts\":{\"all\":[",
            shadow);
        add_account(s, "all", s->won, 100);
        add("]},\"curve\":{\"%s\":{\"ideal\":%g,\"points\":[[1024,0.1],[102400,0.85],[1048576,0.9]]}},"
            "\"spoilers\":[]}",
            s->window ? "1h" : "life", s->ideal);
        live->pages[SIM_LIVE_ALL] = page();
        add("{\"accounts\":{\"workload\":[");
        add_account(s, "small", s->won, 20);
        add(",");
        add_account(s, "<b>big</b>", s->won, 80);
        add("]}}");
        live->pages[SIM_LIVE_WORKLOAD] = page();
        add("{\"accounts\":{\"family\":[]}}");
        live->pages[SIM_LIVE_FAMILY] = page();
        add("{\"accounts\":{\"replica\":[");
        add_account(s, "a", s->won, 60);
        add(",");
        add_account(s, "b", s->won, 40);
        add("]}}");
        live->pages[SIM_LIVE_REPLICA] = page();
        add("{\"balance\":{");
        add_balance(s, "real", s->max_mean);
        for (int i = 0; i < 3 && s->virtual_on; i++)
                add_balance(s, rules[i], s->rule_max_mean[i]);
        add("},\"accounts\":{\"virtual\":[");
        for (int i = 0; i < 3 && s->virtual_on; i++) {
                add("%s", i ? "," : "");
                add_account(s, rules[i], s->rule_won[i], 100);
        }
        add("]}}");
        live->pages[SIM_LIVE_VIRTUAL] = page();
}

static void read_scene(const struct scene *s, struct sim_live *live)
{
        char message[400] = "";

        fill(s, live);
        if (sim_live_read(live, 200, message, sizeof message) != SIM_LIVE_OK)
                fail_msg("%s", message);
}

static const char *text_of(const struct sim_live *live,
                           void (*form)(const struct sim_live *, struct sim_buf *), struct sim_buf *buf)
{
        sim_buf_reset(buf);
        form(live, buf);
        sim_buf_add(buf, "", 1);
        assert_false(buf->failed);
        return buf->data;
}

/* 2 M against 3 M tokens left; busiest 1.1 x 0.5 M against 1.02 x 1.375 M with least load. */
static void test_justified(void **state)
{
        struct sim_live live;
        struct sim_buf buf = {0};

        (void)state;
        read_scene(&usual, &live);
        const struct sim_live_verdict *v = &live.verdict;

        assert_true(v->judged && !v->idle);
        assert_int_equal(v->by_work, SIM_VERDICT_YES);
        assert_int_equal(v->by_load, SIM_VERDICT_YES);
        assert_string_equal(live.rules[v->least].id, "prefix_hash");
        assert_string_equal(live.rules[v->calmest].id, "least_tokens");
        assert_near(v->work_gain, 1.0 / 3, 1e-9);
        assert_near(v->points, 0.1, 1e-9);
        assert_near(v->load_gain, 1.02 * 5.5 / (1.1 * 2) - 1, 1e-9);
        assert_near(v->token_s, 0.002, 1e-9);
        assert_near(v->busy, 2e6 * 0.002 / (4 * 3600), 1e-9);
        /* A million tokens of 2 ms in an hour, 730 of these a month. */
        assert_near(v->even_work_month, 1e6 * 0.002 / 3600 * 730, 1e-6);
        assert_near(v->saved_replicas, 4 * v->load_gain, 1e-9);
        assert_non_null(
                strstr(text_of(&live, sim_live_text, &buf), "It is justified over every simpler rule."));
        assert_non_null(strstr(buf.data, "33.3 % less: justified"));
        sim_buf_fini(&buf);
        sim_live_fini(&live);
}

/* Less work by a fifth, but of 1 point only: the comparison is not that good. */
static void test_no_surer_than_the_comparison(void **state)
{
        struct scene s = usual;
        struct sim_live live;

        (void)state;
        s.won = s.observed = 9600000;
        s.rule_won[2] = 9500000;
        s.rule_max_mean[2] = 1.1;
        s.covered_s = 600;
        s.ideal = 0.97;
        read_scene(&s, &live);
        assert_near(live.verdict.work_gain, 0.2, 1e-9);
        assert_int_equal(live.verdict.by_work, SIM_VERDICT_MARGINAL);
        assert_int_equal(live.verdict.by_load, SIM_VERDICT_YES);
        sim_live_fini(&live);
}

/*
 * Engines keep answers too, and what was there before the router began: simulated replicas have neither, so
 * what kv found of that is no reason for kv.
 */
static void test_what_no_rule_could_find_is_left_out(void **state)
{
        struct scene s = usual;
        struct sim_live live;
        struct sim_buf buf = {0};

        (void)state;
        s.won = s.observed = 9500000;
        s.rule_won[2] = 8600000;
        s.rule_max_mean[2] = 1.1;
        s.ideal = 0.87;
        read_scene(&s, &live);
        assert_near(live.surplus, 0.08, 1e-9);
        assert_near(live.fact.reused, 0.87, 1e-9);
        assert_near(live.fact.computed, 1300000, 1e-3);
        assert_near(live.verdict.work_gain, 1 - 13.0 / 14, 1e-9); /* not 64 % */
        assert_int_equal(live.verdict.by_work, SIM_VERDICT_MARGINAL);
        assert_non_null(strstr(text_of(&live, sim_live_text, &buf), "Another 8.0 % of the prompt tokens"));
        sim_buf_fini(&buf);
        sim_live_fini(&live);
}

static void test_one_replica_gives_no_verdict(void **state)
{
        struct scene s = usual;
        struct sim_live live;

        (void)state;
        s.replicas = 1;
        read_scene(&s, &live);
        assert_false(live.verdict.judged);
        assert_non_null(strstr(live.verdict.why_not, "one replica"));
        sim_live_fini(&live);
}

static void test_not_justified(void **state)
{
        struct scene s = usual;
        struct sim_live live;
        struct sim_buf buf = {0};

        (void)state;
        s.rule_won[2] = 8000000;
        s.rule_max_mean[2] = 1.1;
        read_scene(&s, &live);
        assert_int_equal(live.verdict.by_work, SIM_VERDICT_NO);
        assert_int_equal(live.verdict.by_load, SIM_VERDICT_NO);
        assert_non_null(strstr(text_of(&live, sim_live_text, &buf),
                               "Something simpler does as well here: prefix hash"));
        assert_non_null(strstr(buf.data, "there is nothing to save"));
        /* The same work, but all of it on one replica: for the work alone it would do. */
        sim_live_fini(&live);
        s.rule_max_mean[2] = 3;
        read_scene(&s, &live);
        assert_int_equal(live.verdict.by_work, SIM_VERDICT_NO);
        assert_int_equal(live.verdict.by_load, SIM_VERDICT_YES);
        sim_buf_fini(&buf);
        sim_live_fini(&live);
}

static void test_idle_replicas_give_no_verdict_by_load(void **state)
{
        struct scene s = usual;
        struct sim_live live;
        struct sim_buf buf = {0};

        (void)state;
        s.covered_s = 36000;
        read_scene(&s, &live);
        assert_true(live.verdict.idle);
        assert_int_equal(live.verdict.by_load, SIM_VERDICT_NO);
        assert_true(isnan(live.verdict.even_load_month));
        assert_non_null(strstr(text_of(&live, sim_live_text, &buf), "too idle for a verdict by load"));
        sim_buf_fini(&buf);
        sim_live_fini(&live);
}

static void test_other_policies_are_not_judged(void **state)
{
        struct scene s = usual;
        struct sim_live live;
        struct sim_buf buf = {0};

        (void)state;
        s.policy = "round_robin";
        read_scene(&s, &live);
        assert_false(live.verdict.judged);
        assert_non_null(strstr(text_of(&live, sim_live_text, &buf), "this router runs round_robin"));
        assert_non_null(strstr(text_of(&live, sim_live_json, &buf), "\"by_work\":\"unknown\""));
        sim_live_fini(&live);
        s.policy = "kv";
        s.virtual_on = false;
        read_scene(&s, &live);
        assert_false(live.verdict.judged);
        assert_non_null(strstr(text_of(&live, sim_live_html, &buf), "--counterfactual"));
        sim_buf_fini(&buf);
        sim_live_fini(&live);
}

/* Round robin in force, and kv tried beside it: kv is judged, and what is in force stands among the rules. */
static void test_a_shadow_is_judged(void **state)
{
        struct scene s = usual;
        struct sim_live live;
        struct sim_buf buf = {0};

        (void)state;
        s.policy = "round_robin";
        s.won = s.observed = 4000000;
        s.shadow = 0.8;
        s.max_mean = 1;
        read_scene(&s, &live);
        const struct sim_live_verdict *v = &live.verdict;

        assert_true(v->judged && v->shadow);
        assert_int_equal(live.rule_count, 3);
        assert_string_equal(live.rules[0].what, "in force: as the requests were routed");
        assert_near(live.fact.reused, 0.8, 1e-9);
        assert_near(v->work_gain, 1.0 / 3, 1e-9); /* 2 M against prefix hash's 3 M */
        assert_int_equal(v->by_work, SIM_VERDICT_YES);
        assert_non_null(
                strstr(text_of(&live, sim_live_json, &buf), "It would be justified over every simpler rule"));
        assert_non_null(strstr(buf.data,
                               "This router runs round_robin, and 40.0 % of the prompt tokens were reused"));
        assert_non_null(strstr(buf.data, "it would have reused 80.0 %"));
        assert_non_null(strstr(text_of(&live, sim_live_html, &buf), "kv (shadow)"));
        sim_live_fini(&live);
        s.window = "1h"; /* of which kv's share is told apart */
        read_scene(&s, &live);
        assert_near(live.fact.reused, 0.75, 1e-9);
        assert_near(live.fact.avoided_s, 5, 1e-9);
        sim_buf_fini(&buf);
        sim_live_fini(&live);
}

static bool says(const struct sim_live *live, struct sim_buf *buf, const char *words)
{
        /* The text is wrapped; in JSON each sentence is one string. */
        return strstr(text_of(live, sim_live_json, buf), words) != NULL;
}

/* Under a policy that does not look at caches nothing was given up for anything. */
static void test_why_a_holder_was_not_chosen(void **state)
{
        struct scene s = usual;
        struct sim_live live;
        struct sim_buf buf = {0};

        (void)state;
        read_scene(&s, &live);
        assert_true(says(&live, &buf, "Lost: 1.0 % because another replica held it and was passed over,"));
        sim_live_fini(&live);
        s.policy = "least_requests";
        s.shadow = 0.8;
        read_scene(&s, &live);
        assert_true(says(&live, &buf,
                         "Lost as it was routed: 1.0 % because another replica held it and "
                         "least_requests does not look,"));
        assert_null(strstr(buf.data, "too busy"));
        assert_null(strstr(text_of(&live, sim_live_text, &buf), "given up"));
        assert_null(strstr(text_of(&live, sim_live_html, &buf), "given up"));
        assert_non_null(strstr(buf.data, "or by a policy that does not look"));
        sim_buf_fini(&buf);
        sim_live_fini(&live);
}

/* A mirror saw copies only: nothing of it is told as if it had been. */
static void test_a_mirror_predicts(void **state)
{
        static const char *const facts[] = {"were reused",    "came out of",          "were left",
                                            "was reused",     "tokens reused",        "computed 1",
                                            "no engine told", "as the requests were", "in force",
                                            "replicas hold ", "was not needed",       "prefilled"};
        struct scene s = usual;
        struct sim_live live;
        struct sim_buf buf = {0};

        (void)state;
        s.policy = "round_robin";
        s.won = 4000000;
        s.observed = 0;
        s.unobserved = 10000000;
        s.shadow = 0.8;
        s.mirror = true;
        read_scene(&s, &live);
        assert_true(live.verdict.judged && live.verdict.shadow && live.verdict.mirror);
        assert_true(says(&live, &buf,
                         "every figure here is predicted. round_robin would have reused 40.0 % of the "
                         "prompt tokens, kv, which is what is judged, 80.0 %."));
        assert_true(says(&live, &buf,
                         "40.0 % would have come out of caches, which would have saved 4.4 h of replica "
                         "time"));
        assert_true(says(&live, &buf, "Work: 2 M prompt tokens would be left to compute"));
        assert_true(says(&live, &buf, "the busiest replica would compute 1.10 times the mean with kv"));
        assert_true(says(&live, &buf,
                         "Would be lost: 1.0 % because another replica held it and round_robin does not "
                         "look"));
        assert_true(says(&live, &buf, "the replicas are said to hold"));
        assert_true(says(&live, &buf, "\"mirror\":true"));
        for (size_t i = 0; i < sizeof facts / sizeof *facts; i++) {
                assert_false(says(&live, &buf, facts[i]));
                assert_null(strstr(text_of(&live, sim_live_text, &buf), facts[i]));
                if (strcmp(facts[i], "tokens reused") != 0) /* the axis of a picture */
                        assert_null(strstr(text_of(&live, sim_live_html, &buf), facts[i]));
        }
        sim_buf_fini(&buf);
        sim_live_fini(&live);
}

/* No curve is kept of a minute: the hour's is told as such, and is not compared with the minute's reuse. */
static void test_the_curve_of_a_short_window(void **state)
{
        struct scene s = usual;
        struct sim_live live;
        struct sim_buf buf = {0};

        (void)state;
        s.window = "1m";
        s.covered_s = 60;
        s.avoided_ns = 16000000000;
        s.hour_won = 14000000;
        read_scene(&s, &live);
        assert_true(live.curve_apart);
        assert_near(live.fact.reused, 0.8, 1e-9);
        assert_near(live.surplus, 0, 0); /* 0.8 is more than nobody: the hour's 0.7 is less than its ideal */
        assert_true(says(&live, &buf,
                         "What follows of memory is of the last hour, not of what happened in the last "
                         "minute"));
        assert_true(says(&live, &buf, "better routing could add up to 14.6 points")); /* 84.6 less 70 */
        assert_true(says(&live, &buf, "\"curve\":{\"window\":\"1h\""));
        assert_non_null(strstr(text_of(&live, sim_live_html, &buf), "The line is of the last hour"));
        sim_live_fini(&live);
        /* What an hour found beyond its ideal is taken off the minute too, and no more. */
        s.hour_won = 15000000;
        s.ideal = 0.7;
        read_scene(&s, &live);
        assert_near(live.surplus, 0.05, 1e-9);
        assert_near(live.fact.reused, 0.75, 1e-9);
        assert_near(live.fact.computed, 2500000, 1e-3);
        sim_live_fini(&live);
        /* The hour had nothing but the minute: then it is the minute's. */
        s = usual;
        read_scene(&s, &live);
        assert_false(live.curve_apart);
        assert_false(says(&live, &buf, "of the last hour"));
        assert_true(says(&live, &buf, "\"curve\":{\"window\":\"life\""));
        sim_buf_fini(&buf);
        sim_live_fini(&live);
}

/* No engine tells, no speed is learned, no capacity is known: nothing of it is 0. */
static void test_unknown_stays_unknown(void **state)
{
        struct scene s = usual;
        struct sim_live live;
        struct sim_buf buf = {0};

        (void)state;
        s.observed = 0;
        s.unobserved = 10000000;
        s.avoided_ns = 0;
        s.capacity_known = false;
        read_scene(&s, &live);
        assert_true(isnan(sim_live_observed(&live.all.sums)) && isnan(live.pooled) &&
                    isnan(live.verdict.token_s));
        assert_false(live.verdict.idle);
        assert_non_null(strstr(text_of(&live, sim_live_text, &buf), "no engine told"));
        assert_non_null(strstr(buf.data, "Break-even: unknown"));
        assert_non_null(strstr(buf.data, "100 % of the prompt"));
        assert_non_null(strstr(text_of(&live, sim_live_json, &buf), "\"observed_share\":null"));
        assert_non_null(strstr(buf.data, "\"pooled\":null"));
        assert_non_null(strstr(buf.data, "saved an unknown amount of replica time"));
        assert_non_null(
                strstr(text_of(&live, sim_live_html, &buf), "No engine told what it had cached: unknown."));
        assert_null(strstr(buf.data, "nan"));
        sim_buf_fini(&buf);
        sim_live_fini(&live);
}

static void test_too_few_or_off(void **state)
{
        struct scene s = usual;
        struct sim_live live;
        char message[400];

        (void)state;
        s.computed = 50;
        fill(&s, &live);
        assert_int_equal(sim_live_read(&live, 200, message, sizeof message), SIM_LIVE_FEW);
        assert_non_null(strstr(message, "Come back after 150 more, in about 3.0 h"));
        sim_live_fini(&live);
        s.computed = 0;
        fill(&s, &live);
        assert_int_equal(sim_live_read(&live, 200, message, sizeof message), SIM_LIVE_FEW);
        assert_non_null(strstr(message, "Come back after 200 more (--min-requests"));
        sim_live_fini(&live);
        s.ledger_on = false;
        fill(&s, &live);
        assert_int_equal(sim_live_read(&live, 200, message, sizeof message), SIM_LIVE_OFF);
        assert_non_null(strstr(message, "--ledger on"));
        sim_live_fini(&live);
}

static void test_forms(void **state)
{
        struct sim_live live;
        struct sim_buf buf = {0};
        yyjson_doc *doc;

        (void)state;
        read_scene(&usual, &live);
        assert_string_equal(live.workloads.items[0].name, "<b>big</b>"); /* most tokens first */
        assert_near(live.pooled, 0.85 + (0.9 - 0.85) * log(100000 / 102400.0) / log(10.24), 0.02);
        live.price = 3;
        text_of(&live, sim_live_html, &buf);
        assert_null(strstr(buf.data, "<b>big"));
        assert_non_null(strstr(buf.data, "&lt;b&gt;big"));
        assert_non_null(strstr(buf.data, "look-ups &lt;find&gt; nothing"));
        assert_null(strstr(buf.data, "<script"));
        assert_null(strstr(buf.data, "nan"));
        assert_non_null(strstr(buf.data, "at 3.00 an hour"));
        text_of(&live, sim_live_json, &buf);
        doc = yyjson_read(buf.data, buf.len - 1, 0);
        assert_non_null(doc);
        yyjson_val *root = yyjson_doc_get_root(doc);

        assert_int_equal(yyjson_arr_size(yyjson_obj_get(root, "rules")), 4);
        assert_near(yyjson_get_num(yyjson_ptr_get(root, "/workloads/0/predicted_share")), 0.81, 1e-6);
        assert_near(yyjson_get_num(yyjson_ptr_get(root, "/workloads/0/observed_share")), 0.8, 1e-6);
        assert_string_equal(yyjson_get_str(yyjson_ptr_get(root, "/verdict/by_load")), "justified");
        yyjson_doc_free(doc);
        sim_buf_fini(&buf);
        sim_live_fini(&live);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_justified),
                cmocka_unit_test(test_no_surer_than_the_comparison),
                cmocka_unit_test(test_what_no_rule_could_find_is_left_out),
                cmocka_unit_test(test_one_replica_gives_no_verdict),
                cmocka_unit_test(test_not_justified),
                cmocka_unit_test(test_idle_replicas_give_no_verdict_by_load),
                cmocka_unit_test(test_other_policies_are_not_judged),
                cmocka_unit_test(test_a_shadow_is_judged),
                cmocka_unit_test(test_why_a_holder_was_not_chosen),
                cmocka_unit_test(test_a_mirror_predicts),
                cmocka_unit_test(test_the_curve_of_a_short_window),
                cmocka_unit_test(test_unknown_stays_unknown),
                cmocka_unit_test(test_too_few_or_off),
                cmocka_unit_test(test_forms),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
