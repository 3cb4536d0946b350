# SPDX-License-Identifier: Apache-2.0
"""Scenarios with the official Anthropic client for Python: a line "BASE-URL SCENARIO MODEL" in, a line of JSON out."""
import json
import sys
import traceback

import anthropic

TOOLS = [{"name": "weather", "description": "The weather in a place",
          "input_schema": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}}]
TALK = [{"role": "user", "content": "Say something « vite » 🎈."}]
SYSTEM = [{"type": "text", "text": "You are terse.", "cache_control": {"type": "ephemeral"}}]


def outcome(function):
    try:
        function()
    except anthropic.APIStatusError as error:
        body = error.body if isinstance(error.body, dict) else {}
        return {"error": type(error).__name__, "status": error.status_code, "type": (body.get("error") or {}).get("type"),
                "retry_after": error.response.headers.get("retry-after"), "message": error.message}
    except anthropic.APIError as error:
        return {"error": type(error).__name__, "message": error.message}
    return {"error": None}


def run(base, scenario, model):
    client = anthropic.Anthropic(base_url=base, api_key="sk-test", max_retries=0, timeout=30)
    ask = {"model": model, "max_tokens": 8, "system": SYSTEM, "messages": TALK}

    def chat():
        answer = client.messages.create(**ask)
        return {"text": "".join(b.text for b in answer.content if b.type == "text"), "input_tokens": answer.usage.input_tokens}

    def stream():
        with client.messages.stream(**ask) as answer:
            text = "".join(answer.text_stream)
            final = answer.get_final_message()
        return {"text": text, "stop": final.stop_reason}

    def tools():
        talk = TALK + [{"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "weather",
                                                          "input": {"place": "Oslo"}}]},
                       {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "Rain."}]}]
        answer = client.messages.create(**(ask | {"messages": talk}), tools=TOOLS)
        return {"text": "".join(b.text for b in answer.content if b.type == "text"), "stop": answer.stop_reason}

    def error():
        return outcome(lambda: client.messages.create(**ask))

    def abort():
        with client.messages.stream(**(ask | {"max_tokens": 100000})) as answer:
            first = next(iter(answer.text_stream))
        return {"first": bool(first)}

    return locals()[scenario]()


for line in sys.stdin:
    try:
        result = {"result": run(*line.split())}
    except Exception:       # the test shows it
        result = {"exception": traceback.format_exc()}
    print(json.dumps(result), flush=True)
