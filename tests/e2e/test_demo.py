# SPDX-License-Identifier: Apache-2.0
"""kvroute demo: the order of its output, its notices, its seed. Which policy wins is for the whole demo to show."""
import json
import re
import subprocess

import pytest

from harness import BINARY, kvroute, sanitized

SMALL = ("--requests", 80, "--turns", 2, "--turn-gap", "1s")
OVERLOAD = ("--replicas", 1, "--rate", 40, "--requests", 300, "--turns", 1)


def rows_of(*args):
    done = kvroute("demo", "--json", "--no-progress", *args, timeout=60)
    assert done.status == 0, done.err
    return {row["policy"]: row for row in json.loads(done.out)["policies"]}


def test_an_unknown_policy_is_answered_with_the_known_ones():
    done = kvroute("demo", "--policies", "kv,foo")
    assert done.status == 2 and done.out == ""
    assert "--policies: there is no 'foo'; there are kv, " in done.err
    for name in ("round_robin", "least_requests", "consistent_hash", "longest_prefix"):
        assert name in done.err


def test_into_a_pipe_the_heading_comes_first():
    done = subprocess.run([BINARY, "demo", "--policies", "kv,round_robin", *map(str, SMALL)], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=True)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("4 mock replicas (llama3-70b-h100)")
    order = [re.match(r"(policy|kv:?|round_robin:?) ", line) for line in lines]
    order = [match[1] for match in order if match]
    # Heading, progress, row; progress, row.
    assert [name for i, name in enumerate(order) if i == 0 or name != order[i - 1]] == \
        ["policy", "kv:", "kv", "round_robin:", "round_robin"]


def test_the_table_has_a_row_for_each_policy():
    done = kvroute("demo", "--no-progress", "--policies", "kv,random", *SMALL, timeout=60)
    rows = {line.split()[0]: line.split() for line in done.out.splitlines() if line.startswith(("kv ", "random "))}
    assert set(rows) == {"kv", "random"}
    for row in rows.values():
        assert re.fullmatch(r"\d+\.\d%", row[1]) and int(row[2]) > 0 and float(row[3]) > 0 and row[-1] == "0"


@pytest.mark.skipif(sanitized(), reason="the router itself is the bottleneck under a sanitizer")
def test_a_queue_that_still_grows_is_marked():
    done = kvroute("demo", "--no-progress", "--policies", "round_robin", *OVERLOAD, timeout=60)
    assert done.status == 0, done.err
    assert re.search(r"^round_robin .* 0 \*$", done.out, re.M), done.out
    notice = re.search(r"^\* Time to first token still rose \(seconds per second\): round_robin (\d+\.\d\d)\.\n"
                       r"  The fleet takes less than 40 requests a second that way", done.out, re.M)
    # Some eleven a second are served: for every second of arrivals the queue gets two and a half longer.
    assert notice and 1.5 < float(notice[1]) < 4, done.out


@pytest.mark.skipif(sanitized(), reason="the router itself is the bottleneck under a sanitizer")
def test_growth_is_in_the_json():
    (row,) = rows_of("--policies", "round_robin", *OVERLOAD).values()
    assert row["growth"]["growing"] is True and 1.5 < row["growth"]["slope"] < 4
    assert row["late_s"]["mean"] >= 0
    assert row["processor_wait_s"] is None or row["processor_wait_s"] > 0


def test_overload_doubles_the_rate():
    done = kvroute("demo", "--no-progress", "--overload", "--rate", 10, "--policies", "kv", "--requests", 20,
                   "--turns", 1, timeout=60)
    assert "20 requests a second (--overload), 20 in all" in done.out


def test_equal_seeds_are_equal_to_the_router_too():
    """Consistent hashing decides by the router's keys and the replicas' names, here with so little load that hardly
    anything else counts: equal seeds give equal shares. Under other names or keys 24 groups fall quite differently."""
    args = ("--policies", "consistent_hash", "--requests", 60, "--turns", 1, "--rate", 0.05, "--speed", 1000,
            "--groups", 24, "--zipf", 0)
    first, again, other = (rows_of(*args, "--seed", seed)["consistent_hash"] for seed in (11, 11, 12))
    assert set(first["replicas"]) == {"mock-1", "mock-2", "mock-3", "mock-4"}
    # Two requests that came at almost the same time may have met or missed each other.
    assert moved(first, again) <= 2 < moved(first, other)
    assert first["prompt_tokens"] == again["prompt_tokens"] != other["prompt_tokens"]


def moved(one, two):
    names = set(one["replicas"]) | set(two["replicas"])
    return sum(abs(one["replicas"].get(n, 0) - two["replicas"].get(n, 0)) for n in names) / 2
