/* SPDX-License-Identifier: Apache-2.0 */
/* Inside engine/ only: the rows, one per file, and what the parsers share. */
#ifndef KVROUTE_ENGINE_ROWS_H
#define KVROUTE_ENGINE_ROWS_H

#include "engine.h"
#include "proto/prom.h"

#include <yyjson.h>

extern const struct engine_traits engine_row_vllm, engine_row_sglang, engine_row_llamacpp, engine_row_trtllm,
        engine_row_tgi, engine_row_lmdeploy, engine_row_ollama, engine_row_openai;

/* The rules that all engines share; a row's own judge_health calls it for what it does not know better. */
enum engine_health engine_judge_default(const char *path, unsigned status, struct kvr_slice body);

/* A page is read into a fresh load, which then is merged: figures it has replace, others are left. */
void engine_load_merge(struct engine_load *into, const struct engine_load *page);

/* The entry of a rank (made when new); rank < 0, or no room: the sum itself. */
struct engine_rank_load *engine_load_rank(struct engine_load *page, int rank);
/* Fills the sum from the ranks. True if anything is known at all. */
bool engine_load_finish(struct engine_load *page);

/* Figures: unknown + v = v. Not finite or negative values are ignored. */
void engine_figure_add(double *figure, double v);
void engine_figure_max(double *figure, double v);
void engine_figure_set(double *figure, double v);

/* The rank a label names, -1 if the label is absent or no small number. */
int engine_rank_of(const struct prom_sample *sample, const char *label);

/* JSON: a number member as double, -1 if it is absent or no number. */
double engine_json_number(yyjson_val *object, const char *key);
/* A boolean member as 1 or 0, -1 if absent. */
double engine_json_bool(yyjson_val *object, const char *key);
/* Body to document, NULL if it is not JSON. Free with yyjson_doc_free. */
yyjson_doc *engine_json_read(struct kvr_slice body);

/* Whether the text contains the words, ASCII case included. */
bool engine_text_has(struct kvr_slice text, const char *words);

#endif
