/* SPDX-License-Identifier: Apache-2.0 */
#include "reply.h"

#include <yyjson.h>

void sim_reply_init(struct sim_reply *reply, bool stream, bool keep_text)
{
        *reply = (struct sim_reply){
                .stream = stream,
                .line.max = SIM_REPLY_BYTES_MAX,
                .text.max = SIM_REPLY_BYTES_MAX,
                .keep_text = keep_text,
                .prompt_tokens = -1,
                .cached_tokens = -1,
                .completion_tokens = -1,
        };
}

void sim_reply_fini(struct sim_reply *reply)
{
        sim_buf_fini(&reply->line);
        sim_buf_fini(&reply->text);
}

static int64_t number(yyjson_val *object, const char *name, int64_t otherwise)
{
        yyjson_val *value = yyjson_obj_get(object, name);

        return yyjson_is_int(value) ? yyjson_get_sint(value) : otherwise;
}

static void take_usage(struct sim_reply *reply, yyjson_val *usage)
{
        yyjson_val *details = yyjson_obj_get(usage, "prompt_tokens_details");

        if (!yyjson_is_obj(usage))
                return;
        reply->prompt_tokens = number(usage, "prompt_tokens", reply->prompt_tokens);
        reply->completion_tokens = number(usage, "completion_tokens", reply->completion_tokens);
        reply->cached_tokens = number(details, "cached_tokens", reply->cached_tokens);
}

static void take_text(struct sim_reply *reply, yyjson_val *text)
{
        if (!yyjson_is_str(text) || yyjson_get_len(text) == 0)
                return;
        reply->pieces++;
        if (reply->keep_text)
                sim_buf_add(&reply->text, yyjson_get_str(text), yyjson_get_len(text));
        if (reply->on_piece)
                reply->on_piece(reply->ctx);
}

static void take_document(struct sim_reply *reply, const char *data, size_t len)
{
        yyjson_doc *doc = yyjson_read(data, len, 0);
        yyjson_val *root = yyjson_doc_get_root(doc);
        yyjson_val *choice = yyjson_arr_get_first(yyjson_obj_get(root, "choices"));
        yyjson_val *part = yyjson_obj_get(choice, reply->stream ? "delta" : "message");

        if (!yyjson_is_obj(root)) {
                reply->error = true;
        } else {
                if (yyjson_is_obj(yyjson_obj_get(root, "error")))
                        reply->error = true;
                take_text(reply, yyjson_obj_get(part, "content"));
                take_text(reply, yyjson_obj_get(choice, "text"));
                if (yyjson_is_str(yyjson_obj_get(choice, "finish_reason")))
                        reply->finished = true;
                take_usage(reply, yyjson_obj_get(root, "usage"));
        }
        yyjson_doc_free(doc);
}

static void take_line(struct sim_reply *reply, const char *line, size_t len)
{
        if (len && line[len - 1] == '\r')
                len--;
        if (len < 5 || memcmp(line, "data:", 5) != 0)
                return;
        line += 5;
        len -= 5;
        if (len && *line == ' ') {
                line++;
                len--;
        }
        if (len == 6 && memcmp(line, "[DONE]", 6) == 0)
                reply->finished = true;
        else
                take_document(reply, line, len);
}

void sim_reply_feed(struct sim_reply *reply, const char *data, size_t len)
{
        if (!reply->stream) {
                sim_buf_add(&reply->line, data, len);
                return;
        }
        while (len) {
                const char *end = memchr(data, '\n', len);
                size_t part = end ? (size_t)(end - data) : len;

                if (!end) {
                        sim_buf_add(&reply->line, data, len);
                        return;
                }
                if (reply->line.len) {
                        sim_buf_add(&reply->line, data, part);
                        take_line(reply, reply->line.data, reply->line.len);
                        sim_buf_reset(&reply->line);
                } else {
                        take_line(reply, data, part);
                }
                data += part + 1;
                len -= part + 1;
        }
}

void sim_reply_end(struct sim_reply *reply)
{
        if (!reply->stream)
                take_document(reply, reply->line.data ? reply->line.data : "", reply->line.len);
        else if (reply->line.len)
                take_line(reply, reply->line.data, reply->line.len);
        if (reply->line.failed || reply->text.failed)
                reply->error = true;
}
