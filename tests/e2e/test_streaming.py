# SPDX-License-Identifier: Apache-2.0
"""Event streams: at once, whole, and honest about their end."""
import asyncio
import json
import time

import pytest

from client import Broken
from engine import DONE_EVENT, FIN, HANG, RESET, delta, die, event, raw, reply, sse
from harness import wait_for
from texts import text


def test_every_piece_is_passed_on_at_once(fleet):
    """[54] Small chunks 60 ms apart arrive one by one, each soon after it was sent."""
    router, (engine,) = fleet.start(1)
    sent = []

    async def script(request, out):
        out.head(200, [("Content-Type", "text/event-stream")], chunked=True)
        for number in range(25):
            sent.append(time.monotonic())
            await out.chunk(b"data: piece %03d ....\n\n" % number)
            await asyncio.sleep(0.06)
        await out.end()
    engine.script = script
    answer = router.chat(stream=True)
    assert answer.complete and len(answer.events) == 25
    assert len(answer.pieces) >= 24, "clumped"
    late = sorted(got - at for at, (got, _) in zip(sent, answer.pieces)) if len(answer.pieces) == 25 else [0]
    assert late[len(late) // 2] < 0.02 and late[-3] < 0.2, late


def test_stream_bytes_are_not_changed(fleet):
    router, (engine,) = fleet.start(1)
    odd = [b": comment\n\n", b"data: {\"a\" : 1}\r\n\r\n", b"event: x\nid: 7\nretry: 10\ndata: 1\ndata: 2\n\n",
           b"data: \xff\xfe\n\n", b"data: [DONE]\n\n", b"trailing words without an end"]
    engine.script = sse(odd)
    answer = router.chat(stream=True)
    assert answer.body == b"".join(odd) and answer.complete


def test_characters_cut_by_chunks_pass(fleet):
    """[51]"""
    router, (engine,) = fleet.start(1)
    whole = "data: ×λ語🎈\n\n".encode() * 3
    engine.script = sse([whole[i:i + 1] for i in range(len(whole))], gap=0.001)
    assert router.chat(stream=True).body == whole


def test_outer_proxies_are_told_not_to_buffer(fleet):
    """[54]"""
    router, (engine,) = fleet.start(1)
    engine.next(sse(["a"]), sse(["a"], headers=[("X-Accel-Buffering", "no")]), reply(200))
    assert [router.chat(stream=True).all("x-accel-buffering") for _ in range(2)] == [["no"], ["no"]]
    assert router.chat().all("x-accel-buffering") == []


def test_the_head_waits_for_the_first_body_byte(fleet):
    """A head alone promises nothing: until there is a byte of the answer, another replica could still give it."""
    router, (engine,) = fleet.start(1)
    engine.script = sse(["a"], first=0.4)
    with router.start_chat(stream=True) as conn:
        with pytest.raises(TimeoutError):
            conn.read(timeout=0.25)
        answer = conn.response()
    assert answer.status == 200 and answer.complete


WITHOUT_HEAD = {
    "closed before the head": die(FIN),
    "reset before the head": die(RESET),
    "reset within the head": raw(b"HTTP/1.1 200 OK\r\nContent-Ty", RESET),
    "no HTTP at all": raw(b"garbage\r\n\r\n", FIN),
}
IN_STREAM = {
    "closed after the head": die(FIN, after=0.15, head=True),
    "reset after the head": die(RESET, after=0.15, head=True),
    "ended without an event": sse([], first=0.1),
    "an error event first": sse([event({"error": {"message": "died", "type": "InternalServerError", "code": 500}}),
                                 DONE_EVENT]),
    "an error event after comments": sse([b": ping\n\n", event({"error": {"message": "died", "code": 500}})], gap=0.1),
    "a named error event first": sse([event({"type": "error", "error": {"type": "overloaded_error"}}, "error")]),
}


@pytest.mark.parametrize("death, stream", [pytest.param(d, s, id=f"{n}, {'stream' if s else 'whole'}")
                                           for s in (True, False)
                                           for n, d in {**WITHOUT_HEAD, **(IN_STREAM if s else {})}.items()])
def test_death_in_prefill_costs_a_retry_not_a_request(fleet, death, stream):
    router, (a, b) = fleet.start(2)
    a.close_after = b.close_after = 1       # a reused connection could be stale, which may be tried anew
    prompt = text(3000)
    home = fleet.by_name(router.chat(prompt).replica)
    other = b if home is a else a
    home.script = death
    answer = router.chat(prompt, stream=stream)
    assert answer.status == 200 and answer.complete, answer
    assert b"w0" in answer.body
    assert answer.replica == other.name and answer.reason_header == "retry"
    assert home.count() == 2 and other.count() == 1, "never twice to the same"
    assert router.metrics().sum("retries_total", replica=home.name) == 1


def test_an_error_event_first_from_everyone_is_passed_on(fleet):
    router, engines = fleet.start(2)
    failure = event({"error": {"message": "no luck", "type": "InternalServerError", "code": 500}})
    for engine in engines:
        engine.script = sse([failure, DONE_EVENT])
    answer = router.chat(stream=True)
    assert [e.count() for e in engines] == [1, 1]
    assert (answer.status == 200 and b"no luck" in answer.body) or answer.status == 502


@pytest.mark.parametrize("end", [FIN, RESET])
@pytest.mark.parametrize("stream", [True, False])
def test_after_the_first_byte_a_cut_is_visible_and_never_repeated(fleet, end, stream):
    router, engines = fleet.start(2)
    for engine in engines:
        engine.script = sse(["one", "two"], end=end) if stream else \
            raw(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"half\":", 0.05, end)
    answer = router.chat(stream=stream)
    assert answer.status == 200 and not answer.complete
    assert answer.body == (delta("one") + delta("two") if stream else b'{"half":')
    assert sum(e.count() for e in engines) == 1
    assert wait_for(lambda: router.metrics().sum("upstream_errors_total", kind="stream"), what="counted") == 1


def test_an_answer_without_length_ends_with_the_connection(fleet):
    router, (engine,) = fleet.start(1)
    engine.script = raw(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nall ", 0.05, b"of it", FIN)
    answer = router.chat()
    assert answer.body == b"all of it" and answer.complete


def test_the_engines_own_error_event_passes(fleet):
    router, engines = fleet.start(2)
    failure = event({"error": {"message": "out of memory", "type": "InternalServerError", "code": 500}})
    for engine in engines:
        engine.script = sse(["one", failure, DONE_EVENT])
    answer = router.chat(stream=True)
    assert answer.body == delta("one") + failure + DONE_EVENT and answer.complete
    assert sum(e.count() for e in engines) == 1


# ---- leaving -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leave", ["close", "abort"])
@pytest.mark.parametrize("stage", ["before the head", "not streaming", "before the first byte", "in a pause"])
def test_a_client_that_leaves_stops_the_engine(fleet, stage, leave):
    """[43] [55] Within a second, streaming or not, and in a pause before the next chunk."""
    router, (engine,) = fleet.start(1)
    engine.script = {"before the head": die(HANG), "not streaming": die(HANG), "before the first byte": die(HANG, head=True),
                     "in a pause": sse(["one"], end=HANG)}[stage]
    conn = router.start_chat(stream=stage != "not streaming")
    wait_for(lambda: engine.requests and engine.last().body_at, what="the request at the engine")
    if stage == "in a pause":
        head = conn.head()
        assert next(conn.pieces(head)) == delta("one")
    time.sleep(0.1)
    left = time.monotonic()
    getattr(conn, leave)()
    gone = wait_for(lambda: engine.last().gone_at, 3, "the engine sees the close")
    assert gone - left < 1.0
    router.wait_idle()


def test_a_client_that_leaves_while_its_body_is_sent_on(fleet):
    """[43] The engine does not take the body; the client goes away meanwhile."""
    router, (engine,) = fleet.start(1)
    conn = router.connect()
    conn.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n{\"model\":\"m\",")
    time.sleep(0.1)
    conn.close()
    time.sleep(0.1)
    router.wait_idle()
    assert not engine.requests or engine.last().gone_at


@pytest.mark.parametrize("stream", [True, False])
def test_a_half_close_is_never_passed_to_an_engine(fleet, stream):
    """[43] A client that shuts down its sending side either gets its answer or is closed at once; the engine never sees
    a FIN on a connection that still waits."""
    router, (engine,) = fleet.start(1)
    engine.ignore_eof = True
    engine.script = sse(["one", "two"], head_delay=0.3, gap=0.1) if stream else reply(200, b'{"ok":1}', delay=0.4)
    with router.start_chat(stream=stream) as conn:
        conn.half_close()
        started = time.monotonic()
        try:
            answer = conn.response()
        except Broken:
            assert time.monotonic() - started < 1.5
        else:
            assert answer.status == 200 and answer.complete
            assert engine.last().gone_at is None, "a FIN while the answer was awaited"


# ---- silence -------------------------------------------------------------------------------------------------------------


def test_comment_lines_bridge_a_long_silence_when_asked_for(fleet):
    """[59] With the option a quiet stream gets comment lines; a later failure is told inside the stream."""
    router, (engine,) = fleet.start(1, "--heartbeat", "200ms")
    engine.close_after = 1
    engine.next(sse(["one"], head_delay=1.0), die(RESET, after=0.7))
    with router.start_chat(stream=True) as conn:
        started = time.monotonic()
        answer = conn.head()
        assert time.monotonic() - started < 0.8, "the head comes with the first comment"
        conn.finish(answer)
    assert answer.body.startswith(b":") and answer.body.endswith(delta("one")) and answer.complete
    assert answer.body.count(b"\n\n") >= 3
    failed = router.chat(stream=True)
    assert failed.status == 200
    name, data = failed.events[-1]
    assert json.loads(data)["error"]["code"] == "upstream_error"


def test_without_the_option_silence_is_silence(fleet):
    """[59]"""
    router, (engine,) = fleet.start(1)
    engine.script = sse(["one"], head_delay=1.0)
    with router.start_chat(stream=True) as conn:
        with pytest.raises(TimeoutError):
            conn.read(timeout=0.8)
        assert conn.response().body == delta("one")


# ---- errors as they are ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("status, headers, tries", [
    (400, [], 1), (401, [("WWW-Authenticate", "Bearer")], 1), (404, [], 1), (413, [], 1), (422, [], 1), (500, [], 1),
    (429, [("Retry-After", "3")], 2), (503, [("Retry-After", "3")], 2), (503, [], 2)])
def test_an_engines_refusal_passes_as_it_is(fleet, status, headers, tries, stream):
    """[56] Status, type, hint and body are the engine's; refusals for lack of room are offered to the others first."""
    router, engines = fleet.start(2)
    body = b'{"error":{"message":"from the engine","type":"x","param":null,"code":%d}}' % status
    for engine in engines:
        engine.script = reply(status, body, headers)
    answer = router.chat(stream=stream)
    assert answer.status == status and answer.body == body and answer.complete
    assert answer.header("content-type") == "application/json"
    for name, value in headers:
        assert answer.all(name) == [value]
    assert sum(e.count() for e in engines) == tries


def test_all_refused_is_never_200(fleet):
    """[56]"""
    router, engines = fleet.start(2)
    for engine in engines:
        engine.stop()
    for stream in (True, False):
        answer = router.chat(stream=stream)
        assert answer.status in (502, 503) and answer.code in ("upstream_error", "no_replica")
        assert answer.header("content-type").startswith("application/json")
