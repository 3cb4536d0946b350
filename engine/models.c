/* SPDX-License-Identifier: Apache-2.0 */
#include "models.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>
#include <yyjson.h>

/* Numbers stay text, so that an entry leaves as it came. */
#define READ_FLAGS YYJSON_READ_NUMBER_AS_RAW

static enum kvr_status fail(struct kvr_error *err, enum kvr_status status, size_t offset, const char *format,
                            ...) KVR_PRINTF(4, 5);

static enum kvr_status fail(struct kvr_error *err, enum kvr_status status, size_t offset, const char *format,
                            ...)
{
        va_list args;

        if (!err)
                return status;
        *err = (struct kvr_error){.status = status, .offset = offset};
        va_start(args, format);
        vsnprintf(err->message, sizeof err->message, format, args);
        va_end(args);
        return status;
}

static struct kvr_slice text_of(yyjson_val *val)
{
        if (!yyjson_is_str(val))
                return (struct kvr_slice){"", 0};
        return (struct kvr_slice){yyjson_get_str(val), yyjson_get_len(val)};
}

static int64_t whole_number(yyjson_val *val)
{
        const char *text = yyjson_get_raw(val);
        char *end;

        if (!text)
                return -1;
        errno = 0;
        long long n = strtoll(text, &end, 10);
        return errno == 0 && n >= 0 && (*end < '0' || *end > '9') && *end != '.' && *end != 'e' && *end != 'E'
                       ? n
                       : -1;
}

const struct engine_model *engine_models_find(const struct engine_models *models, struct kvr_slice id)
{
        for (size_t i = 0; i < models->count; i++)
                if (models->items[i].id.len == id.len &&
                    memcmp(models->items[i].id.data, id.data, id.len) == 0)
                        return &models->items[i];
        return NULL;
}

static void add_model(struct engine_models *models, yyjson_val *entry)
{
        struct kvr_slice id = text_of(yyjson_obj_get(entry, "id"));

        if (id.len == 0 || id.len >= KVR_NAME_MAX || models->count == ENGINE_MODELS_MAX ||
            engine_models_find(models, id)) {
                models->left_out++;
                return;
        }
        models->items[models->count++] = (struct engine_model){
                .id = id,
                .root = text_of(yyjson_obj_get(entry, "root")),
                .parent = text_of(yyjson_obj_get(entry, "parent")),
                .max_model_len = whole_number(yyjson_obj_get(entry, "max_model_len")),
        };
}

enum kvr_status engine_models_parse(struct kvr_slice body, struct engine_models **ret, struct kvr_error *err)
{
        yyjson_read_err bad;
        yyjson_val *entry;
        size_t i, n;

        if (body.len > ENGINE_MODELS_BODY_MAX)
                return fail(err, KVR_E_LIMIT, 0, "model list has %zu bytes, at most %d are read", body.len,
                            ENGINE_MODELS_BODY_MAX);
        yyjson_doc *doc = yyjson_read_opts((char *)(uintptr_t)body.data, body.len, READ_FLAGS, NULL, &bad);
        if (!doc && bad.code == YYJSON_READ_ERROR_MEMORY_ALLOCATION)
                return fail(err, KVR_E_NOMEM, 0, "out of memory reading a model list");
        if (!doc)
                return fail(err, KVR_E_JSON, bad.pos, "model list is not JSON: %s", bad.msg);
        yyjson_val *data = yyjson_obj_get(yyjson_doc_get_root(doc), "data");
        if (!yyjson_is_arr(data)) {
                yyjson_doc_free(doc);
                return fail(err, KVR_E_REQUEST, 0, "model list has no array \"data\"");
        }
        struct engine_models *models = calloc(1, sizeof *models);
        if (!models) {
                yyjson_doc_free(doc);
                return fail(err, KVR_E_NOMEM, 0, "out of memory for a model list");
        }
        models->doc = doc;
        yyjson_arr_foreach(data, i, n, entry) add_model(models, entry);
        *ret = models;
        return KVR_OK;
}

void engine_models_free(struct engine_models *models)
{
        if (!models)
                return;
        yyjson_doc_free(models->doc);
        free(models);
}

/* ---- union ------------------------------------------------------------------------------------------ */

/* Ids seen, with their entry in the union: open addressing, at most half full. */
struct seen {
        struct {
                struct kvr_slice id;
                yyjson_val *entry;
        } * slots;
        size_t mask;
};

static bool seen_init(struct seen *seen, size_t ids)
{
        size_t size = 16;

        while (size < 2 * ids)
                size *= 2;
        seen->slots = calloc(size, sizeof *seen->slots);
        seen->mask = size - 1;
        return seen->slots != NULL;
}

/* The slot of this id, or the free one where it belongs. */
static size_t seen_find(const struct seen *seen, struct kvr_slice id)
{
        size_t i = XXH3_64bits(id.data, id.len) & seen->mask;

        while (seen->slots[i].id.len != 0 &&
               (seen->slots[i].id.len != id.len || memcmp(seen->slots[i].id.data, id.data, id.len) != 0))
                i = (i + 1) & seen->mask;
        return i;
}

static bool append(yyjson_mut_doc *out, yyjson_mut_val *list, yyjson_val *entry,
                   const struct kvr_slice *new_id)
{
        yyjson_mut_val *copy = yyjson_val_mut_copy(out, entry);

        if (!copy)
                return false;
        if (new_id) {
                yyjson_mut_val *id = yyjson_mut_obj_get(copy, "id");

                if (!id || !yyjson_mut_set_strn(id, new_id->data, new_id->len))
                        return false;
        }
        return yyjson_mut_arr_append(list, copy);
}

static bool add_list(yyjson_mut_doc *out, yyjson_mut_val *list, struct seen *seen,
                     const struct engine_models *models)
{
        yyjson_val *data = yyjson_obj_get(yyjson_doc_get_root(models->doc), "data"), *entry;
        size_t i, n;

        yyjson_arr_foreach(data, i, n, entry)
        {
                struct kvr_slice id = text_of(yyjson_obj_get(entry, "id"));

                /* Only what was taken into the list: the others cannot be routed. */
                if (id.len == 0 || id.len >= KVR_NAME_MAX || !engine_models_find(models, id))
                        continue;
                size_t slot = seen_find(seen, id);
                if (seen->slots[slot].id.len != 0)
                        continue;
                seen->slots[slot].id = id;
                seen->slots[slot].entry = entry;
                if (!append(out, list, entry, NULL))
                        return false;
        }
        return true;
}

static bool add_alias(yyjson_mut_doc *out, yyjson_mut_val *list, struct seen *seen,
                      const struct engine_alias *alias)
{
        size_t target = seen_find(seen, alias->target), name = seen_find(seen, alias->name);
        yyjson_val *entry = seen->slots[target].entry;

        if (alias->target.len == 0 || alias->name.len == 0 || !entry || seen->slots[name].id.len != 0)
                return true;
        seen->slots[name].id = alias->name;
        seen->slots[name].entry = entry;
        return append(out, list, entry, &alias->name);
}

enum kvr_status engine_models_merge(const struct engine_models *const *lists, size_t list_count,
                                    const struct engine_alias *aliases, size_t alias_count, char **ret_json,
                                    size_t *ret_len)
{
        struct seen seen = {0};
        size_t ids = alias_count;
        char *text = NULL;

        for (size_t i = 0; i < list_count; i++)
                ids += lists[i] ? lists[i]->count : 0;
        yyjson_mut_doc *out = yyjson_mut_doc_new(NULL);
        yyjson_mut_val *root = yyjson_mut_obj(out), *list = yyjson_mut_arr(out);
        bool ok = root && list && seen_init(&seen, ids);
        if (ok) {
                yyjson_mut_doc_set_root(out, root);
                ok = yyjson_mut_obj_add_str(out, root, "object", "list") &&
                     yyjson_mut_obj_add_val(out, root, "data", list);
        }
        for (size_t i = 0; ok && i < list_count; i++)
                ok = !lists[i] || add_list(out, list, &seen, lists[i]);
        for (size_t i = 0; ok && i < alias_count; i++)
                ok = add_alias(out, list, &seen, &aliases[i]);
        if (ok)
                text = yyjson_mut_write(out, 0, ret_len);
        yyjson_mut_doc_free(out);
        free(seen.slots);
        if (!text)
                return KVR_E_NOMEM;
        *ret_json = text;
        return KVR_OK;
}
