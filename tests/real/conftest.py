# SPDX-License-Identifier: Apache-2.0
"""Three real llama.cpp servers for the tests of this folder (scripts/llama-replicas); skips with the reason where they
cannot be had. KVROUTE_REAL=long makes the workloads several times as long."""
import os
import pathlib
import random
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE.parent / "e2e"), str(HERE)]

from e2e_fixtures import *  # noqa: E402,F401,F403


@pytest.fixture(scope="session")
def replicas():
    """URLs of three servers with two slots each."""
    script = str(ROOT / "scripts" / "llama-replicas")
    first = random.randrange(12000, 30000, 10)
    started = subprocess.run([script, "up", "3", "--port", str(first), "--slots", "2"], stdin=subprocess.DEVNULL,
                             capture_output=True, text=True, timeout=400, check=False)
    if started.returncode:
        message = (started.stderr.strip().splitlines() or ["no message"])[-1]
        if os.environ.get("KVROUTE_REAL"):
            pytest.fail(message)
        pytest.skip("no llama.cpp: " + message)
    yield started.stdout.split()
    subprocess.run([script, "down", *(str(first + n) for n in range(3))], stdin=subprocess.DEVNULL, check=False, timeout=60)
