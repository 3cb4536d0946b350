# SPDX-License-Identifier: Apache-2.0
"""Connections to replicas that are used again: whose answer comes back, and which request may be sent a second time."""
import asyncio
import collections
import json

import pytest

from client import chat_body
from engine import FIN, RESET
from harness import together, wait_for


def marker(request):
    return request.json["messages"][0]["content"]


def answer(mark, behind=b""):
    body = json.dumps({"object": "chat.completion", "marker": mark, "choices": []}).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body + behind


def ask(router, name, count):
    """Requests one after the other on one connection; [(marker sent, marker of the answer)]."""
    got = []
    with router.connect() as conn:
        for number in range(count):
            mark = f"{name}-{number}"
            conn.request("POST", "/v1/chat/completions", (), chat_body(mark))
            got.append((mark, conn.response().json["marker"]))
    return got


# ---- answers that belong to nobody ------------------------------------------------------------------------------------------


def test_one_unasked_answer_does_not_shift_all_others(fleet):
    """A second answer comes up to 1 ms after each: once that is seen, no connection of that replica is used twice."""
    router, engines = fleet.start(2, "--threads", "2")
    turn = iter(range(1 << 30))

    async def stray(request, out):
        out.conn.write(answer(marker(request)))
        await asyncio.sleep(next(turn) % 3 * 0.0005)
        out.conn.write(answer("WRONG"))
    for engine in engines:
        engine.script = stray
    ask(router, "first", 20)
    ask(router, "second", 20)
    wait_for(lambda: all(router.metrics().sum("upstream_errors_total", kind="protocol", replica=e.name) for e in engines),
             what="both seen")
    before = router.metrics().sum("upstream_connections_total", kind="reused")
    got = sum(together([lambda k=k: ask(router, f"c{k}", 30) for k in range(8)]), [])
    assert [pair for pair in got if pair[0] != pair[1]] == []
    seen = collections.Counter(marker(r) for e in engines for r in e.requests)
    assert set(seen.values()) == {1}, "nothing was sent twice"
    assert router.metrics().sum("upstream_connections_total", kind="reused") == before
    for engine in engines:
        assert router.state(engine) == "ready"
        said = [line for line in router.lines if engine.name in line and "belong to no request" in line]
        assert len(said) == 1, router.err


@pytest.mark.parametrize("behind", [answer("WRONG"), b"\r\n"], ids=["answer", "line"])
def test_bytes_behind_a_complete_answer_are_noticed_too(fleet, behind):
    router, (engine,) = fleet.start(1, "--threads", "1")
    engine.script = lambda request, out: out.whole(200, {"marker": marker(request)})
    ask(router, "proper", 3)
    assert len({r.conn for r in engine.requests}) == 1
    kept = engine.connections[engine.last().conn - 1]

    async def more(request, out):
        out.conn.write(answer(marker(request), behind))
    engine.next(more)
    assert ask(router, "more", 1) == [("more-0", "more-0")]
    assert router.metrics().sum("upstream_errors_total", kind="protocol") == 1
    wait_for(lambda: kept.closed_at, what="closed")
    assert kept.closed_by == "peer"
    engine.forget()
    assert all(a == b for a, b in ask(router, "later", 4))
    assert len({r.conn for r in engine.requests}) == 4, "one connection each"


def test_bytes_on_an_idle_connection_close_it_at_once(fleet):
    router, (engine,) = fleet.start(1, "--threads", "1")
    assert router.chat("x").status == 200
    conn = engine.connections[engine.last().conn - 1]
    engine.hub.call(conn.write, answer("WRONG"))
    wait_for(lambda: conn.closed_at, 1.0, "closed long before it is needed or too old")
    assert conn.closed_by == "peer"
    assert router.metrics().sum("upstream_errors_total", kind="protocol", replica=engine.name) == 1
    assert router.chat("y").json["object"] == "chat.completion"


def test_an_idle_connection_that_ends_is_no_fault(fleet):
    router, (engine,) = fleet.start(1, "--threads", "1")
    for how in (FIN, RESET):
        assert router.chat("x").status == 200
        conn = engine.connections[engine.last().conn - 1]
        engine.hub.call(conn.close, how)
    engine.forget()
    assert [router.chat("y").status for _ in range(3)] == [200] * 3
    assert len({r.conn for r in engine.requests}) == 1, "reused as before"
    assert router.metrics().sum("upstream_errors_total") == 0


# ---- the idle race ------------------------------------------------------------------------------------------------------------


async def think(out):
    await asyncio.sleep(0.6)


async def hint(out):
    out.raw(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n")
    await asyncio.sleep(0.05)


async def begin(out):
    out.raw(b"HTTP/1.1 2")
    await asyncio.sleep(0.05)


@pytest.mark.parametrize("work", [think, hint, begin])
@pytest.mark.parametrize("how", [FIN, RESET])
def test_a_request_that_was_worked_on_is_not_given_to_the_same_engine_again(fleet, work, how):
    """On a reused connection the engine takes the request, computes or says something, and closes: that is a failure
    of this replica, and the next one gets the request."""
    router, engines = fleet.start(2, "--threads", "1", "--policy", "round_robin")

    async def poisoned(request, out):
        if marker(request) != "poison":
            await out.whole(200, {"marker": marker(request)})
            return
        await work(out)
        out.keep_alive = False
        out.conn.close(how)
    for engine in engines:
        engine.script = poisoned
    ask(router, "warm", 6)
    router_answer = router.chat("poison")
    assert router_answer.status == 502
    assert [sum(marker(r) == "poison" for r in e.requests) for e in engines] == [1, 1]
    assert all(r.conn in {w.conn for w in e.requests[:-1]} for e in engines for r in e.requests[-1:]), "reused ones"
    metrics = router.metrics()
    assert metrics.sum("upstream_errors_total") == 2 and metrics.sum("retries_total") == 2


def test_no_more_tries_than_configured(fleet):
    router, (engine,) = fleet.start(1, "--threads", "1", "--retries", "0")
    assert router.chat("warm").status == 200

    async def dies(_request, out):
        await asyncio.sleep(0.6)
        out.conn.close(FIN)
    engine.script = dies
    assert router.chat("poison").status == 502
    assert engine.count() == 2


def test_the_idle_race_is_run_once(fleet):
    """Every engine closes its reused connection as the request comes, and its new one too: the first gets it twice,
    each other one once and on a new connection."""
    router, engines = fleet.start(3, "--threads", "1", "--policy", "round_robin", "--retries", "2")

    async def dies(_request, out):
        out.conn.close(FIN)
    for number in range(9):
        assert router.chat(f"w{number}").status == 200
    for engine in engines:
        engine.forget()
        engine.script = dies
    assert router.chat("x").status == 502
    assert sorted(e.count() for e in engines) == [1, 1, 2]
