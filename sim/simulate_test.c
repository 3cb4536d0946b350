/* SPDX-License-Identifier: Apache-2.0 */
#include "simulate.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <yyjson.h>

#include <cmocka.h>

static void lists_are_read_and_checked(void **state)
{
        uint32_t counts[SIM_SIMULATE_LIST_MAX], count = 0;
        double numbers[SIM_SIMULATE_LIST_MAX];
        char many[4 * SIM_SIMULATE_LIST_MAX] = "";

        (void)state;
        assert_true(sim_simulate_counts("8,16,1024", 1, 1024, false, counts, &count));
        assert_int_equal(count, 3);
        assert_true(counts[0] == 8 && counts[1] == 16 && counts[2] == 1024);
        assert_true(sim_simulate_counts("4000,inf", 1, 5000, true, counts, &count));
        assert_true(count == 2 && counts[1] == 0);
        assert_false(sim_simulate_counts("", 1, 5, false, counts, &count));
        assert_false(sim_simulate_counts("1,", 1, 5, false, counts, &count));
        assert_false(sim_simulate_counts(",1", 1, 5, false, counts, &count));
        assert_false(sim_simulate_counts("1,,2", 1, 5, false, counts, &count));
        assert_false(sim_simulate_counts("0", 1, 5, false, counts, &count));
        assert_false(sim_simulate_counts("6", 1, 5, false, counts, &count));
        assert_false(sim_simulate_counts("1.5", 1, 5, false, counts, &count));
        assert_false(sim_simulate_counts("inf", 1, 5, false, counts, &count));
        assert_true(sim_simulate_numbers("0.5,1e1", 0.1, 10, numbers, &count));
        assert_true(count == 2 && numbers[0] == 0.5 && numbers[1] == 10);
        assert_false(sim_simulate_numbers("0.05", 0.1, 10, numbers, &count));
        assert_false(sim_simulate_numbers("1 ", 0.1, 10, numbers, &count));
        for (uint32_t i = 0; i < SIM_SIMULATE_LIST_MAX; i++)
                snprintf(many + 2 * i, sizeof(many) - 2 * i, "1,");
        many[2 * SIM_SIMULATE_LIST_MAX - 1] = 0;
        assert_true(sim_simulate_counts(many, 1, 5, false, counts, &count));
        assert_int_equal(count, SIM_SIMULATE_LIST_MAX);
        snprintf(many + 2 * SIM_SIMULATE_LIST_MAX - 1, 3, ",1");
        assert_false(sim_simulate_counts(many, 1, 5, false, counts, &count));
}

static void times_have_a_unit_or_are_seconds(void **state)
{
        double seconds = 0;

        (void)state;
        assert_true(sim_simulate_seconds("7200", &seconds) && seconds == 7200);
        assert_true(sim_simulate_seconds("2h", &seconds) && seconds == 7200);
        assert_true(sim_simulate_seconds("1.5", &seconds) && seconds == 1.5);
        assert_false(sim_simulate_seconds("-1", &seconds));
        assert_false(sim_simulate_seconds("2d", &seconds));
        assert_false(sim_simulate_seconds("", &seconds));
}

static void outages_are_read_and_checked(void **state)
{
        static const char *const bad[] = {"",      "3",     "@5",   "3@",     "3@x",     "3@5-",
                                          "3@5-5", "3@5-4", "-1@5", "1024@5", "3@5-9-10"};
        struct sim_des_outage outage;

        (void)state;
        assert_true(sim_simulate_outage("3@600-900,1@5", 9, &outage));
        assert_true(outage.replica == 3 && outage.from_s == 600 && outage.to_s == 900);
        assert_true(sim_simulate_outage("0@1.5", 5, &outage));
        assert_true(outage.replica == 0 && outage.from_s == 1.5 && outage.to_s == 0);
        for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
                assert_false(sim_simulate_outage(bad[i], strlen(bad[i]), &outage));
        assert_true(sim_simulate_restart("3@10m,1@5", 5, &outage));
        assert_true(outage.replica == 3 && outage.from_s == 600 && outage.restart);
        assert_false(sim_simulate_restart("3@5-9", 5, &outage));
        assert_false(sim_simulate_restart("3", 1, &outage));
}

/* ---- forms -------------------------------------------------------------------------------------------- */

static void rows_make(struct sim_simulate_row rows[2])
{
        sim_simulate_row_init(&rows[0]);
        sim_simulate_row_init(&rows[1]);
        rows[0].trace = rows[1].trace = "a \"b\",c";
        rows[0].policy = "kv";
        rows[1].policy = "round_robin";
        rows[0].replicas = rows[1].replicas = 8;
        rows[0].capacity_blocks = 4000;
        rows[0].hit_rate = 0.123456;
        rows[1].hit_rate = 0.5;
        rows[0].ttft_p90 = 1234.5;
        rows[0].max_over_mean = 1.25;
}

static void a_table_shows_what_there_is(void **state)
{
        struct sim_simulate_row rows[2];
        struct sim_buf buf = {0};

        (void)state;
        rows_make(rows);
        sim_simulate_print(rows, 2, SIM_SIMULATE_TABLE, &buf);
        assert_false(buf.failed);
        sim_buf_add(&buf, "", 1);
        assert_string_equal(buf.data, "policy      replicas   blocks    hit     p90 req m/m\n"
                                      "kv                 8     4000 0.1235 1234.50    1.25\n"
                                      "round_robin        8      inf 0.5000       -       -\n");
        sim_buf_fini(&buf);
        rows[1].trace = "d";
        sim_simulate_print(rows, 2, SIM_SIMULATE_TABLE, &buf);
        sim_buf_add(&buf, "", 1);
        assert_memory_equal(buf.data, "trace    policy", 15);
        sim_buf_fini(&buf);
}

static void json_has_all_figures(void **state)
{
        struct sim_simulate_row rows[2];
        struct sim_buf buf = {0};
        yyjson_val *list, *row, *ttft;
        yyjson_doc *doc;

        (void)state;
        rows_make(rows);
        sim_simulate_print(rows, 2, SIM_SIMULATE_JSON, &buf);
        doc = yyjson_read(buf.data, buf.len, 0);
        assert_non_null(doc);
        list = yyjson_obj_get(yyjson_doc_get_root(doc), "rows");
        assert_int_equal(yyjson_arr_size(list), 2);
        row = yyjson_arr_get(list, 0);
        assert_string_equal(yyjson_get_str(yyjson_obj_get(row, "trace")), "a \"b\",c");
        assert_string_equal(yyjson_get_str(yyjson_obj_get(row, "policy")), "kv");
        assert_int_equal(yyjson_get_uint(yyjson_obj_get(row, "replicas")), 8);
        assert_int_equal(yyjson_get_uint(yyjson_obj_get(row, "capacity_blocks")), 4000);
        assert_true(yyjson_get_num(yyjson_obj_get(row, "hit_rate")) == 0.123456);
        assert_true(yyjson_is_null(yyjson_obj_get(row, "load")));
        ttft = yyjson_obj_get(row, "ttft_s");
        assert_int_equal(yyjson_obj_size(ttft), 4);
        assert_true(yyjson_get_num(yyjson_obj_get(ttft, "p90")) == 1234.5);
        assert_true(yyjson_is_null(yyjson_obj_get(ttft, "mean")));
        assert_true(yyjson_is_obj(yyjson_obj_get(row, "busy")));
        assert_true(yyjson_get_num(yyjson_obj_get(row, "max_over_mean")) == 1.25);
        assert_true(yyjson_is_null(yyjson_obj_get(yyjson_arr_get(list, 1), "capacity_blocks")));
        yyjson_doc_free(doc);
        sim_buf_fini(&buf);
}

static unsigned commas(const char *line)
{
        unsigned count = 0;
        bool quoted = false;

        for (; *line && *line != '\n'; line++) {
                quoted = quoted != (*line == '"');
                count += !quoted && *line == ',';
        }
        return count;
}

static void csv_has_as_many_fields_as_its_head(void **state)
{
        struct sim_simulate_row rows[2];
        struct sim_buf buf = {0};
        const char *first, *second;

        (void)state;
        rows_make(rows);
        sim_simulate_print(rows, 2, SIM_SIMULATE_CSV, &buf);
        sim_buf_add(&buf, "", 1);
        first = strchr(buf.data, '\n') + 1;
        second = strchr(first, '\n') + 1;
        assert_memory_equal(buf.data, "trace,policy,replicas,capacity_blocks,block_tokens,load,", 56);
        assert_non_null(strstr(buf.data, ",ttft_s_mean,ttft_s_p50,ttft_s_p90,ttft_s_p99,"));
        assert_memory_equal(first, "\"a \"\"b\"\",c\",kv,8,4000,0,,", 25);
        assert_int_equal(commas(first), commas(buf.data));
        assert_int_equal(commas(second), commas(buf.data));
        sim_buf_fini(&buf);
}

/* ---- pool --------------------------------------------------------------------------------------------- */

struct tasks {
        _Atomic uint32_t times[500];
        uint32_t fails; /* the number of the task that does; UINT32_MAX none */
};

static bool task(void *ctx, uint32_t number, _Atomic uint64_t *progress)
{
        struct tasks *tasks = ctx;

        atomic_fetch_add(&tasks->times[number], 1);
        atomic_fetch_add(progress, 1);
        return number != tasks->fails;
}

static void every_task_runs_once(void **state)
{
        static const uint32_t threads[] = {1, 3, 64};

        (void)state;
        for (size_t i = 0; i < 3; i++) {
                struct tasks tasks = {.fails = UINT32_MAX};
                struct sim_pool pool = {.tasks = 500,
                                        .threads = threads[i],
                                        .run = task,
                                        .ctx = &tasks,
                                        .title = "test",
                                        .total = 500,
                                        .quiet = true};

                assert_true(sim_pool_run(&pool));
                for (size_t at = 0; at < 500; at++)
                        assert_int_equal(tasks.times[at], 1);
        }
}

static void a_failure_ends_the_rest(void **state)
{
        struct tasks tasks = {.fails = 3};
        struct sim_pool pool = {.tasks = 500,
                                .threads = 1,
                                .run = task,
                                .ctx = &tasks,
                                .title = "test",
                                .total = 500,
                                .quiet = true};

        (void)state;
        assert_false(sim_pool_run(&pool));
        assert_int_equal(tasks.times[3], 1);
        assert_int_equal(tasks.times[4], 0);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(lists_are_read_and_checked),
                cmocka_unit_test(times_have_a_unit_or_are_seconds),
                cmocka_unit_test(outages_are_read_and_checked),
                cmocka_unit_test(a_table_shows_what_there_is),
                cmocka_unit_test(json_has_all_figures),
                cmocka_unit_test(csv_has_as_many_fields_as_its_head),
                cmocka_unit_test(every_task_runs_once),
                cmocka_unit_test(a_failure_ends_the_rest),
        };

        cmocka_set_message_output(CM_OUTPUT_TAP);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
