# SPDX-License-Identifier: Apache-2.0
"""Token ids of prompts are learned in the background: no request waits for them, and what they are for works."""
import asyncio
import itertools
import json
import time

import pytest

from client import chat_body, fetch
from harness import together, wait_for
from test_alarms import wait_over, wait_raised
from test_events import engine, prompt, serve, wait_caught_up, wait_stream  # noqa: F401
from texts import turns

SLOW = 5.0


def talk(name, size):
    """The messages of a conversation's first turn."""
    return next(iter(turns(1, name, size)))


class Front:
    """A scripted engine that passes all on to a mock engine, and its tokenizer's paths to whatever the test says."""

    def __init__(self, fleet, mock, tokenize=None):
        self.mock = mock
        self.engine = fleet.engine("vllm")
        self.asked = []         # bodies
        self.answered = 0
        self.tokenize = tokenize
        self.engine.script = self.forward
        for path in self.engine.CONTROL:
            self.engine.routes[path] = self.forward
        self.engine.routes["/tokenize"] = self.on_tokenize

    async def forward(self, request, out):
        answer = await asyncio.get_running_loop().run_in_executor(
            None, lambda: fetch(("127.0.0.1", self.mock.port), request.method, request.target,
                                [("Content-Type", "application/json")], request.body or None))
        await out.whole(answer.status, answer.body, content_type=answer.header("content-type") or "application/json")

    async def on_tokenize(self, request, out):
        self.asked.append(request.json)
        await (self.tokenize or self.forward)(request, out)
        self.answered += 1

    def replica(self):
        source = self.mock.ask("GET", "/kv_event_sources").json["0"]
        return f"{self.engine.url},events={source['endpoint']},replay={source['replay_endpoint']}"


def listening(serve, front, *args):  # noqa: F811
    router = serve(*args, replicas=[front.replica()])
    router.wait_ready(front.engine.name)
    wait_stream(router, front.engine, state="live", trusted=True)
    front.mock.fill(prompt(2))      # the size of blocks is known from the first event on
    wait_caught_up(router, front_name(front, front.mock), stored=1)
    return router


def learned(router, result="learned"):
    return router.metrics().sum("tokenize_total", result=result)


def test_no_request_waits_for_a_tokenizer(fleet, engine, serve):  # noqa: F811
    """It takes five seconds for each prompt; every request is served at the engine's own pace meanwhile."""
    front = Front(fleet, engine())

    async def slow(request, out):
        await asyncio.sleep(SLOW)
        await front.forward(request, out)
    front.tokenize = slow
    router = listening(serve, front)
    started = time.monotonic()
    answers = together([lambda n=n: router.chat(talk(f"slow {n}", 800), model="mock", max_tokens=1)
                        for n in range(20)])
    took = time.monotonic() - started
    assert all(a.status == 200 for a in answers)
    assert front.answered == 0, "no tokenizer had answered when the last request was served"
    assert took < SLOW - 1, took
    wait_for(lambda: len(front.asked) >= 1, what="it was asked")
    wait_for(lambda: learned(router) >= 1, SLOW + 5, "and learned from in the end")
    assert len(front.asked) <= 4, "one question at a time, and a rest after it"


def test_each_prompt_is_asked_for_once(fleet, engine, serve):  # noqa: F811
    front = Front(fleet, engine())
    router = listening(serve, front)
    messages = talk(f"once {time.time()}", 800)
    for _ in range(5):
        assert router.chat(messages, model="mock", max_tokens=1).status == 200
    wait_for(lambda: learned(router) == 1, what="learned")
    for _ in range(5):
        assert router.chat(messages, model="mock", max_tokens=1).status == 200
    assert len(front.asked) == 1 and learned(router) == 1
    assert front.asked[0]["messages"] == messages
    page = router.metrics()
    assert page.sum("token_map_points") > 0 and page.sum("token_map_bytes") > 0
    assert page.sum("token_map_lookups_total", result="hit") >= 5


def test_what_is_evicted_is_known_to_be_gone(fleet, engine, serve):  # noqa: F811
    """With the tokens known a match is what the engine holds, to the block, also after others have pushed it out."""
    mock = engine(blocks=100)
    front = Front(fleet, mock)
    router = listening(serve, front)
    text = prompt(60)
    body = {"model": "mock", "prompt": text, "max_tokens": 1}
    assert router.post("/v1/completions", body).status == 200
    wait_for(lambda: learned(router) == 1, what="learned")
    wait_caught_up(router, front_name(front, mock))
    again = router.post("/v1/completions", body)
    assert again.match == again.json["usage"]["prompt_tokens_details"]["cached_tokens"] == 59 * 16
    for _ in range(3):
        mock.fill(prompt(60))       # past the router: it can only know by events
    wait_caught_up(router, front_name(front, mock))
    wait_for(lambda: router.match_of(json.dumps(body).encode(), front.engine, "/v1/completions") == 0, 10,
             "nothing is left of it, nor of young predictions")
    gone = router.post("/v1/completions", body)
    assert gone.match == gone.json["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


class front_name:
    """The mock's numbers under the name that the router knows the front by."""

    def __init__(self, front, mock):
        self.name = front.engine.name
        self.events = mock.events


@pytest.mark.parametrize("status, result", [(404, "unsupported"), (500, "failed"), (200, "failed")])
def test_a_tokenizer_that_does_not_help(fleet, engine, serve, status, result):  # noqa: F811
    """Not there, broken, or talking nonsense: counted, and history goes on predicting."""
    front = Front(fleet, engine())

    async def useless(_request, out):
        await out.whole(status, {"detail": "no"} if status != 200 else {"tokens": ["a", None]})
    front.tokenize = useless
    router = listening(serve, front)
    messages = talk(f"useless {time.time()}", 1200)
    assert router.chat(messages, model="mock", max_tokens=1).status == 200
    wait_for(lambda: learned(router, result) >= 1, what="counted")
    again = router.chat(messages, model="mock", max_tokens=1)
    cached = again.json["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached > 500 and abs(again.match - cached) <= 32, (again.match, cached)


def test_a_tokenizer_that_only_fails_is_said_aloud(fleet, engine, serve):  # noqa: F811
    front = Front(fleet, engine())

    async def broken(_request, out):
        await out.whole(500, {"error": {"message": "no tokenizer"}})
    front.tokenize = broken
    router = listening(serve, front, "--metrics-interval", "100ms")
    numbers = itertools.count()

    def ask():
        assert router.chat(talk(f"fails {next(numbers)}", 400), model="mock", max_tokens=1).status == 200
        time.sleep(0.1)
    text = wait_raised(router, "tokenizer_fails", front.engine, work=ask)
    assert "/tokenize: status 500" in text
    assert learned(router, "failed") >= 5
    front.tokenize = None
    wait_over(router, "tokenizer_fails", front.engine, work=ask)


def test_the_first_prompt_of_all(fleet, engine, serve):  # noqa: F811
    """No event has told the size of blocks yet, and it is not the usual one: the engine's metrics have it."""
    front = Front(fleet, engine("--block-tokens", "32"))
    router = serve(replicas=[front.replica()])
    router.wait_ready(front.engine.name)
    wait_stream(router, front.engine, state="live", trusted=True)
    wait_for(lambda: router.replica(front.engine)["load_known"], what="its metrics were read")
    messages = talk(f"first {time.time()}", 2000)
    first = router.chat(messages, model="mock", max_tokens=1)
    assert first.match == 0
    wait_for(lambda: learned(router) == 1, what="learned")
    wait_caught_up(router, front_name(front, front.mock), block_tokens=32)
    again = router.chat(messages, model="mock", max_tokens=1)
    cached = again.json["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert again.match == cached > 300
    assert router.chat(messages, model="mock", max_tokens=1).status == 200
    assert len(front.asked) == 1, "it was known for blocks of the right size"


@pytest.mark.parametrize("spelling", ["as it is", "escaped"])
def test_a_text_that_grows(fleet, engine, serve, spelling):  # noqa: F811
    """Each prompt begins with the whole one before, which ended anywhere: what is cached is known to the block."""
    front = Front(fleet, engine())
    router = listening(serve, front)
    text = prompt(50)[:-21]
    for turn in range(8):
        text += f" and more {turn} " + "fghi " * (3 + 7 * turn)
        body = json.dumps({"model": "mock", "prompt": text, "max_tokens": 1})
        if spelling == "escaped":
            body = body.replace("f", "\\u0066")
        answer = router.post("/v1/completions", body.encode(), [("Content-Type", "application/json")])
        cached = answer.json["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert abs(answer.match - cached) <= 16 and (cached > 700 or not turn), (turn, answer.match, cached)
        wait_for(lambda n=turn: learned(router) == n + 1, what="learned")
        wait_caught_up(router, front_name(front, front.mock))


def test_switched_off(fleet, engine, serve):  # noqa: F811
    """Then only token ids are matched with events."""
    front = Front(fleet, engine())
    router = listening(serve, front, "--tokenize", "off")
    for _ in range(2):
        assert router.chat(talk("off", 800), model="mock", max_tokens=1).status == 200
    ids = {"model": "mock", "prompt": list(range(1, 801)), "max_tokens": 1}
    assert router.post("/v1/completions", ids).status == 200
    wait_caught_up(router, front_name(front, front.mock))
    again = router.post("/v1/completions", ids)
    assert again.match == again.json["usage"]["prompt_tokens_details"]["cached_tokens"] == 49 * 16
    assert front.asked == []


def test_explain_asks_nothing(fleet, engine, serve):  # noqa: F811
    front = Front(fleet, engine())
    router = listening(serve, front)
    router.explain(chat_body(talk("explain", 800), model="mock"))
    assert router.chat("hi", model="mock", max_tokens=1).status == 200
    wait_for(lambda: len(front.asked) <= 1, what="only of what was sent")
    assert all("explain" not in json.dumps(body) for body in front.asked)


def test_tenants_salts_are_the_engines_salts(fleet, engine, serve):  # noqa: F811
    """With --tenant-salt a prompt's namespace is its tenant's: matches are exact, and nobody sees another's."""
    front = Front(fleet, engine())
    router = listening(serve, front, "--tenant-salt", "on", "--api-key", "one", "--api-key", "two")
    ids = {"model": "mock", "prompt": list(range(1, 801)), "max_tokens": 1}
    messages = {"model": "mock", "messages": talk(f"tenants {time.time()}", 1200), "max_tokens": 1}
    for key in ("one", "two"):
        headers = [("Authorization", f"Bearer {key}")]
        for path, body in (("/v1/completions", ids), ("/v1/chat/completions", messages)):
            before = learned(router)
            first = router.post(path, body, headers)
            assert first.match == first.json["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
            if path.startswith("/v1/chat"):
                wait_for(lambda n=before: learned(router) == n + 1, what="learned")
            wait_caught_up(router, front_name(front, front.mock))
            again = router.post(path, body, headers)
            cached = again.json["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert again.match == cached > 200
    assert router.replica(front.engine.name)["events"]["canary"] == "ok"


def test_a_tokenizer_that_hangs_holds_up_its_own_model_alone(fleet, engine, serve):  # noqa: F811
    """Thirty prompts wait for the engine of one model; those of the other are asked for at once."""
    one, two = Front(fleet, engine("--model", "one")), Front(fleet, engine("--model", "two"))

    async def hang(_request, _out):
        await asyncio.sleep(3600)
    one.tokenize = hang
    router = serve(replicas=[one.replica(), two.replica()])
    router.wait_ready(one.engine.name, two.engine.name)
    for front in (one, two):
        wait_stream(router, front.engine, state="live", trusted=True)
        assert front.mock.ask("POST", "/v1/completions", {"model": "one" if front is one else "two", "prompt": prompt(2),
                                                          "max_tokens": 1}).status == 200
        wait_caught_up(router, front_name(front, front.mock), stored=1)
    together([lambda n=n: router.chat(talk(f"held {n}", 800), model="one", max_tokens=1) for n in range(30)])
    assert router.chat(talk("free", 800), model="two", max_tokens=1).status == 200
    wait_for(lambda: two.answered == 1, 5, "the other model's prompt was tokenized")
    assert len(one.asked) == 1
