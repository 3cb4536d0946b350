# SPDX-License-Identifier: Apache-2.0
"""GET /kvroute/ledger against what the engines themselves counted, and against really routing in another way."""
import json
import random
import re
import signal
import time

import pytest

from client import chat_body
from harness import kvroute, wait_for
from texts import text, turns


def life(account):
    return account["windows"]["life"]


def ledger(router, by=None):
    router.wait_idle()
    return router.ledger(by)


def named(accounts):
    return {account["name"]: life(account) for account in accounts}


def three_workloads():
    """(workload, messages) in the order they arrive: agents with long conversations, questions behind one of five
    system prompts, and texts that nobody sends twice."""
    rng = random.Random(7)
    arrivals = []
    for number in range(6):
        arrivals += [(number + step / 10, "agents", messages)
                     for step, messages in enumerate(turns(8, f"agent-{number}", 1200))]
    for number in range(60):
        system = {"role": "system", "content": text(2400, f"system-{number % 5}")}
        arrivals.append((rng.random() * 7, "questions", [system, {"role": "user", "content": text(300)}]))
    for _ in range(20):
        arrivals.append((rng.random() * 7, "once", [{"role": "user", "content": text(1500)}]))
    arrivals.sort(key=lambda arrival: arrival[0])
    return [(workload, messages) for _, workload, messages in arrivals]


def send(router, arrivals):
    """{workload: [requests, prompt tokens, cached tokens]} as the answers tell them."""
    told = {}
    for workload, messages in arrivals:
        answer = router.chat(messages, [("x-kvroute-workload", workload)])
        assert answer.status == 200, answer
        usage = answer.json["usage"]
        sums = told.setdefault(workload, [0, 0, 0])
        sums[0] += 1
        sums[1] += usage["prompt_tokens"]
        sums[2] += usage["prompt_tokens_details"]["cached_tokens"]
    return told


def test_the_account_is_the_engines_own(fleet):
    router, _ = fleet.start(3)
    told = send(router, three_workloads())
    page = ledger(router)
    found = named(page["accounts"]["workload"])
    assert set(found) - {"(none)", "(other)"} == set(told)
    for workload, (requests, prompt, cached) in told.items():
        sums = found[workload]
        assert sums["requests"] == sums["computed"] == sums["observed"] == requests
        assert sums["prompt_tokens"] == prompt
        assert sums["observed_tokens"] == cached
        assert abs(sums["predicted_tokens"] - cached) <= 0.02 * prompt
        assert sums["won_tokens"] + sums["staleness_tokens"] + sums["placement_tokens"] + sums["workload_tokens"] == prompt
    total = life(page["accounts"]["all"][0])
    assert total["requests"] == sum(sums[0] for sums in told.values())
    assert total["observed_tokens"] == sum(sums[2] for sums in told.values())
    for by in ("workload", "family", "model", "replica"):
        assert sum(life(account)["prompt_tokens"] for account in page["accounts"][by]) == total["prompt_tokens"], by
    # What nobody sends twice has nothing to win, and that is no fault of placement.
    assert found["once"]["won_tokens"] <= 0.05 * found["once"]["prompt_tokens"]
    assert found["questions"]["hit_rate_tokens"] > 0.6


def test_what_has_no_name_has_one_name_everywhere(fleet, tmp_path):
    capture, log = tmp_path / "capture", tmp_path / "access"
    router, _ = fleet.start(2, "--shadow", "--capture", capture, "--access-log", log)
    for messages in turns(3, "nameless", 800):
        assert router.chat(messages).status == 200
    assert router.chat(text(800), [("x-kvroute-workload", "agents")]).status == 200
    page = wait_for(lambda: (lambda p: p if p["shadow"]["requests"] == 4 and not p["shadow"]["in_flight"] else None)(ledger(router)), what="both sides")
    wait_for(lambda: capture.read_text().count("\n") == log.read_text().count("\n") == 4, what="all are written")
    wanted = {"default": 3, "agents": 1}
    assert {account["name"]: life(account)["requests"] for account in page["accounts"]["workload"]} == wanted
    assert {account["name"]: life(account)["requests"] for account in page["shadow"]["accounts"]["workload"]} == wanted
    told = [[json.loads(line)["workload"] for line in file.read_text().splitlines()] for file in (capture, log)]
    told.append([one["workload"] for one in router.admin_request("GET", "/kvroute/decisions").json["decisions"]])
    metrics = router.metrics()
    for names in told:
        assert {name: names.count(name) for name in wanted} == wanted and len(names) == 4
    assert {name: metrics.sum("requests_total", workload=name) for name in wanted} == wanted
    sums = named(page["accounts"]["workload"])["default"]
    assert metrics.sum("account_tokens_total", workload="default", part="won") == sums["won_tokens"] > 0
    assert metrics.sum("account_tokens_total", workload="default") == sums["prompt_tokens"]


def test_families_found_are_families_sent(fleet):
    router, _ = fleet.start(2)
    for number in range(80):
        system = {"role": "system", "content": text(3000, f"family-{number % 4}")}
        assert router.chat([system, {"role": "user", "content": text(200)}]).status == 200
    families = [account for account in ledger(router, "family")["accounts"]["family"] if account["name"][0] != "("]
    assert len(families) == 4
    for account in families:
        # The first three of each show that it is one.
        assert 16 <= life(account)["requests"] <= 20
        assert account["family_tokens"] == pytest.approx(3000 / 4, rel=0.15)


@pytest.mark.parametrize("rule", ["round_robin"])
def test_the_counterfactual_agrees_with_really_routing_so(fleet, rule):
    arrivals = three_workloads()
    router, _ = fleet.start(3)
    send(router, arrivals)
    page = ledger(router)
    told = named(page["accounts"]["virtual"])[rule]
    chosen = life(page["accounts"]["all"][0])
    other, _ = fleet.start(3, "--policy", rule)
    send(other, arrivals)
    real = life(ledger(other)["accounts"]["all"][0])
    assert abs(told["won_tokens"] / told["prompt_tokens"] - real["observed_tokens"] / real["prompt_tokens"]) < 0.02
    # On this mix the choice matters, or the test would show nothing.
    assert chosen["observed_tokens"] > 1.1 * real["observed_tokens"]
    assert page["balance"][rule]["requests"]["max_mean"] < 1.05


def test_it_can_be_switched_off(fleet):
    router, _ = fleet.start(2, "--counterfactual", "off")
    router.chat(text(2000))
    page = ledger(router)
    assert page["ledger"]["counterfactual"] is False and page["accounts"]["virtual"] == []
    assert set(page["balance"]) == {"real"}
    router, _ = fleet.start(2, "--ledger", "off")
    router.chat(text(2000))
    page = ledger(router)
    assert page["ledger"] is None and "accounts" not in page and page["lookups"] == 1
    assert router.admin_request("GET", "/kvroute/ledger?by=nonsense").status == 400


def test_a_name_that_no_family_answers_to_is_told(fleet, tmp_path):
    file = tmp_path / "kvroute.yaml"
    file.write_text("policy: kv\n")
    router, _ = fleet.start(2, "--config", file, "--seed", "7")
    send_families(router)
    right, other = sorted(families_of(router))
    wrong = right[:-1] + ("0" if right[-1] != "0" else "1")     # a slip of the finger
    assert wrong != other
    file.write_text(f"families: {{ support-bot: {right}, 'night \"shift\"': {wrong} }}\n")
    router.signal(signal.SIGHUP)
    wait_for(lambda: families_of(router)[right] == "support-bot", what="names")
    with router.connect() as conn:
        for number in range(299):
            conn.request("POST", "/v1/chat/completions", [], chat_body(text(60, f"unlike-{number}")))
            assert conn.response().status == 200
        time.sleep(2.2)         # two looks
        assert "no prompt of" not in router.err and ledger(router)["ledger"]["families_unseen"] == []
        for number in range(301):   # what came before the first look is not counted
            conn.request("POST", "/v1/chat/completions", [], chat_body(text(60, f"more-{number}")))
            assert conn.response().status == 200
    said = wait_for(lambda: re.search(f'family night "shift": no prompt of {wrong} in ([0-9]+) requests', router.err),
                    what="the warning")
    assert 300 <= int(said[1]) <= 600
    assert ledger(router)["ledger"]["families_unseen"] == ['night "shift"']
    assert router.err.count("no prompt of") == 1
    # With the right name nothing is doubted any more.
    file.write_text(f"families: {{ support-bot: {right} }}\n")
    router.signal(signal.SIGHUP)
    wait_for(lambda: ledger(router)["ledger"]["families_unseen"] == [], what="no doubt")


def test_unknown_is_not_zero(fleet):
    engine = fleet.engine(usage=False)
    router = fleet.router(replicas=[engine])
    router.wait_ready(engine)
    for messages in turns(5, "untold", 2000):
        router.chat(messages)
    sums = life(ledger(router)["accounts"]["all"][0])
    assert sums["observed"] == 0 and sums["hit_rate_tokens"] is None
    assert sums["unobserved_prompt_tokens"] == sums["prompt_tokens"] > 0
    assert sums["won_tokens"] == sums["won_unobserved_tokens"] == sums["predicted_tokens"] > 0


def families_of(router):
    return {account["name"]: account.get("label") for account in ledger(router, "family")["accounts"]["family"]
            if account["name"][0] != "("}


def send_families(router):
    for number in range(24):
        system = {"role": "system", "content": text(3000, f"named-{number % 2}")}
        assert router.chat([system, {"role": "user", "content": text(200)}]).status == 200


def test_families_have_the_names_that_the_configuration_gives(fleet, tmp_path):
    file = tmp_path / "kvroute.yaml"
    file.write_text("policy: kv\n")
    router, _ = fleet.start(2, "--config", file, "--seed", "7")
    send_families(router)
    first, second = sorted(families_of(router))
    assert families_of(router) == {first: None, second: None}
    file.write_text(f"families: {{ support-bot: {first}, 'späte Schicht': {second} }}\n")
    router.signal(signal.SIGHUP)
    wait_for(lambda: families_of(router) == {first: "support-bot", second: "späte Schicht"}, what="names")
    report = json.loads(kvroute("report", router.admin_url, "--json", "--min-requests", "10").out)
    assert {"support-bot", "späte Schicht"} < {family["name"] for family in report["families"]}
    # With the same seed families are called the same after a restart, on other replicas too.
    again, _ = fleet.start(3, "--config", file, "--seed", "7")
    send_families(again)
    assert families_of(again) == {first: "support-bot", second: "späte Schicht"}
    assert "random seed" not in again.err
    # With another one they are not, and that is said when it starts.
    other, _ = fleet.start(2, "--config", file)
    assert "family: with a random seed no family has the same name after a restart" in other.err
    send_families(other)
    assert set(families_of(other).values()) == {None}


@pytest.mark.parametrize("yaml, words", [
    ("family: { a: family-1 }", '"family-1" is no family; write its name in GET /kvroute/ledger?by=family'),
    ("family: { a: family-3f9a1c20, b: family-3f9a1c20 }", "family-3f9a1c20 has two names, a and b"),
    ("families: [a]", '"a" is not NAME=FAMILY'),
    ("familys: [a]", "did you mean famil")])
def test_what_is_no_family_is_refused(tmp_path, yaml, words):
    file = tmp_path / "kvroute.yaml"
    file.write_text(yaml + "\n")
    done = kvroute("check", file)
    assert done.status == 2 and words in done.err, done
