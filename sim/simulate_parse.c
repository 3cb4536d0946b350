/* SPDX-License-Identifier: Apache-2.0 */
/* Values on the command line of kvroute simulate. */
#include "simulate.h"
#include "options.h"

#include <math.h>

/* The next word of a list with commas; false at its end, or when it is too long or empty. */
static bool next_word(const char **at, char *ret, size_t size)
{
        size_t len = strcspn(*at, ",");

        if (len == 0 || len >= size)
                return false;
        memcpy(ret, *at, len);
        ret[len] = 0;
        *at += len;
        if (**at == ',') {
                (*at)++;
                return **at != 0;
        }
        return true;
}

bool sim_simulate_counts(const char *text, uint32_t min, uint32_t max, bool endless, uint32_t *ret,
                         uint32_t *ret_count)
{
        uint32_t count = 0;
        char word[24];

        while (*text) {
                uint64_t value;

                if (!next_word(&text, word, sizeof(word)) || count == SIM_SIMULATE_LIST_MAX)
                        return false;
                if (endless && strcmp(word, "inf") == 0)
                        value = 0;
                else if (!sim_parse_count(word, &value) || value < min || value > max)
                        return false;
                ret[count++] = (uint32_t)value;
        }
        *ret_count = count;
        return count > 0;
}

bool sim_simulate_numbers(const char *text, double min, double max, double *ret, uint32_t *ret_count)
{
        uint32_t count = 0;
        char word[32];

        while (*text) {
                double value;

                if (!next_word(&text, word, sizeof(word)) || count == SIM_SIMULATE_LIST_MAX ||
                    !sim_parse_number(word, &value) || value < min || value > max)
                        return false;
                ret[count++] = value;
        }
        *ret_count = count;
        return count > 0;
}

bool sim_simulate_seconds(const char *text, double *ret)
{
        double value;

        if (!sim_parse_seconds(text, &value) && !sim_parse_number(text, &value))
                return false;
        if (value < 0)
                return false;
        *ret = value;
        return true;
}

bool sim_simulate_outage(const char *text, size_t len, struct sim_des_outage *ret)
{
        char word[64], *at, *dash;
        uint64_t replica;

        if (len >= sizeof(word))
                return false;
        memcpy(word, text, len);
        word[len] = 0;
        at = strchr(word, '@');
        if (!at)
                return false;
        *at++ = 0;
        dash = strchr(at, '-');
        if (dash)
                *dash++ = 0;
        *ret = (struct sim_des_outage){0};
        if (!sim_parse_count(word, &replica) || replica >= SIM_DES_REPLICAS_MAX ||
            !sim_simulate_seconds(at, &ret->from_s) ||
            (dash && (!sim_simulate_seconds(dash, &ret->to_s) || ret->to_s <= ret->from_s)))
                return false;
        ret->replica = (uint32_t)replica;
        return true;
}

bool sim_simulate_restart(const char *text, size_t len, struct sim_des_outage *ret)
{
        struct sim_des_outage outage;

        if (!sim_simulate_outage(text, len, &outage) || outage.to_s > 0)
                return false;
        outage.restart = true;
        *ret = outage;
        return true;
}

static double *figure_of(struct sim_cost *cost, const char *name)
{
        const struct {
                const char *name;
                double *figure;
        } figures[] = {
                {"a", &cost->a},
                {"b", &cost->b},
                {"c", &cost->c},
                {"d", &cost->d},
                {"e", &cost->e},
                {"f", &cost->f},
                {"g", &cost->g},
                {"h", &cost->h},
                {"i", &cost->i},
                {"q", &cost->q},
                {"prefill_min", &cost->prefill_min},
                {"decode_min", &cost->decode_min},
        };

        for (size_t i = 0; i < sizeof(figures) / sizeof(figures[0]); i++) {
                if (strcmp(figures[i].name, name) == 0)
                        return figures[i].figure;
        }
        return NULL;
}

bool sim_simulate_cost(const char *text, struct sim_cost *cost)
{
        struct sim_cost made = *cost;
        char word[64];

        while (*text) {
                double value, *figure;
                char *equals;

                if (!next_word(&text, word, sizeof(word)))
                        return false;
                equals = strchr(word, '=');
                if (!equals)
                        return false;
                *equals = 0;
                figure = figure_of(&made, word);
                if (!figure || !sim_parse_number(equals + 1, &value) || fabs(value) > 1e6)
                        return false;
                /* A polynomial may bend down; all else takes time or none. */
                if (value < 0 && figure != &made.i && figure != &made.h)
                        return false;
                *figure = value;
        }
        *cost = made;
        return true;
}
