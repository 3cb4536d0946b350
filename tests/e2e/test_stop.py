# SPDX-License-Identifier: Apache-2.0
"""SIGTERM and Ctrl-C: what is said, what may end, what is cut, and when load balancers learn of it."""
import json
import re
import signal
import time

import pytest

from engine import HANG, sse
from harness import stays, wait_for


def said(router, pattern):
    return wait_for(lambda: next((m for line in list(router.lines) if (m := re.search(pattern, line))), None),
                    what=f"a line with {pattern}")


def two_streams(fleet, *options):
    router, (engine,) = fleet.start(1, *options)
    engine.script = sse(["x"] * 3, gap=0.2, end=HANG)
    conns = [router.start_chat(stream=True) for _ in range(2)]
    heads = [conn.head() for conn in conns]
    return router, engine, conns, heads


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_what_runs_and_until_when_and_a_second_signal_cuts(fleet, number, tmp_path):
    log = tmp_path / "access.log"
    router, engine, conns, heads = two_streams(fleet, "--drain-timeout", "1h", "--access-log", log)
    router.signal(number)
    line = said(router, r"stopping: .*").group(0)
    assert re.search(r"2 running answers may end until \d\d:\d\d:\d\dZ \(drain-timeout 1h\)", line), line
    assert "second signal cuts them" in line
    stays(router.alive, 0.3, "the answers may end")
    router.signal(number)
    assert router.wait_exit(5) == 0, "an end that was asked for is no failure"
    assert not any(conn.finish(head).complete for conn, head in zip(conns, heads))
    assert "second signal: 2 running answers are cut" in router.err
    assert "stopped: 2 answers were cut" in router.err
    ends = [(line["end"], line.get("code")) for line in map(json.loads, log.read_text().splitlines())]
    assert ends == [("failed", "draining")] * 2, "neither client nor replica ended it"


def test_the_drain_timeout_says_what_it_cuts(fleet):
    router, engine, conns, heads = two_streams(fleet, "--drain-timeout", "500ms")
    router.terminate()
    assert router.wait_exit(5) == 0
    assert "the drain-timeout is over: 2 running answers are cut" in router.err
    assert "stopped: 2 answers were cut" in router.err


def test_without_a_limit_it_says_so(fleet):
    router, engine, conns, heads = two_streams(fleet, "--drain-timeout", "off")
    router.terminate()
    said(router, r"as long as needed \(drain-timeout off\)")
    engine.drop()
    assert router.wait_exit(5) == 0


def test_idle_it_ends_at_once_and_nothing_was_cut(fleet):
    router, _ = fleet.start(1)
    started = time.monotonic()
    router.terminate()
    assert router.wait_exit(5) == 0 and time.monotonic() - started < 2
    assert "no answer runs" in router.err and "no answer was cut" in router.err


def test_with_a_delay_requests_are_taken_while_readyz_says_no(fleet):
    router, (engine,) = fleet.start(1, "--shutdown-delay", "1500ms")
    started = time.monotonic()
    router.terminate()
    wait_for(lambda: router.get("/readyz").status == 503, what="not ready")
    assert router.admin_request("GET", "/readyz").status == 503
    assert b"shutting down" in router.get("/readyz").body
    assert router.get("/healthz").status == 200
    for _ in range(3):
        assert router.chat().status == 200
        time.sleep(0.2)
    said(router, r"stopping: /readyz says 503, requests are taken for 1500ms more \(shutdown-delay\)")
    assert router.wait_exit(5) == 0
    assert 1.4 < time.monotonic() - started < 4


def test_a_second_signal_ends_the_delay(fleet):
    router, _ = fleet.start(1, "--shutdown-delay", "1h")
    router.terminate()
    wait_for(lambda: router.get("/readyz").status == 503, what="not ready")
    router.terminate()
    assert router.wait_exit(5) == 0
