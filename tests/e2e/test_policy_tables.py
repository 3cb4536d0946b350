# SPDX-License-Identifier: Apache-2.0
"""The default policy against other rules in the plain model: scripts/policy-tables in its short form, and what may not be
lost of the tables in docs/policy.md. With KVROUTE_TRACES also on whole traces."""
import os
import subprocess
import sys

from harness import BINARY, ROOT

SCRIPT = ROOT / "scripts" / "policy-tables"


def tables(*arguments):
    environment = {key: value for key, value in os.environ.items() if key != "KVROUTE_TRACES"}
    return subprocess.run([sys.executable, str(SCRIPT), "--kvroute", str(BINARY), *arguments], capture_output=True,
                          text=True, timeout=300, env=environment, check=False)


def cells(table):
    """Rows of a printed table by their first cell."""
    lines = [line.strip("| \n").split(" | ") for line in table.splitlines() if line.startswith("| ") and "---" not in line]
    return {line[0]: dict(zip(lines[0][1:], line[1:])) for line in lines[1:]}


def test_shapes_that_break_rules_do_not_break_kv():
    done = tables("--quick")
    assert done.returncode == 0, done.stderr + done.stdout
    rows = cells(done.stdout)
    assert len(rows) >= 10, done.stdout
    for name, row in rows.items():
        mean, spread = (float(text) for text in row["kv"].split())
        assert mean > 0 and spread >= 1, (name, row)
    # The same loads do break others: a table that cannot tell would show nothing.
    assert float(rows["sessions behind 48 common blocks, 20 turns, 6.0"]["lpm50"].split()[1]) == 8
    assert float(rows["paced sessions behind 2 blocks, caches of 1,000"]["ll"].split()[1]) == 8


def test_whole_traces():
    traces = os.environ.get("KVROUTE_TRACES")
    if not traces:
        done = tables("--only", "main")
        assert done.returncode == 2 and "no traces" in done.stderr
        return
    done = tables("--traces", traces, "--only", "main")
    assert done.returncode == 0, done.stderr + done.stdout
    rows = cells(done.stdout)
    assert rows["toll"]["conversation"] == "0.299 2.40 1.51 5.39 15.40"
    assert rows["toll"]["synthetic"] == "0.613 2.23 0.30 6.64 15.46"
    assert rows["toll"]["agents"] == "0.863 1.05 0.09 3.64 11.88"


def test_it_says_what_it_cannot_do():
    done = tables("--only", "nonsense")
    assert done.returncode == 2 and "--only" in done.stderr
    done = subprocess.run([sys.executable, str(SCRIPT), "--kvroute", "/bin/false", "--only", "shapes"],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "/bin/false" in done.stderr
