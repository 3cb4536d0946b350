# SPDX-License-Identifier: Apache-2.0
"""With tenant-salt on no request reaches an engine's cache with a salt of the client's choice, or without the router's."""
import gzip
import json
import zlib

import pytest

from client import chat_body
from engine import reply
from texts import zstd_store

KEY = [("Authorization", "Bearer sk-b")]
MESSAGES = b'"messages":[{"role":"user","content":"x"}]'
CHAT = b'{"model":"m",' + MESSAGES + b',"cache_salt":"victim"}'


@pytest.fixture(scope="module")
def salted(hub):
    from e2e_fixtures import Fleet
    fleet = Fleet(hub)
    router, (engine,) = fleet.start(1, "--tenant-salt", "on", "--api-key", "sk-a", "--api-key", "sk-b")
    yield router, engine
    fleet.finish()


@pytest.fixture(scope="module")
def plain(hub):
    from e2e_fixtures import Fleet
    fleet = Fleet(hub)
    router, (engine,) = fleet.start(1)
    yield router, engine
    fleet.finish()


def salt_of(router, engine):
    """What the engine is told for this key."""
    assert router.post("/v1/chat/completions", chat_body("x"), KEY).status == 200
    salt = engine.last().json["cache_salt"]
    engine.forget()
    assert len(salt) == 32
    return salt


UNREADABLE = {
    "user twice": (b'{"model":"m",' + MESSAGES + b',"user":"a","user":"b","cache_salt":"victim"}', "user"),
    "salt twice": (b'{"model":"m",' + MESSAGES + b',"cache_salt":"victim","cache_salt":"victim"}', "cache_salt"),
    "role a number": (b'{"model":"m","messages":[{"role":1,"content":"x"}],"cache_salt":"victim"}', "messages[0].role"),
    "nested": (b'{"model":"m",' + MESSAGES + b',"cache_salt":"victim","metadata":' + b"[" * 520 + b"]" * 520 + b"}", None),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_cannot_be_read_is_refused(salted, name):
    """[83] The error names the field. Without the option the same bytes are the engine's to judge."""
    router, engine = salted
    engine.forget()
    body, field = UNREADABLE[name]
    answer = router.post("/v1/chat/completions", body, KEY)
    assert answer.status == 400, answer
    assert answer.code == ("limit_exceeded" if name == "nested" else "invalid_request")
    assert answer.json["error"]["param"] == field
    assert not engine.requests


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_cannot_be_read_is_forwarded_where_tenants_share(plain, name):
    """As docs/prompt-identity.md says: by load, untouched, and counted."""
    router, engine = plain
    engine.forget()
    before = router.metrics().sum("unkeyed_requests_total")
    assert router.post("/v1/chat/completions", UNREADABLE[name][0]).status == 200
    assert engine.last().body == UNREADABLE[name][0]
    assert router.metrics().sum("unkeyed_requests_total") == before + 1


@pytest.mark.parametrize("body", [b'{"model":"m",' + MESSAGES + b',"cache_salt":"victim","x":NaN}',
                                  b'{"model":"m",' + MESSAGES + b',"cache_salt":7}',
                                  b'{"model":"m",' + MESSAGES + b',"cache\\u005fsalt":"victim"} \n', CHAT],
                         ids=["not finite", "a number", "escaped", "plain"])
def test_what_can_be_read_is_salted(salted, body):
    router, engine = salted
    salt = salt_of(router, engine)
    assert router.post("/v1/chat/completions", body, KEY).status == 200
    assert engine.last().json["cache_salt"] == salt


def test_an_empty_object_stays_json(salted):
    router, engine = salted
    salt = salt_of(router, engine)
    router.post("/v1/completions", b"{ }", KEY)
    assert engine.last().json == {"cache_salt": salt}


@pytest.mark.parametrize("encoding, pack", [("gzip", gzip.compress), ("deflate", zlib.compress), ("zstd", zstd_store)])
def test_encoded_bodies_are_sent_decoded(salted, encoding, pack):
    router, engine = salted
    salt = salt_of(router, engine)
    assert router.post("/v1/chat/completions", pack(CHAT), KEY + [("Content-Encoding", encoding)]).status == 200
    seen = engine.last()
    assert seen.header("content-encoding") is None and seen.body.startswith(CHAT[:-1])
    assert json.loads(seen.body)["cache_salt"] == salt


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/score"])
@pytest.mark.parametrize("encoding, body", [("br", CHAT), ("gzip, gzip", gzip.compress(gzip.compress(CHAT))),
                                            ("gzip", gzip.compress(CHAT)[:-9]), ("zstd", CHAT)],
                         ids=["unknown", "twofold", "cut short", "not what it says"])
def test_encodings_that_cannot_be_undone_are_refused(salted, path, encoding, body):
    router, engine = salted
    engine.forget()
    answer = router.post(path, body, KEY + [("Content-Encoding", encoding)])
    assert answer.status == 400 and answer.code == "invalid_request" and b"Content-Encoding" in answer.body
    assert not engine.requests


SPELLINGS = ["/v1/chat/completions/", "/v1//chat/completions", "//v1/chat/completions", "/v1/chat/%63ompletions",
             "/v1/chat/%2563ompletions", "/v1/./chat/completions", "/v1/x/../chat/completions", "/v1/chat/completions;a=b",
             "/v1%2fchat/completions", "/v1/chat/completions/?x=1"]


@pytest.mark.parametrize("path", SPELLINGS)
def test_other_spellings_of_a_path_are_salted(salted, path):
    """The engine tidies paths as well; what is sent to it stays the client's."""
    router, engine = salted
    salt = salt_of(router, engine)
    assert router.post(path, CHAT, KEY).status == 200
    assert engine.last().target == path and engine.last().json["cache_salt"] == salt


@pytest.mark.parametrize("path", SPELLINGS[:5])
def test_other_spellings_of_a_path_are_keyed(plain, path):
    router, engine = plain
    prompt = f"spelt {path} " * 200
    router.post(path, chat_body(prompt))
    assert engine.last().target == path
    assert router.post(path, chat_body(prompt)).match > 100


@pytest.mark.parametrize("path", ["/invocations", "/v1/score", "/inference/v1/generate", "/v1/chat/completions/render",
                                  "/some/prefix/v1/chat/completions"])
def test_a_salt_on_a_path_that_is_not_known_is_refused(salted, path):
    router, engine = salted
    engine.script = reply(200, b"{}")
    engine.forget()
    wide = [CHAT.decode().encode(coding) for coding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be")]
    for body in [CHAT, b"\xef\xbb\xbf" + CHAT, b" \r\n" + CHAT, CHAT.replace(b"_", b"\\u005F"), CHAT[:-1] + b',"x":NaN}',
                 CHAT[:-1] + b',"x":' + b"[" * 600 + b"]" * 600 + b"}", CHAT[:-1] + b',"\xff":1}', *wide]:
        answer = router.post(path, body, KEY)
        assert answer.status == 400 and answer.code == "invalid_request", body
        assert b"tenant-salt" in answer.body
    answer = router.post(path, gzip.compress(CHAT), KEY + [("Content-Encoding", "gzip")])
    assert answer.status == 400 and answer.json["error"]["param"] == "cache_salt"
    assert router.request("PUT", path, CHAT, KEY).status == 400
    assert not engine.requests
    for body in (b"", b"[1]", b"\x00\x01binary", b'{"input":"cache_salt","deep":{"cache_salt":1},"n":1e999}'):
        assert router.post(path, body, KEY).status == 200
        assert engine.last().body == body
    engine.script = None


def test_a_tunnel_is_refused(salted):
    """Nobody sees what goes through it."""
    router, engine = salted
    engine.forget()
    answer = router.get("/v1/realtime", KEY + [("Connection", "Upgrade"), ("Upgrade", "websocket")])
    assert answer.status == 400 and b"tenant-salt" in answer.body and not engine.requests
    offer = [("Connection", "Upgrade, HTTP2-Settings"), ("Upgrade", "h2c"), ("HTTP2-Settings", "AAMA")]
    assert router.post("/v1/chat/completions", CHAT, KEY + offer).status == 200, "Java's client offers it always"
    assert engine.last().json["cache_salt"] != "victim" and engine.last().header("upgrade") is None


def test_an_engine_that_refuses_unknown_members_is_salted_too(fleet):
    engine = fleet.engine("openai")
    router = fleet.router("--tenant-salt", "on", "--api-key", "sk-b", "--inject-usage", "on",
                          replicas=[engine.url + ",engine=trtllm,models=m"], ready=False)
    router.wait_ready(engine)
    assert router.post("/v1/chat/completions", CHAT[:-1] + b',"stream":true}', KEY).status == 200
    sent = engine.last().json
    assert len(sent["cache_salt"]) == 32 and "stream_options" not in sent
