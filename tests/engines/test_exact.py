# SPDX-License-Identifier: Apache-2.0
"""kvroute before real engines that publish KV cache events: what it predicts is what they then report as cached.

A run of several hundred requests through one router, a part of it side by side, over two servers with small caches, so that
blocks are evicted all the time: conversations behind shared system prompts, with tools, plain completions, prompts of
token ids, salts, adapters, aborted requests; a reset of one cache, and a restart of one server, on the way.
"""
import collections
import json
import os
import random
import time

import pytest

from client import chat_body, fetch
from conftest import ENGINE
from harness import spawn, wait_for
from texts import text

BLOCK = {"vllm": 32, "sglang": 16}[ENGINE]
SEED = int(os.environ.get("KVROUTE_SEED", "1"))
TALKS = 10
QUIET = 0.4 * float(os.environ.get("KVROUTE_TEST_PATIENCE", "1"))
WANTED = 0.99   # share of requests whose prediction is within one block of what the engine reports


class Run:
    def __init__(self, router):
        self.router = router
        self.rows = []          # (kind, prompt, predicted, cached)
        self.rng = random.Random(SEED)

    def note(self, kind, answer):
        assert answer.status == 200, (kind, answer.status, answer.body[:300])
        usage = answer.json["usage"]
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        assert cached is not None, usage
        self.rows.append((kind, usage["prompt_tokens"], answer.match, cached))
        return answer

    def chat(self, kind, messages, **extra):
        extra = {"model": "tiny", "max_tokens": 4, "temperature": 0, **extra}
        return self.note(kind, self.router.chat(messages, timeout=120, **extra))

    def complete(self, kind, prompt, **extra):
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 2, **extra}
        return self.note(kind, self.router.post("/v1/completions", body, timeout=120))

    def table(self):
        kinds = collections.OrderedDict()
        for kind, prompt, predicted, cached in self.rows:
            row = kinds.setdefault(kind, [0, 0, 0, 0, 0, 0])
            for at, value in enumerate((1, prompt, predicted, cached, abs(predicted - cached) <= BLOCK,
                                        predicted == cached)):
                row[at] += value
        lines = [f"{'requests':24} {'number':>7} {'prompt':>9} {'predicted':>9} {'cached':>9} {'one block':>9} {'equal':>7}"]
        kinds["all"] = [sum(row[at] for row in kinds.values()) for at in range(6)]
        for kind, row in kinds.items():
            lines.append(f"{kind:24} {row[0]:7} {row[1]:9} {row[2]:9} {row[3]:9} {row[4] / row[0]:9.1%} {row[5] / row[0]:7.1%}")
        return "\n".join(lines)

    def within(self):
        return sum(abs(predicted - cached) <= BLOCK for _, _, predicted, cached in self.rows) / len(self.rows)


TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Weather of a city",
                                           "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]


def settle(router):
    """Everything announced has been heard, and every prompt tokenized: the events' figures stand still."""
    def figures():
        page = router.metrics()
        return page.sum("events_total"), page.sum("tokenize_total")
    last, since, deadline = figures(), time.monotonic(), time.monotonic() + 20
    while time.monotonic() < deadline and time.monotonic() - since < QUIET:
        time.sleep(0.1)
        now = figures()
        if now != last:
            last, since = now, time.monotonic()


def system(number, kind):
    return {"role": "system", "content": f"{kind} {number}. " + text(900 + 150 * number, f"{kind} {number} {SEED}")}


def conversations(run, rounds, kind="conversation", tools=(), **extra):
    """Ten at a time behind three system prompts; with tools these are others, as templates put tools behind them."""
    talks = [[system(n % 3, kind if tools else "Assistant")] for n in range(TALKS)]
    if tools:
        extra["tools"] = tools
    for turn in range(rounds):
        order = list(range(TALKS))
        run.rng.shuffle(order)
        for n in order:
            talks[n].append({"role": "user", "content": text(run.rng.randrange(60, 400), f"{kind} {n} {turn} {SEED}")})
            answer = run.chat(kind, talks[n], **extra)
            talks[n].append({"role": "assistant", "content": answer.json["choices"][0]["message"]["content"] or ""})


def in_pairs(run, rounds):
    """Siblings of one new prefix, two at a time."""
    for turn in range(rounds):
        head = {"role": "system", "content": text(1200, f"pair {turn} {SEED}")}
        asked = []
        for n in range(2):
            asked.append(spawn(run.router.chat, [head, {"role": "user", "content": f"question {n} of {turn}"}],
                               model="tiny", max_tokens=2, timeout=120))
            time.sleep(0.1)     # in this order they also reach the engine
        for answer in asked:
            run.note("two at once", answer.result(120))
        settle(run.router)


def aborted(run, rounds):
    """A client leaves in the middle of a prefill; whoever comes next with the prompt meets what was computed."""
    for turn in range(rounds):
        messages = [{"role": "user", "content": text(3000, f"aborted {turn} {SEED}")}]
        conn = run.router.connect()
        conn.request("POST", "/v1/chat/completions", [], chat_body(messages, model="tiny", stream=True, max_tokens=50))
        time.sleep(0.2 + 0.2 * run.rng.random())
        heard = run.router.metrics().sum("events_total", kind="stored")
        conn.close()
        # The chunk that is being computed ends all the same, and is announced then.
        wait_for(lambda: run.router.metrics().sum("events_total", kind="stored") > heard, 30, "the aborted chunk's end")
        settle(run.router)
        run.chat("after an abort", messages)


def token_ids(run, rounds):
    prompts = [[run.rng.randrange(3, 200) for _ in range(800)] for _ in range(3)]
    for turn in range(rounds):
        for prompt in prompts:
            run.complete("token ids", prompt + [run.rng.randrange(3, 200) for _ in range(100 + 40 * turn)])


def texts(run, rounds):
    """Each begins with the whole one before, which ended somewhere."""
    prompts = [text(700, f"document {n} {SEED}") for n in range(3)]
    for turn in range(rounds):
        for number, prompt in enumerate(prompts):
            prompts[number] = prompt + text(run.rng.randrange(100, 400), f"more {turn} {number} {SEED}")
            run.complete("plain text that grows", prompts[number])


def start_router(fleet, servers):
    router = fleet.router(*[arg for s in servers for arg in ("--replica", f"{s.url},events=auto")], "--retries", "2", "--allow-engine-admin", "on",
                          "--health-interval", "500ms", ready=False)
    router.wait_ready(*[s.name for s in servers], timeout=60)
    wait_for(lambda: all(row["residency"] == "events" for row in router.replicas().values()), 30, "events are trusted")
    return router


def reset(router):
    """Through the router: an idle vLLM announces a reset only with its next step."""
    answer = router.post("/reset_prefix_cache" if ENGINE == "vllm" else "/flush_cache", b"", timeout=30)
    assert answer.status == 200, answer.body


def everything(run, servers):
    router = run.router
    conversations(run, 6)
    in_pairs(run, 6)
    aborted(run, 4)
    token_ids(run, 4)
    texts(run, 5)
    conversations(run, 2, "with a salt", cache_salt=f"salt {SEED}")
    conversations(run, 2, "with tools", tools=TOOLS, tool_choice="none" if ENGINE == "sglang" else "auto")
    if ENGINE == "vllm":
        adapters(run, servers)
    reset(router)
    settle(router)
    conversations(run, 3, "after a reset")
    servers[1].stop()
    wait_for(lambda: router.state(servers[1]) == "down", 30, "its end is noticed")
    conversations(run, 1, "one server is down")
    servers[1].start()
    wait_for(lambda: router.state(servers[1]) == "ready" and router.replica(servers[1])["residency"] == "events", 120,
             "it is back and trusted")
    conversations(run, 3, "after the restart")


def test_predictions_are_what_the_engines_report(fleet, servers, capsys):
    router = start_router(fleet, servers)
    run = Run(router)
    try:
        everything(run, servers)
    finally:
        removed = router.metrics().sum("event_blocks_total", kind="removed")
        with capsys.disabled():
            print(f"\n\ntwo {ENGINE} servers on a CPU, blocks of {BLOCK} tokens, {removed:.0f} blocks evicted, seed {SEED}\n")
            print(run.table())
            print("\nmore than a block off (requests, prompt, predicted, cached):")
            for row in run.rows:
                if abs(row[2] - row[3]) > BLOCK:
                    print("   ", *row)
    assert removed > 200, "nothing was evicted"
    assert router.metrics().sum("event_gaps_total") == 0
    assert run.within() >= WANTED


def adapters(run, servers):
    """The same prompts for the base model and an adapter: two caches."""
    import tiny_lora
    folder = tiny_lora.make(os.environ.get("VLLM_ROOT") or "/var/tmp/vllm-replicas")
    for server in servers:
        answer = fetch(server.url, "POST", "/v1/load_lora_adapter", [("Content-Type", "application/json")],
                       json.dumps({"lora_name": "ad1", "lora_path": folder}).encode(), timeout=60)
        assert answer.status == 200 or b"already" in answer.body, answer.body
    wait_for(lambda: all("ad1" in (row["models"] or []) for row in run.router.replicas().values()), 60,
             "the adapter is among the models")
    conversations(run, 2, "an adapter", model="ad1")
    conversations(run, 1, "the base after it")


@pytest.mark.skipif(ENGINE != "vllm", reason="one engine will do")
def test_a_late_router_learns_by_replay(fleet, servers):
    """[31] What was cached before the router started is known to it."""
    prompt = text(2000, f"before {time.time()}")
    body = json.dumps({"model": "tiny", "prompt": prompt, "max_tokens": 2}).encode()
    for _ in range(2):
        assert fetch(servers[0].url, "POST", "/v1/completions", [("Content-Type", "application/json")], body,
                     timeout=60).status == 200
    router = start_router(fleet, servers)
    first = router.post("/v1/completions", body, [("Content-Type", "application/json")], timeout=60)
    assert first.status == 200      # nobody knows its tokens yet
    settle(router)
    explained = router.explain(body, "/v1/completions")
    held = {c["replica"]: c["match_tokens"] for c in explained["candidates"]}
    assert held[servers[0].name] >= 2000 - 2 * BLOCK, held
