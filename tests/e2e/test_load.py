# SPDX-License-Identifier: Apache-2.0
"""Load: what counts, from when, until when, and what is believed of the engines' own figures."""
import json
import random
import threading
import time

import pytest

from client import chat_body
from engine import HANG, die, reply, sse, until
from harness import shares, spawn, together, wait_for
from test_routing import occupy
from texts import text


@pytest.mark.parametrize("path", ["/v1/made-up", "/v1/audio/transcriptions", "/rerank"])
def test_every_path_counts_as_load(fleet, path):
    """[33] 50 at once with one prefix to an endpoint that the router may not know."""
    router, engines = fleet.start(4)
    gate = threading.Event()
    for engine in engines:
        engine.script = until(gate, reply(200, b"{}"))
    body = json.dumps({"model": "m", "input": text(2000, "same")}).encode()
    waiting = [spawn(router.post, path, body) for _ in range(50)]
    wait_for(lambda: sum(e.count() for e in engines) == 50, what="all have arrived")
    counts = [e.count() for e in engines]
    assert sum(e["in_flight"] for e in router.replicas().values()) == 50
    gate.set()
    assert all(w.result(20).status == 200 for w in waiting)
    assert max(counts) <= 25, counts


def test_load_is_charged_at_the_choice(fleet):
    """[34] Heads are held back: twelve unique prompts within a second on three replicas go 4, 4, 4 within one."""
    router, engines = fleet.start(3)
    gate = threading.Event()
    for engine in engines:
        engine.script = until(gate)
    waiting = []
    for number in range(12):
        waiting.append(spawn(router.chat, text(2000)))
        time.sleep(0.03)
    wait_for(lambda: sum(e.count() for e in engines) == 12, what="all have arrived")
    counts = [e.count() for e in engines]
    gate.set()
    assert all(w.result(20).status == 200 for w in waiting)
    assert all(3 <= n <= 5 for n in counts), counts


@pytest.mark.parametrize("threads", ["1", "2"])
def test_disconnects_leave_no_phantom_load(fleet, threads):
    """[35] 500 requests cut at random moments; then every counter is exactly zero."""
    router, engines = fleet.start(3, "--threads", threads)
    rng = random.Random(35)
    for engine in engines:
        engine.script = sse(["a"] * 30, head_delay=0.01, first=0.02, gap=0.01)

    def cut(number):
        conn = router.connect()
        data = chat_body(text(rng.choice([100, 3000, 60000])), stream=bool(number % 3))
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data)
        whole = head + data
        stage = number % 5
        try:
            if stage == 0:                              # while sending the head or the body
                conn.send(whole[:rng.randrange(1, len(whole))])
                time.sleep(rng.random() * 0.02)
            elif stage == 1:                            # at once after sending
                conn.send(whole)
            elif stage == 2:                            # while waiting for the head
                conn.send(whole)
                time.sleep(rng.random() * 0.02)
            else:                                       # in mid-stream
                conn.send(whole)
                conn.head()
                time.sleep(rng.random() * 0.1)
        finally:
            (conn.abort if rng.random() < 0.5 else conn.close)()
    for start in range(0, 500, 50):
        together([lambda n=n: cut(n) for n in range(start, start + 50)])
    router.wait_idle()
    wait_for(lambda: sum(e.active for e in engines) == 0, what="no engine works for nobody")
    metrics = router.metrics()
    assert metrics.sum("in_flight_requests") == 0
    assert metrics.sum("queue_requests") == 0


def test_a_burst_between_two_polls_spreads(fleet):
    """[37] The engines' figures stand still; 64 equal prompts at once on eight replicas."""
    router, engines = fleet.start(8, "--metrics-interval", "5s")
    gate = threading.Event()
    for engine in engines:
        engine.gauges.update(running=1, waiting=0, load=1)
        engine.script = until(gate)
    waiting = [spawn(router.chat, text(500)) for _ in range(64)]
    wait_for(lambda: sum(e.count() for e in engines) == 64, what="all have arrived")
    counts = [e.count() for e in engines]
    gate.set()
    assert all(w.result(20).status == 200 for w in waiting)
    assert max(counts) <= 16, counts


def test_a_burst_of_one_prefix_spreads(fleet):
    """[37] The same with one shared prefix that nobody holds yet."""
    router, engines = fleet.start(8, "--metrics-interval", "5s")
    gate = threading.Event()
    for engine in engines:
        engine.script = until(gate)
    head = text(1000, "shared-burst")
    waiting = [spawn(router.chat, head + text(1000)) for _ in range(64)]
    wait_for(lambda: sum(e.count() for e in engines) == 64, what="all have arrived")
    counts = [e.count() for e in engines]
    gate.set()
    assert all(w.result(20).status == 200 for w in waiting)
    assert max(counts) <= 24, counts


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_full_cache_and_a_queue_in_the_engine_count(fleet, kind):
    """[39] A reports 98 % cache use and five waiting, with two of our requests; B has four. Ten prompts match A a little."""
    a, b = fleet.engine(kind, models=["m", "only-a"]), fleet.engine(kind, models=["m", "only-b"])
    router = fleet.router(replicas=[a, b])
    b.health = reply(503)
    wait_for(lambda: router.state(b) == "down", what="B away")
    little = text(400, "a-little")
    assert router.chat(little + text(100)).replica == a.name
    b.health = reply(200, b"")
    wait_for(lambda: router.state(b) == "ready", what="B back")
    releases = [occupy(router, a, 2, "only-a"), occupy(router, b, 4, "only-b")]
    a.gauges.update(running=30, waiting=5, kv_usage=0.98)
    b.gauges.update(running=4, waiting=0, kv_usage=0.10)
    wait_for(lambda: router.replica(a)["waiting"] == 5 and router.replica(a)["kv_usage"] == pytest.approx(0.98),
             what="the report of A")
    answers = [router.chat(little + text(1500)) for _ in range(10)]
    for release in releases:
        release()
    assert shares(answers).get(b.name, 0) >= 0.8, shares(answers)


def test_a_long_prompt_weighs_what_it_costs_until_its_first_byte(fleet):
    """[40] A holds one prompt of 400 kB before its head, B two of 400 bytes; after A's first byte the two look alike."""
    a, b = fleet.engine(models=["m", "only-a"]), fleet.engine(models=["m", "only-b"])
    router = fleet.router(replicas=[a, b])
    first, gate = threading.Event(), threading.Event()
    a.next(until(first, sse(["x"], hold=gate)))
    big = spawn(router.chat, text(400000), model="only-a", stream=True)
    wait_for(lambda: a.count() == 1, what="the long prompt at A")
    release_b = occupy(router, b, 2, "only-b", size=400)
    booked = router.replica(a)["uncached_tokens_booked"]
    assert booked > 50000 > router.replica(b)["uncached_tokens_booked"]
    answers = [router.chat(text(400)) for _ in range(10)]
    assert shares(answers).get(b.name, 0) >= 0.9, shares(answers)
    first.set()
    wait_for(lambda: router.replica(a)["uncached_tokens_booked"] == 0, what="the prefill part released at the first byte")
    assert router.replica(a)["in_flight"] == 1
    answers = [router.chat(text(400)) for _ in range(20)]
    gate.set()
    release_b()
    assert big.result(20).complete
    assert shares(answers).get(a.name, 0) >= 0.3, shares(answers)


def test_missing_and_frozen_figures_are_unknown_not_idle(fleet):
    """[38] One replica has no metrics, one omits a field, one stops answering: shown as unknown, own counts rule."""
    a, b, c = fleet.engine(), fleet.engine(), fleet.engine()
    a.routes["/metrics"] = reply(404)
    a.routes["/load"] = reply(404)
    b.gauges["waiting"] = None
    c.gauges.update(running=3, waiting=2)
    router = fleet.router(replicas=[a, b, c])
    wait_for(lambda: router.replica(c)["waiting"] == 2, what="the report of C")
    assert router.replica(a)["running"] is None and router.replica(a)["waiting"] is None
    assert router.replica(a)["kv_usage"] is None
    assert router.replica(b)["waiting"] is None and router.replica(b)["running"] == 0
    c.routes["/metrics"] = die(HANG)
    c.routes["/load"] = die(HANG)
    gate = threading.Event()
    for engine in (a, b, c):
        engine.script = until(gate)
    wait_for(lambda: router.replica(c)["waiting"] is None, timeout=20, what="the old report of C put away")
    waiting = [spawn(router.chat, text(1000)) for _ in range(15)]
    wait_for(lambda: a.count() + b.count() + c.count() == 15, what="all have arrived")
    counts = [e.count() for e in (a, b, c)]
    gate.set()
    assert all(w.result(20).status == 200 for w in waiting)
    assert all(3 <= n <= 7 for n in counts), counts
    warnings = [line for line in router.lines if a.name in line and "metrics" in line.lower()]
    assert len(warnings) == 1, f"one warning per replica: {warnings}"


def test_booked_tokens_are_the_uncached_ones(fleet):
    router, (engine,) = fleet.start(1)
    prompt = text(8000)
    router.chat(prompt)
    router.wait_idle()
    gate = threading.Event()
    engine.next(until(gate), until(gate))
    one = spawn(router.chat, prompt + text(400))
    wait_for(lambda: router.replica(engine)["in_flight"] == 1, what="booked")
    assert 20 <= router.replica(engine)["uncached_tokens_booked"] <= 300
    two = spawn(router.chat, text(8000))
    wait_for(lambda: router.replica(engine)["in_flight"] == 2, what="booked")
    assert 1200 <= router.replica(engine)["uncached_tokens_booked"] <= 3500
    gate.set()
    assert one.result(20).status == two.result(20).status == 200


def test_refusals_teach_no_speed(fleet):
    """What an engine refuses it has not computed: its quick 400 says nothing of how fast it prefills, or holds."""
    router, (a,) = fleet.start(1)
    a.script = reply(400, {"error": {"message": "no", "code": 400}})
    body = text(8000)
    for _ in range(8):
        assert router.chat(body).status == 400
    assert router.replica(a)["prefill_tokens_per_second"] is None
    assert router.match_of(body, a) == 0
    a.script = None
    assert router.chat(body).status == 200
    assert router.match_of(body, a) > 1000
