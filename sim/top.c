/* SPDX-License-Identifier: Apache-2.0 */
#include "top_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NAME_MAX_COLUMNS 30

const char *sim_top_path(enum sim_top_page page)
{
        static const char *const paths[] = {
#define PATH(code, path) path,
                SIM_TOP_PAGE_LIST(PATH)
#undef PATH
        };

        return paths[page];
}

void sim_top_fini(struct sim_top *top)
{
        for (size_t i = 0; i < SIM_TOP_PAGES; i++)
                yyjson_doc_free(top->pages[i]);
        *top = (struct sim_top){0};
}

/* ---- reading ---- */

yyjson_val *top_page(const struct sim_top *top, enum sim_top_page page)
{
        return yyjson_doc_get_root(top->pages[page]);
}

/* NAN: unknown. */
double top_number(yyjson_val *object, const char *key)
{
        yyjson_val *value = yyjson_obj_get(object, key);

        return yyjson_is_num(value) ? yyjson_get_num(value) : NAN;
}

const char *top_string(yyjson_val *object, const char *key)
{
        const char *text = yyjson_get_str(yyjson_obj_get(object, key));

        return text ? text : "";
}

static yyjson_val *accounts_of(const struct sim_top *top, enum sim_top_page page, const char *kind)
{
        return yyjson_obj_get(yyjson_obj_get(top_page(top, page), "accounts"), kind);
}

yyjson_val *top_sums(yyjson_val *account, const char *window)
{
        return yyjson_obj_get(yyjson_obj_get(account, "windows"), window);
}

/* ---- text that is safe on a terminal ---- */

/* Bytes of the UTF-8 sequence at text that may be shown; 0: it may not. *ret_skip: to go on behind it. */
static size_t shown(const unsigned char *text, size_t *ret_skip)
{
        size_t len = text[0] < 0x80 ? 1 : text[0] >= 0xf0 ? 4 : text[0] >= 0xe0 ? 3 : text[0] >= 0xc2 ? 2 : 0;
        uint32_t code = len > 1 ? text[0] & (0x7fu >> len) : text[0];

        *ret_skip = 1;
        if (len == 0)
                return 0;
        for (size_t i = 1; i < len; i++) {
                if ((text[i] & 0xc0) != 0x80)
                        return 0;
                code = code << 6 | (text[i] & 0x3f);
        }
        *ret_skip = len;
        /* Controls, what has no width, and what turns the direction of writing. */
        if (code < 0x20 || (code >= 0x7f && code < 0xa0) || (code >= 0x200b && code <= 0x200f) ||
            (code >= 0x2028 && code <= 0x202e) || (code >= 0x2060 && code <= 0x206f) || code == 0xfeff)
                return 0;
        return len;
}

/* At most max columns of it; returns how many were used. A character counts as one column. */
static unsigned add_shown(struct sim_buf *out, const char *text, unsigned max)
{
        const unsigned char *at = (const unsigned char *)text;
        unsigned columns = 0;

        for (size_t skip; *at && columns < max; at += skip, columns++) {
                size_t len = shown(at, &skip);

                sim_buf_add(out, len ? (const char *)at : "?", len ? len : 1);
        }
        return columns;
}

/* ---- numbers ---- */

static struct top_cell count(double n)
{
        static const struct {
                double size;
                const char *name;
        } units[] = {{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}};
        struct top_cell cell = {"?"};

        if (!isfinite(n))
                return cell;
        for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
                double x = n / units[i].size;

                if (x >= 0.9995) {
                        snprintf(cell.text, sizeof cell.text, "%.*f%s",
                                 x >= 99.95   ? 0
                                 : x >= 9.995 ? 1
                                              : 2,
                                 x, units[i].name);
                        return cell;
                }
        }
        snprintf(cell.text, sizeof cell.text, "%.0f", n);
        return cell;
}

struct top_cell top_percent(double part, double whole)
{
        struct top_cell cell = {"?"};

        if (isfinite(part) && whole > 0)
                snprintf(cell.text, sizeof cell.text, "%.1f%%", 100 * part / whole);
        return cell;
}

struct top_cell top_seconds(double s)
{
        struct top_cell cell = {"?"};

        if (isfinite(s) && s < 1)
                snprintf(cell.text, sizeof cell.text, "%.0fms", s * 1000);
        else if (isfinite(s))
                snprintf(cell.text, sizeof cell.text, "%.*f%s", s < 100 ? 1 : 2,
                         s < 100    ? s
                         : s < 6000 ? s / 60
                                    : s / 3600,
                         s < 100    ? "s"
                         : s < 6000 ? "min"
                                    : "h");
        return cell;
}

struct top_cell top_factor(double x)
{
        struct top_cell cell = {"?"};

        if (isfinite(x))
                snprintf(cell.text, sizeof cell.text, "%.2fx", x);
        return cell;
}

/* ---- lines ---- */

void top_put(struct top_screen *s, const char *text)
{
        unsigned room = s->look->width ? s->look->width - s->column : UINT32_MAX;

        s->column += add_shown(s->out, text, room);
}

static void style(struct top_screen *s, const char *code)
{
        if (s->look->colour)
                sim_buf_printf(s->out, "\033[%sm", code);
}

void top_put_styled(struct top_screen *s, const char *code, const char *text)
{
        style(s, code);
        top_put(s, text);
        style(s, "0");
}

void top_end_line(struct top_screen *s)
{
        sim_buf_puts(s->out, "\n");
        s->column = 0;
}

/* A cell of `width` columns and a blank; names to the left, figures to the right. */
void top_put_name(struct top_screen *s, const char *name, unsigned width)
{
        struct sim_buf cut = {0};
        unsigned used = add_shown(&cut, name, width);

        sim_buf_add(&cut, "", 1);
        top_put(s, cut.failed ? "?" : cut.data);
        sim_buf_fini(&cut);
        for (; used < width + 1; used++)
                top_put(s, " ");
}

void top_put_cell(struct top_screen *s, struct top_cell cell, int width)
{
        char padded[TOP_CELL_MAX * 2];

        snprintf(padded, sizeof padded, "%*s ", width, cell.text);
        top_put(s, padded);
}

static struct top_cell word(const char *text)
{
        struct top_cell cell;

        snprintf(cell.text, sizeof cell.text, "%s", text);
        return cell;
}

static void head(struct top_screen *s, const char *name, unsigned width, const char *const *names,
                 const int *widths, size_t count)
{
        style(s, "1");
        top_put_name(s, name, width);
        for (size_t i = 0; i < count; i++)
                top_put_cell(s, word(names[i]), widths[i]);
        style(s, "0");
        top_end_line(s);
}

static unsigned widest(yyjson_val *list, const char *title)
{
        unsigned width = (unsigned)strlen(title);
        yyjson_val *item;
        size_t i, max;

        yyjson_arr_foreach(list, i, max, item)
        {
                unsigned len = (unsigned)strlen(top_string(item, "name"));

                width = len > width ? len : width;
        }
        return width < NAME_MAX_COLUMNS ? width : NAME_MAX_COLUMNS;
}

/* ---- the parts of the screen ---- */

static void show_head(struct top_screen *s)
{
        yyjson_val *list = top_page(s->top, SIM_TOP_REPLICAS), *replica;
        size_t i, max, ready = 0;
        char line[160];

        yyjson_arr_foreach(list, i, max, replica)
        {
                const char *state = top_string(replica, "state");

                ready += strcmp(state, "ready") == 0 || strcmp(state, "trial") == 0;
        }
        top_put_styled(s, "1", "kvroute");
        top_put(s, " ");
        top_put(s, s->look->url);
        snprintf(line, sizeof line, "  %zu of %zu replicas ready, figures of %s", ready,
                 yyjson_arr_size(list),
                 strcmp(s->look->window, "life") == 0 ? "all time since start" : "the last ");
        top_put(s, line);
        if (strcmp(s->look->window, "life") != 0)
                top_put(s, s->look->window);
        top_end_line(s);
}

static void show_alarms(struct top_screen *s)
{
        yyjson_val *list = yyjson_obj_get(top_page(s->top, SIM_TOP_ALARMS), "alarms"), *alarm;
        size_t i, max;

        if (!yyjson_arr_size(list)) {
                top_put(s, "no alarms");
                top_end_line(s);
        }
        yyjson_arr_foreach(list, i, max, alarm)
        {
                const char *replica = top_string(alarm, "replica");

                style(s, "1;31");
                top_put(s, "! ");
                top_put(s, top_string(alarm, "alarm"));
                top_put(s, " ");
                top_put(s, *replica ? replica : "(fleet)");
                top_put(s, " for ");
                top_put(s, top_seconds(top_number(alarm, "for_s")).text);
                style(s, "0");
                top_put(s, ": ");
                top_put(s, top_string(alarm, "text"));
                top_end_line(s);
        }
        top_end_line(s);
}

/* ---- the account ---- */

/* Of replica time; NAN while what was reused has no price, for nothing is known of how fast replicas are. */
static double avoided_s(yyjson_val *sums)
{
        double ns = top_number(sums, "avoided_ns");

        return ns <= 0 && top_number(sums, "won_tokens") > 0 ? (double)NAN : ns / 1e9;
}

static void show_account(struct top_screen *s)
{
        yyjson_val *sums =
                top_sums(yyjson_arr_get_first(accounts_of(s->top, SIM_TOP_ALL, "all")), s->look->window);
        double prompt = top_number(sums, "prompt_tokens"),
               told = prompt - top_number(sums, "unobserved_prompt_tokens");
        double avoided = avoided_s(sums), span = top_number(sums, "covered_s");
        char line[400];

        if (!sums || !(prompt > 0)) {
                top_put(s, accounts_of(s->top, SIM_TOP_ALL, "all") ? "no prompt was computed in this time"
                                                                   : "the ledger is switched off");
                top_end_line(s);
                return;
        }
        snprintf(line, sizeof line,
                 top_is_mirror(s->top)
                         ? "would have been reused %s of %s prompt tokens, %s of replica time avoided"
                         : "reused %s of %s prompt tokens, %s of replica time avoided",
                 top_percent(top_number(sums, "won_tokens"), prompt).text, count(prompt).text,
                 top_seconds(avoided).text);
        top_put_styled(s, "1;32", line);
        if (span > 0 && isfinite(avoided)) {
                snprintf(line, sizeof line, " (as %.2f more replicas)", avoided / span);
                top_put(s, line);
        }
        top_end_line(s);
        snprintf(line, sizeof line,
                 "held elsewhere %s, expected but gone %s, new %s; predicted %s, observed %s",
                 top_percent(top_number(sums, "placement_tokens"), prompt).text,
                 top_percent(top_number(sums, "staleness_tokens"), prompt).text,
                 top_percent(top_number(sums, "workload_tokens"), prompt).text,
                 top_percent(top_number(sums, "predicted_tokens") - top_number(sums, "won_unobserved_tokens"),
                             told)
                         .text,
                 top_percent(top_number(sums, "observed_tokens"), told).text);
        top_put(s, line);
        top_end_line(s);
}

static void show_rule(struct top_screen *s, const char *name, yyjson_val *account, const char *balance,
                      unsigned width, const int *widths)
{
        yyjson_val *sums = top_sums(account, s->look->window);
        yyjson_val *spread =
                yyjson_obj_get(yyjson_obj_get(top_page(s->top, SIM_TOP_VIRTUAL), "balance"), balance);

        top_put_name(s, name, width);
        top_put_cell(s, top_percent(top_number(sums, "won_tokens"), top_number(sums, "prompt_tokens")),
                     widths[0]);
        top_put_cell(s, top_seconds(avoided_s(sums)), widths[1]);
        top_put_cell(s, top_factor(top_number(yyjson_obj_get(spread, "computed_tokens"), "max_mean")),
                     widths[2]);
        top_end_line(s);
}

static void show_rules(struct top_screen *s)
{
        static const char *const names[] = {"REUSED", "AVOIDED", "BUSIEST/MEAN"};
        static const int widths[] = {8, 9, 13};
        yyjson_val *list = accounts_of(s->top, SIM_TOP_VIRTUAL, "virtual"), *rule;
        const char *ours = top_is_mirror(s->top)
                                   ? top_string(yyjson_obj_get(top_shadow(s->top), "actual"), "policy")
                                   : "this router";
        unsigned width = widest(list, strlen(ours) > strlen("this router") ? ours : "this router");
        size_t i, max;

        if (!yyjson_arr_size(list))
                return;
        top_end_line(s);
        head(s, "RULE", width, names, widths, 3);
        show_rule(s, ours, yyjson_arr_get_first(accounts_of(s->top, SIM_TOP_ALL, "all")), "real", width,
                  widths);
        top_show_shadow_rule(s, width, widths);
        yyjson_arr_foreach(list, i, max, rule)
        {
                show_rule(s, top_string(rule, "name"), rule, top_string(rule, "name"), width, widths);
        }
}

/* The account with most prompt tokens of those that were not taken yet; NULL: none with a request is left. */
static yyjson_val *next_busiest(yyjson_val *list, const char *window, bool *taken)
{
        yyjson_val *account, *best = NULL;
        size_t i, max, at = 0;

        yyjson_arr_foreach(list, i, max, account)
        {
                yyjson_val *sums = top_sums(account, window);

                if (!taken[i] && top_number(sums, "requests") > 0 &&
                    (!best || top_number(sums, "prompt_tokens") >
                                      top_number(top_sums(best, window), "prompt_tokens"))) {
                        best = account;
                        at = i;
                }
        }
        if (best)
                taken[at] = true;
        return best;
}

static void show_workload(struct top_screen *s, yyjson_val *account, unsigned width, const int *widths)
{
        static const char *const parts[] = {"won_tokens", "placement_tokens", "staleness_tokens",
                                            "workload_tokens"};
        yyjson_val *sums = top_sums(account, s->look->window);
        double prompt = top_number(sums, "prompt_tokens");

        top_put_name(s, top_string(account, "name"), width);
        top_put_cell(s, count(top_number(sums, "requests")), widths[0]);
        top_put_cell(s, count(prompt), widths[1]);
        for (size_t i = 0; i < 4; i++)
                top_put_cell(s, top_percent(top_number(sums, parts[i]), prompt), widths[2 + i]);
        top_put_cell(s, top_seconds(avoided_s(sums)), widths[6]);
        top_end_line(s);
}

static void show_workloads(struct top_screen *s)
{
        static const char *const names[] = {"REQUESTS", "PROMPT", "REUSED", "ELSEWHERE",
                                            "GONE",     "NEW",    "AVOIDED"};
        static const int widths[] = {9, 8, 8, 10, 8, 8, 9};
        yyjson_val *list = accounts_of(s->top, SIM_TOP_WORKLOAD, "workload"), *account;
        unsigned width = widest(list, "WORKLOAD"), lines = 0, limit = s->look->workloads;
        bool *taken = calloc(yyjson_arr_size(list) + 1, sizeof *taken);

        while (taken && (!limit || lines < limit) && (account = next_busiest(list, s->look->window, taken))) {
                if (lines++ == 0) {
                        top_end_line(s);
                        head(s, "WORKLOAD", width, names, widths, 7);
                }
                show_workload(s, account, width, widths);
        }
        free(taken);
}

/* What it said of itself before it fell silent is no figure of now. */
static double told(yyjson_val *replica, const char *key)
{
        yyjson_val *known = yyjson_obj_get(replica, "load_known");
        bool silent = strcmp(top_string(replica, "state"), "down") == 0 || yyjson_is_false(known);

        return silent ? NAN : top_number(replica, key);
}

static void show_replica(struct top_screen *s, yyjson_val *replica, unsigned width, const int *widths)
{
        const char *state = top_string(replica, "state");
        yyjson_val *alarms = yyjson_obj_get(replica, "alarms"), *alarm;
        size_t i, max;

        top_put_name(s, top_string(replica, "name"), width);
        style(s, strcmp(state, "ready") == 0 ? "32" : strcmp(state, "down") == 0 ? "31" : "33");
        top_put_cell(s, word(state), widths[0]);
        style(s, "0");
        top_put_cell(s, count(top_number(replica, "in_flight")), widths[1]);
        top_put_cell(s, count(told(replica, "running")), widths[2]);
        top_put_cell(s, count(told(replica, "waiting")), widths[3]);
        top_put_cell(s, top_percent(told(replica, "kv_usage"), 1), widths[4]);
        top_put_cell(s, count(top_number(replica, "capacity_tokens")), widths[5]);
        top_put_cell(s, top_percent(top_number(replica, "trust"), 1), widths[6]);
        yyjson_arr_foreach(alarms, i, max, alarm)
        {
                top_put(s, i ? "," : " ! ");
                top_put(s, yyjson_get_str(alarm) ? yyjson_get_str(alarm) : "?");
        }
        top_end_line(s);
}

static void show_replicas(struct top_screen *s)
{
        static const char *const names[] = {"STATE",   "IN FLIGHT", "RUNNING", "WAITING",
                                            "KV USED", "CAPACITY",  "TRUST"};
        static const int widths[] = {9, 10, 8, 8, 8, 9, 8};
        yyjson_val *list = top_page(s->top, SIM_TOP_REPLICAS), *replica;
        unsigned width = widest(list, "REPLICA");
        size_t i, max;

        top_end_line(s);
        head(s, "REPLICA", width, names, widths, 7);
        yyjson_arr_foreach(list, i, max, replica)
        {
                show_replica(s, replica, width, widths);
        }
}

void sim_top_text(const struct sim_top *top, const struct sim_top_look *look, struct sim_buf *ret)
{
        struct top_screen screen = {.top = top, .look = look, .out = ret};

        show_head(&screen);
        show_alarms(&screen);
        show_account(&screen);
        top_show_shadow(&screen);
        show_rules(&screen);
        show_workloads(&screen);
        show_replicas(&screen);
}

/* ---- for scripts ---- */

static void add_copy(yyjson_mut_doc *doc, yyjson_mut_val *object, const char *key, yyjson_val *value)
{
        yyjson_mut_val *copy = value ? yyjson_val_mut_copy(doc, value) : NULL;

        yyjson_mut_obj_add_val(doc, object, key, copy ? copy : yyjson_mut_null(doc));
}

bool sim_top_json(const struct sim_top *top, const char *window, struct sim_buf *ret)
{
        yyjson_mut_doc *doc = yyjson_mut_doc_new(NULL);
        yyjson_mut_val *root = doc ? yyjson_mut_obj(doc) : NULL, *accounts = doc ? yyjson_mut_obj(doc) : NULL;
        size_t len = 0;
        char *text = NULL;

        if (root && accounts) {
                yyjson_mut_doc_set_root(doc, root);
                yyjson_mut_obj_add_str(doc, root, "window", window);
                add_copy(doc, root, "replicas", top_page(top, SIM_TOP_REPLICAS));
                add_copy(doc, root, "alarms", yyjson_obj_get(top_page(top, SIM_TOP_ALARMS), "alarms"));
                add_copy(doc, accounts, "all", accounts_of(top, SIM_TOP_ALL, "all"));
                add_copy(doc, accounts, "workload", accounts_of(top, SIM_TOP_WORKLOAD, "workload"));
                add_copy(doc, accounts, "virtual", accounts_of(top, SIM_TOP_VIRTUAL, "virtual"));
                yyjson_mut_obj_add_val(doc, root, "accounts", accounts);
                add_copy(doc, root, "balance", yyjson_obj_get(top_page(top, SIM_TOP_ALL), "balance"));
                add_copy(doc, root, "shadow", yyjson_obj_get(top_page(top, SIM_TOP_ALL), "shadow"));
                add_copy(doc, root, "reasons", yyjson_obj_get(top_page(top, SIM_TOP_ALL), "reasons"));
                text = yyjson_mut_write(doc, 0, &len);
        }
        if (text) {
                sim_buf_add(ret, text, len);
                sim_buf_puts(ret, "\n");
        }
        free(text);
        yyjson_mut_doc_free(doc);
        return text && !ret->failed;
}
