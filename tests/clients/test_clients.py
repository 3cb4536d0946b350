# SPDX-License-Identifier: Apache-2.0
"""The official clients against a router: what an application sees through it is what it would see without it."""
import subprocess

import pytest

from engine import RESET, DONE_EVENT, die, event, reply, sse
from harness import BINARY, wait_for

CHANGING = {"host", "connection", "traceparent", "x-request-id", "x-stainless-retry-count", "x-stainless-read-timeout",
            "content-length", "accept-encoding", "idempotency-key"}


def same_upstream(fleet, client, scenario, path):
    """Runs a scenario straight to an engine and through a router, and compares what the engine got."""
    engine = fleet.engine()
    router = fleet.router(replicas=[engine])
    direct_result = client(engine.url, scenario)
    direct = [r for r in engine.requests if r.path == path]
    engine.forget()
    engine.cache.clear()
    routed_result = client(router.url, scenario)
    routed = [r for r in engine.requests if r.path == path]
    assert len(direct) == len(routed) == 1
    assert routed[0].body == direct[0].body, "byte for byte"

    def stable(request):
        return sorted((n.lower(), v) for n, v in request.headers if n.lower() not in CHANGING)
    assert stable(routed[0]) == stable(direct[0])
    return direct_result, routed_result


@pytest.mark.parametrize("scenario", ["chat", "stream", "tools"])
def test_openai_chat_is_the_same_through_the_router(fleet, openai_client, scenario):
    direct, routed = same_upstream(fleet, openai_client, scenario, "/v1/chat/completions")
    assert routed["text"] == direct["text"] != ""
    assert {k: v for k, v in routed.items() if k not in ("replica", "request_id")} == \
        {k: v for k, v in direct.items() if k not in ("replica", "request_id")}


@pytest.mark.parametrize("scenario, path", [("completion", "/v1/completions"), ("responses", "/v1/responses")])
def test_other_openai_apis(fleet, python_openai, scenario, path):
    direct, routed = same_upstream(fleet, python_openai, scenario, path)
    assert routed == direct


@pytest.mark.parametrize("scenario", ["chat", "stream", "tools"])
def test_anthropic_is_the_same_through_the_router(fleet, anthropic_client, scenario):
    direct, routed = same_upstream(fleet, anthropic_client, scenario, "/v1/messages")
    assert routed == direct and routed["text"]


def test_request_ids_and_replicas_reach_the_application(fleet, python_openai):
    router, (engine,) = fleet.start(1)
    seen = python_openai(router.url, "chat")
    assert seen["replica"] == engine.name and seen["request_id"] == engine.last().header("x-request-id")


def test_models(fleet, openai_client):
    engines = [fleet.engine(models=["a", "b"]), fleet.engine(models=["b", "c"])]
    assert openai_client(fleet.router(replicas=engines).url, "models") == {"models": ["a", "b", "c"]}


# ---- errors ------------------------------------------------------------------------------------------------------------------


def test_an_unknown_model_is_not_found(fleet, openai_client):
    router, _ = fleet.start(1)
    seen = openai_client(router.url, "error", "no-such-model")
    assert (seen["error"], seen["status"], seen["code"]) == ("NotFoundError", 404, "model_not_found")


def test_anthropics_errors_are_of_their_kind(fleet, anthropic_client):
    router, (engine,) = fleet.start(1)
    seen = anthropic_client(router.url, "error", "no-such-model")
    assert (seen["error"], seen["status"], seen["type"]) == ("NotFoundError", 404, "not_found_error")
    router.remove(engine)
    wait_for(lambda: not router.replicas(), what="removed")
    seen = anthropic_client(router.url, "error")
    assert seen["status"] == 503 and seen["type"] and seen["retry_after"]


def test_overload_is_a_rate_limit_error_with_a_hint(fleet, openai_client):
    router, (engine,) = fleet.start(1, "--queue-requests", "0")
    engine.script = reply(429, b'{"error":{"message":"busy","type":"rate_limit","param":null,"code":"rate_limited"}}',
                          [("Retry-After", "3")])
    seen = openai_client(router.url, "error")
    assert (seen["error"], seen["status"]) == ("RateLimitError", 429)


def test_a_dead_engine_is_a_server_error(fleet, openai_client):
    router, (engine,) = fleet.start(1)
    engine.script = die(RESET)
    seen = openai_client(router.url, "error")
    assert seen["status"] == 502 and seen["code"] == "upstream_error"


def test_the_wrong_key_is_an_authentication_error(fleet, openai_client):
    router, _ = fleet.start(1, "--api-key", "sk-other")
    seen = openai_client(router.url, "error")
    assert (seen["error"], seen["status"], seen["code"]) == ("AuthenticationError", 401, "unauthorized")
    good = fleet.start(1, "--api-key", "sk-test")[0]
    assert openai_client(good.url, "chat")["text"]


def test_a_broken_stream_is_an_error_and_not_an_end(fleet, python_openai):
    """An application must notice that its answer is only a part."""
    router, (engine,) = fleet.start(1)
    engine.script = sse(["one", "two"], end=RESET)
    assert python_openai(router.url, "stream_error")["error"] == "APIConnectionError"


def test_an_error_event_in_a_stream_raises(fleet, python_openai):
    router, (engine,) = fleet.start(1)
    engine.script = sse(["one", event({"error": {"message": "out of memory", "type": "server_error", "code": 500}}), DONE_EVENT])
    seen = python_openai(router.url, "stream_error")
    assert seen["error"] == "APIError" and "out of memory" in seen["message"]


def test_the_clients_own_retries_work(fleet, python_openai):
    """A push-back from the only replica passes; the client waits as told and succeeds."""
    router, (engine,) = fleet.start(1, "--queue-requests", "0")
    engine.next(reply(429, b'{"error":{"message":"busy"}}', [("Retry-After", "1")]))
    assert python_openai(router.url, "retries")["text"]
    assert engine.count() == 2


# ---- leaving -----------------------------------------------------------------------------------------------------------------


def test_an_aborted_stream_stops_the_engine(fleet, openai_client):
    router, (engine,) = fleet.start(1)
    engine.script = sse(["word "] * 100000, gap=0.02)
    assert openai_client(router.url, "abort")["first"]
    wait_for(lambda: engine.last().gone_at, 3, "the engine is told")
    router.wait_idle()


def test_an_aborted_anthropic_stream_stops_the_engine(fleet, anthropic_client):
    router, (engine,) = fleet.start(1, engine={"gap": 0.02})
    assert anthropic_client(router.url, "abort")["first"]
    wait_for(lambda: engine.last().gone_at, 3, "the engine is told")


# ---- over other engines --------------------------------------------------------------------------------------------------------


@pytest.fixture
def mock():
    """`kvroute mock`: (URL, model)."""
    process = subprocess.Popen([BINARY, "mock", "--listen", "127.0.0.1:0", "--model", "mocked"], stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = process.stderr.readline()
    assert "http://" in line, line
    yield "http://" + line.split("http://")[1].split()[0].rstrip(",)"), "mocked"
    process.terminate()
    process.wait(10)


@pytest.fixture(params=["mock", "llamacpp"])
def backend(request):
    if request.param == "mock":
        return request.getfixturevalue("mock")
    return request.getfixturevalue("llama"), "tiny"


@pytest.mark.parametrize("scenario", ["chat", "stream", "tools"])
def test_openai_over_other_engines(fleet, openai_client, backend, scenario):
    url, model = backend
    router = fleet.router("--replica", url, ready=False)
    router.wait_ready(url.split("//")[1])
    result = openai_client(router.url, scenario, model)
    assert isinstance(result["text"], str)
    if scenario != "tools":
        assert result["prompt_tokens"] > 0


@pytest.mark.parametrize("scenario", ["chat", "stream"])
def test_anthropic_over_other_engines(fleet, anthropic_client, backend, scenario):
    url, model = backend
    router = fleet.router("--replica", url, ready=False)
    router.wait_ready(url.split("//")[1])
    for _ in range(5):
        try:
            assert isinstance(anthropic_client(router.url, scenario, model)["text"], str)
            return
        except AssertionError as error:
            # llama.cpp leaves out message_start, whoever asks, when its first token is no whole character; the toy
            # model's is by chance.
            if scenario != "stream" or "message_snapshot is not None" not in str(error):
                raise
    pytest.skip("this engine's own streams have no message_start")


@pytest.mark.parametrize("scenario", ["completion", "responses"])
def test_other_apis_over_other_engines(fleet, python_openai, backend, scenario):
    url, model = backend
    router = fleet.router("--replica", url, ready=False)
    router.wait_ready(url.split("//")[1])
    assert isinstance(python_openai(router.url, scenario, model)["text"], str)
