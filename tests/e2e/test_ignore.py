# SPDX-License-Identifier: Apache-2.0
"""--ignore: conversations whose beginning changes with every turn keep to one replica, and nothing is promised for it.

The number in brackets is the entry of field reports that a test stands for (docs/testing.md).
"""
import itertools
import json
import signal

import pytest

from client import chat_body
from harness import kvroute, shares, wait_for
from texts import text

COUNTER = itertools.count(1)
PATTERNS = ["--ignore", "timestamp", "--ignore", "after:cch="]


def spoilt(turn, conversation="one"):
    """Turn by turn: a counter and a clock at byte 80, 30 kB of stable text behind."""
    number = next(COUNTER)
    clock = f"2026-12-01T{number // 3600:02d}:{number // 60 % 60:02d}:{number % 60:02d}Z"
    system = f"{'You are a careful helper. ' * 3}cch={number:x}7a; {clock} " + text(30000, "stable")
    messages = [{"role": "system", "content": system}]
    for step in range(turn + 1):
        messages.append({"role": "user", "content": text(300, f"{conversation}-{step}")})
        if step < turn:
            messages.append({"role": "assistant", "content": text(200, f"{conversation}-{step}-answer")})
    return messages


def ledger(router):
    router.wait_idle()
    return router.ledger()


def sums(router):
    return ledger(router)["accounts"]["all"][0]["windows"]["life"]


def test_turns_with_a_changing_top_stay_together(fleet):
    """[90]"""
    router, engines = fleet.start(4, *PATTERNS)
    answers = [router.chat(spoilt(turn)) for turn in range(20)]
    assert len(shares(answers)) == 1, shares(answers)
    # The engine shares nothing behind the spot, and that is what was predicted.
    assert all(answer.match <= 32 for answer in answers), [answer.match for answer in answers]
    total = sums(router)
    assert total["predicted_tokens"] <= total["observed_tokens"] + 20 * 32
    assert total["staleness_tokens"] <= 20 * 32
    # Without the patterns the turns go where there is least work, and the ledger says where they part.
    other, _ = fleet.start(4)
    spread = [other.chat(spoilt(turn)) for turn in range(20)]
    assert len(shares(spread)) == 4, shares(spread)
    spoilers = ledger(other)["spoilers"]
    assert spoilers and spoilers[0]["from"] < 256 and spoilers[0]["count"] >= 15, spoilers


def test_bodies_go_on_as_they_came(fleet):
    router, (engine,) = fleet.start(1, *PATTERNS)
    body = json.dumps({"model": "m", "messages": spoilt(3)}, indent=1).encode()
    assert router.post("/v1/chat/completions", body).status == 200
    sent = [request for request in engine.requests if request.path == "/v1/chat/completions"]
    assert [request.body for request in sent] == [body]


def test_conversations_apart_do_not_pile_up(fleet):
    router, _ = fleet.start(4, *PATTERNS)
    answers = [router.chat(spoilt(turn, f"talk-{number}")) for turn in range(3) for number in range(8)]
    by_talk = [shares(answers[number::8]) for number in range(8)]
    assert all(len(share) == 1 for share in by_talk), by_talk
    assert len(shares(answers)) == 4, shares(answers)


def test_a_session_that_the_client_names_goes_before(fleet):
    router, _ = fleet.start(4, *PATTERNS)
    first = router.chat(spoilt(0), prompt_cache_key="a")
    again = [router.chat(spoilt(turn, f"talk-{turn}"), prompt_cache_key="a") for turn in range(1, 6)]
    assert {answer.replica for answer in again} == {first.replica}


def test_patterns_are_read_again_on_sighup(fleet, tmp_path):
    file = tmp_path / "kvroute.yaml"
    file.write_text("ignore: [uuid]\n")
    router, _ = fleet.start(4, "--config", str(file))
    assert len(shares([router.chat(spoilt(turn)) for turn in range(8)])) == 4
    file.write_text("ignore: [timestamp, 'after:cch=']\n")
    router.signal(signal.SIGHUP)
    wait_for(lambda: router.admin_request("GET", "/kvroute/config").json["ignore"] == ["timestamp", "after:cch="], what="reloaded")
    assert len(shares([router.chat(spoilt(turn, "later")) for turn in range(8)])) == 1


@pytest.mark.parametrize("pattern", ["time", "hex:4", "after:", "regex:.*"])
def test_what_is_no_pattern_is_refused(pattern):
    done = kvroute("serve", "--ignore", pattern, "http://127.0.0.1:1")
    assert done.status == 2 and "is no pattern; write timestamp, uuid" in done.err


def test_explain_asks_by_the_same_name(fleet):
    router, _ = fleet.start(4, *PATTERNS)
    home = router.chat(spoilt(0)).replica
    told = router.explain(chat_body(spoilt(1)))
    assert told["chosen"]["replica"] == home if isinstance(told.get("chosen"), dict) else told["chosen"] == home
