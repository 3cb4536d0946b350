# SPDX-License-Identifier: Apache-2.0
"""Replicas that refuse, die, hang, push back or lie about their health."""
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from client import chat_body
from engine import RESET, die, free_socket, hang, reply, sse
from harness import stays, together, wait_for
from texts import text

SLOW_PROBES = ["--health-interval", "1h", "--metrics-interval", "off"]


def warmed(router, fleet, prompt):
    """(engine that holds the prompt, the others)"""
    home = fleet.by_name(router.chat(prompt).replica)
    return home, [e for e in fleet.engines if e is not home]


# ---- retries ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
def test_slowness_is_not_failure(fleet, stream):
    """[60] A takes the request and stays silent; B is healthy and gets nothing."""
    router, engines = fleet.start(2)
    for engine in engines:
        engine.script = sse(["x"], head_delay=2.0) if stream else reply(200, delay=2.0)
    assert router.chat(text(400), stream=stream).status == 200
    assert sorted(e.count() for e in engines) == [0, 1]
    assert router.metrics().sum("retries_total") == 0


def test_a_failing_replica_is_not_asked_again_and_again(fleet):
    """[61] A holds the prefix and refuses connections, and no probe tells: all 50 succeed, A is tried a few times."""
    router, engines = fleet.start(2, *SLOW_PROBES)
    prompt = text(4000)
    home, (other,) = warmed(router, fleet, prompt)
    home.stop()
    answers = [router.chat(prompt + text(40)) for _ in range(50)]
    assert all(a.status == 200 and a.replica == other.name for a in answers)
    tried = router.metrics().sum("upstream_errors_total", replica=home.name)
    assert 1 <= tried <= 8, tried


def test_failures_outweigh_any_match(fleet):
    """[61] The same where A accepts and resets: the number of tries it still gets is small, and no request suffers."""
    router, engines = fleet.start(3, *SLOW_PROBES)
    prompt = text(4000)
    home, others = warmed(router, fleet, prompt)
    before = home.count()
    home.script = die(RESET)
    answers = together([lambda: router.chat(prompt + text(40)) for _ in range(50)])
    answers += [router.chat(prompt + text(40)) for _ in range(30)]
    assert all(a.status == 200 and a.replica != home.name for a in answers)
    assert sum(e.count() for e in others) == 80, "one retry each at most, none twice"
    late = home.count()
    time.sleep(0.1)
    assert [router.chat(prompt).status for _ in range(10)] == [200] * 10
    assert home.count() - late <= 3 and home.count() - before <= 60


def test_retries_stop_at_their_limit(fleet):
    router, engines = fleet.start(5, "--retries", "2")
    for engine in engines:
        engine.script = die(RESET)
    answer = router.chat()
    assert answer.status == 502 and answer.code == "upstream_error"
    assert sorted(e.count() for e in engines) == [0, 0, 1, 1, 1]


def test_no_retries_when_switched_off(fleet):
    router, engines = fleet.start(3, "--retries", "0")
    for engine in engines:
        engine.script = die(RESET)
    assert router.chat().status == 502
    assert sum(e.count() for e in engines) == 1


def test_an_error_500_is_not_repeated(fleet):
    """The engine computed and failed: that is its answer."""
    router, engines = fleet.start(3)
    for engine in engines:
        engine.script = reply(500, b'{"error":{"message":"CUDA error"}}')
    answer = router.chat()
    assert answer.status == 500 and b"CUDA error" in answer.body
    assert sum(e.count() for e in engines) == 1


def test_all_tries_share_one_request_id_and_are_numbered(fleet):
    """[77] What the engines saw of one request can be joined, and told apart."""
    router, (a, b) = fleet.start(2)
    prompt = text(3000)
    home, (other,) = warmed(router, fleet, prompt)
    home.script = die(RESET)
    answer = router.chat(prompt, [("x-request-id", "one-and-the-same")])
    assert answer.header("x-request-id") == "one-and-the-same"
    assert home.last().header("x-request-id") == other.last().header("x-request-id") == "one-and-the-same"


# ---- push-back -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [429, 503])
def test_a_retry_after_is_remembered_for_that_replica(fleet, status):
    """The request goes elsewhere at once, and the replica is left alone for as long as it asked, match or not."""
    router, engines = fleet.start(2)
    prompt = text(4000)
    home, (other,) = warmed(router, fleet, prompt)
    home.next(reply(status, b'{"error":{}}', [("Retry-After", "2")]))
    asked = time.monotonic()
    assert router.chat(prompt).replica == other.name
    count = home.count()
    while time.monotonic() < asked + 1.5:
        assert router.chat(prompt + text(20)).replica == other.name
        time.sleep(0.05)
    assert home.count() == count
    wait_for(lambda: router.chat(text(300)).replica == home.name, 5, "it is used again")
    assert time.monotonic() > asked + 1.8


def test_when_all_ask_for_patience_the_shortest_is_passed_on(fleet):
    router, engines = fleet.start(3, "--queue-requests", "0")
    for engine, wait in zip(engines, (30, 7, 20)):
        engine.script = reply(429, b'{"error":{"message":"full"}}', [("Retry-After", str(wait))])
    first = router.chat(text(200))
    assert first.status == 429 and 6 <= int(first.header("retry-after")) <= 7
    later = router.chat(text(200))
    assert later.status in (429, 503) and later.code in ("overloaded", "rate_limited")
    assert 5 <= int(later.header("retry-after")) <= 7
    assert [e.count() for e in engines] == [1, 1, 1], "nobody is bothered again"


def test_a_retry_after_as_a_date_is_understood(fleet):
    router, engines = fleet.start(2)
    prompt = text(3000)
    home, (other,) = warmed(router, fleet, prompt)
    when = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 3))
    home.next(reply(503, b"{}", [("Retry-After", when)]))
    answers = [router.chat(prompt) for _ in range(5)]
    assert {a.replica for a in answers} == {other.name}


def test_odd_retry_afters_are_harmless(fleet):
    router, engines = fleet.start(2)
    for value in ("-5", "abc", "99999999999999999999", "", "1e9", "0"):
        for engine in engines:
            engine.next(reply(429, b"{}", [("Retry-After", value)]))
        router.chat(text(200))
        for engine in engines:
            engine._queue.clear()
    assert router.alive()


def test_waiting_in_the_router_until_the_pause_is_over(fleet):
    """With room in its queue the router waits a short Retry-After out instead of passing it on."""
    router, (engine,) = fleet.start(1, "--queue-timeout", "10s")
    engine.next(reply(429, b"{}", [("Retry-After", "1")]))
    assert router.chat("one").status == 429
    started = time.monotonic()
    answer = router.chat("two")
    assert answer.status == 200 and answer.reason_header == "queue"
    assert 0.5 < time.monotonic() - started < 5


# ---- health ---------------------------------------------------------------------------------------------------------------


def test_an_engine_that_hangs_behind_good_health_is_taken_off_and_returns(fleet):
    """[64] A answers health and the model list, accepts inference, never replies; when it recovers it comes back."""
    router, engines = fleet.start(2, "--stall-timeout", "1s")
    prompt = text(4000)
    home, (other,) = warmed(router, fleet, prompt)
    home.script = hang()
    stuck = [router.start_chat(prompt + text(20), stream=True) for _ in range(6)]
    wait_for(lambda: router.state(home) == "down", 8, "found out by traffic")
    count = home.count()
    answers = [router.chat(prompt + text(20)) for _ in range(10)]
    assert all(a.status == 200 for a in answers)
    assert home.count() - count <= 3, "trials at most"
    for conn in stuck:
        conn.close()
    time.sleep(0.5)
    assert router.state(home) != "ready", "health answers alone do not bring it back"
    home.script = None

    def back():
        router.chat(text(300))
        return router.state(home) == "ready"
    wait_for(back, 15, "returned by itself", every=0.1)
    assert any(router.chat(text(300)).replica == home.name for _ in range(20))


def test_a_slow_engine_with_tokens_flowing_is_not_stalled(fleet):
    """[64] [65]"""
    router, (engine,) = fleet.start(1, "--stall-timeout", "1s")
    engine.script = sse(["x"] * 12, gap=0.25)
    with router.start_chat(stream=True) as conn:
        head = conn.head()
        stays(lambda: router.state(engine) == "ready", 2.5, "a replica that streams is alive")
        assert conn.finish(head).complete


def test_a_busy_replica_is_not_declared_dead(fleet):
    """[65] Health answers too late for many probes while tokens flow: it stays. Dead: out within the stated time."""
    router, engines = fleet.start(2, "--health-timeout", "100ms")
    prompt = text(3000)
    home, (other,) = warmed(router, fleet, prompt)
    home.script = sse(["x"] * 30, gap=0.1)
    home.health = reply(200, b"", delay=0.4)
    with router.start_chat(prompt, stream=True) as conn:
        head = conn.head()
        stays(lambda: router.state(home) == "ready", 2.0, "tokens are proof of life")
        assert conn.finish(head).complete
    home.health, home.script = reply(200, b""), None
    home.stop()
    wait_for(lambda: router.state(home) == "down", 3, "out after health-fall failures")


def test_one_slow_probe_is_no_failure_and_the_index_outlives_a_short_absence(fleet):
    """[65]"""
    router, engines = fleet.start(2, "--health-timeout", "100ms")
    prompt = text(4000)
    home, (other,) = warmed(router, fleet, prompt)
    home.health = reply(503)
    wait_for(lambda: router.state(home) == "down", what="out")
    home.health = reply(200, b"")
    wait_for(lambda: router.state(home) == "ready", what="back")
    answer = router.chat(prompt)
    assert answer.replica == home.name and answer.match > 500


def test_an_unhealthy_fleet_is_tried_all_the_same(fleet):
    """[66] Health says 503 everywhere but requests work: they are served."""
    router, engines = fleet.start(2)
    for engine in engines:
        engine.health = reply(503)
    wait_for(lambda: all(router.state(e) == "down" for e in engines), what="all down")
    assert [router.chat(text(200)).status for _ in range(10)] == [200] * 10


def test_recovery_is_quick_after_everybody_failed(fleet):
    """[66] Both fail for a while under 200 requests, then work: successes within two seconds."""
    router, engines = fleet.start(2)
    broken = threading.Event()
    broken.set()

    async def script(request, out):
        if broken.is_set():
            await out.end(RESET)
        else:
            await out.engine.llm(request, out)
    for engine in engines:
        engine.script = script
    answers = together([lambda: router.chat(text(200)) for _ in range(200)])
    assert all(a.status in (502, 503) for a in answers)
    time.sleep(1)
    broken.clear()
    recovered = time.monotonic()
    wait_for(lambda: router.chat(text(200)).status == 200, 2.5, "a success")
    wait_for(lambda: all(router.chat(text(200)).status == 200 for _ in range(10)), 5, "steady success")
    assert time.monotonic() - recovered < 8


def test_an_engine_that_says_it_is_leaving_gets_nothing_new(fleet):
    """[69] SGLang answers /ready with 503 while it drains and still accepts requests."""
    router, engines = fleet.start(2, engine={"kind": "sglang"})
    prompt = text(3000)
    home, (other,) = warmed(router, fleet, prompt)
    home.health = reply(503)
    wait_for(lambda: router.state(home) != "ready", what="out")
    assert {router.chat(prompt).replica for _ in range(5)} == {other.name}


# ---- death ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def victim():
    """A scripted engine in a process of its own: (url, name, start, process list)."""
    sock = free_socket()
    port = sock.getsockname()[1]
    sock.close()
    running = []

    def start():
        process = subprocess.Popen([sys.executable, os.path.join(os.path.dirname(__file__), "engine.py"),
                                    "--port", str(port), "--gap", "0.05"], stdout=subprocess.PIPE)
        assert process.stdout.readline()
        running.append(process)
        return process
    yield f"http://127.0.0.1:{port}", f"127.0.0.1:{port}", start
    for process in running:
        process.kill()
        process.wait()


def test_kill_9_of_a_replica(fleet, victim):
    """Streams that had begun end visibly broken, everything else is answered; after a restart it is used again and cold."""
    url, name, start = victim
    process = start()
    other = fleet.engine(gap=0.05)
    router = fleet.router("--replica", url, replicas=[other])
    prompts = [text(3000) for _ in range(12)]
    homes = [router.chat(p).replica for p in prompts]
    assert name in homes
    streams = []
    for prompt, home in zip(prompts, homes):
        if home == name:
            conn = router.start_chat(prompt, stream=True, max_tokens=200)
            streams.append((conn, conn.head()))
    waiting = [router.start_chat(text(300)) for _ in range(6)]
    process.send_signal(signal.SIGKILL)
    process.wait()
    for conn, head in streams:
        answer = conn.finish(head)
        assert answer.body and not answer.complete
        conn.close()
    for conn in waiting:
        assert conn.response().status == 200
        conn.close()
    answers = [router.chat(p) for p in prompts]
    assert all(a.status == 200 and a.replica == other.name for a in answers)
    wait_for(lambda: router.state(name) == "down", what="seen")
    start()
    wait_for(lambda: router.state(name) == "ready", 10, "back")
    cold = prompts[homes.index(name)]
    assert router.match_of(chat_body(cold), name) == 0, "a process that was gone has an empty cache"
    wait_for(lambda: router.chat(text(300)).replica == name, 5, "used again")


def test_a_stopped_process_is_left_and_found_again(fleet, victim):
    """SIGSTOP: connections are accepted by the kernel, nothing is answered."""
    url, name, start = victim
    process = start()
    other = fleet.engine()
    router = fleet.router("--replica", url, "--health-timeout", "200ms", replicas=[other])
    process.send_signal(signal.SIGSTOP)
    try:
        wait_for(lambda: router.state(name) == "down", 8, "out")
        assert {router.chat(text(300)).replica for _ in range(10)} == {other.name}
    finally:
        process.send_signal(signal.SIGCONT)
    wait_for(lambda: router.state(name) == "ready", 8, "back")
