# SPDX-License-Identifier: Apache-2.0
"""Metrics, usage, the access log, identities: numbers that can be trusted and joined."""
import json
import time

import pytest

from client import chat_body
from engine import DONE_EVENT, HANG, RESET, delta, die, event, reply, sse
from harness import wait_for
from texts import text, turns
from test_routing import occupy


def sums(router):
    """Token sums once they stand still: a request is booked just after its last byte went out."""
    def look():
        metrics = router.metrics()
        return {name: metrics.sum(name + "_total") for name in ("prompt_tokens", "predicted_cached_tokens",
                                                                "observed_cached_tokens", "unobserved_prompt_tokens")}
    router.wait_idle()
    before = look()
    while True:
        time.sleep(0.05)
        now = look()
        if now == before:
            return now
        before = now


# ---- why is the hit rate low? ------------------------------------------------------------------------------------------------


def account(router):
    """Token sums by reason from the ledger: {reason: {prompt, best, predicted, observed}} or the whole page."""
    answer = router.admin_request("GET", "/kvroute/ledger")
    assert answer.status == 200
    return answer.json


def test_no_reuse_shows_as_no_reuse(fleet):
    """[72]"""
    router, engines = fleet.start(2)
    for _ in range(20):
        router.chat(text(2000))
    found = sums(router)
    assert found["prompt_tokens"] >= 20 * 500
    assert found["predicted_cached_tokens"] < 0.1 * found["prompt_tokens"]
    assert found["observed_cached_tokens"] < 0.1 * found["prompt_tokens"]
    assert found["unobserved_prompt_tokens"] == 0


def test_reuse_shows_as_predicted_and_observed(fleet):
    """[72]"""
    router, engines = fleet.start(2)
    for number in range(4):
        for messages in turns(6, f"reuse-{number}", 1500):
            router.chat(messages)
    found = sums(router)
    assert found["observed_cached_tokens"] > 0.5 * found["prompt_tokens"]
    assert abs(found["predicted_cached_tokens"] - found["observed_cached_tokens"]) < 0.08 * found["prompt_tokens"]


def test_a_secretly_emptied_cache_shows_as_a_gap_between_predicted_and_observed(fleet):
    """[72] [73] The prediction error of that replica jumps within ten requests, and predictions adapt."""
    router, (engine,) = fleet.start(1)
    prompts = [text(3000, f"emptied-{n}") for n in range(10)]
    for prompt in prompts:
        router.chat(prompt)
    engine.cache.clear()
    before = sums(router)
    promised = [router.chat(p).match for p in prompts]
    after = sums(router)
    predicted = after["predicted_cached_tokens"] - before["predicted_cached_tokens"]
    observed = after["observed_cached_tokens"] - before["observed_cached_tokens"]
    assert predicted > 500 and observed == 0
    assert router.replica(engine)["prediction_error"] > 0.05, "shown per replica"
    assert sum(m > 200 for m in promised) <= 10 and promised[0] > 500
    [router.chat(p) for p in prompts]
    again = [router.chat(p).match for p in prompts]
    assert all(m > 400 for m in again), "what was computed anew is known again"


def test_the_best_match_anywhere_is_told_from_the_one_chosen(fleet):
    """[72] Reuse exists but load forces a spill: the ledger shows best > predicted."""
    a, b = fleet.engine(models=["m", "only-a"]), fleet.engine(models=["m", "only-b"])
    router = fleet.router(replicas=[a])
    prompt = text(2000)
    router.chat(prompt)
    router.add(b)
    router.wait_ready(b)
    release = occupy(router, a, 40, "only-a", size=8000)
    answer = router.chat(prompt)
    release()
    assert answer.replica == b.name and answer.reason_header == "spread"
    page = json.dumps(account(router))
    assert "spread" in page
    metrics = router.metrics()
    assert metrics.sum("decisions_total", reason="spread") == 1


# ---- usage in streams -----------------------------------------------------------------------------------------------------

USAGE = {"prompt_tokens": 1000, "completion_tokens": 3, "total_tokens": 1003, "prompt_tokens_details": {"cached_tokens": 600}}


def usage_chunk(usage=USAGE):
    return event({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [],
                  "usage": usage})


@pytest.mark.parametrize("name, events, prompt, cached, unobserved", [
    ("last chunk", ["a", "b", usage_chunk(), DONE_EVENT], 1000, 600, 0),
    ("null before", [delta("a", usage=None), delta("b", usage=None), usage_chunk(), DONE_EVENT], 1000, 600, 0),
    ("in every chunk", [delta("a", usage=USAGE), delta("b", usage=USAGE), usage_chunk(), DONE_EVENT], 1000, 600, 0),
    ("split across reads", ["a", usage_chunk()[:40], usage_chunk()[40:77], usage_chunk()[77:], DONE_EVENT], 1000, 600, 0),
    ("no details", ["a", usage_chunk({"prompt_tokens": 1000, "completion_tokens": 3, "prompt_tokens_details": None}),
                    DONE_EVENT], 1000, 0, 1000),
    ("cached is zero", ["a", usage_chunk(USAGE | {"prompt_tokens_details": {"cached_tokens": 0}}), DONE_EVENT], 1000, 0, 0),
    ("llama.cpp timings", [delta("a", timings={"cache_n": 600, "prompt_n": 400, "predicted_n": 3}), DONE_EVENT], 1000, 600, 0),
])
def test_usage_is_read_from_streams(fleet, name, events, prompt, cached, unobserved):
    """[75]"""
    router, (engine,) = fleet.start(1, engine={"kind": "llamacpp" if "llama" in name else "vllm"})
    engine.script = sse(events, gap=0.01)
    assert router.chat(stream=True).complete
    found = sums(router)
    assert found["prompt_tokens"] == prompt and found["observed_cached_tokens"] == cached
    assert found["unobserved_prompt_tokens"] == unobserved


def test_a_stream_without_usage_counts_as_unknown(fleet):
    """[75] Not as zero."""
    router, (engine,) = fleet.start(1)
    engine.script = sse(["a", "b", DONE_EVENT])
    router.chat(text(4000), stream=True)
    found = sums(router)
    assert found["observed_cached_tokens"] == 0 and found["unobserved_prompt_tokens"] >= 500
    assert found["unobserved_prompt_tokens"] == found["prompt_tokens"]


@pytest.mark.parametrize("path, body", [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "{}"}]}),
    ("/v1/completions", {"prompt": "{}"}),
    ("/v1/responses", {"input": "{}"}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "{}"}], "max_tokens": 4})])
@pytest.mark.parametrize("stream", [False, True])
def test_usage_of_every_api(fleet, path, body, stream):
    """Cached tokens as each API names them. (A 0 in vLLM's Responses may mean unknown; in SGLang's it is a count.)"""
    router, (engine,) = fleet.start(1, engine={"kind": "sglang" if path == "/v1/responses" else "vllm"})
    data = json.dumps(body).replace("{}", text(4000)).encode()
    data = data[:-1] + b',"model":"m","stream":%s%s}' % (
        b"true" if stream else b"false", b',"stream_options":{"include_usage":true}' if stream and "completions" in path else b"")
    for _ in range(3):
        assert router.post(path, data).complete
    found = sums(router)
    assert found["prompt_tokens"] == engine.prompt_tokens
    assert found["observed_cached_tokens"] == engine.cached_tokens > 1500
    assert found["unobserved_prompt_tokens"] == 0


@pytest.mark.parametrize("path, body", [("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
                                        ("/v1/completions", {"prompt": "x"})])
def test_usage_is_asked_for_and_hidden_when_configured(fleet, path, body):
    """[75] The engine gets include_usage, the client sees only what it asked for."""
    router, (engine,) = fleet.start(1, "--inject-usage", "on")
    answer = router.post(path, body | {"model": "m", "stream": True})
    assert engine.last().json["stream_options"] == {"include_usage": True}
    chunks = [json.loads(d) for _, d in answer.events if d != "[DONE]"]
    assert answer.complete and answer.body.endswith(DONE_EVENT)
    assert all(c["choices"] for c in chunks), "the extra chunk is hidden"
    assert all("usage" not in c or c["usage"] is None for c in chunks)
    assert sums(router)["unobserved_prompt_tokens"] == 0 and sums(router)["prompt_tokens"] == engine.prompt_tokens
    asked = router.post(path, body | {"model": "m", "stream": True, "stream_options": {"include_usage": True}})
    assert json.loads(asked.events[-2][1])["usage"]["prompt_tokens"] > 0, "who asks gets it"


@pytest.mark.parametrize("options", [{"include_usage": False}, {"continuous_usage_stats": False}, None])
def test_the_injection_keeps_other_stream_options(fleet, options):
    """[75]"""
    router, (engine,) = fleet.start(1, "--inject-usage", "on")
    body = b'{ "model":"m", "stream":true, "seed":1234567890123456789012, "stream_options":%s,"messages":[] }' % json.dumps(options).encode()
    answer = router.post("/v1/chat/completions", body)
    seen = engine.last().json
    assert seen["stream_options"] == (options or {}) | {"include_usage": True}
    assert b"1234567890123456789012" in engine.last().body
    assert all(json.loads(d)["choices"] for _, d in answer.events if d != "[DONE]")


def test_nothing_is_injected_where_it_makes_no_sense(fleet):
    router, (engine,) = fleet.start(1, "--inject-usage", "on")
    for path, body in (("/v1/chat/completions", b'{"model":"m","messages":[]}'),
                       ("/v1/chat/completions", b'{"model":"m","messages":[],"stream":false}'),
                       ("/v1/messages", b'{"model":"m","messages":[],"stream":true,"max_tokens":1}'),
                       ("/v1/responses", b'{"model":"m","input":"x","stream":true}')):
        router.post(path, body)
        assert engine.last().body == body


def test_without_configuration_nothing_is_injected(fleet):
    router, (engine,) = fleet.start(1)
    body = chat_body(stream=True)
    router.post("/v1/chat/completions", body)
    assert engine.last().body == body


# ---- identities --------------------------------------------------------------------------------------------------------------


def test_request_ids_are_kept_or_made(fleet, tmp_path):
    """[77]"""
    log = tmp_path / "access.log"
    router, (engine,) = fleet.start(1, "--access-log", log)
    given = router.chat(headers=[("X-Request-ID", "client-chose_this.1")])
    assert given.header("x-request-id") == "client-chose_this.1"
    assert engine.last().all("x-request-id") == ["client-chose_this.1"]
    made = [router.chat().header("x-request-id") for _ in range(5)]
    assert len(set(made)) == 5 and all(made)
    assert [r.header("x-request-id") for r in engine.requests[1:]] == made
    wait_for(lambda: log.read_text().count("\n") == 6, what="six lines")
    # Of two threads each writes its own lines.
    assert sorted(json.loads(x)["request_id"] for x in log.read_text().splitlines()) == sorted(["client-chose_this.1", *made])


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_trace_headers_pass_untouched_and_none_is_made(fleet):
    """[77]"""
    router, (engine,) = fleet.start(1)
    router.chat(headers=[("traceparent", TRACE), ("tracestate", "a=1,b=2")])
    assert engine.last().all("traceparent") == [TRACE] and engine.last().header("tracestate") == "a=1,b=2"
    router.chat(headers=[("x-request-id", "not-a-trace")])
    assert engine.last().all("traceparent") == []
    for broken in ("nonsense", TRACE[:-1], TRACE.upper(), TRACE.replace("0af7651916cd43dd8448eb211c80319c", "0" * 32)):
        assert router.chat(headers=[("traceparent", broken)]).status == 200
        assert engine.last().all("traceparent") == [], "a broken one helps nobody"


# ---- access log -------------------------------------------------------------------------------------------------------------


def test_one_json_line_per_request(fleet):
    """Predicted and observed tokens, times, replica, outcome; to standard output with -."""
    router, (engine,) = fleet.start(1, "--access-log", "-", "--threads", "1")  # lines of one thread are in order
    prompt = text(4000)
    router.chat(prompt)
    router.chat(prompt, [("traceparent", TRACE)], stream=True, stream_options={"include_usage": True})
    engine.script = reply(400, b'{"error":{"message":"no"}}')
    router.chat("x")
    router.chat(model="unknown-model")
    wait_for(lambda: len(router.out) == 4, what="four lines")
    one, two, three, four = [json.loads(line) for line in router.out]
    for line in (one, two, three, four):
        assert {"time", "request_id", "method", "path", "status", "model", "end", "tries", "total_s"} <= set(line), line
    assert one["status"] == 200 and one["replica"] == engine.name and one["model"] == "m"
    assert one["predicted_tokens"] == 0 and one["observed_tokens"] == 0
    assert two["predicted_tokens"] > 800 and two["observed_tokens"] == engine.cached_tokens
    assert abs(two["predicted_tokens"] - two["observed_tokens"]) < 64
    assert two["reason"] == "only" or two["reason"] == "hit"
    assert 0 < two["ttft_s"] <= two["total_s"]
    assert two["stream"] is True and three["status"] == 400
    assert four["status"] == 404 and four["code"] == "model_not_found"


def test_lines_for_requests_that_ended_badly(fleet):
    router, engines = fleet.start(2, "--access-log", "-", "--retries", "1")
    for engine in engines:
        engine.next(sse(["one"], end=RESET))
    router.chat(stream=True)
    for engine in engines:
        engine._queue.clear()
        engine.script = die(RESET)
    router.chat()
    for engine in engines:
        engine.script = sse(["one"], end=HANG)
    conn = router.start_chat(stream=True)
    conn.head()
    conn.close()
    router.wait_idle()
    wait_for(lambda: len(router.out) == 3, what="three lines")
    cut, failed, left = [json.loads(line) for line in router.out]
    assert cut["status"] == 200 and cut["end"] == "failed"
    assert failed["status"] == 502 and failed["tries"] == 2
    assert left["end"] == "client"
    assert cut["observed_tokens"] is None, "unknown is not zero"


# ---- the page ---------------------------------------------------------------------------------------------------------------


def test_all_promised_metrics_exist(fleet):
    router, (engine,) = fleet.start(1)
    prompt = text(2000)
    router.chat(prompt)
    router.chat(prompt, stream=True, stream_options={"include_usage": True})
    sums(router)
    wait_for(lambda: router.metrics().has("replica_kv_usage_ratio"), what="polled")
    metrics = router.metrics()
    for name in ("requests_total", "request_duration_seconds_count", "time_to_first_token_seconds_count",
                 "decision_seconds_count", "in_flight_requests", "queue_requests", "prompt_tokens_total",
                 "predicted_cached_tokens_total", "observed_cached_tokens_total", "replica_up", "replica_kv_usage_ratio",
                 "index_bytes", "index_entries", "build_info"):
        assert metrics.has(name), name
    for family in ("rejections_total", "retries_total", "upstream_errors_total", "unobserved_prompt_tokens_total",
                   "index_evictions_total", "queue_seconds"):
        assert any(t.startswith("kvroute_" + family.removesuffix("_total")) for t in metrics.types), family
    assert metrics.sum("requests_total", model="m", replica=engine.name, code="200") == 2
    assert metrics.sum("request_duration_seconds_count") == 2
    assert metrics.sum("index_bytes") > 0 and metrics.sum("index_entries") > 0
    for name, kind in metrics.types.items():
        assert not name.endswith("_total") or kind == "counter", name
        assert not (kind == "counter" and not name.endswith("_total")), name


def test_histograms_are_consistent(fleet):
    router, (engine,) = fleet.start(1)
    engine.script = sse(["a"], first=0.3)
    for _ in range(3):
        router.chat(stream=True)
    metrics = router.metrics()
    buckets = [(float(labels["le"].replace("+Inf", "inf")), v)
               for labels, v in metrics.samples["kvroute_time_to_first_token_seconds_bucket"] if labels.get("model") == "m"]
    buckets.sort()
    assert [v for _, v in buckets] == sorted(v for _, v in buckets) and buckets[-1] == (float("inf"), 3)
    assert 0.9 <= metrics.sum("time_to_first_token_seconds_sum") < 3
    assert sum(v for le, v in buckets if le <= 0.25) == 0


def test_models_do_not_make_series_without_end(fleet):
    """Label values come from clients: their number is bounded."""
    engine = fleet.engine("openai", models=[])
    router = fleet.router("--max-series", "64", replicas=[engine], ready=False)
    wait_for(lambda: router.state(engine) == "ready", what="ready")
    for number in range(300):
        router.chat("x", model=f"model-{number}")
    wait_for(lambda: router.metrics().sum("requests_total") == 300, what="all counted")
    assert len(router.metrics().samples["kvroute_requests_total"]) <= 80


def test_hostile_label_values_do_not_break_the_page(fleet):
    engine = fleet.engine("openai", models=[])
    router = fleet.router(replicas=[engine], ready=False)
    wait_for(lambda: router.state(engine) == "ready", what="ready")
    for model in ('a"b', "line\nbreak", "back\\slash", "caf\u00e9", "x" * 10000, "\u0000"):
        router.chat("x", model=model)
        router.chat("x", headers=[("x-kvroute-workload", model.encode("ascii", "replace").decode().replace("\n", "")[:100]
                                   .replace("\0", ""))])
    wait_for(lambda: router.metrics().sum("requests_total") == 12, what="all counted")  # fails on a line that is no sample


def test_tokens_are_counted_by_workload(fleet):
    router, engines = fleet.start(2)
    for number in range(3):
        for messages in turns(4, f"ledger-{number}", 1000):
            router.chat(messages, [("x-kvroute-workload", "talk")])
    # The last one is counted just after its last byte went out.
    wait_for(lambda: router.metrics().sum("prompt_tokens_total", workload="talk") == sum(e.prompt_tokens for e in engines),
             what="the engines' own count")


# ---- stateful follow-ups -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_a_follow_up_goes_to_the_owner_of_the_response(fleet, stream):
    """previous_response_id and /v1/responses/{id}: only one replica has that state."""
    router, engines = fleet.start(4)
    for number in range(8):
        first = router.post("/v1/responses", {"model": "m", "input": text(100), "stream": stream})
        if stream:
            identity = json.loads(first.events[-1][1])["response"]["id"]
        else:
            identity = first.json["id"]
        follow = router.post("/v1/responses", {"model": "m", "input": text(100), "previous_response_id": identity})
        assert follow.replica == first.replica and follow.reason_header == "affinity"
        assert router.get(f"/v1/responses/{identity}").replica == first.replica
        assert router.post(f"/v1/responses/{identity}/cancel", b"").replica == first.replica


def test_an_unknown_response_id_is_routed_as_usual(fleet):
    router, engines = fleet.start(2)
    assert router.post("/v1/responses", {"model": "m", "input": "x", "previous_response_id": "resp_unknown"}).status == 200
