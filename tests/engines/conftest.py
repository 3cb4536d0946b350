# SPDX-License-Identifier: Apache-2.0
"""Two real vLLM or SGLang servers (KVROUTE_ENGINE) on this machine's CPU, started by scripts/engine-replicas. They take
minutes to install and one to start, so these tests are a target of their own: make test-vllm, make test-sglang."""
import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE.parent / "e2e"), str(HERE)]

from e2e_fixtures import *  # noqa: E402,F401,F403

ENGINE = os.environ.get("KVROUTE_ENGINE", "vllm")
SCRIPT = str(ROOT / "scripts" / "engine-replicas")


class Server:
    """One server: its URL and event endpoints, and how to end and begin it."""

    def __init__(self, line, options):
        self.url, self.events, self.replay = line.split()
        self.port = int(self.url.rsplit(":", 1)[1])
        self.name = self.url.split("//")[1]
        self.options = options

    def stop(self):
        subprocess.run([SCRIPT, ENGINE, "down", str(self.port)], stdin=subprocess.DEVNULL, check=True, timeout=60)

    def start(self):
        start(1, self.port, self.options)


def start(count, port, options):
    command = [SCRIPT, ENGINE, "up", str(count), "--port", str(port)] + (["--", *options] if options else [])
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        pytest.fail(f"{ENGINE}: " + (done.stderr.strip().splitlines() or ["no message"])[-1])
    return [Server(line, options) for line in done.stdout.splitlines()]


OPTIONS = {
    # An adapter's own cache is one of the things to be told apart.
    "vllm": ["--enable-lora", "--max-lora-rank", "8", "--max-loras", "2"],
    "sglang": ["--page-size", "16"],
}


def running_at(port, options):
    """One that was started by hand."""
    return Server(f"http://127.0.0.1:{port} tcp://127.0.0.1:{port + 1000} tcp://127.0.0.1:{port + 2000}", options)


@pytest.fixture(scope="module")
def servers():
    port = {"vllm": 9301, "sglang": 9501}[ENGINE]
    running = os.environ.get("KVROUTE_ENGINE_PORT")     # two that were started by hand, with the same options
    if running:
        yield [running_at(int(running) + n, OPTIONS[ENGINE]) for n in range(2)]
        return
    started = start(2, port, OPTIONS[ENGINE])
    yield started
    subprocess.run([SCRIPT, ENGINE, "down"], stdin=subprocess.DEVNULL, check=False, timeout=120)
