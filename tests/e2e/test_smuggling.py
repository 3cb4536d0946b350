# SPDX-License-Identifier: Apache-2.0
"""Requests on whose end two servers could disagree are refused with 400, and nothing of them reaches a replica."""
import pytest

from client import Broken, chat_body

START = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
HIDDEN = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"

BAD = {
    "length and chunked": START + b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "chunked and length": START + b"Transfer-Encoding: chunked\r\nContent-Length: 6\r\n\r\n0\r\n\r\n" + HIDDEN,
    "two lengths that differ": START + b"Content-Length: 5\r\nContent-Length: 0\r\n\r\n" + HIDDEN,
    "two equal lengths": START + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}" + HIDDEN,
    "a list of lengths": START + b"Content-Length: 2, 2\r\n\r\n{}" + HIDDEN,
    "negative length": START + b"Content-Length: -2\r\n\r\n{}" + HIDDEN,
    "signed length": START + b"Content-Length: +2\r\n\r\n{}" + HIDDEN,
    "hexadecimal length": START + b"Content-Length: 0x2\r\n\r\n{}" + HIDDEN,
    "length with a space inside": START + b"Content-Length: 1 0\r\n\r\n{}" + HIDDEN,
    "length that overflows": START + b"Content-Length: 18446744073709551618\r\n\r\n{}" + HIDDEN,
    "empty length": START + b"Content-Length: \r\n\r\n" + HIDDEN,
    "folded header": START + b"X-A: 1\r\n folded\r\nContent-Length: 2\r\n\r\n{}",
    "folded transfer-encoding": START + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "space before the colon": START + b"Content-Length : 2\r\n\r\n{}" + HIDDEN,
    "tab before the colon": START + b"Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "unknown transfer coding": START + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "chunked twice": START + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "chunked not last": START + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + HIDDEN,
    "two transfer-encodings": START + b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "control character in coding": START + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "bare line feeds": START.replace(b"\r\n", b"\n") + b"Content-Length: 2\n\n{}" + HIDDEN,
    "bare line feed in a header": START + b"X-A: 1\nContent-Length: 2\r\n\r\n{}" + HIDDEN,
    "bare carriage return": START + b"X-A: 1\rTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n{}" + HIDDEN,
    "zero byte in a header": START + b"X-A: a\x00b\r\nContent-Length: 2\r\n\r\n{}",
    "zero byte in a name": START + b"X-\x00A: b\r\nContent-Length: 2\r\n\r\n{}",
    "chunk size is no number": START + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n" + HIDDEN,
    "chunk size with a sign": START + b"Transfer-Encoding: chunked\r\n\r\n+2\r\n{}\r\n0\r\n\r\n" + HIDDEN,
    "chunk size with 0x": START + b"Transfer-Encoding: chunked\r\n\r\n0x2\r\n{}\r\n0\r\n\r\n" + HIDDEN,
    "chunk size overflows": START + b"Transfer-Encoding: chunked\r\n\r\n10000000000000002\r\n{}\r\n0\r\n\r\n" + HIDDEN,
    "chunk longer than said": START + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}x\r\n0\r\n\r\n" + HIDDEN,
    "chunk ended by a line feed": START + b"Transfer-Encoding: chunked\r\n\r\n2\n{}\n0\n\n" + HIDDEN,
    "chunked in HTTP/1.0": START.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "no host": b"POST /x HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}",
    "two hosts": b"POST /x HTTP/1.1\r\nHost: a\r\nHost: b\r\nContent-Length: 2\r\n\r\n{}",
    "spaces in the target": b"POST /x y HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
    "control character in the target": b"GET /\x01 HTTP/1.1\r\nHost: x\r\n\r\n",
    "no version": b"GET /x\r\n\r\n",
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "version 1.2.3": b"GET /x HTTP/1.2.3\r\nHost: x\r\n\r\n",
    "lower case version": b"GET /x http/1.1\r\nHost: x\r\n\r\n",
    "header without colon": START + b"nonsense\r\nContent-Length: 2\r\n\r\n{}",
    "empty header name": START + b": x\r\nContent-Length: 2\r\n\r\n{}",
    "method with odd characters": b"P(ST /x HTTP/1.1\r\nHost: x\r\n\r\n",
}


@pytest.fixture(scope="module")
def pair(hub):
    """One router for all of them: it must survive every one."""
    from e2e_fixtures import Fleet
    fleet = Fleet(hub)
    router, (engine,) = fleet.start(1)
    yield router, engine
    fleet.finish()


@pytest.mark.parametrize("name", BAD)
def test_ambiguous_requests_are_refused(pair, name):
    router, engine = pair
    engine.forget()
    with router.connect(timeout=5) as conn:
        conn.send(BAD[name])
        answer = conn.response()
        assert answer.status == 400, answer
        assert answer.code in ("invalid_request", "invalid_json")
        assert conn.closed_by_peer(), "the connection cannot be trusted any more"
    assert not [r for r in engine.requests if r.path in ("/smuggled", "/x")]
    assert all(r.body in (b"", b"{}") for r in engine.requests)
    assert router.chat("fine").status == 200


def test_a_body_that_ends_early_is_no_request(pair):
    router, engine = pair
    engine.forget()
    with router.connect() as conn:
        conn.send(START + b"Content-Length: 100\r\n\r\n{}")
        conn.half_close()
        try:
            assert conn.response().status == 400
        except Broken:
            pass
    assert not any(r.body_at and r.path == "/v1/chat/completions" for r in engine.requests)


def test_another_protocol_is_not_kept_waiting(fleet):
    """A TLS greeting on the plain port: refused or closed within the time for a head."""
    router, _ = fleet.start(1, "--head-timeout", "500ms")
    with router.connect() as conn:
        conn.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
        assert conn.closed_by_peer(3)


def test_absolute_targets_do_not_choose_the_host(pair):
    """A proxy must not become an open one."""
    router, engine = pair
    engine.forget()
    with router.connect() as conn:
        conn.send(b"POST http://example.invalid/v1/chat/completions HTTP/1.1\r\nHost: example.invalid\r\n"
                  b"Content-Length: %d\r\n\r\n%b" % (len(chat_body()), chat_body()))
        answer = conn.response()
    if answer.status == 200:
        assert engine.last().path == "/v1/chat/completions" and engine.last().header("host") == engine.name
    else:
        assert answer.status == 400


def test_connect_is_refused(pair):
    router, engine = pair
    engine.forget()
    with router.connect() as conn:
        conn.send(b"CONNECT example.invalid:443 HTTP/1.1\r\nHost: example.invalid:443\r\n\r\n")
        assert conn.response().status in (400, 405)
    assert not engine.requests
