# SPDX-License-Identifier: Apache-2.0
"""What fleets and routers share: processes in sessions of their own, ports, HTTP, and who used the processor."""
import contextlib
import glob
import json
import os
import pathlib
import resource
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
TICK = os.sysconf("SC_CLK_TCK")


class Failed(Exception):
    pass


def say(*words):
    print(time.strftime("%H:%M:%S"), *words, file=sys.stderr, flush=True)


def wait_for(what, probe, seconds):
    end = time.monotonic() + seconds
    why = ""
    while time.monotonic() < end:
        try:
            found = probe()
            if found:
                return found
        except (OSError, ValueError) as error:
            why = f" ({error})"
        time.sleep(0.1)
    raise Failed(f"{what}: not ready after {seconds} s{why}")


def http(method, url, body=None, timeout=5.0):
    """Status and text of an answer, whatever the status."""
    data = json.dumps(body).encode() if body is not None else (b"" if method == "POST" else None)
    request = urllib.request.Request(url, data=data, method=method, headers={"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status, answer.read().decode("utf-8", "replace")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode("utf-8", "replace")


def ask(base, model, timeout=30.0):
    """One short chat that has nothing in common with those that are measured; its status."""
    body = {"model": model, "messages": [{"role": "user", "content": "?"}], "max_tokens": 2}
    return http("POST", base + "/v1/chat/completions", body, timeout)[0]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Process:
    """A program in a session of its own, so that all it starts can be ended, and its processor time added up."""

    def __init__(self, name, argv, log, env=None):
        self.name, self.log = name, pathlib.Path(log)
        with open(log, "wb") as file:
            self.child = subprocess.Popen([str(word) for word in argv], stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                                          env={**os.environ, **(env or {})}, start_new_session=True)
        self.session = self.child.pid

    def text(self):
        return self.log.read_text(encoding="utf-8", errors="replace")

    def check(self):
        if self.child.poll() is not None:
            raise Failed(f"{self.name} ended with {self.child.returncode}:\n{self.text()[-1500:]}")
        return True

    def stop(self, patience=5.0):
        """The routers of others wait for minutes before they end: after a while they are not asked any more."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.session, signal.SIGTERM)
        try:
            self.child.wait(patience)
        except subprocess.TimeoutExpired:
            pass
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.session, signal.SIGKILL)
        self.child.wait()


def session_ticks(sessions):
    """Clock ticks that the living processes of some sessions have used."""
    total = 0
    for name in glob.glob("/proc/[0-9]*/stat"):
        try:
            fields = pathlib.Path(name).read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) in sessions:
            total += int(fields[11]) + int(fields[12])
    return total


class Account:
    """How much of the processors was used over a stretch by others than us: what makes a figure doubtful."""

    def __init__(self, sessions):
        self.sessions = set(sessions)
        self.begin = self.now()

    def now(self):
        words = pathlib.Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
        user, nice, system, _idle, _wait, irq, softirq, steal = (int(word) for word in words[:8])
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        own = resource.getrusage(resource.RUSAGE_SELF)
        ours = sum(usage.ru_utime + usage.ru_stime for usage in (ended, own)) * TICK
        return (user + nice + system + irq + softirq + steal, ours + session_ticks(self.sessions), time.monotonic())

    def foreign(self):
        """In processors: 0.1 is a tenth of one."""
        busy, ours, when = (after - before for after, before in zip(self.now(), self.begin))
        return max(0.0, (busy - ours) / TICK / max(when, 0.001))
