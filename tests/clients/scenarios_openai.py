# SPDX-License-Identifier: Apache-2.0
"""Scenarios with the official OpenAI client for Python: a line "BASE-URL SCENARIO MODEL" in, a line of JSON out."""
import json
import sys
import traceback

import openai

TOOLS = [{"type": "function", "function": {"name": "weather", "description": "The weather in a place",
                                           "parameters": {"type": "object", "properties": {"place": {"type": "string"}},
                                                          "required": ["place"]}}}]
TALK = [{"role": "system", "content": "You are terse. Réponds « vite » 🎈."}, {"role": "user", "content": "Say something."}]


def outcome(function):
    """What an application sees of an error: its class, status, code, and hint."""
    try:
        function()
    except openai.APIStatusError as error:
        return {"error": type(error).__name__, "status": error.status_code, "code": error.code,
                "retry_after": error.response.headers.get("retry-after"), "message": error.message,
                "request_id": error.request_id}
    except openai.APIError as error:
        return {"error": type(error).__name__, "message": error.message, "code": error.code}
    return {"error": None}


def run(base, scenario, model):
    client = openai.OpenAI(base_url=base + "/v1", api_key="sk-test", max_retries=0, timeout=30)

    def chat():
        raw = client.chat.completions.with_raw_response.create(model=model, messages=TALK, max_tokens=8)
        answer = raw.parse()
        return {"text": answer.choices[0].message.content, "prompt_tokens": answer.usage.prompt_tokens,
                "replica": raw.headers.get("x-kvroute-replica"), "request_id": answer._request_id}

    def stream():
        text, usage, chunks = "", None, 0
        for chunk in client.chat.completions.create(model=model, messages=TALK, max_tokens=8, stream=True,
                                                    stream_options={"include_usage": True}):
            chunks += 1
            if chunk.choices and chunk.choices[0].delta.content:
                text += chunk.choices[0].delta.content
            usage = chunk.usage or usage
        return {"text": text, "chunks": chunks, "prompt_tokens": usage and usage.prompt_tokens}

    def tools():
        call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{\"place\":\"Oslo\"}"}}
        talk = TALK + [{"role": "assistant", "content": None, "tool_calls": [call]},
                       {"role": "tool", "tool_call_id": "call_1", "content": "Rain."}]
        answer = client.chat.completions.create(model=model, messages=talk, tools=TOOLS, tool_choice="auto", max_tokens=8)
        return {"text": answer.choices[0].message.content or "", "finish": answer.choices[0].finish_reason}

    def completion():
        answer = client.completions.create(model=model, prompt="Once upon a time", max_tokens=6)
        return {"text": answer.choices[0].text}

    def responses():
        answer = client.responses.create(model=model, input="Say something.", instructions="Be terse.", max_output_tokens=8)
        return {"text": answer.output_text, "status": answer.status}

    def models():
        return {"models": sorted(m.id for m in client.models.list())}

    def error():
        return outcome(lambda: client.chat.completions.create(model=model, messages=TALK))

    def stream_error():
        return outcome(lambda: list(client.chat.completions.create(model=model, messages=TALK, stream=True)))

    def abort():
        with client.chat.completions.create(model=model, messages=TALK, max_tokens=100000, stream=True) as answer:
            first = next(iter(answer))
        return {"first": bool(first.choices)}

    def retries():
        patient = client.with_options(max_retries=2)
        answer = patient.chat.completions.create(model=model, messages=TALK, max_tokens=4)
        return {"text": answer.choices[0].message.content}

    return locals()[scenario]()


for line in sys.stdin:
    try:
        result = {"result": run(*line.split())}
    except Exception:       # the test shows it
        result = {"exception": traceback.format_exc()}
    print(json.dumps(result), flush=True)
