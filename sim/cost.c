/* SPDX-License-Identifier: Apache-2.0 */
#include "cost.h"

#include <math.h>
#include <string.h>

/*
 * Prefill: the fits published with Preble (Llama-3-70B and Mistral-7B), the polynomial of Dynamo's
 * mocker, and the middle of the ranges that the llm-d inference simulator documents for an 8B model.
 * Decode of the Preble rows is not in the fits: e is the inter-token latency that llm-d documents for
 * that class, g the bytes of KV cache per token over the memory bandwidth (70B: 320 KiB over 6.7 and 4
 * TB/s; 7B: 128 KiB over 768 GB/s).
 */
static const struct sim_cost presets[] = {
        {
                .name = "llama3-70b-h100",
                .help = "Llama-3-70B on two H100 (Preble fit)",
                .a = 18.667,
                .b = 7.988e-2,
                .c = 2.685e-3,
                .d = 7.443e-7,
                .e = 18,
                .f = 0.04,
                .g = 4.9e-5,
        },
        {
                .name = "llama3-70b-a100",
                .help = "Llama-3-70B on two A100 (Preble fit)",
                .a = 28.931,
                .b = 1.822e-1,
                .c = 4.004e-3,
                .d = 2.551e-6,
                .e = 36,
                .f = 0.08,
                .g = 8.2e-5,
        },
        {
                .name = "mistral-7b-a6000",
                .help = "Mistral-7B on one A6000 (Preble fit)",
                .a = 4.21 + 0.159,
                .b = 0.108,
                .c = 1.86e-4,
                .prefill_min = 22,
                .e = 20,
                .f = 0.1,
                .g = 1.7e-4,
        },
        {
                .name = "llama3-8b-h100",
                .help = "Llama-3-8B on one H100 (middle of llm-d's ranges)",
                .a = 32.5,
                .b = 0.225,
                .e = 12.5,
                .f = 0.02,
                .g = 3.9e-5,
        },
        {
                .name = "dynamo",
                .help = "the default polynomial of Dynamo's mocker",
                .a = 16.50142,
                .b = 1.518344e-2,
                .q = 4.209989e-7,
                .e = 5.74,
                .h = 54.01,
                .i = -25.74,
                .decode_min = 1,
        },
};

double sim_cost_step_ms(const struct sim_cost *cost, const struct sim_step *step)
{
        double base = 0, prefill = 0, decode = 0;

        if (step->chunks) {
                base = cost->a;
                prefill = cost->b * step->new_tokens + cost->c * step->context_tokens +
                          cost->d * step->cross + cost->q * step->new_tokens * step->new_tokens;
                prefill = fmax(prefill, cost->prefill_min - cost->a);
        }
        if (step->decodes) {
                decode = cost->f * step->decodes + cost->g * step->decode_context + cost->h * step->usage +
                         cost->i * step->usage * step->usage;
                decode = fmax(decode, cost->decode_min - cost->e);
                base = fmax(base, cost->e);
        }
        return base + prefill + decode;
}

void sim_cost_decode_init(const struct sim_cost *cost, const struct sim_step *step,
                          struct sim_cost_decode *ret)
{
        *ret = (struct sim_cost_decode){
                .base = fmax(0, cost->e),
                .least = cost->decode_min - cost->e,
                .batch = cost->f * step->decodes,
                .usage = cost->h * step->usage,
                .usage2 = cost->i * step->usage * step->usage,
                .g = cost->g,
        };
}

double sim_cost_prefill_ms(const struct sim_cost *cost, double new_tokens, double context)
{
        struct sim_step step = {
                .chunks = 1,
                .new_tokens = new_tokens,
                .context_tokens = context,
                .cross = new_tokens * context,
        };

        return sim_cost_step_ms(cost, &step);
}

const struct sim_cost *sim_cost_preset(size_t number)
{
        return number < sizeof(presets) / sizeof(presets[0]) ? &presets[number] : NULL;
}

const struct sim_cost *sim_cost_find(const char *name)
{
        for (size_t i = 0; i < sizeof(presets) / sizeof(presets[0]); i++) {
                if (strcmp(presets[i].name, name) == 0)
                        return &presets[i];
        }
        return NULL;
}
