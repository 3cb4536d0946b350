/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Heads as nearly all clients and engines send them, read in one walk. Whatever is not of this form is left to
 * llhttp, so this decides nothing: it gives what llhttp and the checks behind it give, for
 *
 *     POST /path?query HTTP/1.1          or          HTTP/1.1 200 OK
 *     Name: printable ASCII              letters, digits, - and _ in names
 *     Content-Length: 123                one at most, and in a response one
 *     Connection: keep-alive             or none
 *
 * without Transfer-Encoding, Upgrade and Expect. tests/fuzz/fuzz_http1.c holds both readings side by side.
 */
#ifndef KVROUTE_HTTP1_PLAIN_H
#define KVROUTE_HTTP1_PLAIN_H

#include "http1.h"

/*
 * True: a whole head of this form begins at buf; *ret_head is complete and *ret_used its length. False: another
 * form, or not complete; *ret_head holds nothing of use then.
 */
KVR_MUST_USE bool http1_plain(const char *buf, size_t len, enum http1_kind kind, struct http1_head *ret_head,
                              size_t *ret_used);

#endif
