# SPDX-License-Identifier: Apache-2.0
"""kvroute bench: what it says of engines that tell little, and of a load that is too much."""
import json

from engine import reply
from harness import kvroute
from test_mock import mock  # noqa: F401  (a fixture)

LOAD = ("--requests", 24, "--groups", 2, "--prefix-tokens", 64, "--output-tokens", 4, "--no-progress")


def start(fleet, mock, *args, count=2):
    mocks = [mock("--listen", "127.0.0.1:0", "--speed", "100", *args).ports()[0] for _ in range(count)]
    router = fleet.router(replicas=[f"http://127.0.0.1:{port},name=m{port}" for port in mocks])
    router.wait_ready()
    return router


def test_engines_that_tell_have_figures(fleet, mock):  # noqa: F811
    router = start(fleet, mock)
    done = kvroute("bench", router.url, "--json", *LOAD)
    result = json.loads(done.out)
    assert done.status == 0 and result["errors"] == 0
    assert result["observed_cached_tokens"] > 0 and 0 < result["observed_hit_rate"] < 1
    text = kvroute("bench", router.url, *LOAD).out
    table = [line.split() for line in text.splitlines() if line.startswith("  m")]
    rows = [row for row in table if len(row) == 4 and row[1].isdigit()]
    assert rows and all(row[3].endswith("%") for row in rows), text


def test_unknown_hits_are_not_zero(fleet, mock):  # noqa: F811
    router = start(fleet, mock, "--no-prompt-tokens-details")
    text = kvroute("bench", router.url, *LOAD).out
    rows = [line.split() for line in text.splitlines() if line.startswith("  m") and line.split()[1].isdigit()]
    assert rows and all(row[3] == "-" for row in rows), text
    assert "in 24 answers that do not tell (vLLM tells with --enable-prompt-tokens-details)" in text
    assert " 0.0%" not in text and "of these from a cache" not in text, text
    result = json.loads(kvroute("bench", router.url, "--json", *LOAD).out)
    assert result["observed_cached_tokens"] is None and result["observed_hit_rate"] is None
    assert result["prompt_tokens"] > 0 and result["predicted_cached_tokens"] is not None


def test_an_engine_without_usage_has_no_prompt_of_length_zero(fleet):
    router, (engine,) = fleet.start(1)
    engine.script = reply(200, {"id": "c", "object": "chat.completion", "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "hm"}, "finish_reason": "stop"}]})
    args = ("bench", router.url, *LOAD, "--no-stream", "--model", "m")
    result = json.loads(kvroute(*args, "--json").out)
    assert result["errors"] == 0 and result["requests"] == 24
    assert result["prompt_tokens"] is None and result["ttft_s"]["mean"] is None
    text = kvroute(*args).out
    prompt = next(line for line in text.splitlines() if line.startswith("Prompt tokens"))
    assert prompt.split() == ["Prompt", "tokens", "-"], text
    first = next(line for line in text.splitlines() if "time to first token" in line)
    assert first.split()[-4:] == ["-"] * 4, text


def test_a_load_beyond_the_server_is_said(mock):  # noqa: F811
    """Prompts of 4,000 tokens at 200 a second, of which one engine at ten times its pace takes 30."""
    (port,) = mock("--listen", "127.0.0.1:0", "--speed", "10").ports()
    args = ("bench", f"http://127.0.0.1:{port}", "--workload", "unique", "--prefix-tokens", 4000, "--output-tokens", 1,
            "--requests", 200, "--rate", 200, "--no-progress")
    done = kvroute(*args, timeout=60)
    assert "The load was more than the server takes: time to first token still rose by" in done.out, done.out
    result = json.loads(kvroute(*args, "--json", timeout=60).out)
    assert result["growth"]["growing"] is True and result["growth"]["slope"] > 0.3
    closed = kvroute("bench", f"http://127.0.0.1:{port}", *LOAD, "--concurrency", 2, "--json")
    assert json.loads(closed.out)["growth"] is None


def test_a_key_that_is_missing_is_named(fleet):
    router, _ = fleet.start(1, "--api-key", "sk-a", ready=False)
    done = kvroute("bench", router.url, *LOAD)
    assert done.status != 0 and "answered 401; give a key, as in --header 'Authorization: Bearer KEY'" in done.err
