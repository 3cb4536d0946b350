# SPDX-License-Identifier: Apache-2.0
"""One real server with two data-parallel ranks behind one address: each rank tells its own cache, and is predicted by it."""
import collections
import json
import os

import pytest

from client import fetch
from conftest import ENGINE, running_at, start
from harness import wait_for
from test_exact import BLOCK, SEED, WANTED, reset, settle
from texts import text

RANKS = 2
OPTIONS = {
    "vllm": ["--data-parallel-size", str(RANKS), "--api-server-count", "1"],
    "sglang": ["--page-size", "16", "--dp-size", str(RANKS)],
}
PORT = {"vllm": 9401, "sglang": 9601}[ENGINE]
HEADER = {"vllm": "X-data-parallel-rank", "sglang": "X-Data-Parallel-Rank"}[ENGINE]


@pytest.fixture
def server():
    running = os.environ.get("KVROUTE_RANKS_PORT")      # one that was started by hand, with the same options
    if running:
        yield running_at(int(running), OPTIONS[ENGINE])
        return
    (one,) = start(1, PORT, OPTIONS[ENGINE])
    yield one
    one.stop()


def test_each_rank_is_predicted_by_its_own_events(fleet, server, capsys):
    names = [f"gpu.dp{rank}" for rank in range(RANKS)]
    # No word of events: the engine says itself that it publishes them.
    router = fleet.router("--replica", f"{server.url},name=gpu,ranks={RANKS}", "--allow-engine-admin", "on", ready=False)
    router.wait_ready(*names, timeout=60)
    wait_for(lambda: all(row["residency"] == "events" for row in router.replicas().values()), 60, "events are trusted")
    rows = collections.defaultdict(list)    # of (predicted, cached), by rank
    places = collections.defaultdict(set)

    def ask(talk, messages):
        answer = router.chat(messages, model="tiny", max_tokens=4, temperature=0, timeout=180)
        assert answer.status == 200, answer.body[:300]
        where = answer.header("x-kvroute-replica")
        rows[where].append((answer.match, answer.json["usage"]["prompt_tokens_details"]["cached_tokens"]))
        places[talk].add(where)
        return answer

    talks = [[{"role": "system", "content": text(700, f"ranks {n} {SEED}")}] for n in range(6)]
    for turn in range(4):
        for n, talk in enumerate(talks):
            talk.append({"role": "user", "content": text(100 + 30 * n, f"question {n} {turn} {SEED}")})
            answer = ask(n, talk)
            talk.append({"role": "assistant", "content": answer.json["choices"][0]["message"]["content"] or ""})
    settle(router)
    with capsys.disabled():
        print(f"\n\none {ENGINE} server of {RANKS} data-parallel ranks on a CPU, blocks of {BLOCK} tokens, seed {SEED}\n")
        print(f"{'rank':8} {'requests':>8} {'predicted':>9} {'cached':>9} {'one block':>9} {'batches':>8} {'blocks':>7}")
        for rank, name in enumerate(names):
            status = router.replica(name)["events"]
            near = [abs(predicted - cached) <= BLOCK for predicted, cached in rows[name]]
            print(f"{name:8} {len(near):8} {sum(p for p, _ in rows[name]):9} {sum(c for _, c in rows[name]):9} "
                  f"{sum(near) / max(1, len(near)):9.1%} {status['batches']:8} {status['blocks']:7}")
            assert status["endpoint"].endswith(f":{server.port + 1000 + rank}") and status["rank"] == rank
            assert status["why"] == "" and status["batches"] > 0 and status["blocks"] > 0
    every = [row for name in names for row in rows[name]]
    assert all(rows[name] for name in names), "both ranks were used"
    assert all(len(place) == 1 for place in places.values()), places
    assert sum(abs(predicted - cached) <= BLOCK for predicted, cached in every) / len(every) >= WANTED, every
    assert sum(cached for _, cached in every) > 0.5 * sum(predicted for predicted, _ in every) > 0

    # What only one rank has is known to be there, past the router.
    ids = list(range(3, 200)) * 4
    body = {"model": "tiny", "prompt": ids, "max_tokens": 1, "temperature": 0}
    for rank, name in enumerate(names):
        prompt = {**body, "prompt": [7 + rank] * 50 + ids}
        direct = fetch(("127.0.0.1", server.port), "POST", "/v1/completions",
                       [("Content-Type", "application/json"), (HEADER, str(rank))], json.dumps(prompt).encode())
        assert direct.status == 200, direct.body[:300]
        settle(router)
        answer = router.post("/v1/completions", prompt, timeout=120)
        cached = answer.json["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert answer.header("x-kvroute-replica") == name and answer.match == cached > 500, (answer.match, cached)

    # A reset empties every rank; an idle vLLM says so only with its next step.
    reset(router)
    settle(router)
    for n, talk in enumerate(talks):
        answer = router.chat(talk, model="tiny", max_tokens=1, temperature=0, timeout=180)
        cached = answer.json["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert abs(answer.match - cached) <= BLOCK and cached <= 2 * BLOCK, (n, answer.match, cached)
