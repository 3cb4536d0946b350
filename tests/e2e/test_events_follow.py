# SPDX-License-Identifier: Apache-2.0
"""Where an engine's KV cache events are found, and who is listened to: by default, as told, per rank."""
import asyncio
import json
import socket
import time

import pytest

from client import fetch
from engine import reply
from harness import wait_for
from test_events import (Engine, blocks_of, cached_blocks, engine, ids_of, live, prompt, serve, stream, wait_caught_up,  # noqa: F401
                         wait_stream)
from test_mock import Mock


# ---- finding and following

def test_auto_follows_what_the_engine_says(engine, serve):
    one = engine()
    router = live(serve, one)
    status = stream(router, one)
    source = one.ask("GET", "/kv_event_sources").json["0"]
    assert (status["endpoint"], status["replay"]) == (source["endpoint"], source["replay_endpoint"])
    assert status["connected"] and status["why"] == "" and status["seq"] is None
    one.fill(prompt(20))
    status = wait_caught_up(router, one)
    assert status["stored"] == 1 and status["block_tokens"] == 16
    assert status["blocks"] == cached_blocks(one) == 20
    metrics = wait_for(lambda: (lambda m: m if m.sum("events_total", kind="stored") == 1 else None)(router.metrics()))
    assert metrics.sum("event_stream_trusted", replica=one.name) == 1
    assert metrics.sum("event_batches_total", replica=one.name, result="applied") == 1
    assert metrics.sum("event_blocks_total", replica=one.name, kind="stored") == 20
    assert metrics.sum("event_gaps_total") == 0


def test_an_engine_that_says_so_is_followed_without_being_told_to(engine, serve):
    one = engine()
    router = serve(replicas=[one.url])
    router.wait_ready(one)
    wait_for(lambda: stream(router, one), what="it was found to publish events")
    wait_stream(router, one, state="live", trusted=True)
    one.fill(prompt(20))
    assert wait_caught_up(router, one)["blocks"] == 20
    assert router.replica(one.name)["residency"] == "events"


@pytest.mark.parametrize("kind", ["vllm", "sglang", "llamacpp", "openai"])
def test_where_nothing_is_said_nothing_is_tried(fleet, kind):
    """Neither a connection to any other port nor a word about it."""
    one = fleet.engine(kind)
    router = fleet.router("--replica", one.url, ready=False)
    router.wait_ready(one)
    path = {"vllm": "/kv_event_sources", "sglang": "/server_info"}.get(kind)
    if path:
        wait_for(lambda: any(p.path == path for p in one.polls), what="it was asked")
    assert router.chat("hello").status == 200
    assert router.replica(one)["events"] is None and router.replica(one)["residency"] == "history"
    assert not [line for line in router.lines if "no events" in line or "5557" in line]


def sources(**rows):
    return reply(200, {number.strip("_"): {"enable_kv_cache_events": True, "publisher": "zmq", "replay_endpoint": None,
                                           "topic": "", **row} for number, row in rows.items()})


def test_what_an_engine_says_leads_to_no_other_host(fleet):
    with socket.create_server(("127.0.0.2", 0)) as elsewhere:
        port = elsewhere.getsockname()[1]
        one = fleet.engine("vllm")
        one.routes["/kv_event_sources"] = sources(_0={"endpoint": f"tcp://127.0.0.2:{port}"})
        router = fleet.router("--replica", one.url, ready=False)
        router.wait_ready(one)
        status = wait_for(lambda: router.replica(one)["events"], what="it says why not")
        assert "not its own host" in status["why"] and status["state"] == "off"
        elsewhere.settimeout(0.5)
        with pytest.raises(TimeoutError):
            elsewhere.accept()
        router = fleet.router("--replica", f"{one.url},events=auto", ready=False)
        elsewhere.settimeout(20)
        elsewhere.accept()[0].close()       # who says events=auto believes it


def test_what_was_only_offered_and_cannot_be_reached_is_no_alarm(fleet):
    """A firewall before its port: hits are predicted from history, the status tells, nobody is woken up."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    one = fleet.engine("vllm")
    one.routes["/kv_event_sources"] = sources(_0={"endpoint": f"tcp://*:{port}"})
    router = fleet.router("--replica", one.url, "--metrics-interval", "100ms", ready=False)
    router.wait_ready(one)
    wait_for(lambda: (router.replica(one)["events"] or {}).get("connected") is False, what="it is tried")
    for n in range(30):
        assert router.chat(f"prompt {n} " + "abc " * 400).status == 200
        time.sleep(0.1)
    assert router.replica(one)["residency"] == "history"
    assert router.admin_request("GET", "/kvroute/alarms").json["alarms"] == []


def test_two_replicas_do_not_share_a_publisher(fleet):
    """Engines on one host that both say "my port 5557", as in containers: what comes from there is of one of them at most."""
    with socket.create_server(("127.0.0.1", 0)) as publisher:
        endpoint = f"tcp://*:{publisher.getsockname()[1]}"
        engines = [fleet.engine("vllm") for _ in range(2)]
        for engine in engines:
            engine.routes["/kv_event_sources"] = sources(_0={"endpoint": endpoint})
        router = fleet.router(*(word for engine in engines for word in ("--replica", engine.url)), ready=False)
        for engine in engines:
            router.wait_ready(engine)

        def states():
            return [router.replica(engine)["events"] for engine in engines]
        whys = wait_for(lambda: all(states()) and [row["why"] for row in states()], what="both are decided on")
        wait_for(lambda: sum("publishes: say events=" in row["why"] for row in states()) == 1, what=f"one is refused {whys}")


def test_ranks_are_not_mixed_up_by_default(fleet):
    one = fleet.engine("vllm")
    one.routes["/kv_event_sources"] = sources(_0={"endpoint": "tcp://*:5557"}, _1={"endpoint": "tcp://*:5558"})
    router = fleet.router("--replica", one.url, ready=False)
    router.wait_ready(one)
    status = wait_for(lambda: router.replica(one)["events"], what="it says why not")
    assert "say ranks=2" in status["why"] and not status["connected"]


@pytest.mark.parametrize("form", ["map", "array"])
@pytest.mark.parametrize("hash", ["int", "bytes"])
def test_all_forms_say_the_same(engine, serve, form, hash):
    one = engine("--events-format", form, "--events-hash", hash, blocks=64)
    router = live(serve, one)
    for _ in range(8):
        one.fill(prompt(20))
    status = wait_caught_up(router, one)
    assert status["removed"] > 0 and status["orphans"] == 0
    assert status["blocks"] == cached_blocks(one)


def test_endpoints_by_flag_with_a_star_for_the_host(engine, serve):
    one = engine()
    ports = [one.events()[k].rpartition(":")[2] for k in ("endpoint", "replay")]
    router = serve(replicas=[f"{one.url},events=tcp://*:{ports[0]},replay=tcp://0.0.0.0:{ports[1]}"])
    wait_stream(router, one, state="live", trusted=True)
    one.fill(prompt())
    wait_caught_up(router, one)


def test_added_and_removed_by_the_admin_api(engine, serve):
    one = engine()
    router = serve()
    where = one.events()
    answer = router.admin_request("POST", "/kvroute/replicas", json.dumps(
        {"url": one.url, "events": where["endpoint"], "replay": where["replay"]}).encode())
    assert answer.status in (200, 201), answer.body
    wait_stream(router, one, state="live", trusted=True)
    one.fill(prompt(20))
    assert wait_caught_up(router, one)["blocks"] == 20
    before = router.descriptors()
    assert router.admin_request("DELETE", f"/kvroute/replicas/{one.name}").status in (200, 202, 204)
    wait_for(lambda: router.descriptors() < before, what="its sockets to be closed")
    # Added anew while its old events would still be under way: it begins with what a replay tells, not with the old view.
    router.admin_request("POST", "/kvroute/replicas", json.dumps({"url": one.url, "events": where["endpoint"]}).encode())
    wait_stream(router, one, connected=True)
    assert blocks_of(router, one) == 0


def test_a_replica_that_dials_in(serve):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    mock = Mock("--listen", "127.0.0.1:0", "--speed", "200", "--events", f"tcp://127.0.0.1:{port}")
    try:
        one = Engine.__new__(Engine)
        one.mock, one.port = mock, mock.ports()[0]
        one.name = f"127.0.0.1:{one.port}"
        one.url = f"http://{one.name}"
        router = serve(replicas=[f"{one.url},events=bind:tcp://127.0.0.1:{port}"])
        wait_stream(router, one, connected=True)
        # Without replay the past is not known; from batch 0 on nothing is missing.
        first = [one.fill(prompt(20))]
        status = wait_for(lambda: (lambda s: s if s["batches"] else None)(stream(router, one)), what="a batch")
        assert first == [0] and status["blocks"] == 20
    finally:
        mock.stop()


def test_a_late_router_learns_what_is_cached(engine, serve):
    """Field report: subscriptions carry changes only; the replay from 0 is the starting state."""
    one, two = engine(), engine()
    mine = [prompt(20) for _ in range(6)]
    for text in mine[:3]:
        one.fill(text)
    for text in mine[3:]:
        two.fill(text)
    router = serve(replicas=[f"{e.url},events=auto" for e in (one, two)])
    for e in (one, two):
        assert wait_stream(router, e, state="live", trusted=True, blocks=60)["batches"] == 3
    assert router.replica(one.name)["residency"] == "events"


def test_an_engine_without_events_says_why(serve):
    mock = Mock("--listen", "127.0.0.1:0")
    try:
        (port,) = mock.ports()
        router = serve(replicas=[f"http://127.0.0.1:{port},events=auto"])
        # vLLM without /kv_event_sources: the rule of ports, where nobody is.
        status = wait_for(lambda: (lambda s: s if s.get("endpoint") else None)(router.replica(f"127.0.0.1:{port}")["events"]))
        assert status["endpoint"] == "tcp://127.0.0.1:5557" and status["replay"] == "tcp://127.0.0.1:5558"
        assert not status["trusted"]
        assert router.replica(f"127.0.0.1:{port}")["residency"] == "history"
        answer = router.post("/v1/completions", {"model": "mock", "prompt": prompt(20), "max_tokens": 1})
        assert answer.status == 200
    finally:
        mock.stop()


def test_switched_off_there_is_no_status(engine, serve):
    one = engine()
    router = serve(replicas=[f"{one.url},events=off"])
    router.wait_ready(one)
    assert router.replica(one.name)["events"] is None
    assert router.replica(one.name)["residency"] == "history"


# ---- ranks

class Ranked:
    """One address before several mock engines: each is a data-parallel rank with a cache and a publisher of its own."""

    def __init__(self, fleet, mocks):
        self.mocks = mocks
        self.engine = fleet.engine("vllm")
        self.engine.script = self.forward
        for path in self.engine.CONTROL:
            self.engine.routes[path] = self.forward
        told = [mock.ask("GET", "/kv_event_sources").json["0"] for mock in mocks]
        self.engine.routes["/kv_event_sources"] = sources(**{f"_{rank}": row for rank, row in enumerate(told)})
        for rank, mock in enumerate(mocks):
            mock.order(rank=rank)

    async def forward(self, request, out):
        mock = self.mocks[int(request.header("x-data-parallel-rank") or 0)]
        answer = await asyncio.get_running_loop().run_in_executor(
            None, lambda: fetch(("127.0.0.1", mock.port), request.method, request.target,
                                [("Content-Type", "application/json")], request.body or None))
        await out.whole(answer.status, answer.body, content_type=answer.header("content-type") or "application/json")


class Rank:
    """A mock's numbers under the name that the router knows the rank by."""

    def __init__(self, name, mock):
        self.name, self.mock, self.events = name, mock, mock.events


@pytest.mark.parametrize("events", ["", ",events=auto"])
def test_each_rank_tells_for_itself(fleet, engine, serve, events):
    """[22] A prompt that only rank 1 has goes to rank 1, and a reset there leaves rank 0 as it is."""
    mocks = [engine(), engine()]
    ranked = Ranked(fleet, mocks)
    router = serve(replicas=[f"{ranked.engine.url},name=gpu,ranks=2{events}"])
    ranks = [Rank(f"gpu.dp{n}", mock) for n, mock in enumerate(mocks)]
    router.wait_ready("gpu.dp0", "gpu.dp1")
    texts = [prompt(20), prompt(30)]
    for rank, text in zip(ranks, texts):
        wait_for(lambda r=rank: router.replica(r.name)["events"], what="it was found to publish events")
        wait_stream(router, rank, state="live", trusted=True)
        rank.mock.fill(text)
        assert wait_caught_up(router, rank)["blocks"] == cached_blocks(rank.mock)
    ids = [{"model": "mock", "prompt": ids_of(mocks[0], text), "max_tokens": 1} for text in texts]
    for _ in range(3):
        for rank, body in zip(ranks, ids):
            answer = router.post("/v1/completions", body)
            assert answer.header("x-kvroute-replica") == rank.name
            assert answer.match == answer.json["usage"]["prompt_tokens_details"]["cached_tokens"] > 300
    before = wait_caught_up(router, ranks[0])["blocks"]
    mocks[1].order(clear=True)
    wait_stream(router, ranks[1], blocks=0, cleared=1)
    assert stream(router, ranks[0])["blocks"] == before
    for rank in ranks:
        assert stream(router, rank)["why"] == "" and stream(router, rank)["rank"] == int(rank.name[-1])


def test_a_reset_passed_on_is_that_of_all_ranks(fleet, engine, serve):
    """The address is told once, every rank's cache is empty then, and none says so before its next step."""
    mocks = [engine(), engine()]
    ranked = Ranked(fleet, mocks)

    async def reset(_request, out):
        for mock in mocks:
            await asyncio.get_running_loop().run_in_executor(None, lambda m=mock: m.ask("POST", "/mock/flush"))
        await out.whole(200, {"success": True})
    ranked.engine.routes["/reset_prefix_cache"] = reset
    router = serve("--allow-engine-admin", replicas=[f"{ranked.engine.url},name=gpu,ranks=2"])
    ranks = [Rank(f"gpu.dp{n}", mock) for n, mock in enumerate(mocks)]
    for rank in ranks:
        wait_for(lambda r=rank: router.replica(r.name)["events"], what="it was found to publish events")
        wait_stream(router, rank, state="live", trusted=True)
        rank.mock.fill(prompt(20))
        assert wait_caught_up(router, rank)["blocks"] == 20
    assert router.post("/reset_prefix_cache", {}).status == 200
    for rank in ranks:
        wait_stream(router, rank, blocks=0, cleared=0)


def test_events_of_another_rank_are_said_aloud(fleet, engine, serve):
    mocks = [engine(), engine()]
    ranked = Ranked(fleet, mocks)
    mocks[1].order(rank=0)
    router = serve(replicas=[f"{ranked.engine.url},name=gpu,ranks=2"])
    rank = Rank("gpu.dp1", mocks[1])
    wait_for(lambda: router.replica(rank.name)["events"], what="it was found to publish events")
    wait_stream(router, rank, state="live", trusted=True)
    mocks[1].fill(prompt(5))
    wait_caught_up(router, rank, why="its events are those of rank 0, not 1")
    mocks[1].order(rank=1)
    mocks[1].fill(prompt(5))
    wait_caught_up(router, rank, why="")


# ---- what the engine is

def test_the_engines_block_size_counts_not_the_configured_one(engine, serve):
    """[13] block-tokens says 16, its events say 64: theirs are followed, and the predictions are exact."""
    one = engine("--block-tokens", "64")
    router = live(serve, one, extra=",block-tokens=16")
    text = prompt(40)
    one.fill(text)
    assert wait_caught_up(router, one)["block_tokens"] == 64
    body = {"model": "mock", "prompt": ids_of(one, text), "max_tokens": 1}
    answer = router.post("/v1/completions", body)
    assert answer.match == answer.json["usage"]["prompt_tokens_details"]["cached_tokens"] == 9 * 64


def test_the_same_tokens_under_other_hashes(engine, serve):
    """[14] Two engines whose hashes have nothing in common; one of them restarts, and hashes yet otherwise."""
    one, two = engine("--events-hash", "int"), engine("--events-hash", "bytes")
    router = serve(replicas=[f"{e.url},events=auto" for e in (one, two)])
    text = prompt(20)
    body = {"model": "mock", "prompt": ids_of(one, text), "max_tokens": 1}

    def both():
        return [router.match_of(body, e.name, "/v1/completions") for e in (one, two)]
    for e in (one, two):
        wait_stream(router, e, state="live", trusted=True)
        e.fill(text)
        wait_caught_up(router, e)
    assert both() == [19 * 16, 19 * 16]
    two.restart()
    wait_for(lambda: both() == [19 * 16, 0], 10, "what it had is gone")
    two.fill(text)
    wait_for(lambda: both() == [19 * 16, 19 * 16], 10, "and is there again")


def test_adapters_by_events(engine, serve):
    """[15] One prompt for the base model and an adapter: what the engine holds for one says nothing of the other."""
    one = engine("--model", "mock,ad")
    router = live(serve, one)
    text = prompt(20)
    ids = ids_of(one, text)

    def match(model):
        return router.match_of({"model": model, "prompt": ids, "max_tokens": 1}, one.name, "/v1/completions")
    one.fill(text, model="ad")
    wait_caught_up(router, one)
    assert (match("ad"), match("mock")) == (19 * 16, 0)
    one.fill(text)
    wait_caught_up(router, one)
    assert (match("ad"), match("mock")) == (19 * 16, 19 * 16)
    one.fill(text, cache_salt="s")
    wait_caught_up(router, one)
    assert one.fill(text, cache_salt="s") == 19 * 16
    assert router.match_of({"model": "mock", "prompt": ids, "cache_salt": "t"}, one.name, "/v1/completions") == 0
