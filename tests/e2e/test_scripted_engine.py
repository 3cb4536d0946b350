# SPDX-License-Identifier: Apache-2.0
"""The scripted engine itself, without a router: what the other tests rely on."""
import json
import time

import pytest

from client import Broken, Conn, chat_body, fetch
from engine import FIN, HANG, RESET, die, raw, reply, sse


def test_records_exact_bytes_connections_and_times(fleet):
    engine = fleet.engine()
    with Conn(engine.url) as conn:
        for body in (b'{"a":1}', b'{"b" : 2}'):
            conn.request("POST", "/x", [("X-Odd", " kept ")], body)
            conn.response()
    fetch(engine.url, "POST", "/x", body=b"abcdefgh", chunked=3)
    assert [r.body for r in engine.requests] == [b'{"a":1}', b'{"b" : 2}', b"abcdefgh"]
    assert [r.conn for r in engine.requests] == [1, 1, 2]
    assert engine.requests[0].head.startswith(b"POST /x HTTP/1.1\r\nHost: kvroute.test\r\n")
    assert b"X-Odd:  kept \r\n" in engine.requests[0].head
    assert engine.requests[2].framed == b"3\r\nabc\r\n3\r\ndef\r\n2\r\ngh\r\n0\r\n\r\n"
    assert engine.requests[0].at <= engine.requests[1].at <= engine.requests[2].at


def test_prefix_cache_counts_blocks_and_forgets_on_restart(fleet):
    engine = fleet.engine(block_tokens=16)
    body = chat_body("x" * 1000)

    def cached():
        return fetch(engine.url, "POST", "/v1/chat/completions", body=body).json["usage"]["prompt_tokens_details"]
    assert cached() == {"cached_tokens": 0}
    assert cached() == {"cached_tokens": 240}       # 1,006 bytes are 252 tokens, of which 15 blocks are whole
    engine.stop()
    with pytest.raises(ConnectionRefusedError):
        Conn(engine.url)
    engine.start()
    assert cached() == {"cached_tokens": 0}


def test_cache_evicts_least_recently_used_tails_first(fleet):
    cache = fleet.engine(block_tokens=1, capacity_blocks=6).cache
    assert cache.serve(None, "aaaabbbbccccdddd") == (4, 0)
    assert cache.serve(None, "eeeeffffgggg") == (3, 0)      # seven blocks: the first prompt's last one goes
    assert cache.serve(None, "aaaabbbbccccdddd") == (4, 3)


def test_slots_keep_whole_prompts(fleet):
    cache = fleet.engine(keep=2).cache
    for name in "abc":
        assert cache.serve(None, name * 400) == (100, 0)
    assert cache.serve(None, "c" * 400)[1] == 99
    assert cache.serve(None, "a" * 400)[1] == 0


@pytest.mark.parametrize("how", [FIN, RESET])
def test_closes_at_a_chosen_point(fleet, how):
    engine = fleet.engine()
    engine.next(sse(["one", "two"], end=how), die(how))
    with Conn(engine.url) as conn:
        conn.request("POST", "/v1/chat/completions", body=chat_body(stream=True))
        answer = conn.response()
        assert answer.status == 200 and not answer.complete
        assert [json.loads(d)["choices"][0]["delta"]["content"] for _, d in answer.events] == ["one", "two"]
    with Conn(engine.url) as conn, pytest.raises(Broken):
        conn.request("POST", "/v1/chat/completions", body=chat_body())
        conn.head()


def test_notices_when_and_how_the_other_side_leaves(fleet):
    engine = fleet.engine()
    engine.script = die(HANG)
    for leave in (Conn.close, Conn.abort):
        conn = Conn(engine.url)
        conn.request("POST", "/x", body=b"{}")
        while not engine.requests or engine.last().body_at is None:
            time.sleep(0.005)
        left = time.monotonic()
        leave(conn)
        while engine.last().gone_at is None:
            time.sleep(0.005)
        assert abs(engine.last().gone_at - left) < 0.5
        assert engine.last().gone_how == (FIN if leave is Conn.close else RESET)
        engine.forget()


def test_idle_connections_and_raw_bytes(fleet):
    engine = fleet.engine()
    engine.idle_close = 0.1
    engine.next(raw(b"HTTP/1.1 200 OK\r\nContent-", 0.1, b"Length: 2\r\n\r\nok"), reply(503, headers=[("Retry-After", "7")]))
    with Conn(engine.url) as conn:
        conn.request("GET", "/y")
        assert conn.response("GET").body == b"ok"
        conn.request("GET", "/y")
        assert conn.response("GET").header("retry-after") == "7"
        assert conn.closed_by_peer(2)


@pytest.mark.parametrize("kind, owner, metric", [("vllm", "vllm", b"vllm:num_requests_running"),
                                                 ("sglang", "sglang", b"sglang:num_running_reqs"),
                                                 ("llamacpp", "llamacpp", b"llamacpp:requests_processing")])
def test_personalities(fleet, kind, owner, metric):
    engine = fleet.engine(kind, ["m1", "m2"])
    models = fetch(engine.url, "GET", "/v1/models")
    assert [(m["id"], m["owned_by"]) for m in models.json["data"]] == [("m1", owner), ("m2", owner)]
    assert metric in fetch(engine.url, "GET", "/metrics").body
    assert models.header("server") == {"llamacpp": "llama.cpp"}.get(kind, "uvicorn")
    assert len(engine.polls) == 2 and not engine.requests


def test_llamacpp_closes_after_streams_and_refusals(fleet):
    engine = fleet.engine("llamacpp")
    with Conn(engine.url) as conn:
        conn.request("POST", "/v1/chat/completions", body=chat_body(stream=True))
        assert conn.response().complete and conn.closed_by_peer(2)
    with Conn(engine.url) as conn:
        conn.request("POST", "/v1/chat/completions", body=b"not json")
        assert conn.response().status == 400 and conn.closed_by_peer(2)
