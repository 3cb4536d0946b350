# SPDX-License-Identifier: Apache-2.0
"""kvroute as a service among others: the service manager, addresses, log formats, signals."""
import json
import os
import signal
import socket

import pytest

from client import build, chat_body
from engine import HANG, sse
from harness import kvroute, wait_for


def test_the_service_manager_is_told(fleet, tmp_path):
    """READY=1 when it accepts requests, STOPPING=1 when it drains (systemd's protocol)."""
    path = tmp_path / "notify"
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.bind(str(path))
    sock.settimeout(5)
    router = fleet.router(replicas=[fleet.engine()], env={"NOTIFY_SOCKET": str(path)})
    assert "READY=1" in sock.recv(4096).decode().split("\n")
    router.terminate()
    assert "STOPPING=1" in sock.recv(4096).decode().split("\n")
    assert router.wait_exit() == 0
    sock.close()


def test_ipv6_listener(fleet):
    if not socket.has_ipv6:
        pytest.skip("no IPv6")
    try:
        socket.socket(socket.AF_INET6).bind(("::1", 0))
    except OSError:
        pytest.skip("no IPv6 loopback")
    engine = fleet.engine()
    router = fleet.router("--listen", "[::1]:0", replicas=[engine], ready=False)
    port = int(router.ready_line.split("http://[::1]:")[1].split()[0].rstrip(",)"))
    router.wait_ready()
    with socket.create_connection(("::1", port), 10) as sock:
        sock.sendall(build("POST", "/v1/chat/completions", [("Connection", "close")], chat_body()))
        data = b""
        while True:
            part = sock.recv(65536)
            if not part:
                break
            data += part
    assert data.startswith(b"HTTP/1.1 200 ")


def test_json_log_lines(fleet):
    router, (engine,) = fleet.start(1, "--log-format", "json")
    engine.stop()
    wait_for(lambda: router.state(engine) == "down", what="something to log")
    lines = [line for line in router.lines if not line.startswith("kvroute: ready on ")]
    assert lines and all(isinstance(json.loads(line), dict) for line in lines)
    assert any(engine.name in line for line in lines)


def test_log_level(fleet):
    router, (engine,) = fleet.start(1, "--log-level", "error")
    engine.stop()
    wait_for(lambda: router.state(engine) == "down", what="down")
    assert [line for line in router.lines if not line.startswith("kvroute: ready on ")] == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_it_in_order(fleet, number):
    router, _ = fleet.start(1)
    router.chat()
    router.signal(number)
    assert router.wait_exit() == 0


def test_a_broken_standard_output_does_not_kill_it(fleet):
    """The reader of the access log goes away: SIGPIPE is not the end."""
    reader, writer = os.pipe()
    router, _ = fleet.start(1, "--access-log", "-", out=writer)
    os.close(writer)
    os.close(reader)
    for _ in range(5):
        assert router.chat().status == 200


def test_an_access_log_that_cannot_be_opened_is_an_error():
    ended = kvroute("serve", "--listen", "127.0.0.1:0", "--admin", "off", "--access-log", "/nonexistent/dir/access.log",
                    "http://127.0.0.1:9")
    assert ended.status in (1, 2) and "/nonexistent/dir/access.log" in ended.err


def test_many_threads(fleet):
    router, engines = fleet.start(2, "--threads", "8")
    conns = [router.connect() for _ in range(32)]
    for conn in conns:
        conn.request("POST", "/v1/chat/completions", body=chat_body())
    assert all(conn.response().status == 200 for conn in conns)
    for conn in conns:
        conn.close()
    assert sum(e.count() for e in engines) == 32


def test_an_answer_that_outlives_its_reader_is_ended_by_the_idle_limit(fleet):
    """A client that stops reading for ever does not hold its engine for ever."""
    router, (engine,) = fleet.start(1, "--idle-timeout", "600ms")
    engine.script = sse([b"data: " + b"x" * 65536 + b"\n\n"] * 400, end=HANG)
    conn = router.connect(rcvbuf=8192)
    conn.request("POST", "/v1/chat/completions", body=chat_body(stream=True))
    conn.head()
    wait_for(lambda: engine.last().gone_at, 6, "the engine is released")
    conn.close()


def test_a_body_that_stops_coming_is_given_up(fleet):
    router, (engine,) = fleet.start(1, "--idle-timeout", "500ms")
    with router.connect() as conn:
        conn.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
        assert conn.closed_by_peer(5)
    assert not engine.requests
