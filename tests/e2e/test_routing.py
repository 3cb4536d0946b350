# SPDX-License-Identifier: Apache-2.0
"""Where requests go. Numbers in brackets are the entries of field reports that a test stands for (docs/testing.md)."""
import collections
import threading

import pytest

from client import chat_body
from engine import until
from harness import shares, spawn, together, wait_for
from texts import text, turns


def occupy(router, engine, count, model, size=60):
    """Starts `count` requests on the one engine that serves `model`; they last until the returned function is called."""
    gate = threading.Event()
    engine.next(*[until(gate)] * count)
    before = engine.count()
    waiting = [spawn(router.chat, text(size), model=model) for _ in range(count)]
    wait_for(lambda: engine.count() - before == count, what=f"{count} requests at {engine}")

    def release():
        gate.set()
        return [w.result(20) for w in waiting]
    return release


def test_a_miss_goes_by_load_not_by_how_little_is_cached(fleet):
    """[1] A is busy with short prompts and has little cached; B is idle and has much cached."""
    a, b = fleet.engine(models=["m", "only-a"]), fleet.engine(models=["m", "only-b"])
    router = fleet.router(replicas=[a, b])
    for _ in range(3):
        assert router.chat(text(40000), model="only-b").status == 200
    release = occupy(router, a, 20, "only-a")
    answers = [router.chat(text(300)) for _ in range(20)]
    release()
    assert shares(answers).get(b.name, 0) >= 0.9, shares(answers)


def test_one_hot_replica_does_not_switch_affinity_off(fleet):
    """[2] The load of A says nothing about a conversation whose first turn is on idle B."""
    a, b, c = (fleet.engine(models=["m", only]) for only in ("only-a", "only-b", "only-c"))
    router = fleet.router(replicas=[a, b, c])
    release = occupy(router, a, 30, "only-a")
    for number in range(4):
        first, second = turns(2, f"hot-{number}", 4000)
        one = router.chat(first)
        two = router.chat(second)
        assert one.replica != a.name
        assert two.replica == one.replica
        assert two.reason_header == "hit" and two.match > 500
    release()


@pytest.mark.parametrize("speed", [None, 20000])
def test_equal_replicas_share_unique_prompts(fleet, speed):
    """[4a] 200 unique prompts, one at a time, on four idle replicas: measured speeds differ by noise only."""
    router, _ = fleet.start(4, engine={"speed": speed})
    answers = [router.chat(text(600)) for _ in range(200)]
    assert len(shares(answers)) == 4 and max(shares(answers).values()) <= 0.40, shares(answers)


def test_a_conversation_stays_on_an_idle_fleet(fleet):
    """[4b] Ten turns, all on one replica."""
    router, _ = fleet.start(4)
    for conversation in range(4):
        answers = [router.chat(m) for m in turns(10, f"idle-{conversation}")]
        assert len(shares(answers)) == 1, [a.replica for a in answers]


def test_a_system_prompt_shared_by_everyone_makes_no_hot_spot(fleet):
    """[5] 40 users at once behind one 8 kB preamble; everyone's second turn finds the first."""
    router, engines = fleet.start(4, engine={"speed": 20000, "gap": 0.01, "tokens": 8})
    preamble = {"role": "system", "content": text(8000, "preamble")}

    def user(number):
        one = [preamble, {"role": "user", "content": text(1000, f"tail-{number}")}]
        two = one + [{"role": "assistant", "content": "w0 w1 "}, {"role": "user", "content": text(200, f"more-{number}")}]
        return router.chat(one, timeout=40), router.chat(two, timeout=40)
    answers = together([lambda n=n: user(n) for n in range(40)])
    first = [a for a, _ in answers]
    assert max(shares(first).values()) < 0.40, shares(first)
    back = sum(a.replica == b.replica for a, b in answers)
    assert back >= 34, f"only {back} of 40 second turns went back"


def test_a_jump_in_traffic_on_one_prefix_uses_the_fleet(fleet):
    """[7a] Light traffic on one prefix, then 40 at once: they do not pile up on the warm replica."""
    router, engines = fleet.start(4, engine={"speed": 20000, "gap": 0.02, "tokens": 8})
    hot = text(6000, "hot")
    for number in range(100):
        assert router.chat(hot + text(40), max_tokens=1).status == 200
    answers = together([lambda: router.chat(hot + text(400), timeout=40) for _ in range(40)])
    assert len(shares(answers)) == 4, shares(answers)
    assert max(shares(answers).values()) <= 0.5, shares(answers)


def test_a_newcomer_is_not_flooded(fleet):
    """[7b] Three replicas at load 10, then D joins whose requests take long."""
    busy = [fleet.engine(models=["m", f"only-{n}"]) for n in "abc"]
    router = fleet.router(replicas=busy)
    releases = [occupy(router, e, 10, e.models[1]) for e in busy]
    slow = fleet.engine()
    gate = threading.Event()
    slow.script = until(gate)
    for engine in busy:
        engine.script = until(gate)
    router.add(slow)
    router.wait_ready(slow)
    waiting = [spawn(router.chat, text(400), timeout=40) for _ in range(40)]
    wait_for(lambda: slow.count() + sum(e.count() for e in busy) == 70, what="all have arrived")
    got = slow.count()
    gate.set()
    for release in releases:
        release()
    assert all(w.result(40).status == 200 for w in waiting)
    assert 5 <= got <= 24, f"the newcomer got {got} of 40"


def test_conversations_do_not_wander(fleet):
    """[8] Five interleaved conversations of 20 turns on four replicas."""
    router, _ = fleet.start(4)
    homes = collections.defaultdict(list)
    for step in zip(*[turns(20, f"talk-{c}", 200) for c in range(5)]):
        for number, messages in enumerate(step):
            homes[number].append(router.chat(messages).replica)
    for number, visited in homes.items():
        moves = sum(a != b for a, b in zip(visited, visited[1:]))
        assert moves <= 1, (number, visited)


@pytest.mark.parametrize("header, options", [("x-session-id", []), ("x-my-task", ["--session-header", "x-my-task"])])
def test_a_session_header_keeps_prompts_together_that_share_nothing(fleet, header, options):
    """[8] The text differs from the first byte on; only the header tells."""
    router, _ = fleet.start(4, *options)
    homes = collections.defaultdict(list)
    reasons = collections.Counter()
    for _ in range(20):
        for session in range(5):
            answer = router.chat(text(200), [(header, f"task-{session}")])
            homes[session].append(answer.replica)
            reasons[answer.reason_header] += 1
    for session, visited in homes.items():
        moves = sum(a != b for a, b in zip(visited, visited[1:]))
        assert moves <= 1, (session, visited)
    assert reasons["affinity"] > 60, reasons


def test_a_session_moves_on_when_its_replica_is_gone(fleet):
    """[8] Re-pinned cleanly, and then stays."""
    router, engines = fleet.start(3)
    session = [("x-session-id", "s")]
    home = router.chat(text(300), session).replica
    fleet.by_name(home).stop()
    wait_for(lambda: router.state(home) == "down", what="replica down")
    answers = [router.chat(text(300), session) for _ in range(6)]
    assert all(a.status == 200 for a in answers)
    assert len(shares(answers)) == 1 and home not in shares(answers)


# ---- what the answer says about it --------------------------------------------------------------------------------------


def test_answer_headers_name_replica_match_and_reason(fleet):
    router, engines = fleet.start(2)
    prompt = text(4000)
    first = router.chat(prompt)
    again = router.chat(prompt)
    assert first.replica in [e.name for e in engines]
    assert first.match == 0 and first.reason_header in ("load", "affinity")
    assert again.replica == first.replica and again.reason_header == "hit"
    observed = again.json["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert observed > 900 and abs(again.match - observed) <= 64


def test_a_single_candidate_is_called_only(fleet):
    router, (engine,) = fleet.start(1)
    answer = router.chat("hi")
    assert answer.reason_header == "only" and answer.replica == engine.name


def test_names_given_to_replicas_are_used(fleet):
    engine = fleet.engine()
    router = fleet.router("--replica", f"{engine.url},name=gpu-a", ready=False)
    router.wait_ready("gpu-a")
    assert router.chat("hi").replica == "gpu-a"
    assert router.metrics().sum("replica_up", replica="gpu-a") == 1


def test_explain_sends_nothing_and_agrees_with_what_happens(fleet):
    router, engines = fleet.start(3)
    prompt = text(4000)
    home = router.chat(prompt).replica
    before = [e.count() for e in engines]
    body = chat_body(prompt)
    story = router.explain(body)
    assert [e.count() for e in engines] == before
    assert {c["replica"] for c in story["candidates"]} == {e.name for e in engines}
    assert story["chosen"] == home and story["reason"] == "hit"
    assert story["prompt_tokens"] > 500 and story["keys"] and story["namespace"] is not None
    matches = {c["replica"]: c["match_tokens"] for c in story["candidates"]}
    assert matches[home] > 900 and all(m == 0 for name, m in matches.items() if name != home)
    for candidate in story["candidates"]:
        assert candidate["cost_s"] >= 0 and candidate["wait_s"] >= 0 and candidate["own_s"] >= 0
    assert min(story["candidates"], key=lambda c: c["cost_s"])["replica"] == home
    answer = router.post("/v1/chat/completions", body)
    assert answer.replica == home and abs(answer.match - matches[home]) <= 16
    assert router.busy() == {}


# ---- other policies -----------------------------------------------------------------------------------------------------


def test_round_robin_rotates(fleet):
    router, engines = fleet.start(4, "--policy", "round_robin", "--threads", "1")
    prompt = text(2000)
    order = [router.chat(prompt).replica for _ in range(40)]
    assert collections.Counter(order) == {e.name: 10 for e in engines}
    assert order[:4] * 10 == order


def test_least_requests_prefers_the_idle(fleet):
    a, b = fleet.engine(models=["m", "only-a"]), fleet.engine()
    router = fleet.router("--policy", "least_requests", replicas=[a, b])
    release = occupy(router, a, 5, "only-a")
    prompt = text(2000)
    assert {router.chat(prompt).replica for _ in range(10)} == {b.name}
    release()


def test_consistent_hash_depends_on_the_prompt_only(fleet):
    """Two routers with one seed agree without talking to each other."""
    engines = [fleet.engine() for _ in range(4)]
    one, two = (fleet.router("--policy", "consistent_hash", "--seed", "0011223344556677", replicas=engines)
                for _ in range(2))
    def place(router, prompt):
        router.wait_idle()      # nothing in flight: bounded loads then move nothing
        return router.chat(prompt).replica
    prompts = [text(500) for _ in range(24)]
    placed = [place(one, p) for p in prompts]
    assert [place(two, p) for p in prompts] == placed
    assert len(set(placed)) > 1


@pytest.mark.parametrize("policy", ["kv", "random", "least_tokens", "power_of_two", "longest_prefix"])
def test_every_policy_serves(fleet, policy):
    router, engines = fleet.start(3, "--policy", policy)
    answers = together([lambda n=n: router.chat(text(500, f"group-{n % 6}") + text(100)) for n in range(60)])
    assert all(a.status == 200 for a in answers)
    assert sum(e.count() for e in engines) == 60
    assert router.admin_request("GET", "/kvroute/config").json["policy"] == policy


@pytest.mark.parametrize("policy", ["random", "power_of_two"])
def test_same_seed_gives_the_same_choices(fleet, policy):
    engines = [fleet.engine() for _ in range(4)]
    prompts = [text(300, f"chosen-{number}") for number in range(24)]

    def choices(*seed):
        router = fleet.router("--policy", policy, *seed, replicas=engines)
        for engine in engines:
            router.wait_ready(engine)
        # One at a time, with nothing in flight: then of two random ones any may be the less busy.
        found = []
        for prompt in prompts:
            router.wait_idle()
            found.append(router.chat(prompt).replica)
        router.terminate()
        assert router.wait_exit() == 0
        return found
    first = choices("--seed", "5")
    assert len(set(first)) > 1
    assert choices("--seed", "5") == first
    assert choices("--seed", "6") != first and choices() != first


def test_same_seed_gives_the_same_keys(fleet):
    engines = [fleet.engine()]
    body = chat_body(text(3000))
    keys = [fleet.router("--seed", seed, replicas=engines).explain(body)["keys"] for seed in ("0a", "0a", "0b")]
    assert keys[0] == keys[1] != keys[2]
