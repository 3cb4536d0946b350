# SPDX-License-Identifier: Apache-2.0
"""Data-parallel ranks behind one port: each is a replica of its own, with its own load and cache."""
import collections
import json

import pytest

from engine import PrefixCache, prompt_of, reply, speak
from harness import kvroute, wait_for
from texts import text

HEADER = {"vllm": "X-data-parallel-rank", "sglang": "X-Data-Parallel-Rank"}


class Ranks:
    """An engine's caches, one per rank; requests that name none go round as real engines do it."""

    def __init__(self, engine, count):
        self.engine = engine
        self.caches = [PrefixCache() for _ in range(count)]
        self.served = collections.Counter()
        self.turn = 0
        self.seen = []
        engine.script = self.answer

    async def answer(self, request, out):
        named = request.all("x-data-parallel-rank")
        assert len(named) <= 1, request.headers
        if named:
            rank = int(named[0])
        else:
            rank, self.turn = self.turn % len(self.caches), self.turn + 1
        self.served[rank] += 1
        body = request.json
        total, cached = self.caches[rank].serve(*prompt_of(request.path, body))
        self.seen.append((rank, total, cached))
        await speak(self.engine, request, out, body, total, cached, 2)


def rank_metrics(figures):
    """A page of vLLM's with these (running, waiting, capacity) per rank."""
    lines = []
    for name, at in (("vllm:num_requests_running", 0), ("vllm:num_requests_waiting", 1)):
        lines.append(f"# TYPE {name} gauge")
        lines += [f'{name}{{engine="{rank}",model_name="m"}} {row[at]}' for rank, row in enumerate(figures)]
    lines.append("# TYPE vllm:cache_config_info gauge")
    lines += [f'vllm:cache_config_info{{block_size="16",enable_prefix_caching="True",engine="{rank}",'
              f'kv_cache_size_tokens="{row[2]}",num_gpu_blocks="9"}} 1' for rank, row in enumerate(figures)]
    return reply(200, ("\n".join(lines) + "\n").encode(), content_type="text/plain")


def start(fleet, count, kind="vllm", *options):
    engine = fleet.engine(kind)
    ranks = Ranks(engine, count)
    router = fleet.router(*options, "--replica", f"{engine.url},name=gpu,engine={kind},ranks={count}", ready=False)
    router.wait_ready(*[f"gpu.dp{n}" for n in range(count)])
    return router, engine, ranks


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_each_rank_is_a_replica(fleet, kind):
    """[22] Conversations stay on the rank that has them, and the ranks share the work."""
    router, engine, ranks = start(fleet, 4, kind)
    assert sorted(router.replicas()) == ["gpu.dp0", "gpu.dp1", "gpu.dp2", "gpu.dp3"]
    talks = [text(1600, f"talk {n}") for n in range(12)]
    for turn in range(3):
        for n, talk in enumerate(talks):
            talks[n] = talk + text(400, f"turn {turn} of {n}")
            answer = router.chat(talks[n])
            assert answer.status == 200
            rank = ranks.seen[-1][0]
            assert answer.header("x-kvroute-replica") == f"gpu.dp{rank}"
    assert sum(len(r.all(HEADER[kind])) for r in engine.requests) == len(engine.requests)
    assert set(ranks.served) == {0, 1, 2, 3}
    later = ranks.seen[12:]
    hits, total = sum(s[2] for s in later), sum(s[1] for s in later)
    assert hits > 0.75 * total, (hits, total)
    names = {row["name"]: row for row in json.loads(router.admin_request("GET", "/kvroute/replicas").body)}
    assert sum(row["in_flight"] for row in names.values()) == 0


def test_the_clients_own_choice_of_a_rank(fleet):
    """Where the router tells ranks apart it chooses; else what the client says goes on."""
    router, engine, _ranks = start(fleet, 2)
    for wanted in ("0", "1", "7"):
        assert router.chat("hello", headers=[("X-Data-Parallel-Rank", wanted)]).status == 200
    assert all(r.header("x-data-parallel-rank") in ("0", "1") for r in engine.requests)
    plain, (other,) = fleet.start(1)
    assert plain.chat("hello", headers=[("X-Data-Parallel-Rank", "7")]).status == 200
    assert other.last().all("x-data-parallel-rank") == ["7"]


def test_load_and_capacity_by_rank(fleet):
    """One page tells of all ranks: each takes its own figures, and the page is asked for once."""
    engine = fleet.engine("vllm")
    Ranks(engine, 3)
    engine.routes["/metrics"] = rank_metrics([(0, 0, 1000), (5, 2, 2000), (7, 0, 3000)])
    router = fleet.router("--replica", f"{engine.url},name=gpu,ranks=3", ready=False)
    router.wait_ready("gpu.dp0", "gpu.dp1", "gpu.dp2")

    def told():
        rows = router.replicas()
        return all(rows[f"gpu.dp{n}"]["running"] == running and rows[f"gpu.dp{n}"]["capacity_tokens"] == capacity
                   for n, (running, capacity) in enumerate([(0, 1000), (5, 2000), (7, 3000)]))
    wait_for(told, what="each rank shows its own figures")
    assert router.replicas()["gpu.dp1"]["waiting"] == 2
    polls = collections.Counter(p.path for p in engine.polls)
    wait_for(lambda: sum(p.path == "/metrics" for p in engine.polls) >= polls["/metrics"] + 5, what="five more polls")
    page = [p.at for p in engine.polls if p.path == "/metrics"][-6:]
    assert page[-1] - page[0] > 0.3, "every rank polls for itself"


def test_ranks_by_the_admin_api(fleet):
    """A URL with ranks is added and removed as a whole, by the name it was given."""
    router, _engines = fleet.start(1)
    engine = fleet.engine("vllm")
    Ranks(engine, 2)
    answer = router.admin_request("POST", "/kvroute/replicas", {"url": engine.url, "name": "gpu", "ranks": 2})
    assert answer.status == 201, answer.body
    wait_for(lambda: {"gpu.dp0", "gpu.dp1"} <= set(router.replicas()), what="both ranks")
    assert router.admin_request("POST", "/kvroute/replicas", {"url": engine.url, "name": "gpu", "ranks": 2}).status == 409
    assert {"gpu.dp0", "gpu.dp1"} <= set(router.replicas())
    assert router.admin_request("DELETE", "/kvroute/replicas/gpu").status == 200
    wait_for(lambda: not any(name.startswith("gpu") for name in router.replicas()), what="both are gone")
    assert router.admin_request("DELETE", "/kvroute/replicas/gpu").status == 404


def test_ranks_that_cannot_be(fleet):
    for replica, words in [("http://127.0.0.1:1,ranks=65", "from 1 to 64"),
                           ("http://127.0.0.1:1,engine=llamacpp,ranks=2", "llama.cpp has none")]:
        done = kvroute("serve", "--replica", replica)
        assert done.status == 2 and words in done.err, done
