/* SPDX-License-Identifier: Apache-2.0 */
#include "models.h"

#include <stddef.h>

#define PROBES 8
#define UNITS_KEPT \
        (16.0 * 1024 * 1024) /* the sums stand for about this much text, so the ratio can still move */
#define RATIO_MIN         0.02
#define RATIO_MAX         1.5
#define ANSWER_YIELD_STEP (1.0 / 8)
#define LENGTH_STEP       (1.0 / 128)
#define LENGTH_FIRST_MAX  4096.0   /* tokens that the first answer counts at most */
#define LENGTH_OUTLIER    8.0      /* times the mean, that a later one does */
#define LENGTH_MAX        131072.0 /* the mean */

void kvr__models_init(struct kvr__models *models, double default_ratio)
{
        *models = (struct kvr__models){.default_ratio = default_ratio};
}

const struct kvr__model *kvr__models_find(const struct kvr__models *models, uint64_t key)
{
        key |= !key;
        for (uint64_t i = 0; i < PROBES; i++) {
                const struct kvr__model *model = &models->places[(key + i) % KVR__MODELS];

                if (model->key == key)
                        return model;
        }
        return NULL;
}

struct kvr__model *kvr__models_get(struct kvr__models *models, uint64_t key)
{
        struct kvr__model *oldest = NULL;

        key |= !key;
        models->clock++;
        for (uint64_t i = 0; i < PROBES; i++) {
                struct kvr__model *model = &models->places[(key + i) % KVR__MODELS];

                if (model->key == key) {
                        model->used = models->clock;
                        return model;
                }
                if (!oldest || model->used < oldest->used)
                        oldest = model;
        }
        *oldest = (struct kvr__model){.key = key, .used = models->clock, .answer_yield = 1, .seen = 1};
        return oldest;
}

double kvr__model_ratio(const struct kvr__models *models, const struct kvr__model *model)
{
        return model && model->units > 0 ? model->tokens / model->units : models->default_ratio;
}

void kvr__model_learn(struct kvr__model *model, uint32_t tokens, uint32_t units)
{
        double ratio = units ? (double)tokens / units : 0;

        if (ratio < RATIO_MIN || ratio > RATIO_MAX)
                return;
        model->tokens += tokens;
        model->units += units;
        if (model->units > UNITS_KEPT) {
                model->tokens /= 2;
                model->units /= 2;
        }
}

void kvr__model_learn_length(struct kvr__model *model, double tokens)
{
        double most = model->answer_tokens > 0 ? model->answer_tokens * LENGTH_OUTLIER : LENGTH_FIRST_MAX;

        /* Whatever one engine says of one answer, waits everywhere hang on it. */
        if (tokens > most)
                tokens = most;
        model->answer_tokens +=
                model->answer_tokens > 0 ? (tokens - model->answer_tokens) * LENGTH_STEP : tokens;
        if (model->answer_tokens > LENGTH_MAX)
                model->answer_tokens = LENGTH_MAX;
}

void kvr__model_learn_answer(struct kvr__model *model, double credited, double found)
{
        double share = found <= 0 ? 0 : found >= credited ? 1 : found / credited;

        model->answer_yield += (share - model->answer_yield) * ANSWER_YIELD_STEP;
}
