# SPDX-License-Identifier: Apache-2.0
"""What it costs that engines' events come late, get lost, or come from an engine that has restarted: scripts/stale-events in
its short form, and with KVROUTE_TRACES on whole traces."""
import json
import os
import subprocess
import sys

import pytest
from harness import BINARY, ROOT

SCRIPT = ROOT / "scripts" / "stale-events"
EXTRACTS = ROOT / "tests" / "data" / "traces"


def tables(*arguments, timeout=600):
    environment = {key: value for key, value in os.environ.items() if key != "KVROUTE_TRACES"}
    return subprocess.run([sys.executable, str(SCRIPT), "--kvroute", str(BINARY), *arguments], capture_output=True,
                          text=True, timeout=timeout, env=environment, check=False)


def cells(text):
    """Rows of all tables by trace and by what routers go by: those without restarts, those with them."""
    found = []
    for line in text.splitlines():
        if line.startswith("| trace"):
            head = line.strip("| ").split(" | ")
            found.append({})
        elif line.startswith("| ") and "---" not in line:
            row = dict(zip(head, line.strip("| ").split(" | ")))
            found[-1][row["trace"], row["routers go by"]] = row
    return found


def simulated(*arguments):
    done = subprocess.run([str(BINARY), "simulate", "--json", "--no-progress", "--policies", "kv", *map(str, arguments)],
                          capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    row, = json.loads(done.stdout)["rows"]
    return row


@pytest.mark.slow
def test_late_and_lost_events_cost_little():
    """The checks are the script's; here it is looked that its tables can tell one thing from another."""
    done = tables("--quick")
    assert done.returncode == 0, done.stderr + done.stdout
    fresh, restarted = cells(done.stdout)
    assert len(fresh) == 15 and len(restarted) == 10, done.stdout
    for trace in ("sessions", "groups"):
        late, lost = fresh[trace, "late, lost, asked for again"], fresh[trace, "late, lost for good"]
        # What can be asked for again costs no trust; what cannot costs nearly all of it.
        assert float(late["untrusted"].split()[0]) < 5 < float(lost["untrusted"].split()[0])
        assert float(restarted[trace, "oracle"]["lost"]) > 0
    for row in fresh.values():
        assert float(row["of oracle's"]) > 0.95, row


def test_whole_traces():
    traces = os.environ.get("KVROUTE_TRACES")
    if not traces:
        pytest.skip("KVROUTE_TRACES is not set")
    # The agents' trace takes minutes: the script's own default has it.
    done = tables("--traces", traces, "--only", "conversation,synthetic")
    assert done.returncode == 0, done.stderr + done.stdout
    fresh, _ = cells(done.stdout)
    assert float(fresh["conversation", "oracle"]["hits"]) > 0.32
    assert float(fresh["synthetic", "oracle"]["hits"]) > 0.62


@pytest.mark.slow
def test_starved_caches_are_no_worse_by_events():
    """Eleven times the caches are asked for, and prompts wait: what is held now is not what will be held then."""
    trace = "synthetic:requests=2500,rate=8,groups=60,prefix=6144,zipf=0.8,output=64"
    arguments = ["--replicas", 4, "--capacity-blocks", 500, "--loads", 1.0, trace]
    history, events = simulated(*arguments), simulated("--index", "events", *arguments)
    assert events["hit_rate"] > 0.97 * history["hit_rate"]
    assert events["ttft_s"]["mean"] < 1.3 * history["ttft_s"]["mean"]


@pytest.mark.slow
def test_rare_losses_for_good_are_no_worse_than_no_events():
    """One message in five hundred is lost and cannot be asked for again. Its engine's view is empty then and fills slowly:
    what it lacks was once believed to be gone."""
    trace = "synthetic:requests=3000,rate=8,groups=60,prefix=6144,zipf=0.8,output=64"
    arguments = ["--replicas", 4, "--capacity-blocks", 3000, "--loads", 1.5, trace]
    history = simulated(*arguments)
    lossy = simulated("--index", "events", "--events-lost", 0.2, "--events-replay", 0, "--events-relearn", "5s", *arguments)
    assert lossy["events"]["clears"] >= 3 and lossy["events"]["untrusted"] < 0.1
    assert lossy["hit_rate"] > 0.995 * history["hit_rate"]
    assert lossy["predicted_hit_rate"] > 0.995 * lossy["hit_rate"]


@pytest.mark.slow
def test_reuse_interval_is_told():
    trace = EXTRACTS / "agents.jsonl.gz"
    one, twice = simulated("--index", "oracle", "--loads", 0.5, trace), simulated("--index", "oracle", "--loads", 1, trace)
    assert one["reuse_s"] > 0 and abs(one["reuse_s"] / twice["reuse_s"] - 2) < 0.01
    assert simulated(trace)["reuse_s"] is None


def test_it_says_what_it_cannot_do():
    done = tables("--only", "nonsense")
    assert done.returncode == 2 and "--only" in done.stderr
    done = tables()
    assert done.returncode == 2 and "no traces" in done.stderr
    done = subprocess.run([sys.executable, str(SCRIPT), "--kvroute", "/bin/false", "--quick"], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 2 and "/bin/false" in done.stderr
    done = subprocess.run([str(BINARY), "simulate", "--restart", "3@5-9", "x"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "--restart" in done.stderr
