/* SPDX-License-Identifier: Apache-2.0 */
/* What a shadow adds to the screen: the policy that answers beside the one that only looks on. */
#include "top_int.h"

#include <math.h>
#include <string.h>

yyjson_val *top_shadow(const struct sim_top *top)
{
        yyjson_val *shadow = yyjson_obj_get(top_page(top, SIM_TOP_ALL), "shadow");

        return yyjson_is_obj(shadow) ? shadow : NULL;
}

bool top_is_mirror(const struct sim_top *top)
{
        return strcmp(top_string(top_shadow(top), "mode"), "mirror") == 0;
}

/* Both sides in the window. */
static yyjson_val *shadow_sums(const struct sim_top *top, const char *window)
{
        yyjson_val *accounts = yyjson_obj_get(top_shadow(top), "accounts");

        return top_sums(yyjson_arr_get_first(yyjson_obj_get(accounts, "all")), window);
}

unsigned sim_top_shadow_lines(const struct sim_top *top)
{
        return top_shadow(top) ? 2 : 0;
}

void top_show_shadow(struct top_screen *s)
{
        yyjson_val *sums = shadow_sums(s->top, s->look->window);
        double less = top_number(sums, "kv_avoided_s") - top_number(sums, "actual_avoided_s");
        const char *policy = top_string(yyjson_obj_get(top_shadow(s->top), "actual"), "policy");
        bool mirror = top_is_mirror(s->top);
        char line[300];

        if (!top_shadow(s->top))
                return;
        if (!(top_number(sums, "prompt_tokens") > 0)) {
                top_put(s, mirror ? "mirror: no copy of a request in this time"
                                  : "shadow: nothing to compare yet");
                top_end_line(s);
                return;
        }
        snprintf(line, sizeof line, "%s: kv would have reused %s, %.40s %s %s", mirror ? "mirror" : "shadow",
                 top_percent(top_number(sums, "kv_hit_rate"), 1).text, policy, mirror ? "would have" : "did",
                 top_percent(top_number(sums, "actual_hit_rate"), 1).text);
        top_put_styled(s, "1", line);
        if (isfinite(less)) {
                snprintf(line, sizeof line, "; %s of replica time %s%s", top_seconds(fabs(less)).text,
                         less < 0 ? "more" : "less", mirror ? ", all of it predicted" : "");
                top_put(s, line);
        }
        top_end_line(s);
}

void top_show_shadow_rule(struct top_screen *s, unsigned width, const int *widths)
{
        yyjson_val *sums = shadow_sums(s->top, s->look->window);
        yyjson_val *balance = yyjson_obj_get(yyjson_obj_get(top_shadow(s->top), "kv"), "balance");

        if (!top_shadow(s->top))
                return;
        top_put_name(s, "kv (shadow)", width);
        top_put_cell(s, top_percent(top_number(sums, "kv_hit_rate"), 1), widths[0]);
        top_put_cell(s, top_seconds(top_number(sums, "kv_avoided_s")), widths[1]);
        top_put_cell(s, top_factor(top_number(yyjson_obj_get(balance, "computed_tokens"), "max_mean")),
                     widths[2]);
        top_end_line(s);
}
