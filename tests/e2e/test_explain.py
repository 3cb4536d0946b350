# SPDX-License-Identifier: Apache-2.0
"""POST /kvroute/explain tells what the serving path would do with the same body and the same header fields."""
import json

import pytest

from client import chat_body
from harness import wait_for
from texts import text

KEYS = ("--api-key", "sk-a", "--api-key", "sk-b")


def explain(router, body, headers=(), path="/v1/chat/completions"):
    answer = router.admin_request("POST", f"/kvroute/explain?path={path}", body, headers)
    assert answer.status == 200, answer
    return answer.json


def match(router, body, headers=()):
    return max(c["match_tokens"] for c in explain(router, body, headers)["candidates"])


@pytest.mark.parametrize("name, value", [("Authorization", "Bearer {}"), ("Authorization", "bearer {}"), ("X-Api-Key", "{}")])
def test_a_tenant_salt_is_part_of_the_keys(fleet, name, value):
    """[83] What one tenant has cached matches for that tenant's key and for nobody else's."""
    router, (engine,) = fleet.start(1, "--tenant-salt", "on", *KEYS)
    prompt = text(4000)
    a, b = [(name, value.format("sk-a"))], [(name, value.format("sk-b"))]
    assert router.chat(prompt, a).status == 200
    body = chat_body(prompt)
    story_a, story_b, story_none = (explain(router, body, headers) for headers in (a, b, ()))
    again = router.chat(prompt, a)
    assert again.match > 700 and story_a["match_tokens"] == again.match
    assert story_b["match_tokens"] == story_none["match_tokens"] == 0
    assert len({tuple(s["keys"]) for s in (story_a, story_b, story_none)}) == 3
    assert len({s["namespace"] for s in (story_a, story_b, story_none)}) == 3
    # A salt that the client brings counts for nothing, there as here.
    salted = chat_body(prompt, cache_salt=engine.last().json["cache_salt"])
    assert explain(router, salted, b)["keys"] == story_b["keys"]
    assert router.chat(prompt, b, cache_salt="x").match == 0


def test_without_tenant_salt_the_key_does_not_matter(fleet):
    router, (engine,) = fleet.start(1, *KEYS)
    body = chat_body(text(4000))
    stories = [explain(router, body, headers)["keys"] for headers in
               ((), [("Authorization", "Bearer sk-a")], [("X-Api-Key", "sk-b")])]
    assert stories[0] == stories[1] == stories[2] and stories[0]


def test_with_an_admin_token_the_tenant_comes_as_x_api_key(fleet):
    """The Authorization field is the asker's own then."""
    router, (engine,) = fleet.start(1, "--tenant-salt", "on", *KEYS, "--admin-token", "tok", ready=False)
    admin = ("Authorization", "Bearer tok")
    wait_for(lambda: router.get("/readyz").status == 200, what="ready")
    prompt = text(4000)
    router.chat(prompt, [("Authorization", "Bearer sk-a")])
    body = chat_body(prompt)
    assert router.admin_request("POST", "/kvroute/explain", body, [("X-Api-Key", "sk-a")]).status == 401
    assert match(router, body, [admin, ("X-Api-Key", "sk-a")]) > 700
    assert match(router, body, [admin, ("X-Api-Key", "sk-b")]) == 0
    assert match(router, body, [admin]) == 0
    router.broken_ok = True     # its check on the way out has no token


def test_a_session_field_and_a_previous_response_count(fleet):
    """As they do when the request is served."""
    router, engines = fleet.start(4)
    for number in range(6):
        headers = [("x-session-id", f"session-{number}")]
        home = router.chat(text(300), headers).replica
        story = explain(router, chat_body(text(300)), headers)
        assert story["chosen"] == home and story["reason"] == "affinity"
        first = router.post("/v1/responses", {"model": "m", "input": text(100)})
        follow = json.dumps({"model": "m", "input": "x", "previous_response_id": first.json["id"]}).encode()
        story = explain(router, follow, path="/v1/responses")
        assert story["chosen"] == first.replica and story["reason"] == "affinity"
