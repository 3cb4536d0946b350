/* SPDX-License-Identifier: Apache-2.0 */
#include "msgpack.h"

/* ---- reading ---- */

static uint64_t big_endian(const uint8_t *at, size_t len)
{
        uint64_t value = 0;

        for (size_t i = 0; i < len; i++)
                value = value << 8 | at[i];
        return value;
}

/* `width` bytes of a number behind the first byte. */
static bool take(struct msgpack_cursor *cursor, size_t width, uint64_t *ret)
{
        if ((size_t)(cursor->end - cursor->at) < width)
                return false;
        *ret = big_endian(cursor->at, width);
        cursor->at += width;
        return true;
}

static bool take_bytes(struct msgpack_cursor *cursor, enum msgpack_type type, uint64_t len,
                       struct msgpack_item *ret)
{
        if ((uint64_t)(cursor->end - cursor->at) < len)
                return false;
        ret->type = type;
        ret->bytes = (struct kvr_slice){(const char *)cursor->at, (size_t)len};
        cursor->at += len;
        return true;
}

static bool sized_bytes(struct msgpack_cursor *cursor, enum msgpack_type type, size_t width, size_t extra,
                        struct msgpack_item *ret)
{
        uint64_t len;

        return take(cursor, width, &len) && take_bytes(cursor, type, len + extra, ret);
}

/* Every item takes a byte at least. */
static bool container(struct msgpack_cursor *cursor, enum msgpack_type type, uint64_t count,
                      struct msgpack_item *ret)
{
        uint64_t items = type == MSGPACK_MAP ? 2 * count : count;

        if ((uint64_t)(cursor->end - cursor->at) < items)
                return false;
        ret->type = type;
        ret->count = (uint32_t)count;
        return true;
}

static bool sized_container(struct msgpack_cursor *cursor, enum msgpack_type type, size_t width,
                            struct msgpack_item *ret)
{
        uint64_t count;

        return take(cursor, width, &count) && container(cursor, type, count, ret);
}

static bool unsigned_of(struct msgpack_cursor *cursor, size_t width, struct msgpack_item *ret)
{
        ret->type = MSGPACK_UINT;
        return take(cursor, width, &ret->u);
}

static void set_signed(int64_t value, struct msgpack_item *ret)
{
        ret->type = value < 0 ? MSGPACK_INT : MSGPACK_UINT;
        if (value < 0)
                ret->i = value;
        else
                ret->u = (uint64_t)value;
}

static bool signed_of(struct msgpack_cursor *cursor, size_t width, struct msgpack_item *ret)
{
        uint64_t raw;
        unsigned unused = (unsigned)(64 - 8 * width);

        if (!take(cursor, width, &raw))
                return false;
        set_signed((int64_t)(raw << unused) >> unused, ret);
        return true;
}

static bool float_of(struct msgpack_cursor *cursor, size_t width, struct msgpack_item *ret)
{
        uint64_t raw;

        if (!take(cursor, width, &raw))
                return false;
        ret->type = MSGPACK_FLOAT;
        if (width == 4) {
                uint32_t bits = (uint32_t)raw;
                float single;

                memcpy(&single, &bits, sizeof single);
                ret->f = (double)single;
        } else {
                memcpy(&ret->f, &raw, sizeof ret->f);
        }
        return true;
}

/* First bytes from 0xc0 to 0xdf: those with a kind of their own. */
static bool next_marked(struct msgpack_cursor *cursor, uint8_t first, struct msgpack_item *ret)
{
        switch (first) {
        case 0xc0:
                ret->type = MSGPACK_NIL;
                return true;
        case 0xc2:
        case 0xc3:
                ret->type = MSGPACK_BOOL;
                ret->yes = first == 0xc3;
                return true;
        case 0xc4:
        case 0xc5:
        case 0xc6:
                return sized_bytes(cursor, MSGPACK_BIN, (size_t)1 << (first - 0xc4), 0, ret);
        case 0xc7:
        case 0xc8:
        case 0xc9:
                return sized_bytes(cursor, MSGPACK_EXT, (size_t)1 << (first - 0xc7), 1, ret);
        case 0xca:
                return float_of(cursor, 4, ret);
        case 0xcb:
                return float_of(cursor, 8, ret);
        case 0xcc:
        case 0xcd:
        case 0xce:
        case 0xcf:
                return unsigned_of(cursor, (size_t)1 << (first - 0xcc), ret);
        case 0xd0:
        case 0xd1:
        case 0xd2:
        case 0xd3:
                return signed_of(cursor, (size_t)1 << (first - 0xd0), ret);
        case 0xd4:
        case 0xd5:
        case 0xd6:
        case 0xd7:
        case 0xd8:
                return take_bytes(cursor, MSGPACK_EXT, ((uint64_t)1 << (first - 0xd4)) + 1, ret);
        case 0xd9:
        case 0xda:
        case 0xdb:
                return sized_bytes(cursor, MSGPACK_STR, (size_t)1 << (first - 0xd9), 0, ret);
        case 0xdc:
        case 0xdd:
                return sized_container(cursor, MSGPACK_ARRAY, (size_t)2 << (first - 0xdc), ret);
        case 0xde:
        case 0xdf:
                return sized_container(cursor, MSGPACK_MAP, (size_t)2 << (first - 0xde), ret);
        default:
                return false; /* 0xc1 means nothing */
        }
}

static bool next_item(struct msgpack_cursor *cursor, struct msgpack_item *ret)
{
        uint8_t first;

        if (cursor->at == cursor->end)
                return false;
        first = *cursor->at++;
        if (first < 0x80) {
                ret->type = MSGPACK_UINT;
                ret->u = first;
                return true;
        }
        if (first < 0x90)
                return container(cursor, MSGPACK_MAP, first & 15, ret);
        if (first < 0xa0)
                return container(cursor, MSGPACK_ARRAY, first & 15, ret);
        if (first < 0xc0)
                return take_bytes(cursor, MSGPACK_STR, first & 31, ret);
        if (first >= 0xe0) {
                set_signed((int64_t)first - 256, ret);
                return true;
        }
        return next_marked(cursor, first, ret);
}

bool msgpack_next(struct msgpack_cursor *cursor, struct msgpack_item *ret)
{
        struct msgpack_cursor at = *cursor;
        struct msgpack_item item;

        if (!next_item(&at, &item))
                return false;
        *cursor = at;
        *ret = item;
        return true;
}

bool msgpack_skip(struct msgpack_cursor *cursor)
{
        struct msgpack_cursor at = *cursor;
        struct msgpack_item item;

        /* Items still due. Each header was checked against the bytes left, so the sum stays small. */
        for (uint64_t due = 1; due > 0; due--) {
                if (due > (uint64_t)(at.end - at.at) || !next_item(&at, &item))
                        return false;
                if (item.type == MSGPACK_ARRAY)
                        due += item.count;
                else if (item.type == MSGPACK_MAP)
                        due += 2 * (uint64_t)item.count;
        }
        *cursor = at;
        return true;
}

/* ---- writing ---- */

static void put(struct text *out, uint8_t first, uint64_t value, size_t width)
{
        char bytes[9];

        bytes[0] = (char)first;
        for (size_t i = 0; i < width; i++)
                bytes[1 + i] = (char)(value >> 8 * (width - 1 - i));
        text_add(out, bytes, 1 + width);
}

void msgpack_write_nil(struct text *out)
{
        put(out, 0xc0, 0, 0);
}

void msgpack_write_uint(struct text *out, uint64_t value)
{
        if (value < 0x80)
                put(out, (uint8_t)value, 0, 0);
        else if (value <= UINT8_MAX)
                put(out, 0xcc, value, 1);
        else if (value <= UINT16_MAX)
                put(out, 0xcd, value, 2);
        else if (value <= UINT32_MAX)
                put(out, 0xce, value, 4);
        else
                put(out, 0xcf, value, 8);
}

void msgpack_write_int(struct text *out, int64_t value)
{
        if (value >= 0)
                msgpack_write_uint(out, (uint64_t)value);
        else if (value >= -32)
                put(out, (uint8_t)(value + 256), 0, 0);
        else if (value >= INT8_MIN)
                put(out, 0xd0, (uint64_t)value, 1);
        else if (value >= INT16_MIN)
                put(out, 0xd1, (uint64_t)value, 2);
        else if (value >= INT32_MIN)
                put(out, 0xd2, (uint64_t)value, 4);
        else
                put(out, 0xd3, (uint64_t)value, 8);
}

void msgpack_write_float(struct text *out, double value)
{
        uint64_t bits;

        memcpy(&bits, &value, sizeof bits);
        put(out, 0xcb, bits, 8);
}

void msgpack_write_str(struct text *out, struct kvr_slice value)
{
        if (value.len < 32)
                put(out, (uint8_t)(0xa0 | value.len), 0, 0);
        else if (value.len <= UINT8_MAX)
                put(out, 0xd9, value.len, 1);
        else if (value.len <= UINT16_MAX)
                put(out, 0xda, value.len, 2);
        else
                put(out, 0xdb, value.len, 4);
        text_add_slice(out, value);
}

void msgpack_write_strs(struct text *out, const char *value)
{
        msgpack_write_str(out, (struct kvr_slice){value, strlen(value)});
}

void msgpack_write_bin(struct text *out, const void *value, uint32_t len)
{
        if (len <= UINT8_MAX)
                put(out, 0xc4, len, 1);
        else if (len <= UINT16_MAX)
                put(out, 0xc5, len, 2);
        else
                put(out, 0xc6, len, 4);
        text_add(out, value, len);
}

void msgpack_write_array(struct text *out, uint32_t count)
{
        if (count < 16)
                put(out, (uint8_t)(0x90 | count), 0, 0);
        else if (count <= UINT16_MAX)
                put(out, 0xdc, count, 2);
        else
                put(out, 0xdd, count, 4);
}

void msgpack_write_map(struct text *out, uint32_t pairs)
{
        if (pairs < 16)
                put(out, (uint8_t)(0x80 | pairs), 0, 0);
        else if (pairs <= UINT16_MAX)
                put(out, 0xde, pairs, 2);
        else
                put(out, 0xdf, pairs, 4);
}
