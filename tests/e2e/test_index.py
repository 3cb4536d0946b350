# SPDX-License-Identifier: Apache-2.0
"""What the router believes to be cached, as far as it can be seen from outside."""
import base64
import json

import pytest

from client import chat_body
from engine import reply
from harness import wait_for
from texts import text, turns

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8).decode()


def picture(number):
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{number}{PNG[1:]}"}}


def words(content):
    return {"type": "text", "text": content}


@pytest.fixture
def one(fleet):
    """A router with one engine: matches then say only what is known of the prompt."""
    return fleet.start(1)[0]


def full(router, body, path="/v1/chat/completions"):
    """Whether the router expects (nearly) all of this prompt to be cached."""
    story = router.explain(body, path)
    best = max(c["match_tokens"] for c in story["candidates"])
    return best >= 0.9 * story["prompt_tokens"] - 2


def best(router, body, path="/v1/chat/completions"):
    return max(c["match_tokens"] for c in router.explain(body, path)["candidates"])


# ---- images ------------------------------------------------------------------------------------------------------------


def test_different_pictures_are_different_prompts(one):
    """[17] Same text with picture P, then Q, then P again, and in swapped order: only true repeats match."""
    before, after = text(3000, "before"), text(1000, "after")

    def ask(*pictures):
        return chat_body([{"role": "user", "content": [words(before), *map(picture, pictures), words(after)]}])
    assert one.post("/v1/chat/completions", ask("P")).match == 0
    q = one.post("/v1/chat/completions", ask("Q"))
    one.wait_idle()
    story = one.explain(ask("R"))
    upto = max(c["match_tokens"] for c in story["candidates"])
    part = len(before) / (len(before) + len(PNG) + len(after))      # the estimate learns as it goes: compare parts
    assert q.match > 500 and 0.5 * part < upto / story["prompt_tokens"] < 1.3 * part, "the text before it, no more"
    again = one.post("/v1/chat/completions", ask("P"))
    assert again.match > q.match + 100, "a true repeat"
    assert one.post("/v1/chat/completions", ask("P", "Q")).match < again.match
    swapped = one.post("/v1/chat/completions", ask("Q", "P"))
    assert swapped.match < again.match
    assert full(one, ask("P", "Q")) and full(one, ask("Q", "P")) and not full(one, ask("Q", "R"))


def test_pictures_by_address_count_by_address(one):
    def ask(url):
        return chat_body([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}},
                                                       words(text(2000, "by-url"))]}])
    one.post("/v1/chat/completions", ask("https://pictures.example/cat.png"))
    assert full(one, ask("https://pictures.example/cat.png"))
    assert best(one, ask("https://pictures.example/dog.png")) < 64


# ---- identity ----------------------------------------------------------------------------------------------------------


def warm(router, engines, which, prompt):
    """Sends a prompt to one replica: the others are out of order meanwhile."""
    others = [e for e in engines if e is not which]
    for engine in others:
        engine.health = reply(503)
    wait_for(lambda: all(router.state(e) == "down" for e in others), what="the others are down")
    assert router.chat(prompt).replica == which.name
    for engine in others:
        engine.health = reply(200, b"")
    wait_for(lambda: all(router.state(e) == "ready" for e in engines), what="all are back")


def test_a_chain_stops_at_the_first_miss_and_the_longest_match_wins(fleet):
    """[20] X is warm on A, Y on B: Y followed by X belongs to B, and still does when C holds the first half of Y."""
    router, (a, b, c) = fleet.start(3, engine={"speed": 20000})
    x, y = text(4000, "X"), text(4000, "Y")
    warm(router, [a, b, c], a, x)
    warm(router, [a, b, c], b, y)

    def matches():
        return {m["replica"]: m["match_tokens"] for m in router.explain(y + x)["candidates"]}
    have = matches()
    assert have[b.name] > 900 and have[a.name] == 0 and have[c.name] == 0, have
    assert router.explain(y + x)["chosen"] == b.name
    warm(router, [a, b, c], c, y[:2000])
    have = matches()
    assert 400 < have[c.name] < have[b.name], have
    assert router.explain(y + x)["chosen"] == b.name
    assert router.chat(y + x).replica == b.name


def test_namespaces_do_not_share(fleet):
    """[15] Model or adapter, and cache_salt, are at the root of every key."""
    engine = fleet.engine(models=["base", "adapter-x", "adapter-y", "adapter-xs"])
    router = fleet.router(replicas=[engine])
    prompt = text(3000)
    router.chat(prompt, model="adapter-x")
    assert full(router, chat_body(prompt, model="adapter-x"))
    for other in (chat_body(prompt, model="adapter-y"), chat_body(prompt, model="base"),
                  chat_body(prompt, model="adapter-x", cache_salt="s")):
        assert best(router, other) == 0
    router.chat(prompt, model="adapter-x", cache_salt="s")
    assert full(router, chat_body(prompt, model="adapter-x", cache_salt="s"))
    assert best(router, chat_body(prompt, model="adapter-x", cache_salt="t")) == 0
    # Framing: moving bytes from one part of the root to its neighbour must not give an equal key.
    assert best(router, chat_body(prompt, model="adapter-xs")) == 0


def test_tools_are_part_of_the_prompt(one):
    tool = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    other = [{"type": "function", "function": {"name": "hear", "parameters": {"type": "object"}}}]
    prompt = text(3000)
    one.chat(prompt, tools=tool)
    assert full(one, chat_body(prompt, tools=tool))
    assert best(one, chat_body(prompt, tools=other)) < 64
    assert best(one, chat_body(prompt)) < 64


def test_sampling_settings_are_not_part_of_the_prompt(one):
    prompt = text(3000)
    one.chat(prompt, temperature=0)
    for extra in ({"temperature": 1.0}, {"max_tokens": 9}, {"stream": True}, {"seed": 4, "user": "me"}):
        assert full(one, chat_body(prompt, **extra)), extra


def test_order_of_keys_and_white_space_do_not_matter(one):
    prompt = text(3000)
    one.post("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": prompt}]})
    same = b'{ "messages" : [ {"content":%s, "role":"user"} ],\n "model" : "m" }' % json.dumps(prompt).encode()
    assert full(one, same)


def test_escaped_and_raw_characters_are_one_text(one):
    """[51] The escaped and the raw form of a text match each other (documented)."""
    prompt = "×λ語🎈 " * 400
    one.post("/v1/chat/completions", json.dumps({"model": "m", "messages": [{"role": "user", "content": prompt}]},
                                                ensure_ascii=True).encode())
    raw = json.dumps({"model": "m", "messages": [{"role": "user", "content": prompt}]}, ensure_ascii=False).encode()
    assert full(one, raw)


def test_text_parts_and_plain_text_are_one_prompt(one):
    prompt = text(3000)
    one.chat(prompt)
    assert full(one, chat_body([{"role": "user", "content": [words(prompt)]}]))


def test_a_growing_conversation_matches_all_that_was_sent(one):
    previous = None
    for messages in turns(6, "grow", 1000):
        answer = one.chat(messages)
        if previous is not None:
            assert answer.match >= 0.9 * previous, (answer.match, previous)
        previous = one.explain(chat_body(messages))["prompt_tokens"]


@pytest.mark.parametrize("path, make", [
    ("/v1/completions", lambda p: {"model": "m", "prompt": p}),
    ("/v1/messages", lambda p: {"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": p}]}),
    ("/v1/messages", lambda p: {"model": "m", "max_tokens": 4, "system": [{"type": "text", "text": p}],
                                "messages": [{"role": "user", "content": "hi"}]}),
    ("/v1/responses", lambda p: {"model": "m", "input": p}),
    ("/v1/responses", lambda p: {"model": "m", "instructions": p, "input": [{"role": "user", "content": "hi"}]}),
])
def test_prefixes_are_found_in_every_api(one, path, make):
    prompt = text(4000)
    assert one.post(path, make(prompt)).match == 0
    answer = one.post(path, make(prompt))
    assert answer.status == 200 and answer.match > 800


# ---- forms of prompts ----------------------------------------------------------------------------------------------------

FORMS = {
    "text": b'{"model":"m","prompt":"once upon a time"}',
    "list of texts": b'{"model":"m","prompt":["one","two"]}',
    "token ids": b'{"model":"m","prompt":[1,2,3,4,5,6,7,8]}',
    "lists of token ids": b'{"model":"m","prompt":[[1,2,3],[4,5,6]]}',
    "empty list": b'{"model":"m","prompt":[]}',
    "empty text": b'{"model":"m","prompt":""}',
    "null": b'{"model":"m","prompt":null}',
    "absent": b'{"model":"m"}',
    "object": b'{"model":"m","prompt":{"a":1}}',
    "number": b'{"model":"m","prompt":7}',
    "huge token ids": b'{"model":"m","prompt":[99999999999999999999,-1,1e300,0.5]}',
    "mixed list": b'{"model":"m","prompt":["a",1,[2],null]}',
}
CHATS = {
    "no messages": b'{"model":"m","messages":[]}',
    "messages null": b'{"model":"m","messages":null}',
    "content null": b'{"model":"m","messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function",'
                    b'"function":{"name":"f","arguments":"{}"}}]}]}',
    "content number": b'{"model":"m","messages":[{"role":"user","content":5}]}',
    "unknown parts": b'{"model":"m","messages":[{"role":"user","content":[{"type":"hologram","hologram":{"x":[1]}},3,"s"]}]}',
    "messages of the wrong kind": b'{"model":"m","messages":[1,"two",[3]]}',
    "duplicate keys": b'{"model":"m","model":"m","messages":[{"role":"user","content":"a","content":"b"}]}',
    "big integers": b'{"model":"m","seed":123456789012345678901234567890,"messages":[{"role":"user","content":"a"}]}',
    "lone surrogate": b'{"model":"m","messages":[{"role":"user","content":"\\ud800"}]}',
    "zero byte": b'{"model":"m","messages":[{"role":"user","content":"a\\u0000b"}]}',
    "invalid UTF-8": b'{"model":"m","messages":[{"role":"user","content":"\xff\xfe\xc3("}]}',
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_prompt_reaches_the_replica_unchanged(fleet, name):
    """[24]"""
    router, (engine,) = fleet.start(1)
    for _ in range(2):
        assert router.post("/v1/completions", FORMS[name]).status < 500
    assert [r.body for r in engine.requests] == [FORMS[name]] * 2


@pytest.mark.parametrize("name", CHATS)
def test_odd_chats_reach_the_replica_unchanged(fleet, name):
    """[24] [51]"""
    router, (engine,) = fleet.start(1)
    engine.script = lambda request, out: out.whole(200, b'{"ok":true}')
    for _ in range(2):
        assert router.post("/v1/chat/completions", CHATS[name]).json == {"ok": True}
    assert [r.body for r in engine.requests] == [CHATS[name]] * 2


def test_token_ids_match_like_text(one):
    ids = list(range(1000, 2000))
    body = json.dumps({"model": "m", "prompt": ids}).encode()
    one.post("/v1/completions", body)
    story = one.explain(body, "/v1/completions")
    assert story["prompt_tokens"] == 1000, "ids need no guessing"
    assert 900 <= story["candidates"][0]["match_tokens"] <= 999
    longer = json.dumps({"model": "m", "prompt": ids + [5] * 500}).encode()
    assert 900 <= best(one, longer, "/v1/completions") <= 1000
    other = json.dumps({"model": "m", "prompt": [7] + ids}).encode()
    assert best(one, other, "/v1/completions") == 0


# ---- learning ----------------------------------------------------------------------------------------------------------


def test_capacity_is_learned_when_the_engine_understates_it(fleet):
    """[18] The engine holds ten times what its metric says; repeats still find their replica."""
    router, engines = fleet.start(2, engine={"capacity_blocks": 2000})
    for engine in engines:
        engine.gauges["capacity_tokens"] = 3200
    wait_for(lambda: all(e["capacity_tokens"] == 3200 for e in router.replicas().values()), what="capacity read")
    prompts = [text(3200, f"cycle-{n}") for n in range(20)]     # 16,000 tokens, five times 3,200
    for _ in range(14):
        answers = [router.chat(p) for p in prompts]
    hits = sum(a.json["usage"]["prompt_tokens_details"]["cached_tokens"] > 0 for a in answers)
    entries = router.replicas().values()
    assert hits >= 18 or all(e["capacity_tokens"] > 2 * 3200 for e in entries), (hits, list(entries))


def test_predictions_shrink_when_the_engine_holds_less(fleet):
    """[21] [73] The engine never reports a hit: the router stops promising them."""
    router, (engine,) = fleet.start(1, engine={"capacity_blocks": 0})
    prompt = text(4000)
    matches = [router.chat(prompt).match for _ in range(30)]
    assert matches[1] > 500, "expected at first"
    totals = router.metrics()
    predicted, observed = totals.sum("predicted_cached_tokens_total"), totals.sum("observed_cached_tokens_total")
    assert observed == 0
    assert predicted < 0.6 * 29 * matches[1], (predicted, matches)


def test_a_replica_added_again_is_cold(fleet):
    """[23]"""
    router, engines = fleet.start(2)
    prompt = text(4000)
    home = fleet.by_name(router.chat(prompt).replica)
    assert router.match_of(chat_body(prompt), home) > 500
    router.remove(home)
    wait_for(lambda: home.name not in router.replicas(), what="removed")
    home.stop()
    home.start()
    router.add(home)
    router.wait_ready(home)
    assert router.match_of(chat_body(prompt), home) == 0
    assert home.name in router.replicas()


def test_a_restarted_replica_is_credited_only_until_it_says_otherwise(fleet):
    """[73] Restarted empty on the same port: within ten requests the predictions adapt."""
    router, engines = fleet.start(2)
    conversations = [text(4000, f"before-restart-{n}") for n in range(20)]
    homes = [router.chat(c).replica for c in conversations]
    home = fleet.by_name(homes[0])
    home.stop()
    wait_for(lambda: router.state(home) == "down", what="seen down")
    home.start()
    wait_for(lambda: router.state(home) == "ready", what="back")
    wrong = 0
    for conversation, where in zip(conversations, homes):
        if where == home.name and wrong < 10:
            answer = router.chat(conversation + text(50))
            cached = answer.json["usage"]["prompt_tokens_details"]["cached_tokens"]
            wrong += answer.replica == home.name and answer.match > cached + 200
    assert wrong <= 3, f"{wrong} promises that were not kept"


def test_slots_of_llamacpp_are_modelled(fleet):
    """[25] Three servers that keep two prompts each, five conversations: many hits, and honest predictions."""
    def run(policy):
        engines = [fleet.engine("llamacpp", keep=2) for _ in range(3)]
        for engine in engines:
            engine.gauges["slots"] = 2
        router = fleet.router("--policy", policy, replicas=engines)
        predicted = observed = total = 0
        for step in zip(*[turns(12, f"slots-{policy}-{c}", 800) for c in range(5)]):
            for messages in step:
                answer = router.chat(messages)
                predicted += answer.match
                observed += answer.json["usage"]["prompt_tokens_details"]["cached_tokens"]
                total += answer.json["usage"]["prompt_tokens"]
        return observed / total, predicted / total
    kv, promised = run("kv")
    blind, _ = run("round_robin")
    assert kv > 0.75 and kv > blind + 0.2, (kv, blind)
    assert abs(promised - kv) < 0.15, (promised, kv)
