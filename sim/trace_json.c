/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows in JSON. A scanner of our own takes the lines that traces are made of: one object, plain names,
 * whole numbers. Whatever it does not know, right or wrong, goes to the JSON library, which also finds the
 * words for what is wrong. So there is one meaning of a line, and two speeds.
 */
#include "trace_int.h"

#include <stdio.h>
#include <string.h>
#include <yyjson.h>

enum member {
        MEMBER_TIME = 1,
        MEMBER_INPUT = 2,
        MEMBER_OUTPUT = 4,
        MEMBER_IDS = 8,
        MEMBER_SESSION = 16,
        MEMBER_CHAT = 32, /* another layout */
        MEMBER_OTHER = 64,
};
#define MEMBERS_NEEDED (MEMBER_TIME | MEMBER_INPUT | MEMBER_OUTPUT | MEMBER_IDS)

/* ---- by the library ----------------------------------------------------------------------------------- */

static bool tokens(yyjson_val *root, const char *name, uint32_t *ret)
{
        yyjson_val *value = yyjson_obj_get(root, name);

        if (!yyjson_is_uint(value) || yyjson_get_uint(value) > SIM_TRACE_TOKENS_MAX)
                return false;
        *ret = (uint32_t)yyjson_get_uint(value);
        return true;
}

static bool take_ids(struct sim__trace_reader *reader, yyjson_val *array)
{
        struct sim_trace *trace = reader->trace;
        yyjson_arr_iter iter = yyjson_arr_iter_with(array);
        uint64_t *at = trace->ids + trace->id_count;
        yyjson_val *id;

        while ((id = yyjson_arr_iter_next(&iter))) {
                if (!yyjson_is_int(id))
                        return sim__trace_fail(reader, "hash_ids has an element that is not a whole number");
                *at++ = yyjson_get_uint(id);
        }
        return true;
}

/* A name, or in Bailian's layout a chat that goes on with an earlier one. */
static bool take_session(struct sim__trace_reader *reader, yyjson_val *root, struct sim_trace_row *row)
{
        yyjson_val *name = yyjson_obj_get(root, "session"), *chat = yyjson_obj_get(root, "chat_id");
        yyjson_val *parent = yyjson_obj_get(root, "parent_chat_id");
        uint64_t id;

        if (yyjson_is_str(name)) {
                row->session = sim__trace_session(reader, yyjson_get_str(name), yyjson_get_len(name), 0);
        } else if (yyjson_is_int(chat)) {
                if (yyjson_is_uint(parent)) { /* -1 is none */
                        id = yyjson_get_uint(parent);
                        row->session = sim__trace_session(reader, (const char *)&id, sizeof(id), 0);
                        if (!row->session)
                                return sim__trace_fail(reader, "out of memory");
                }
                id = yyjson_get_uint(chat);
                row->session = sim__trace_session(reader, (const char *)&id, sizeof(id), row->session);
        } else {
                return true;
        }
        return row->session != 0 || sim__trace_fail(reader, "out of memory");
}

static bool take_row(struct sim__trace_reader *reader, yyjson_val *root)
{
        struct sim_trace_row row = {0};
        yyjson_val *time = yyjson_obj_get(root, "timestamp"), *ids = yyjson_obj_get(root, "hash_ids");

        if (!yyjson_is_obj(root))
                return sim__trace_fail(reader, "not a JSON object");
        if (!yyjson_is_num(time) || yyjson_get_num(time) < 0)
                return sim__trace_fail(reader, "timestamp is not a number of milliseconds");
        if (!tokens(root, "input_length", &row.input_tokens) || row.input_tokens == 0)
                return sim__trace_fail(reader, "input_length is not a positive number of tokens");
        if (!tokens(root, "output_length", &row.output_tokens))
                return sim__trace_fail(reader, "output_length is not a number of tokens");
        if (!yyjson_is_arr(ids) || yyjson_arr_size(ids) == 0)
                return sim__trace_fail(reader, "hash_ids is not a non-empty array");
        row.time_s = yyjson_get_num(time) / (yyjson_obj_get(root, "chat_id") ? 1 : 1000);
        row.id_count = (uint32_t)yyjson_arr_size(ids);
        if (!sim__trace_reserve(reader, row.id_count) || !take_ids(reader, ids))
                return false;
        if (!take_session(reader, root, &row))
                return false;
        sim__trace_add(reader, &row);
        return true;
}

static bool slow_line(struct sim__trace_reader *reader, const char *line, size_t len)
{
        yyjson_read_err error;
        /* Without YYJSON_READ_INSITU the text is only read. */
        yyjson_doc *doc = yyjson_read_opts((char *)(uintptr_t)line, len, 0, NULL, &error);
        bool good;
        char why[160];

        if (!doc) {
                snprintf(why, sizeof(why), "not JSON (at byte %zu: %s)", error.pos + 1, error.msg);
                return sim__trace_fail(reader, why);
        }
        good = take_row(reader, yyjson_doc_get_root(doc));
        yyjson_doc_free(doc);
        return good;
}

/* ---- by hand ------------------------------------------------------------------------------------------ */

/* A place in a line. The line ends with '\n', which no step goes past. */
struct scan {
        const char *at;
};

static void skip_blanks(struct scan *scan)
{
        while (*scan->at == ' ' || *scan->at == '\t' || *scan->at == '\r')
                scan->at++;
}

static bool take_char(struct scan *scan, char c)
{
        skip_blanks(scan);
        if (*scan->at != c)
                return false;
        scan->at++;
        return true;
}

/* Digits only, as many as surely fit, no zero in front. */
static bool take_whole(struct scan *scan, uint64_t *ret)
{
        const char *start;
        uint64_t value = 0;
        unsigned digit;

        skip_blanks(scan);
        start = scan->at;
        while ((digit = (unsigned)((unsigned char)*scan->at - '0')) < 10) {
                value = value * 10 + digit;
                scan->at++;
        }
        if (scan->at == start || scan->at - start > 18 || (*start == '0' && scan->at - start > 1) ||
            *scan->at == '.' || (*scan->at | 0x20) == 'e')
                return false;
        *ret = value;
        return true;
}

/* A string of printable ASCII without escapes. */
static bool take_string(struct scan *scan, const char **ret, size_t *ret_len)
{
        if (!take_char(scan, '"'))
                return false;
        *ret = scan->at;
        while (*scan->at >= ' ' && *scan->at < 0x7f && *scan->at != '"' && *scan->at != '\\')
                scan->at++;
        *ret_len = (size_t)(scan->at - *ret);
        return *scan->at++ == '"';
}

static bool take_array(struct scan *scan, uint64_t *ret, uint32_t *ret_count)
{
        uint64_t *at = ret;

        if (!take_char(scan, '['))
                return false;
        do {
                if (!take_whole(scan, at++))
                        return false;
                skip_blanks(scan);
        } while (*scan->at++ == ',');
        *ret_count = (uint32_t)(at - ret);
        return scan->at[-1] == ']';
}

static enum member member_of(const char *name, size_t len)
{
        switch (len) {
        case 9:
                return memcmp(name, "timestamp", 9) == 0 ? MEMBER_TIME : MEMBER_OTHER;
        case 12:
                return memcmp(name, "input_length", 12) == 0 ? MEMBER_INPUT : MEMBER_OTHER;
        case 13:
                return memcmp(name, "output_length", 13) == 0 ? MEMBER_OUTPUT : MEMBER_OTHER;
        case 8:
                return memcmp(name, "hash_ids", 8) == 0 ? MEMBER_IDS : MEMBER_OTHER;
        case 7:
                return memcmp(name, "session", 7) == 0   ? MEMBER_SESSION
                       : memcmp(name, "chat_id", 7) == 0 ? MEMBER_CHAT
                                                         : MEMBER_OTHER;
        default:
                return MEMBER_OTHER;
        }
}

static bool take_tokens(struct scan *scan, uint32_t least, uint32_t *ret)
{
        uint64_t value;

        if (!take_whole(scan, &value) || value < least || value > SIM_TRACE_TOKENS_MAX)
                return false;
        *ret = (uint32_t)value;
        return true;
}

struct fast_row {
        struct sim_trace_row row;
        const char *session;
        size_t session_len;
        uint64_t *ids;
        unsigned seen;
};

static bool take_member(struct scan *scan, struct fast_row *fast)
{
        const char *name;
        enum member member;
        uint64_t value;
        size_t len;

        if (!take_string(scan, &name, &len) || !take_char(scan, ':'))
                return false;
        member = member_of(name, len);
        if (fast->seen & member & ~(unsigned)MEMBER_OTHER)
                return false;
        fast->seen |= member;
        switch (member) {
        case MEMBER_TIME:
                if (!take_whole(scan, &value) || value > UINT64_C(1) << 52)
                        return false;
                fast->row.time_s = (double)value / 1000;
                return true;
        case MEMBER_INPUT:
                return take_tokens(scan, 1, &fast->row.input_tokens);
        case MEMBER_OUTPUT:
                return take_tokens(scan, 0, &fast->row.output_tokens);
        case MEMBER_IDS:
                return take_array(scan, fast->ids, &fast->row.id_count);
        case MEMBER_SESSION:
                return take_string(scan, &fast->session, &fast->session_len);
        case MEMBER_CHAT:
                return false;
        case MEMBER_OTHER:
                break;
        }
        return take_string(scan, &name, &len) || take_whole(scan, &value);
}

/* False: not one of the usual lines. Nothing was changed but memory behind the ids. */
static bool fast_line(struct sim__trace_reader *reader, const char *line, size_t len)
{
        struct scan scan = {.at = line};
        struct fast_row fast = {.ids = reader->trace->ids + reader->trace->id_count};

        if (!take_char(&scan, '{'))
                return false;
        do {
                if (!take_member(&scan, &fast))
                        return false;
        } while (take_char(&scan, ','));
        if (!take_char(&scan, '}') || (fast.seen & MEMBERS_NEEDED) != MEMBERS_NEEDED)
                return false;
        skip_blanks(&scan);
        if (scan.at != line + len)
                return false;
        if (fast.session) {
                fast.row.session = sim__trace_session(reader, fast.session, fast.session_len, 0);
                if (!fast.row.session)
                        return false;
        }
        sim__trace_add(reader, &fast.row);
        return true;
}

bool sim__trace_json_line(struct sim__trace_reader *reader, const char *line, size_t len)
{
        /* An id takes two bytes at least. */
        if (!sim__trace_reserve(reader, len / 2 + 1))
                return false;
        return fast_line(reader, line, len) || slow_line(reader, line, len);
}
