/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loop of a vector scanner, included once per instruction set by json_scan_x86.c. It takes 64 bytes at a
 * time. Escapes and characters beyond ASCII come so irregularly that a branch on them is foretold wrongly
 * every other time, which costs more than the work. So escapes are always looked at, and UTF-8 from the first
 * character beyond ASCII on until a good while without one has passed. Before each inclusion that file
 * defines
 *
 *     SCAN_NAME, SCAN_TARGET
 *     struct SCAN_TABLES, SCAN_TABLES_INIT(tables)   vectors that stay the same
 *     struct SCAN_BLOCK, SCAN_LOAD(block, src)       64 bytes, in registers
 *     SCAN_QUOTES, SCAN_SLASHES(block, tables)       one bit per byte
 *     SCAN_ODD(block, tables)                        of control characters and what is not ASCII
 *     SCAN_CONTROLS(block, tables)                   of control characters
 *     SCAN_SHORT(block, tables)                      of letters of short escapes, but not the quote
 *     struct SCAN_UTF8, SCAN_UTF8_BLOCK(state, block, pos), SCAN_UTF8_RESET(state),
 *     SCAN_UTF8_BAD(state, data, start, end)
 *     SCAN_UTF8_BLOCKS                               how many blocks UTF-8 is checked in behind a character
 *                                                    beyond ASCII: at least 1, as it may go on there
 */

SCAN_TARGET struct kvr__scan SCAN_NAME(const unsigned char *data, uint32_t pos, uint32_t len) {
        struct SCAN_UTF8 utf8 = {0};
        struct SCAN_TABLES tables;
        uint32_t start = pos, flags = 0;
        uint32_t utf8_blocks = 0; /* how many of the next blocks are checked, whatever they hold */
        uint64_t carry = 0;       /* 1: the block's first byte is escaped by the backslash before it */

        SCAN_TABLES_INIT(&tables);
        while (len - pos >= 64) {
                struct SCAN_BLOCK block;
                uint64_t quotes, odd, stop, escaped;
                uint64_t long_escapes; /* bytes behind a backslash that are not of the short escapes */

                SCAN_LOAD(&block, data + pos);
                quotes = SCAN_QUOTES(&block, &tables);
                escaped = escaped_bytes(SCAN_SLASHES(&block, &tables), &carry);
                odd = SCAN_ODD(&block, &tables);
                stop = quotes & ~escaped;
                long_escapes = escaped & ~(SCAN_SHORT(&block, &tables) | quotes);
                if (odd | utf8_blocks) { /* one branch, not two */
                        SCAN_UTF8_BLOCK(&utf8, &block, pos);
                        stop |= SCAN_CONTROLS(&block, &tables);
                        utf8_blocks = odd ? SCAN_UTF8_BLOCKS : utf8_blocks - 1;
                }
                if (__builtin_expect(!(stop | long_escapes), 1)) {
                        pos += 64;
                        continue;
                }
                long_escapes &= (stop - 1) & ~stop; /* in front of the stop only */
                if (long_escapes) {
                        pos += (uint32_t)__builtin_ctzll(long_escapes) - 1;
                        pos = kvr__scan_escapes(data, pos, len, &flags);
                        if (flags & KVR__SCAN_ERROR)
                                return (struct kvr__scan){pos, flags};
                        carry = 0;
                        SCAN_UTF8_RESET(&utf8);
                } else if (stop) {
                        pos += (uint32_t)__builtin_ctzll(stop);
                        if (data[pos] != '"')
                                return (struct kvr__scan){pos, flags | KVR__SCAN_ERROR};
                        if (SCAN_UTF8_BAD(&utf8, data, start, pos))
                                flags |= KVR__SCAN_BAD_UTF8;
                        return (struct kvr__scan){pos, flags};
                } else {
                        pos += 64;
                }
        }
        return scan_tail(data, start, pos, len,
                         flags | (SCAN_UTF8_BAD(&utf8, data, start, pos) ? SUSPECT : 0), carry);
}

#undef SCAN_NAME
#undef SCAN_TARGET
#undef SCAN_BLOCK
#undef SCAN_LOAD
#undef SCAN_ODD
#undef SCAN_TABLES
#undef SCAN_TABLES_INIT
#undef SCAN_QUOTES
#undef SCAN_SLASHES
#undef SCAN_CONTROLS
#undef SCAN_SHORT
#undef SCAN_UTF8
#undef SCAN_UTF8_BLOCK
#undef SCAN_UTF8_RESET
#undef SCAN_UTF8_BAD
#undef SCAN_UTF8_BLOCKS
