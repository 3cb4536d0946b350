/* SPDX-License-Identifier: Apache-2.0 */
#include "fit.h"

#include <math.h>
#include <stdlib.h>

#define FIRST_LINES 256u
#define ROUNDS      4
#define FAR         4.0  /* times the median error is far outside ... */
#define NEAR        0.01 /* ... unless it is below this share of the figure */
/* Square of the share of a column that the ones before it cannot make. */
#define DIFFERS 1e-3

void sim_fit_fini(struct sim_fit *fit)
{
        free(fit->lines);
        *fit = (struct sim_fit){0};
}

bool sim_fit_add(struct sim_fit *fit, const double *figures, double y)
{
        uint32_t width = fit->columns + 1;
        double *line;

        if (fit->count == fit->room) {
                uint32_t room = fit->room ? fit->room * 2 : FIRST_LINES;
                double *grown = realloc(fit->lines, (size_t)room * width * sizeof(*grown));

                if (!grown)
                        return false;
                fit->lines = grown;
                fit->room = room;
        }
        line = fit->lines + (size_t)fit->count++ * width;
        for (uint32_t i = 0; i < fit->columns; i++)
                line[i] = figures[i];
        line[fit->columns] = y;
        return true;
}

static const double *line_of(const struct sim_fit *fit, uint32_t number)
{
        return fit->lines + (size_t)number * (fit->columns + 1);
}

static double error_of(const struct sim_fit *fit, const double *factors, uint32_t number)
{
        const double *line = line_of(fit, number);
        double sum = 0;

        for (uint32_t i = 0; i < fit->columns; i++)
                sum += factors[i] * line[i];
        return fabs(line[fit->columns] - sum) / line[fit->columns];
}

/* Sums of products of the columns in use, each line over its y; the last row and column are those of y. */
struct sums {
        double of[SIM_FIT_COLUMNS_MAX + 1][SIM_FIT_COLUMNS_MAX + 1];
};

static void sum_up(const struct sim_fit *fit, const double *errors, double most, struct sums *ret)
{
        uint32_t width = fit->columns + 1;

        *ret = (struct sums){0};
        for (uint32_t number = 0; number < fit->count; number++) {
                const double *line = line_of(fit, number);
                double weight = 1 / (line[fit->columns] * line[fit->columns]);

                if (errors && errors[number] > most)
                        continue;
                for (uint32_t i = 0; i < width; i++) {
                        for (uint32_t j = 0; j < width; j++)
                                ret->of[i][j] += weight * line[i] * line[j];
                }
        }
}

/*
 * Gaussian elimination over the columns in `used`. With a lack the column's number, else the count of
 * columns. Sums of squares are positive on the diagonal, so no pivot has to be looked for.
 */
static uint32_t eliminate(const struct sums *sums, uint32_t columns, const bool *used, double *ret)
{
        double m[SIM_FIT_COLUMNS_MAX][SIM_FIT_COLUMNS_MAX + 1];
        uint32_t of[SIM_FIT_COLUMNS_MAX] = {0}, count = 0;

        for (uint32_t i = 0; i < columns; i++) {
                ret[i] = 0;
                if (used[i])
                        of[count++] = i;
        }
        for (uint32_t i = 0; i < count; i++) {
                for (uint32_t j = 0; j < count; j++)
                        m[i][j] = sums->of[of[i]][of[j]];
                m[i][count] = sums->of[of[i]][columns];
        }
        for (uint32_t i = 0; i < count; i++) {
                if (m[i][i] <= DIFFERS * sums->of[of[i]][of[i]])
                        return of[i];
                for (uint32_t row = i + 1; row < count; row++) {
                        double times = m[row][i] / m[i][i];

                        for (uint32_t j = i; j <= count; j++)
                                m[row][j] -= times * m[i][j];
                }
        }
        for (uint32_t i = count; i-- > 0;) {
                double sum = m[i][count];

                for (uint32_t j = i + 1; j < count; j++)
                        sum -= m[i][j] * ret[of[j]];
                ret[of[i]] = sum / m[i][i];
        }
        return columns;
}

/* The most negative factor is 0, and the others are found anew without it, until none is negative. */
static uint32_t solve(const struct sums *sums, uint32_t columns, double *ret)
{
        bool used[SIM_FIT_COLUMNS_MAX];

        for (uint32_t i = 0; i < columns; i++)
                used[i] = true;
        for (;;) {
                uint32_t lack = eliminate(sums, columns, used, ret), worst = columns;
                double least = 0;

                if (lack < columns)
                        return lack;
                for (uint32_t i = 0; i < columns; i++) {
                        /* By what it contributes, not by its unit. */
                        double share = ret[i] * sqrt(sums->of[i][i]);

                        if (share < least) {
                                least = share;
                                worst = i;
                        }
                }
                if (worst == columns)
                        return columns;
                used[worst] = false;
        }
}

static int by_size(const void *a, const void *b)
{
        const double *x = a, *y = b;

        return (*x > *y) - (*x < *y);
}

static double *errors_new(const struct sim_fit *fit)
{
        return malloc((fit->count ? fit->count : 1) * sizeof(double));
}

static double percentile(const double *sorted, uint32_t count, double p)
{
        return count ? sorted[(uint32_t)(p * (count - 1))] : (double)NAN;
}

bool sim_fit_solve(const struct sim_fit *fit, double *ret_factors, uint32_t *ret_lack)
{
        double *errors = errors_new(fit), *sorted = errors_new(fit), most = 0;
        uint32_t lack = SIM_FIT_NO_MEMORY;

        for (int round = 0; round < ROUNDS && errors && sorted; round++) {
                struct sums sums;

                sum_up(fit, round ? errors : NULL, most, &sums);
                lack = solve(&sums, fit->columns, ret_factors);
                if (lack < fit->columns)
                        break;
                for (uint32_t i = 0; i < fit->count; i++)
                        errors[i] = sorted[i] = error_of(fit, ret_factors, i);
                qsort(sorted, fit->count, sizeof(*sorted), by_size);
                most = fmax(FAR * percentile(sorted, fit->count, 0.5), NEAR);
        }
        free(errors);
        free(sorted);
        *ret_lack = lack;
        return lack == fit->columns;
}

void sim_fit_errors(const struct sim_fit *fit, const double *factors, double *ret_p50, double *ret_p90)
{
        double *errors = errors_new(fit);

        *ret_p50 = *ret_p90 = (double)NAN;
        if (!errors)
                return;
        for (uint32_t i = 0; i < fit->count; i++)
                errors[i] = error_of(fit, factors, i);
        qsort(errors, fit->count, sizeof(*errors), by_size);
        *ret_p50 = percentile(errors, fit->count, 0.5);
        *ret_p90 = percentile(errors, fit->count, 0.9);
        free(errors);
}
