/* SPDX-License-Identifier: Apache-2.0 */
#include "fault.h"

#include <stdio.h>
#include <yyjson.h>

enum field_type {
        FIELD_NUMBER,
        FIELD_FLAG,
        FIELD_WORD,
        FIELD_TEXT,
};

struct field {
        const char *name;
        enum field_type type;
        size_t offset;
        uint32_t max;
        uint32_t unset;    /* the value that means "not set": not written */
        const char *words; /* in the order of the enum */
};

#define NUMBER(name, max, unset)                                                        \
        {                                                                               \
#name, FIELD_NUMBER, offsetof(struct sim_fault, name), max, unset, NULL \
        }
#define WORD(name, words)                                                        \
        {                                                                        \
#name, FIELD_WORD, offsetof(struct sim_fault, name), 0, 0, words \
        }

static const struct field fields[] = {
        NUMBER(skip, UINT32_MAX - 1, 0),
        NUMBER(count, UINT32_MAX - 1, SIM_FAULT_NEVER),
        NUMBER(delay_head_ms, 86400000, 0),
        NUMBER(chunk_delay_ms, 86400000, 0),
        NUMBER(stall_after_tokens, UINT32_MAX - 1, SIM_FAULT_NEVER),
        NUMBER(stall_ms, 86400000, 0),
        NUMBER(error_after_tokens, UINT32_MAX - 1, SIM_FAULT_NEVER),
        NUMBER(status, 599, 0),
        NUMBER(retry_after, 86400, SIM_FAULT_NEVER),
        WORD(cut, "none|reset|close|mid_chunk"),
        WORD(cut_at, "request|head|tokens"),
        NUMBER(cut_after_tokens, UINT32_MAX - 1, 0),
        {"hang", FIELD_FLAG, offsetof(struct sim_fault, hang), 0, 0, NULL},
        WORD(health, "ok|error|hang"),
        WORD(metrics, "ok|error|hang|frozen"),
        WORD(models, "ok|error|hang"),
        NUMBER(refuse_ms, 86400000, 0),
        {"body", FIELD_TEXT, offsetof(struct sim_fault, body), SIM_FAULT_BODY_MAX - 1, 0, NULL},
};

void sim_fault_init(struct sim_fault *fault)
{
        *fault = (struct sim_fault){
                .count = SIM_FAULT_NEVER,
                .stall_after_tokens = SIM_FAULT_NEVER,
                .error_after_tokens = SIM_FAULT_NEVER,
                .retry_after = SIM_FAULT_NEVER,
        };
}

static bool word_number(const char *words, struct kvr_slice word, uint32_t *ret)
{
        uint32_t number = 0;

        for (const char *at = words; *at; number++) {
                size_t len = strcspn(at, "|");

                if (len == word.len && memcmp(at, word.data, len) == 0) {
                        *ret = number;
                        return true;
                }
                at += len + (at[len] == '|');
        }
        return false;
}

static bool set_field(struct sim_fault *fault, const struct field *field, yyjson_val *value, char *message,
                      size_t size)
{
        char *at = (char *)fault + field->offset;
        struct kvr_slice text = {yyjson_get_str(value), yyjson_get_len(value)};
        uint32_t word;

        switch (field->type) {
        case FIELD_NUMBER:
                if (!yyjson_is_uint(value) || yyjson_get_uint(value) > field->max)
                        break;
                *(uint32_t *)(void *)at = (uint32_t)yyjson_get_uint(value);
                return true;
        case FIELD_FLAG:
                if (!yyjson_is_bool(value))
                        break;
                *(bool *)at = yyjson_get_bool(value);
                return true;
        case FIELD_WORD:
                if (!yyjson_is_str(value) || !word_number(field->words, text, &word))
                        break;
                memcpy(at, &word, sizeof(word)); /* enums are unsigned ints here */
                return true;
        case FIELD_TEXT:
                if (!yyjson_is_str(value) || text.len > field->max)
                        break;
                memcpy(at, text.data, text.len);
                at[text.len] = 0;
                return true;
        }
        if (field->words)
                snprintf(message, size, "%s must be one of %s", field->name, field->words);
        else if (field->type == FIELD_NUMBER)
                snprintf(message, size, "%s must be a whole number up to %u", field->name, field->max);
        else
                snprintf(message, size, "%s must be %s", field->name,
                         field->type == FIELD_FLAG ? "true or false" : "a short string");
        return false;
}

static const struct field *field_of(yyjson_val *key)
{
        for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
                if (yyjson_equals_str(key, fields[i].name))
                        return &fields[i];
        }
        return NULL;
}

bool sim_fault_parse(struct sim_fault *ret, struct kvr_slice json, char *message, size_t size)
{
        yyjson_doc *doc = yyjson_read(json.data, json.len, 0);
        yyjson_val *root = yyjson_doc_get_root(doc), *key;
        yyjson_obj_iter iter;
        struct sim_fault fault;
        bool good = yyjson_is_obj(root);

        sim_fault_init(&fault);
        if (!good)
                snprintf(message, size, "a fault is a JSON object, for example {\"delay_head_ms\":500}");
        else
                iter = yyjson_obj_iter_with(root);
        while (good && (key = yyjson_obj_iter_next(&iter))) {
                const struct field *field = field_of(key);

                if (field) {
                        good = set_field(&fault, field, yyjson_obj_iter_get_val(key), message, size);
                } else {
                        snprintf(message, size, "there is no fault named '%.64s'", yyjson_get_str(key));
                        good = false;
                }
        }
        yyjson_doc_free(doc);
        if (good)
                *ret = fault;
        return good;
}

bool sim_fault_active(const struct sim_fault *fault)
{
        return fault->delay_head_ms || fault->chunk_delay_ms ||
               fault->stall_after_tokens != SIM_FAULT_NEVER || fault->error_after_tokens != SIM_FAULT_NEVER ||
               fault->status || fault->cut != SIM_CUT_NONE || fault->hang;
}

void sim_fault_write(const struct sim_fault *fault, struct sim_buf *buf)
{
        const char *separator = "";

        sim_buf_puts(buf, "{");
        for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
                const struct field *field = &fields[i];
                const char *at = (const char *)fault + field->offset, *word = field->words;
                uint32_t number;

                if (field->type == FIELD_TEXT ? !*at : field->type == FIELD_FLAG && !*(const bool *)at)
                        continue;
                if (field->type == FIELD_TEXT) {
                        sim_buf_printf(buf, "%s\"%s\":", separator, field->name);
                        sim_buf_json(buf, sim_slice(at));
                } else if (field->type == FIELD_FLAG) {
                        sim_buf_printf(buf, "%s\"%s\":true", separator, field->name);
                } else {
                        memcpy(&number, at, sizeof(number));
                        if (number == field->unset)
                                continue;
                        sim_buf_printf(buf, "%s\"%s\":", separator, field->name);
                        if (field->type == FIELD_NUMBER) {
                                sim_buf_printf(buf, "%u", number);
                        } else {
                                for (; number; number--)
                                        word += strcspn(word, "|") + 1;
                                sim_buf_printf(buf, "\"%.*s\"", (int)strcspn(word, "|"), word);
                        }
                }
                separator = ",";
        }
        sim_buf_puts(buf, "}");
}
