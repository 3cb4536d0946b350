# SPDX-License-Identifier: Apache-2.0
"""kvroute before real llama.cpp servers: what it predicts is what they report, and it saves them work."""
import json
import os
import time

import pytest

from client import fetch
from harness import kvroute, wait_for
from texts import text, turns

POLICIES = ["kv", "round_robin", "least_requests"]
SCALE = 4 if os.environ.get("KVROUTE_REAL") == "long" else 1
WORKLOADS = {
    # Few at a time: a slot that is busy does not share its prefix, so siblings that meet cost a prefill anywhere.
    "shared_prefix": ["--groups", str(12 * SCALE), "--prefix-tokens", "240", "--question-tokens", "20", "--output-tokens", "4",
                      "--requests", str(54 * SCALE), "--concurrency", "2"],
    # Open loop: in a closed one least_requests sticks to a session by chance, as the server just freed is the idlest.
    "multi_turn": ["--turns", "6", "--groups", "6", "--prefix-tokens", "80", "--question-tokens", "60", "--output-tokens", "4",
                   "--requests", str(48 * SCALE), "--rate", "4", "--turn-gap", "1s"],
}


@pytest.fixture
def routed(fleet, replicas):
    def start(*args):
        router = fleet.router(*args, *replicas, ready=False)
        router.wait_ready(*[url.split("//")[1] for url in replicas])
        return router
    return start


def slots(url):
    return fetch(url, "GET", "/slots").json


def test_the_engine_is_recognised(routed, replicas):
    router = routed()
    wait_for(lambda: all(e["engine"] != "auto" for e in router.replicas().values()), what="recognised")
    for entry in router.replicas().values():
        assert entry["engine"] == "llamacpp" and entry["models"] == ["tiny"]
    wait_for(lambda: all(e["running"] is not None for e in router.replicas().values()), what="load figures")
    assert [m["id"] for m in router.get("/v1/models").json["data"]] == ["tiny"]


def test_predictions_meet_the_engines_own_count(routed):
    """A conversation: from the second turn on each prediction is within a few tokens of what llama.cpp reports."""
    router = routed()
    gaps = []
    for number, messages in enumerate(turns(6, f"real-{time.time()}", 600)):
        answer = router.chat(messages, model="tiny", max_tokens=4, timeout=60)
        usage = answer.json["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        if number >= 2:     # the tokens in a byte are learned by then
            assert cached > 0.5 * usage["prompt_tokens"]
            gaps.append(abs(answer.match - cached) / usage["prompt_tokens"])
    assert max(gaps) < 0.15 and sum(gaps) / len(gaps) < 0.08, gaps


@pytest.mark.parametrize("stream", [True, False])
def test_streams_and_whole_answers(routed, stream):
    router = routed()
    answer = router.chat(text(300), model="tiny", max_tokens=8, stream=stream, timeout=60)
    assert answer.status == 200 and answer.complete
    if stream:
        assert answer.events[-1][1] == "[DONE]" and len(answer.events) >= 3
        answer = router.post("/v1/messages", {"model": "tiny", "max_tokens": 8, "stream": True,
                                              "messages": [{"role": "user", "content": "Hi"}]}, timeout=60)
        assert answer.status == 200 and answer.events[-1][0] == "message_stop"


def test_an_abort_frees_the_slot(routed, replicas):
    router = routed()
    conn = router.start_chat(text(200), model="tiny", max_tokens=4000, stream=True)
    head = conn.head()
    assert next(conn.pieces(head))
    url = router.replica(head.header("x-kvroute-replica"))["url"]
    assert any(s["is_processing"] for s in slots(url))
    conn.close()
    wait_for(lambda: not any(s["is_processing"] for s in slots(url)), 3, "the slot is free")


def test_refusals_pass(routed):
    """A prompt that is too long for a slot is the engine's 400, unchanged."""
    router = routed()
    answer = router.chat("long " * 8000, model="tiny", max_tokens=4, timeout=60)
    assert answer.status == 400 and "exceed_context_size_error" in answer.body.decode()
    assert router.chat("short", model="tiny", max_tokens=2, timeout=60).status == 200


def bench(router, workload, seed):
    ended = kvroute("bench", router.url, "--json", "--model", "tiny", "--seed", seed, "--workload", workload, "--stream",
                    *WORKLOADS[workload], timeout=300)
    assert ended.status == 0, ended.err
    return json.loads(ended.out)


BY_WORKLOAD = {
    "support-bot": ["--groups", "6", "--prefix-tokens", "240", "--question-tokens", "20", "--requests", str(36 * SCALE)],
    "agents": ["--workload", "multi_turn", "--turns", "5", "--groups", "4", "--prefix-tokens", "80", "--question-tokens", "60",
               "--requests", str(30 * SCALE)],
    "once": ["--workload", "unique", "--prefix-tokens", "200", "--requests", str(12 * SCALE)],
}
GAP = 0.08      # of a workload's prompt tokens, between what was predicted and what llama.cpp reported


def test_predicted_against_observed_by_workload(routed, capsys):
    """Three workloads through one router; `kvroute report` tells for each what was predicted and what came true."""
    router = routed("--inject-usage", "on")
    seed = int(time.time()) % 100000
    for number, (name, options) in enumerate(BY_WORKLOAD.items()):
        ended = kvroute("bench", router.url, "--json", "--model", "tiny", "--seed", seed * 10 + number, "--stream",
                        "--output-tokens", "4", "--concurrency", "2", "--header", "x-kvroute-workload: " + name, *options,
                        timeout=300)
        assert ended.status == 0 and json.loads(ended.out)["errors"] == 0, ended
    router.wait_idle()
    ended = kvroute("report", router.admin_url, "--json", "--min-requests", "50")
    assert ended.status == 0, ended
    report = json.loads(ended.out)
    found = {account["name"]: account for account in report["workloads"]}
    with capsys.disabled():
        print("\n\nthree llama.cpp servers, two slots each, CPU: kvroute report --json | jq .workloads\n")
        print(f"{'workload':14} {'requests':>8} {'prompt':>9} {'predicted':>9} {'observed':>9}")
        for name, account in found.items():
            print(f"{name:14} {account['requests']:8} {account['prompt_tokens']:9} {account['predicted_share']:9.1%} "
                  f"{account['observed_share']:9.1%}")
    assert set(found) == set(BY_WORKLOAD)
    for name, account in found.items():
        assert account["observed"] == account["computed"] > 0, "llama.cpp tells each time"
        assert abs(account["predicted_share"] - account["observed_share"]) < GAP, (name, account)
    assert found["support-bot"]["observed_share"] > 0.5 and found["agents"]["observed_share"] > 0.4
    assert found["once"]["observed_share"] < 0.2
    # The ledger's own page says the same.
    page = router.admin_request("GET", "/kvroute/ledger?by=workload").json["accounts"]["workload"]
    for account in page:
        sums, told = account["windows"]["life"], found[account["name"]]
        assert sums["observed_tokens"] / sums["prompt_tokens"] == pytest.approx(told["observed_share"], abs=1e-6)
        assert sums["predicted_tokens"] / sums["prompt_tokens"] == pytest.approx(told["predicted_share"], abs=1e-6)


def test_policies_side_by_side(fleet, routed, capsys):
    """Shared prefixes and conversations under three policies: kv reuses clearly more, and knows what it reuses."""
    found = {}
    seed = int(time.time()) % 100000
    for workload in WORKLOADS:
        for number, policy in enumerate(POLICIES):
            router = routed("--policy", policy, "--inject-usage", "on")
            found[workload, policy] = bench(router, workload, seed * 10 + number)     # other prompts: no policy inherits
            assert not fleet.finish_routers()
    with capsys.disabled():
        print("\n\nthree llama.cpp servers, two slots each, CPU\n")
        print(f"{'workload':14} {'policy':15} {'requests':>8} {'prompt':>9} {'observed':>9} {'predicted':>9} "
              f"{'TTFT mean':>10} {'p50':>7} {'p90':>7}")
        for (workload, policy), r in found.items():
            predicted = r["predicted_cached_tokens"] / max(1, r["prompt_tokens"])
            print(f"{workload:14} {policy:15} {r['requests']:8} {r['prompt_tokens']:9} {r['observed_hit_rate']:9.1%} "
                  f"{predicted:9.1%} {r['ttft_s']['mean']:9.3f}s {r['ttft_s']['p50']:6.3f}s {r['ttft_s']['p90']:6.3f}s")
    for workload in WORKLOADS:
        kv = found[workload, "kv"]
        assert kv["errors"] == 0 and kv["rejected"] == 0 and kv["requests"] > 0
        assert len(kv["replicas"]) == 3, "all three work"
        for other in POLICIES[1:]:
            assert kv["observed_hit_rate"] > found[workload, other]["observed_hit_rate"] + 0.08, (workload, other)
        assert abs(kv["predicted_cached_tokens"] - kv["observed_cached_tokens"]) < 0.12 * kv["prompt_tokens"]
    # Under load the saved work shows in the waits; at the other workload's two requests at a time it is luck.
    for other in POLICIES[1:]:
        assert found["multi_turn", "kv"]["ttft_s"]["mean"] < found["multi_turn", other]["ttft_s"]["mean"], other
