# SPDX-License-Identifier: Apache-2.0
"""bench/peers, the comparison with other routers: its rules; and over kvroute mock, with nginx, where KVROUTE_TIMED asks for it."""
import json
import os
import shutil
import subprocess
import sys

import pytest
from harness import BINARY, PATIENCE, ROOT

PEERS = ROOT / "bench" / "peers"
sys.path.insert(0, str(PEERS))

import calibrate  # noqa: E402
import run as peers  # noqa: E402


timed = pytest.mark.skipif(not os.environ.get("KVROUTE_TIMED"), reason="minutes of real time; KVROUTE_TIMED=1 on a quiet machine")


def bench(tmp_path, *arguments):
    figures = tmp_path / "figures.json"
    argv = [sys.executable, PEERS / "run.py", "--kvroute", BINARY, "--fleets", "mock", "--speed", "4", "--settle", "0.3",
            "--json", figures, "--keep", tmp_path / "logs", *arguments]
    done = subprocess.run([str(word) for word in argv], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=120 * PATIENCE, check=False)
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-1000:]
    return done.stdout, json.loads(figures.read_text())


@timed
def test_nginx_and_kvroute_over_mocks(tmp_path):
    if not (shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")):
        pytest.skip("no nginx")
    out, figures = bench(tmp_path, "--routers", "nginx,kvroute", "--seeds", "2", "--requests", "40", "--rates", "mock=50:0.06")
    cells = figures["cells"]["mock-chat"]
    assert [(cell["seed"], cell["router"]) for cell in cells] == [(1, "nginx"), (1, "kvroute"), (2, "kvroute"), (2, "nginx")]
    hits = {}
    for cell in cells:
        # Everything that was sent was answered, by engines that were empty before.
        assert cell["errors"] == 0 and cell["bench"]["requests"] == 40 == sum(cell["counts"]), cell
        assert 0 < cell["mean"] <= cell["p99"] and cell["balance"] == max(cell["counts"]) / (40 / 3)
        hits[cell["router"], cell["seed"]] = cell["hit"]
    for seed in (1, 2):
        # Six prefixes, ten sessions, three engines: in turns, each prefix is computed up to three times.
        assert 0 < hits["nginx", seed] < hits["kvroute", seed] < 1, hits
    mine = [cell for cell in cells if cell["router"] == "kvroute"]
    row = next(line.split() for line in out.splitlines() if line.startswith("kvroute  "))
    assert float(row[1]) == pytest.approx(sum(cell["mean"] for cell in mine) / 2, abs=0.001)
    assert "idle: 0.060 s; nginx here: " in out and "kvroute against nginx: mean " in out, out


@timed
def test_policies_and_the_simulator(tmp_path):
    out, figures = bench(tmp_path, "--policies", "--routers", "kv,round_robin", "--workloads", "chat", "--seeds", "1", "--requests",
                         "60", "--rates", "mock=25", "--calibrate")
    assert "kv against round_robin: mean: one seed" in out, out
    calibration = figures["calibration"]["mock-chat"]
    # A quarter of the preset's 0.225 ms per token: four times as fast. What the machine adds goes into a, not into b.
    assert calibration["fit"]["b"] == pytest.approx(0.225 / 4, rel=0.15), calibration["fit"]
    kv, others = calibration["policies"]["kv"], calibration["policies"]["round_robin"]
    assert kv["trace_hit"] == pytest.approx(kv["hit"], abs=0.05) and others["trace_hit"] == pytest.approx(others["hit"], abs=0.08)
    assert kv["trace"] < others["trace"] and kv["own"] < others["own"]


def cell(seed, mean):
    return {"seed": seed, "mean": mean}


def test_a_difference_counts_when_seeds_agree_on_it():
    ours, theirs = [cell(1, 0.10), cell(2, 0.20), cell(3, 0.30)], [cell(3, 0.41), cell(1, 0.20), cell(2, 0.31)]
    # Seed by seed: -0.10, -0.11, -0.11, although seeds differ by more than routers.
    assert peers.compare(ours, theirs, "mean") == (pytest.approx(-0.32 / 3), "lower")
    assert peers.compare(theirs, ours, "mean") == (pytest.approx(0.32 / 3), "higher")
    # -0.02, +0.01, -0.03: mean -0.0133, error 0.0120, and t = 2.92 of it.
    mixed = [cell(1, 0.12), cell(2, 0.19), cell(3, 0.33)]
    assert peers.compare(ours, mixed, "mean") == (pytest.approx(-0.04 / 3), "level within the spread")
    assert peers.compare(ours[:1], theirs, "mean") == (None, "one seed: nothing known of chance")


def test_the_search_ends_at_a_load_that_asks_enough():
    class Queue:
        """Idle 0.1 s; with 10 a second as its limit the mean is 0.1 / (1 - load)."""
        class args:
            first_rate = None
        asked = []

        def cell(self, _router, _load, _seed, _requests, rate):
            self.asked.append(rate)
            mean = 0.1 if not rate else 0.1 / (1 - rate / 10) if rate < 10 else 5.0
            return {"mean": mean, "foreign": 0.0}

    class Router:
        name = "any"
    queue = Queue()
    idle = peers.idle_mean(queue, Router, {}, 100, "key")
    rate, mean = peers.search(queue, Router, {}, 100, idle)
    assert idle == 0.1 and queue.asked[0] == 0 and rate in queue.asked
    assert 10 * (1 - 1 / 3) <= rate <= 10 * (1 - 1 / 5) and 3.0 <= mean / idle <= 5.0


def test_turns_are_recognized_without_a_name():
    system = list(range(100, 120))
    first, other = [*system, *range(10)], [*system, *range(20, 29)]
    rows = [{"hash_ids": first}, {"hash_ids": other}, {"hash_ids": [*other[:-1], *range(40, 50)]},
            {"hash_ids": [*first[:-2], *range(60, 70)]}, {"hash_ids": [*system, *range(80, 88)]}]
    calibrate.name_sessions(rows)
    assert [row["session"] for row in rows] == ["s0", "s1", "s1", "s0", "s2"]
