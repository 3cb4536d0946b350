# SPDX-License-Identifier: Apache-2.0
"""The router's own errors: shapes that client libraries read, fixed codes, and overload that says what it is."""
import threading
import time

import pytest

from engine import RESET, die, hang, reply, until
from harness import spawn, wait_for
from texts import text


def openai_shape(answer):
    error = answer.json["error"]
    assert set(error) == {"message", "type", "param", "code"}, error
    assert isinstance(error["message"], str) and error["message"] and isinstance(error["type"], str)
    assert answer.header("content-type").split(";")[0] == "application/json"
    assert answer.header("x-request-id")
    return error


def anthropic_shape(answer):
    body = answer.json
    assert body["type"] == "error" and isinstance(body["error"]["type"], str) and body["error"]["message"]
    assert answer.header("content-type").split(";")[0] == "application/json"
    return body["error"]


ANTHROPIC_TYPES = {"invalid_request_error", "authentication_error", "permission_error", "not_found_error", "request_too_large",
                   "rate_limit_error", "api_error", "overloaded_error", "timeout_error"}


@pytest.mark.parametrize("path, shape", [("/v1/chat/completions", openai_shape), ("/v1/messages", anthropic_shape),
                                         ("/v1/messages/count_tokens", anthropic_shape), ("/v1/responses", openai_shape)])
def test_error_bodies_have_the_shape_of_the_api(fleet, path, shape):
    router, (engine,) = fleet.start(1, "--max-body", "4KiB", "--retries", "0")
    ask = {"model": "nobody-has-it", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}], "input": "x"}
    unknown = router.post(path, ask)
    too_large = router.post(path, b"x" * 5000)
    engine.script = die(RESET)
    broken = router.post(path, ask | {"model": "m"})
    assert (unknown.status, too_large.status, broken.status) == (404, 413, 502)
    for answer, code in ((unknown, "model_not_found"), (too_large, "body_too_large"), (broken, "upstream_error")):
        error = shape(answer)
        if shape is anthropic_shape:
            assert error["type"] in ANTHROPIC_TYPES
        assert error.get("code") == code
    assert answer.header("x-kvroute-replica") in (None, engine.name)


def test_no_replica_is_503_with_a_hint(fleet):
    router, (engine,) = fleet.start(1)
    router.remove(engine)
    wait_for(lambda: not router.replicas(), what="empty")
    started = time.monotonic()
    answer = router.chat()
    assert time.monotonic() - started < 2
    assert answer.status == 503 and openai_shape(answer)["code"] == "no_replica"
    assert int(answer.header("retry-after")) >= 1
    assert anthropic_shape(router.post("/v1/messages", {"model": "m"}))["type"] in ("overloaded_error", "api_error")


def test_malformed_json_is_never_a_server_error(fleet):
    """[24] Either the engine sees the same bytes, or the router says what is wrong with them."""
    router, (engine,) = fleet.start(1)
    for body in (b"{not json", b"", b"[]", b'"text"', b"\x00", b'{"model":"m"', b"{}" * 3):
        engine.forget()
        answer = router.post("/v1/chat/completions", body)
        assert answer.status == 400, body
        if engine.requests:
            assert engine.last().body == body
        else:
            assert openai_shape(answer)["code"] in ("invalid_json", "invalid_request")
    engine.script = reply(200, b'{"ok":1}')
    for body in (b"{not json", b"", b"\x00\xff"):
        assert router.post("/v1/some/endpoint", body).status == 200 and engine.last().body == body


# ---- overload --------------------------------------------------------------------------------------------------------------


def test_full_is_429_and_empty_is_503(fleet):
    """[88] One in flight per replica and no queue: 20 requests at once; then no replica at all."""
    engines = [fleet.engine() for _ in range(2)]
    router = fleet.router("--queue-requests", "0", *[x for e in engines for x in ("--replica", f"{e.url},max-running=1")],
                          ready=False)
    router.wait_ready(*engines)
    gate = threading.Event()
    for engine in engines:
        engine.script = until(gate)
    waiting = [spawn(router.chat, text(100)) for _ in range(20)]
    wait_for(lambda: sum(w.done() for w in waiting) == 18, what="18 refused at once")
    gate.set()
    answers = [w.result(20) for w in waiting]
    refused = [a for a in answers if a.status != 200]
    assert len(refused) == 18 and all(a.status == 429 and a.code == "overloaded" for a in refused)
    assert all(int(a.header("retry-after")) >= 1 for a in refused)
    assert router.metrics().sum("rejections_total", code="overloaded") == 18
    for engine in engines:
        engine.stop()
    wait_for(lambda: all(router.state(e) == "down" for e in engines), what="down")
    last = router.chat()
    assert last.status in (502, 503) and last.code in ("no_replica", "upstream_error")


def test_the_queue_waits_and_serves_in_order(fleet):
    """[88] A bounded wait instead of a refusal, and those who waited are told."""
    engine = fleet.engine()
    router = fleet.router("--threads", "1", "--replica", f"{engine.url},max-running=1", ready=False)
    router.wait_ready(engine)
    gate = threading.Event()
    engine.next(until(gate))
    first = spawn(router.chat, "first")
    wait_for(lambda: engine.count() == 1, what="the first at the engine")
    queued = []
    for number in range(5):
        queued.append(spawn(router.chat, f"queued {number}", [("x-number", str(number))]))
        wait_for(lambda: router.metrics().sum("queue_requests") == number + 1, what="queued")
    gate.set()
    answers = [q.result(20) for q in queued]
    assert first.result(20).status == 200 and all(a.status == 200 for a in answers)
    assert all(a.reason_header == "queue" for a in answers)
    assert [r.header("x-number") for r in engine.requests[1:]] == [str(n) for n in range(5)]
    metrics = router.metrics()
    assert metrics.sum("queue_requests") == 0 and metrics.sum("queue_seconds_count") >= 5


def test_urgent_requests_pass_the_queue(fleet):
    engine = fleet.engine()
    router = fleet.router("--threads", "1", "--replica", f"{engine.url},max-running=1", ready=False)
    router.wait_ready(engine)
    gate = threading.Event()
    engine.next(until(gate))
    first = spawn(router.chat, "first")
    wait_for(lambda: engine.count() == 1, what="the first at the engine")
    queued = []
    for number, priority in enumerate((5, 5, 0, -3)):
        queued.append(spawn(router.chat, f"q{number}", [("x-number", str(number)), ("x-kvroute-priority", str(priority))]))
        wait_for(lambda: router.metrics().sum("queue_requests") == number + 1, what="queued")
    gate.set()
    assert all(q.result(20).status == 200 for q in [first, *queued])
    assert [r.header("x-number") for r in engine.requests[1:]] == ["3", "2", "0", "1"]


def test_the_wait_in_the_queue_ends_at_its_limit(fleet):
    """[88] The interface's 429 or 503 `overloaded` with a hint, at the stated time."""
    engine = fleet.engine()
    router = fleet.router("--queue-timeout", "600ms", "--replica", f"{engine.url},max-running=1", ready=False)
    router.wait_ready(engine)
    engine.script = hang()
    conn = router.start_chat(stream=True)
    wait_for(lambda: engine.count() == 1, what="full")
    started = time.monotonic()
    answer = router.chat()
    assert 0.5 < time.monotonic() - started < 3
    assert answer.status in (429, 503) and answer.code == "overloaded" and int(answer.header("retry-after")) >= 1
    conn.close()


def test_the_queue_has_a_bound(fleet):
    engine = fleet.engine()
    router = fleet.router("--queue-requests", "3", "--replica", f"{engine.url},max-running=1", ready=False)
    router.wait_ready(engine)
    engine.next(hang())
    stuck = router.start_chat(stream=True)
    wait_for(lambda: engine.count() == 1, what="full")
    queued = [spawn(router.chat, f"q{n}") for n in range(3)]
    wait_for(lambda: router.metrics().sum("queue_requests") == 3, what="three queued")
    answer = router.chat("one too many")
    assert answer.status == 429 and answer.code == "overloaded"
    stuck.close()
    assert all(q.result(20).status == 200 for q in queued)


def test_a_client_that_leaves_the_queue_is_forgotten(fleet):
    engine = fleet.engine()
    router = fleet.router("--replica", f"{engine.url},max-running=1", ready=False)
    router.wait_ready(engine)
    engine.next(hang())
    stuck = router.start_chat(stream=True)
    wait_for(lambda: engine.count() == 1, what="full")
    leaver = router.start_chat("leaver")
    wait_for(lambda: router.metrics().sum("queue_requests") == 1, what="queued")
    leaver.close()
    wait_for(lambda: router.metrics().sum("queue_requests") == 0, what="forgotten")
    stuck.close()
    assert router.chat("next").status == 200
    assert not any("leaver" in r.body.decode() for r in engine.requests)
