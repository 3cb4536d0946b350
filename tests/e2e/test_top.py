# SPDX-License-Identifier: Apache-2.0
"""kvroute top: the admin API's figures in a terminal, and as JSON for scripts."""
import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import termios
import time

import pytest

from engine import Engine
from harness import BINARY, Router, kvroute, wait_for
from texts import text


@pytest.fixture
def busy(fleet):
    router, engines = fleet.start(2)
    prompt = text(4000)
    for _ in range(8):
        assert router.chat(prompt, headers=[("x-kvroute-workload", "agents")]).status == 200
    router.wait_idle()
    wait_for(lambda: totals(router)["requests"] == 8, what="all booked")
    return router


def totals(router, window="life"):
    accounts = router.admin_request("GET", "/kvroute/ledger").json["accounts"]["all"]
    return accounts[0]["windows"][window] if accounts else {"requests": 0}


def test_json_has_the_figures_of_the_admin_api(busy):
    seen = json.loads(kvroute("top", busy.admin_url, "--once", "--json").out)
    ledger = busy.admin_request("GET", "/kvroute/ledger").json
    assert seen["window"] == "10m"
    assert seen["accounts"]["all"][0]["windows"]["life"] | {"covered_s": 0} == totals(busy) | {"covered_s": 0}
    assert [a["name"] for a in seen["accounts"]["workload"]] == ["agents"]
    assert {a["name"] for a in seen["accounts"]["virtual"]} == {"round_robin", "least_tokens", "prefix_hash"}
    assert seen["balance"] == ledger["balance"] and seen["reasons"] == ledger["reasons"]
    assert {r["name"]: r["state"] for r in seen["replicas"]} == {n: e["state"] for n, e in busy.replicas().items()}
    assert seen["alarms"] == []


def test_one_look_as_text(busy):
    ended = kvroute("top", busy.admin_url, "--once", "--window", "life")
    assert ended.status == 0 and ended.err == "" and "\033" not in ended.out
    sums = totals(busy)
    assert f"reused {100 * sums['won_tokens'] / sums['prompt_tokens']:.1f}% of " in ended.out
    assert "2 of 2 replicas ready" in ended.out and "no alarms" in ended.out
    row = next(line for line in ended.out.splitlines() if line.startswith("agents")).split()
    assert row[1] == "8"
    for name in busy.replicas():
        assert any(line.startswith(name) and " ready " in line for line in ended.out.splitlines())


def test_lines_keep_coming_until_it_is_told_to_end(busy):
    process = subprocess.Popen([BINARY, "top", busy.admin_url, "--json", "--interval", "100ms"], stdout=subprocess.PIPE, text=True)
    assert [json.loads(process.stdout.readline())["accounts"]["all"][0]["windows"]["life"]["requests"] for _ in range(3)] == [8, 8, 8]
    process.terminate()
    assert process.wait(15) == 0
    process.stdout.close()


def test_on_a_terminal_it_draws_and_leaves_the_screen_as_it_was(busy):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 60, 0, 0))
    process = subprocess.Popen([BINARY, "top", busy.admin_url, "--interval", "200ms"], stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs)
    os.close(theirs)
    seen = b""

    def read():
        nonlocal seen
        try:
            seen += os.read(ours, 65536)
        except OSError:
            return True
        return seen.count(b"\033[H") >= 3
    wait_for(read, 15, "three pictures")
    process.send_signal(signal.SIGINT)
    wait_for(lambda: process.poll() is not None, 15, "its end")
    while True:
        try:
            more = os.read(ours, 65536)
        except OSError:
            break
        if not more:
            break
        seen += more
    os.close(ours)
    assert process.returncode == 0
    assert seen.startswith(b"\033[?1049h\033[?25l") and seen.endswith(b"\033[?25h\033[?1049l")
    assert b"agents" in seen and b"\033[1mREPLICA" in seen
    plain = seen.split(b"\033[H")[2]
    for code in (b"\033[0m", b"\033[1m", b"\033[1;32m", b"\033[32m", b"\033[K", b"\033[J"):
        plain = plain.replace(code, b"")
    assert max(map(len, plain.split(b"\r\n"))) < 60


def test_what_can_go_wrong_is_said(busy, hub, tmp_path):
    ended = kvroute("top", "http://127.0.0.1:1", "--once")
    assert ended.status == 1 and "kvroute top: GET http://127.0.0.1:1/kvroute/replicas: " in ended.err
    ended = kvroute("top", busy.url, "--once")
    assert ended.status == 1 and "--admin" in ended.err
    assert kvroute("top", "ftp://x").status == 2 and kvroute("top", "--window", "2h").status == 2
    assert kvroute("top", "--token-file", tmp_path / "none").status == 2

    engine = Engine(hub)
    guarded = Router(replicas=[engine], env={"KVROUTE_ADMIN_TOKEN": "s3cret"})
    (tmp_path / "token").write_text("s3cret\n")
    try:
        ended = kvroute("top", guarded.admin_url, "--once")
        assert ended.status == 1 and "--token-file" in ended.err
        assert kvroute("top", guarded.admin_url, "--once", "--token-file", tmp_path / "token").status == 0
        for value in ("s3cret", f"file:{tmp_path}/token", "env:OTHER"):
            assert kvroute("top", guarded.admin_url, "--once", env={"KVROUTE_ADMIN_TOKEN": value, "OTHER": "s3cret"}).status == 0
        assert kvroute("top", guarded.admin_url, "--once", env={"KVROUTE_ADMIN_TOKEN": "wrong"}).status == 1
    finally:
        guarded.terminate()
        assert guarded.wait_exit() == 0
        engine.close()


def test_it_goes_on_when_the_router_comes_and_goes(fleet):
    router, _ = fleet.start(1)
    process = subprocess.Popen([BINARY, "top", router.admin_url, "--json", "--interval", "100ms"], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    process.stdout.readline()
    router.check_and_stop()
    assert "kvroute top: GET " in process.stderr.readline() and process.poll() is None
    time.sleep(0.3)
    assert process.poll() is None
    process.terminate()
    assert process.wait(15) == 0
    process.stdout.close()
    process.stderr.close()


def test_help_names_every_option():
    ended = kvroute("top", "--help")
    assert ended.status == 0 and ended.err == ""
    for name in ("window", "interval", "token-file", "once", "json"):
        assert f"--{name}" in ended.out
    assert "top " in kvroute("--help").out
