# SPDX-License-Identifier: Apache-2.0
"""Every decision can be asked about: before it (explain), in the debug log, and after the request (decisions)."""
import re

from client import chat_body
from harness import wait_for
from texts import text


def test_costs_of_a_decision_are_told_three_times(fleet):
    router, engines = fleet.start(2, "--log-level", "debug")
    body = chat_body(text(4000))
    story = router.explain(body)
    for candidate in story["candidates"]:
        assert candidate["due_tokens"] == 0  # nothing is shared by many yet
        assert abs(candidate["wait_s"] + candidate["own_s"] + candidate["toll_s"] - candidate["cost_s"]) < 1e-6
    answer = router.post("/v1/chat/completions", body)
    assert answer.status == 200
    def noted():
        return router.admin_request("GET", "/kvroute/decisions").json["decisions"]
    wait_for(lambda: len(noted()) == 1, what="the decision's note")
    note = noted()[0]
    chosen = next(c for c in story["candidates"] if c["replica"] == note["replica"])
    assert note["wait_s"] == 0 and note["toll_s"] == 0 and note["due_tokens"] == 0
    assert abs(note["own_s"] / chosen["own_s"] - 1) < 0.01
    wait_for(lambda: ": match " in router.err, what="the debug log")
    line = next(line for line in router.err.splitlines() if ": match " in line)
    assert set(re.findall(r"\*?(\S+): match 0 due 0 wait 0\.000000 own [0-9.]+ toll 0\.000000", line)) == {
        engine.name for engine in engines}
    assert f"*{note['replica']}:" in line and line.count("*") == 1


def test_policies_that_do_not_price_say_so(fleet):
    router, _ = fleet.start(2, "--policy", "round_robin")
    assert router.chat(text(500)).status == 200
    def notes():
        return router.admin_request("GET", "/kvroute/decisions").json["decisions"]
    wait_for(notes, what="the decision's note")
    assert notes()[0]["own_s"] is None and notes()[0]["toll_s"] is None


def test_decisions_are_not_explained_unless_asked_for(fleet):
    router, _ = fleet.start(2)
    assert router.chat(text(500)).status == 200
    assert ": match " not in router.err
