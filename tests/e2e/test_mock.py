# SPDX-License-Identifier: Apache-2.0
"""kvroute mock as a program: its ports. What it serves is tested beside the code."""
import os
import re
import socket
import subprocess
import threading

import pytest

from client import fetch
from harness import BINARY, kvroute, wait_for


class Mock:
    """A running kvroute mock on free ports."""

    def __init__(self, *args):
        self.process = subprocess.Popen([BINARY, "mock", *args], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE, text=True)
        self.lines = []
        threading.Thread(target=lambda: self.lines.extend(iter(self.process.stderr.readline, "")), daemon=True).start()

    def ports(self, count=1):
        found = wait_for(lambda: (lambda p: p if len(p) == count else None)(
            re.findall(r"ready on http://127\.0\.0\.1:(\d+)", "".join(self.lines))), 10, "the ready lines")
        return [int(port) for port in found]

    def stop(self):
        self.process.terminate()
        assert self.process.wait(10) == 0


@pytest.fixture
def mock():
    running = []

    def start(*args):
        running.append(Mock(*args))
        return running[-1]
    yield start
    for one in running:
        one.stop()


def free_run(count):
    """The first of `count` neighbouring free ports below the range that the system hands out; tests that run at the same
    time look in different places."""
    start = 12000 + os.getpid() * 50 % 6000
    for first in range(start, start + 1000, count):
        sockets = []
        try:
            for port in range(first, first + count):
                sockets.append(socket.create_server(("127.0.0.1", port)))
            return first
        except OSError:
            continue
        finally:
            for one in sockets:
                one.close()
    pytest.skip("no free ports")


def test_a_port_of_another_mock_is_refused(mock):
    (port,) = mock("--listen", "127.0.0.1:0").ports()
    second = kvroute("mock", "--listen", f"127.0.0.1:{port}")
    assert second.status == 2
    assert second.err == (f"kvroute mock: --listen 127.0.0.1:{port}: the port is in use; choose another, or stop what "
                          "listens there\n")
    assert fetch(f"http://127.0.0.1:{port}", "GET", "/health").status == 200


def test_every_address_includes_the_taken_one(mock):
    (port,) = mock("--listen", "127.0.0.1:0").ports()
    second = kvroute("mock", "--listen", f"0.0.0.0:{port}")
    assert second.status == 2 and "in use" in second.err and "ready" not in second.err


def test_none_of_a_fleet_is_ready_when_one_port_is_taken():
    first = free_run(3)
    with socket.create_server(("127.0.0.1", first + 1)):
        second = kvroute("mock", "--count", 3, "--listen", f"127.0.0.1:{first}")
        assert second.status == 2
        assert f"--listen 127.0.0.1:{first + 1}: the port is in use" in second.err
        assert "ready" not in second.err


def test_a_port_is_free_again_at_once(mock):
    one = mock("--listen", "127.0.0.1:0")
    (port,) = one.ports()
    assert fetch(f"http://127.0.0.1:{port}", "GET", "/health").status == 200
    one.process.terminate()
    one.process.wait(10)
    assert mock("--listen", f"127.0.0.1:{port}").ports() == [port]


def test_a_mock_that_was_away_does_not_share_its_port_on_return(mock):
    (port,) = mock("--listen", "127.0.0.1:0").ports()
    url = f"http://127.0.0.1:{port}"
    assert fetch(url, "POST", "/mock/restart", body=b'{"down_ms":300}').status == 200

    def take():
        try:
            return socket.create_server(("127.0.0.1", port))
        except OSError:
            return None
    stranger = wait_for(take, 5, "the mock to leave its port", every=0.005)
    with stranger:
        stranger.settimeout(0.2)
        # For longer than it meant to be away, every connection is the stranger's.
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", port), 1):
                accepted, _ = stranger.accept()
                accepted.close()
            threading.Event().wait(0.03)
    wait_for(lambda: healthy(url), 5, "the mock to be back")


def healthy(url):
    try:
        return fetch(url, "GET", "/health").status == 200
    except OSError:
        return False


def test_ports_of_several_engines_must_not_meet():
    done = kvroute("mock", "--count", "2", "--events", "tcp://*:5557", "--replay", "tcp://*:5558")
    assert done.status == 2 and "--replay: with --count 2" in done.err and "overlap" in done.err
