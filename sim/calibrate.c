/* SPDX-License-Identifier: Apache-2.0 */
#include "calibrate.h"
#include "access_log.h"
#include "fit.h"
#include "stats.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define APART_S     0.002 /* the log's times are in milliseconds */
#define ANSWER_MIN  8     /* tokens: of shorter answers the time is mostly rounding */
#define BATCH_MIN   1.5   /* answers at once in one line from which on f can be told from e */
#define BESIDE_MAX  4096u /* requests beside one that are looked at */
#define FIRST_LINES 1024u

/* One request at one replica, in seconds since the first line ended. */
struct served {
        uint64_t replica;
        double start_s, first_s, end_s; /* first_s: end_s if there was no token, or no time was taken of it */
        double prompt, cached, completion; /* -1: not known */
        double at_once, context;           /* over the answer's time: mean of answers, of their tokens */
        bool prompt_alone, answer_alone;   /* the replica did nothing else, computed no prompt */
};

struct log {
        struct served *served;
        uint32_t count, room;
        double base_s;
        double lines;
        char *message;
        size_t message_size;
};

/* ---- reading ------------------------------------------------------------------------------------------ */

static bool reserve(struct log *log)
{
        uint32_t room = log->room ? log->room * 2 : FIRST_LINES;
        struct served *grown;

        if (log->count < log->room)
                return true;
        if (log->count >= SIM_CALIBRATE_LINES_MAX)
                return false;
        grown = realloc(log->served, room * sizeof(*grown));
        if (!grown)
                return false;
        log->served = grown;
        log->room = room;
        return true;
}

/* Whatever was at a replica is kept: it was beside others, even if it tells nothing itself. */
static const char *take(void *ctx, const struct sim_access_line *line)
{
        struct log *log = ctx;
        struct served *served;
        bool timed = line->answered && line->stream && line->ttft_s > 0 && line->ttft_s < line->total_s;
        double queue_s = fmax(line->queue_s, 0);

        log->lines++;
        if (!line->replica || line->total_s < 0)
                return NULL;
        if (!reserve(log))
                return "too many lines for the memory";
        served = &log->served[log->count];
        if (log->count == 0)
                log->base_s = line->end_s;
        *served = (struct served){
                .replica = line->replica,
                .end_s = line->end_s - log->base_s,
                .prompt = timed ? line->prompt : -1,
                .cached = timed && line->observed < line->prompt ? line->observed : -1,
                .completion = timed ? line->completion : -1,
        };
        served->start_s = served->end_s - fmax(line->total_s - queue_s, 0);
        served->first_s = timed ? served->end_s - (line->total_s - line->ttft_s) : served->end_s;
        served->first_s = fmax(served->first_s, served->start_s);
        log->count++;
        return NULL;
}

/* ---- what ran beside what ----------------------------------------------------------------------------- */

static int by_start(const void *a, const void *b)
{
        const struct served *x = a, *y = b;

        if (x->replica != y->replica)
                return x->replica < y->replica ? -1 : 1;
        return (x->start_s > y->start_s) - (x->start_s < y->start_s);
}

static double overlap(double a, double a_end, double b, double b_end)
{
        return fmin(a_end, b_end) - fmax(a, b);
}

/* Two requests of one replica, each beside the other. */
static void beside(struct served *a, const struct served *b)
{
        double both = overlap(a->first_s, a->end_s, b->first_s, b->end_s), all = a->end_s - a->first_s;

        if (overlap(a->start_s, a->first_s, b->start_s, b->end_s) > APART_S)
                a->prompt_alone = false;
        if (overlap(a->first_s, a->end_s, b->start_s, b->first_s) > APART_S)
                a->answer_alone = false;
        if (both > 0 && all > 0 && b->completion >= 0 && b->end_s > b->first_s) {
                double middle = (fmax(a->first_s, b->first_s) + fmin(a->end_s, b->end_s)) / 2;
                double part = (middle - b->first_s) / (b->end_s - b->first_s);

                a->at_once += both / all;
                a->context += both / all * (fmax(b->prompt, 0) + part * b->completion);
        }
}

static void look_beside(struct log *log)
{
        if (log->count)
                qsort(log->served, log->count, sizeof(*log->served), by_start);
        for (uint32_t i = 0; i < log->count; i++) {
                struct served *one = &log->served[i];

                one->prompt_alone = one->answer_alone = true;
                one->at_once = 1;
                one->context = fmax(one->prompt, 0) + fmax(one->completion, 0) / 2;
        }
        for (uint32_t i = 0; i < log->count; i++) {
                struct served *one = &log->served[i];
                uint32_t j = i + 1;

                for (; j < log->count && j - i < BESIDE_MAX && log->served[j].replica == one->replica &&
                       log->served[j].start_s < one->end_s;
                     j++) {
                        beside(one, &log->served[j]);
                        beside(&log->served[j], one);
                }
                if (j - i == BESIDE_MAX) /* nothing can be told of it */
                        one->prompt_alone = one->answer_alone = false;
        }
}

/* ---- the two fits ------------------------------------------------------------------------------------- */

static bool add_prompt(struct sim_fit *fit, const struct served *served, uint32_t step_tokens)
{
        double left = served->prompt - served->cached, context = served->cached;
        double row[4] = {0};

        while (left > 0) {
                double chunk = fmin(left, step_tokens);

                row[0] += 1;
                row[1] += chunk;
                row[2] += context;
                row[3] += chunk * context;
                left -= chunk;
                context += chunk;
        }
        return sim_fit_add(fit, row, (served->first_s - served->start_s) * 1e3);
}

static bool add_answer(struct sim_fit *fit, const struct served *served)
{
        double steps = served->completion - 1;
        const double row[3] = {steps, steps * served->context, steps * served->at_once};

        return sim_fit_add(fit, row, (served->end_s - served->first_s) * 1e3);
}

static bool is_prompt(const struct served *served)
{
        return served->prompt_alone && served->prompt > 0 && served->cached >= 0 &&
               served->first_s > served->start_s && served->prompt < 1e8;
}

static bool is_answer(const struct served *served)
{
        return served->answer_alone && served->completion >= ANSWER_MIN && served->prompt > 0 &&
               served->end_s > served->first_s;
}

static bool too_few(const struct log *log, double found, const char *what)
{
        if (found >= SIM_CALIBRATE_LINES_MIN)
                return false;
        snprintf(log->message, log->message_size,
                 "too little to calibrate with: of %u requests %.0f are %s; %u are needed", log->count, found,
                 what, SIM_CALIBRATE_LINES_MIN);
        return true;
}

static bool fit_prompts(const struct log *log, uint32_t step_tokens, struct sim_calibration *ret)
{
        static const char *const lacks[] = {
                "prompts are there none",
                ("how many tokens engines had to compute differs too little, so that the time of a step and "
                 "of "
                 "a token (a, b) cannot be told apart"),
                ("how many tokens were cached differs too little, so that the time of a cached token (c) "
                 "cannot "
                 "be told"),
                ("cached and computed tokens do not differ independently, so that what they cost together "
                 "(d) "
                 "cannot be told"),
        };
        struct sim_fit fit = {.columns = 4};
        double factors[SIM_FIT_COLUMNS_MAX];
        bool good = true;
        uint32_t lack;

        for (uint32_t i = 0; i < log->count && good; i++) {
                if (is_prompt(&log->served[i]))
                        good = add_prompt(&fit, &log->served[i], step_tokens);
        }
        ret->prompts = fit.count;
        if (!good)
                snprintf(log->message, log->message_size, "out of memory");
        else if (too_few(log, fit.count,
                         "streamed prompts with a known number of cached tokens beside which their replica "
                         "did "
                         "nothing else"))
                good = false;
        else if (!sim_fit_solve(&fit, factors, &lack)) {
                snprintf(log->message, log->message_size, "too little to calibrate with: in %u prompts %s",
                         fit.count, lack < 4 ? lacks[lack] : "there is not memory enough");
                good = false;
        } else {
                ret->cost.a = factors[0];
                ret->cost.b = factors[1];
                ret->cost.c = factors[2];
                ret->cost.d = factors[3];
                sim_fit_errors(&fit, factors, &ret->prompt_error, &ret->prompt_error90);
        }
        sim_fit_fini(&fit);
        return good;
}

static bool fit_answers(const struct log *log, struct sim_calibration *ret)
{
        static const char *const lacks[] = {
                "there are none",
                "their contexts are too much alike, so that the time of a step and of a token of context (e, "
                "g) "
                "cannot be told apart",
                "how many ran at once differs too little, so that the time of one more (f) cannot be told",
        };
        struct sim_fit fit = {.columns = 2};
        double factors[SIM_FIT_COLUMNS_MAX] = {0}, most = 0;
        bool good = true;
        uint32_t lack;

        for (uint32_t i = 0; i < log->count; i++) {
                if (is_answer(&log->served[i]))
                        most = fmax(most, log->served[i].at_once);
        }
        ret->batch = most >= BATCH_MIN;
        fit.columns += ret->batch;
        for (uint32_t i = 0; i < log->count && good; i++) {
                if (is_answer(&log->served[i]))
                        good = add_answer(&fit, &log->served[i]);
        }
        ret->answers = fit.count;
        if (!good)
                snprintf(log->message, log->message_size, "out of memory");
        else if (too_few(log, fit.count,
                         "streamed answers of 8 tokens and more beside which their replica computed no "
                         "prompt"))
                good = false;
        else if (!sim_fit_solve(&fit, factors, &lack)) {
                snprintf(log->message, log->message_size, "too little to calibrate with: of %u answers %s",
                         fit.count, lack < 3 ? lacks[lack] : "there is not memory enough");
                good = false;
        } else {
                ret->cost.e = factors[0];
                ret->cost.g = factors[1];
                ret->cost.f = ret->batch ? factors[2] : 0;
                sim_fit_errors(&fit, factors, &ret->answer_error, &ret->answer_error90);
        }
        sim_fit_fini(&fit);
        return good;
}

bool sim_calibrate(const char *path, uint32_t step_tokens, struct sim_calibration *ret, char *message,
                   size_t message_size)
{
        struct log log = {.message = message, .message_size = message_size};
        struct sim_calibration fit = {.cost = {.name = "calibrated", .help = "fitted to an access log"}};
        bool good = sim_access_read(path, take, &log, message, message_size);

        fit.lines = log.lines;
        if (good) {
                look_beside(&log);
                good = fit_prompts(&log, step_tokens, &fit) && fit_answers(&log, &fit);
                if (!good) {
                        size_t len = strnlen(message, message_size), at = strlen(path) + 2;

                        if (len + at < message_size) {
                                memmove(message + at, message, len + 1);
                                memcpy(message, path, at - 2);
                                memcpy(message + at - 2, ": ", 2);
                        }
                }
        }
        free(log.served);
        if (good)
                *ret = fit;
        return good;
}

/* ---- words -------------------------------------------------------------------------------------------- */

void sim_calibration_text(const struct sim_calibration *fit, const char *path, struct sim_buf *buf)
{
        const struct sim_cost *cost = &fit->cost;

        sim_buf_printf(buf, "calibrated from %s, %.0f lines\n", path, fit->lines);
        sim_buf_printf(
                buf,
                "  first token  %.4g ms + %.4g ms per token + %.4g us per cached token + %.4g ns per pair of "
                "both\n"
                "               of %.0f prompts half are within %.1f %%, nine in ten within %.1f %%\n",
                cost->a, cost->b, cost->c * 1e3, cost->d * 1e6, fit->prompts, fit->prompt_error * 100,
                fit->prompt_error90 * 100);
        sim_buf_printf(buf, "  other tokens %.4g ms + %.4g ms per answer + %.4g us per token of context%s\n",
                       cost->e, cost->f, cost->g * 1e3,
                       fit->batch ? "" : " (no two answers at once: the second is part of the first)");
        sim_buf_printf(buf,
                       "               of %.0f answers half are within %.1f %%, nine in ten within %.1f %%\n",
                       fit->answers, fit->answer_error * 100, fit->answer_error90 * 100);
        sim_buf_printf(buf, "  the same by hand: --cost a=%.6g,b=%.6g,c=%.6g,d=%.6g,e=%.6g,f=%.6g,g=%.6g\n",
                       cost->a, cost->b, cost->c, cost->d, cost->e, cost->f, cost->g);
}

void sim_calibration_json(const struct sim_calibration *fit, struct sim_buf *buf)
{
        const struct {
                const char *name;
                double value;
        } figures[] = {
                {"lines", fit->lines},
                {"prompts", fit->prompts},
                {"answers", fit->answers},
                {"prompt_error_p50", fit->prompt_error},
                {"prompt_error_p90", fit->prompt_error90},
                {"answer_error_p50", fit->answer_error},
                {"answer_error_p90", fit->answer_error90},
                {"a", fit->cost.a},
                {"b", fit->cost.b},
                {"c", fit->cost.c},
                {"d", fit->cost.d},
                {"e", fit->cost.e},
                {"f", fit->cost.f},
                {"g", fit->cost.g},
        };

        sim_buf_puts(buf, "{");
        for (size_t i = 0; i < sizeof(figures) / sizeof(figures[0]); i++) {
                sim_buf_printf(buf, "%s\"%s\":", i ? "," : "", figures[i].name);
                sim_number_json(buf, figures[i].value);
        }
        sim_buf_puts(buf, "}");
}
