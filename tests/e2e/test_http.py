# SPDX-License-Identifier: Apache-2.0
"""HTTP/1.1 and 1.0 as the RFCs have it, on both sides."""
import asyncio
import time

import pytest

from client import chat_body
from engine import FIN, raw, reply
from harness import spawn

BODY = chat_body("hello")


def post(body=BODY, *headers, version="HTTP/1.1", length=True):
    lines = [f"POST /v1/chat/completions {version}", "Host: x", *headers]
    if length:
        lines.append(f"Content-Length: {len(body)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


@pytest.fixture
def pair(fleet):
    router, (engine,) = fleet.start(1)
    return router, engine


# ---- requests ---------------------------------------------------------------------------------------------------------------


def test_requests_in_one_byte_pieces(pair):
    router, engine = pair
    with router.connect() as conn:
        for byte in post():
            conn.send(bytes([byte]))
        assert conn.response().status == 200
    assert engine.last().body == BODY


def test_pipelined_requests_are_answered_in_order(pair):
    router, engine = pair
    with router.connect() as conn:
        conn.send(b"".join(post(chat_body(f"p{n}"), f"X-Number: {n}") for n in range(8)))
        for number in range(8):
            answer = conn.response()
            assert answer.status == 200
    assert [r.header("x-number") for r in engine.requests] == [str(n) for n in range(8)]


def test_empty_lines_before_a_request_are_skipped(pair):
    router, _ = pair
    with router.connect() as conn:
        conn.send(b"\r\n\r\n" + post())
        assert conn.response().status == 200


@pytest.mark.parametrize("extension", [b"", b";name=value", b';q="a b"'])
def test_chunked_requests(pair, extension):
    router, engine = pair
    with router.connect() as conn:
        conn.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\n\r\n")
        for start in range(0, len(BODY), 7):
            part = BODY[start:start + 7]
            conn.send(b"%X%b\r\n%b\r\n" % (len(part), extension, part))
        conn.send(b"0\r\nX-Trailer: dropped\r\n\r\n")
        assert conn.response().status == 200
        conn.send(post())
        assert conn.response().status == 200
    first = engine.requests[0]
    assert first.body == BODY
    assert first.trailers == b"" and first.header("x-trailer") is None
    assert first.chunked != (first.header("content-length") is not None), "exactly one framing"


def test_expect_100_continue_is_answered_before_the_body(pair):
    router, engine = pair
    with router.connect() as conn:
        conn.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
                  % len(BODY))
        assert conn.read(timeout=2).startswith(b"HTTP/1.1 100 ")
        conn.send(BODY)
        answer = conn.response()
        assert answer.status == 200
    assert engine.last().body == BODY and engine.last().all("expect") == []


def test_expect_100_continue_with_a_body_that_is_too_long_is_refused_at_once(fleet):
    router, _ = fleet.start(1, "--max-body", "1MiB")
    with router.connect() as conn:
        conn.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 9999999\r\n\r\n")
        answer = conn.response()
        assert answer.status == 413 and answer.interim == []


def test_expect_with_the_body_sent_at_once(pair):
    router, engine = pair
    with router.connect() as conn:
        conn.send(post(BODY, "Expect: 100-continue"))
        answer = conn.response()
        assert answer.status == 200
    assert engine.last().body == BODY


def test_connection_close_is_obeyed(fleet):
    router, (engine,) = fleet.start(1, "--threads", "1")
    with router.connect() as conn:
        conn.send(post(BODY, "Connection: close"))
        answer = conn.response()
        assert answer.complete and (answer.header("connection") or "").lower() == "close"
        assert conn.closed_by_peer()
    router.chat("again")
    assert len({r.conn for r in engine.requests}) == 1, "the client's wish is not the upstream's"


@pytest.mark.parametrize("stream", [False, True])
def test_http_1_0_clients(pair, stream):
    """No chunks for a 1.0 client: a length, or the end of the connection."""
    router, engine = pair
    body = chat_body("hello", stream=stream)
    with router.connect() as conn:
        conn.send(post(body, version="HTTP/1.0"))
        answer = conn.response()
        assert answer.status == 200 and answer.all("transfer-encoding") == []
        assert b"w0" in answer.body
        if stream:
            assert answer.body.endswith(b"data: [DONE]\n\n")
        assert conn.closed_by_peer()
    assert engine.last().version == "HTTP/1.1"


def test_http_1_0_keep_alive(pair):
    router, _ = pair
    with router.connect() as conn:
        for _ in range(3):
            conn.send(post(BODY, "Connection: keep-alive", version="HTTP/1.0"))
            answer = conn.response()
            assert answer.status == 200
            if (answer.header("connection") or "").lower() != "keep-alive":
                assert conn.closed_by_peer()
                break
            assert answer.header("content-length")


def test_head_requests_have_no_body_and_keep_the_connection(pair):
    router, engine = pair
    engine.script = reply(200, b"x" * 500, content_type="text/plain")
    with router.connect() as conn:
        for _ in range(2):
            conn.request("HEAD", "/some/page")
            answer = conn.response("HEAD")
            assert answer.status == 200 and answer.header("content-length") == "500" and answer.body == b""
        conn.request("GET", "/some/page")
        assert len(conn.response("GET").body) == 500
    assert [r.method for r in engine.requests] == ["HEAD", "HEAD", "GET"]


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_other_methods_pass(pair, method):
    router, engine = pair
    engine.script = reply(200, b'{"ok":1}')
    body = b'{"x":1}' if method in ("PUT", "PATCH") else None
    assert router.request(method, "/v1/threads/7", body).json == {"ok": 1}
    assert engine.last().method == method and engine.last().body == (body or b"")


def test_unknown_paths_pass_and_are_spread_by_load(fleet):
    router, engines = fleet.start(3)
    for engine in engines:
        engine.script = reply(418, b"short and stout", content_type="text/plain")
    answers = [router.post("/teapot", b"any bytes at all \xff", [("Content-Type", "application/octet-stream")])
               for _ in range(30)]
    assert all((a.status, a.body) == (418, b"short and stout") for a in answers)
    assert all(e.count() >= 5 for e in engines), engines
    assert all(r.body == b"any bytes at all \xff" for e in engines for r in e.requests)


def test_bodies_are_byte_identical(pair):
    """Order, white space, numbers, duplicates and escapes are the client's business."""
    router, engine = pair
    body = (b' {"messages" :[{"role":"user","content":"\\u00e4\\/x"}],\n\t"model":"m", "temperature":1.0000000000000000000001,'
            b'"seed":12345678901234567890123, "n":1e0, "model":"m", "zzz":{"b":1,"a":2}, "stop":["\\n"] } \r\n')
    router.post("/v1/chat/completions", body)
    assert engine.last().body == body


# ---- answers ---------------------------------------------------------------------------------------------------------------


def test_interim_answers_of_the_engine_do_not_disturb(pair):
    router, engine = pair
    engine.script = raw(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
                        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    assert router.chat().body == b"ok"


@pytest.mark.parametrize("status", [204, 304])
def test_answers_without_a_body(pair, status):
    router, engine = pair
    engine.next(raw(b"HTTP/1.1 %d X\r\nX-A: 1\r\n\r\n" % status))
    with router.connect() as conn:
        conn.request("GET", "/x")
        answer = conn.response("GET")
        assert answer.status == status and answer.body == b"" and answer.header("x-a") == "1"
        conn.request("GET", "/y")
        assert conn.response("GET").status == 200


def test_trailers_of_an_answer_are_dropped(pair):
    router, engine = pair
    engine.script = raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n5;x=y\r\nhello\r\n"
                        b"0\r\nX-Sum: 1\r\n\r\n")
    answer = router.chat()
    assert answer.body == b"hello" and answer.complete and answer.trailers == b""


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nokk",
                                  b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
                                  b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nok",
                                  b"HTTP/1.1 200 OK\r\nBad Name: x\r\nContent-Length: 2\r\n\r\nok",
                                  b"HTTP/1.1 9999 Odd\r\n\r\n", b"SSH-2.0-OpenSSH_9\r\n",
                                  b"HTTP/1.1 200 OK\r\n" + b"X-Fill: " + b"f" * 100000 + b"\r\n\r\n"])
def test_a_malformed_answer_is_502(pair, head):
    router, engine = pair
    engine.script = raw(head, FIN)
    answer = router.chat()
    assert answer.status == 502 and answer.code == "upstream_error"
    assert router.metrics().sum("upstream_errors_total", kind="protocol") >= 1


def test_bytes_behind_an_answer_do_not_become_the_next_one(pair):
    """Response splitting: what follows a complete answer is not taken for the answer to somebody else's request."""
    router, engine = pair
    engine.next(raw(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"))
    assert router.chat("a").body == b"ok"
    time.sleep(0.1)
    for number in range(5):
        assert b"evil" not in router.chat(f"b{number}").body


def test_upgrades_pass_both_ways(pair):
    """WebSocket: the handshake reaches the replica, then bytes flow freely until one side closes."""
    router, engine = pair

    async def echo(request, out):
        out.keep_alive = False
        assert request.header("upgrade").lower() == "websocket"
        out.raw(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                b"Sec-WebSocket-Accept: abc\r\n\r\nhello ")
        while True:
            data = await out.conn.take(4)
            out.raw(b"<" + data + b">")
            if data == b"quit":
                return
    engine.routes["/v1/realtime"] = echo
    with router.connect() as conn:
        conn.request("GET", "/v1/realtime?model=m", [("Connection", "Upgrade"), ("Upgrade", "websocket"),
                                                     ("Sec-WebSocket-Key", "k"), ("Sec-WebSocket-Version", "13")])
        answer = conn.head()
        assert answer.status == 101 and answer.header("sec-websocket-accept") == "abc"
        assert answer.header("upgrade").lower() == "websocket"
        seen = engine.last()
        assert seen.header("sec-websocket-key") == "k" and seen.header("connection").lower() == "upgrade"

        def expect(data):
            got = b""
            while len(got) < len(data):
                part = conn.read(timeout=3)
                assert part, got
                got += part
            assert got == data
        expect(b"hello ")
        for word in (b"\x00\xff\r\n", b"quit"):
            conn.send(word)
            expect(b"<" + word + b">")
        assert conn.closed_by_peer()
    router.wait_idle()


@pytest.mark.parametrize("size", [6, 50_000, 3_000_000])
def test_bytes_behind_an_upgrade_request_reach_the_engine(pair, size):
    """The client does not wait for the 101: what it sends before comes first, complete and in order."""
    router, engine = pair
    early = bytes(n % 251 for n in range(size))
    got = bytearray()

    async def switch(_request, out):
        out.keep_alive = False
        await asyncio.sleep(0.3)
        out.raw(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        got.extend(await out.conn.take(size + 4))
        out.raw(b"done")
    engine.routes["/ws"] = switch
    with router.connect() as conn:
        head = b"GET /ws HTTP/1.1\r\nHost: k\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        sender = spawn(conn.send, head + early + b"LATE")
        assert conn.head().status == 101
        assert conn.read(timeout=5) == b"done"
        sender.result(5)
        assert conn.closed_by_peer()
    assert bytes(got) == early + b"LATE"
    del engine.routes["/ws"]
    router.wait_idle()


@pytest.mark.parametrize("upgrade", ["h2c", "H2C", "websocket, h2c"])
def test_an_upgrade_to_http2_is_not_passed_on(pair, upgrade):
    """An engine that takes it would get further requests past every check; a client that offers it goes on without."""
    router, engine = pair
    answer = router.chat("x", [("Connection", "Upgrade, HTTP2-Settings"), ("Upgrade", upgrade), ("HTTP2-Settings", "AAMA")])
    assert answer.status == 200 and answer.complete
    seen = engine.last()
    assert seen.header("upgrade") is None and seen.header("http2-settings") is None
    assert "upgrade" not in (seen.header("connection") or "").lower()


def test_a_refused_upgrade_is_an_ordinary_answer(pair):
    router, engine = pair
    engine.script = reply(400, b'{"error":"no"}')
    with router.connect() as conn:
        conn.request("GET", "/v1/realtime", [("Connection", "Upgrade"), ("Upgrade", "websocket")])
        assert conn.response().status == 400
        conn.request("GET", "/v1/other")
        assert conn.response().status == 400


# ---- time and size limits of a head -----------------------------------------------------------------------------------------


def test_unfinished_heads_are_closed(fleet):
    router, (engine,) = fleet.start(1, "--head-timeout", "500ms")
    with router.connect() as conn:
        conn.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        started = time.monotonic()
        for _ in range(20):
            try:
                conn.send(b"a")
            except OSError:
                break
            time.sleep(0.1)
        assert conn.closed_by_peer(2)
        assert time.monotonic() - started < 4, "dripping bytes must not extend it"


def test_heads_that_are_too_long_are_431(pair):
    router, _ = pair
    for line in (f"X-Long: {'l' * 70000}", *["\r\n".join(f"X-{n}: {'v' * 500}" for n in range(150))]):
        with router.connect() as conn:
            try:
                conn.send(post(BODY, line))
            except OSError:
                pass
            answer = conn.response()
            assert answer.status == 431 and answer.code == "header_too_large"
            assert conn.closed_by_peer()
