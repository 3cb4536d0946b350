# SPDX-License-Identifier: Apache-2.0
"""KV cache events end to end: mock engines that publish them, serve that listens, and all that can go wrong between."""
import http.server
import itertools
import json
import os
import socket
import struct
import threading
import time

import pytest

from client import fetch
from harness import Router, sanitized, stays, wait_for
from test_alarms import wait_over, wait_raised
from test_mock import Mock

RELEARN = "1500ms"


class Engine:
    """A mock engine that publishes events; free ports throughout."""

    def __init__(self, *args, replay=True, blocks=4096):
        self.args = ["--listen", "127.0.0.1:0", "--speed", "200", "--events", "tcp://127.0.0.1:*",
                     "--capacity-blocks", str(blocks), *args]
        if replay:
            self.args += ["--replay", "tcp://127.0.0.1:*"]
        self.mock = Mock(*self.args)
        (self.port,) = self.mock.ports()
        self.name = f"127.0.0.1:{self.port}"
        self.url = f"http://{self.name}"

    def ask(self, method, path, body=None):
        answer = fetch(("127.0.0.1", self.port), method, path, [("Content-Type", "application/json")],
                       None if body is None else json.dumps(body).encode())
        return answer

    def order(self, **what):
        """POST /mock/events."""
        answer = self.ask("POST", "/mock/events", what)
        assert answer.status == 200, answer.body
        return answer.json

    def events(self):
        return self.ask("GET", "/mock/events").json

    def fill(self, prompt, **more):
        """Straight to the engine, past any router."""
        answer = self.ask("POST", "/v1/completions", {"model": "mock", "prompt": prompt, "max_tokens": 1, **more})
        assert answer.status == 200, answer.body
        return answer.json["usage"]["prompt_tokens_details"]["cached_tokens"]

    def restart(self, down_ms=0):
        assert self.ask("POST", "/mock/restart", {"down_ms": down_ms}).status == 200


@pytest.fixture
def engine():
    running = []

    def start(*args, **kwargs):
        running.append(Engine(*args, **kwargs))
        return running[-1]
    yield start
    for one in running:
        one.mock.stop()


@pytest.fixture
def serve():
    running = []

    def start(*args, **kwargs):
        running.append(Router("--events-relearn", RELEARN, *args, **kwargs))
        return running[-1]
    yield start
    for one in running:
        one.check_and_stop()


words = itertools.count()


def prompt(blocks=20):
    """A prompt of its own, of so many blocks of 16 tokens of 4 bytes."""
    start = f"prompt {os.getpid()} {next(words)} "
    return (start + "abc " * 16 * blocks)[:64 * blocks]


def stream(router, engine):
    return router.replica(engine.name)["events"]


def wait_stream(router, engine, timeout=8, **want):
    """Until the stream's status has these values; the status."""
    def there():
        now = stream(router, engine)
        return now if now and all(now.get(k) == v for k, v in want.items()) else None
    try:
        return wait_for(there, timeout, f"a stream with {want}")
    except AssertionError as error:
        raise AssertionError(f"{error}; it is {stream(router, engine)}") from None


def wait_caught_up(router, engine, timeout=8, **want):
    """Until all that the engine has published is applied."""
    seq = engine.events()["seq"]
    return wait_stream(router, engine, timeout, seq=seq - 1 if seq else None, **want)


def live(serve, engine, *args, extra=""):
    router = serve(*args, replicas=[f"{engine.url},events=auto{extra}"])
    router.wait_ready(engine)
    wait_stream(router, engine, state="live", trusted=True)
    return router


def blocks_of(router, engine):
    return stream(router, engine)["blocks"]


def cached_blocks(engine):
    return engine.ask("GET", "/mock/state").json["cached_blocks"]


# ---- evictions and resets

def test_evictions_are_followed(engine, serve):
    one = engine(blocks=100)
    router = live(serve, one)
    for _ in range(30):
        one.fill(prompt(20))
    status = wait_caught_up(router, one)
    assert status["blocks"] == cached_blocks(one) <= 100
    assert status["removed"] > 400 and status["lost"] == 0
    metrics = router.metrics()
    assert metrics.sum("event_blocks_total", kind="unknown") == 0


def test_a_reset_event_clears(engine, serve):
    """Field report: "everything cleared" is acted on at once."""
    one = engine()
    router = live(serve, one)
    one.fill(prompt(20))
    assert wait_caught_up(router, one)["blocks"] == 20
    one.order(clear=True)
    wait_stream(router, one, blocks=0, cleared=1)
    assert stream(router, one)["trusted"]


def test_a_reset_passed_on_clears_before_the_event(engine, serve):
    """vLLM tells of a reset only with its next step; the router that passed it on need not wait."""
    one = engine()
    router = live(serve, one, "--allow-engine-admin")
    one.fill(prompt(20))
    assert wait_caught_up(router, one)["blocks"] == 20
    answer = router.post("/reset_prefix_cache", {})
    assert answer.status == 200, answer.body
    wait_stream(router, one, blocks=0, cleared=0)
    assert one.events()["published"] == 1
    one.fill(prompt(10))
    assert wait_caught_up(router, one, cleared=1)["blocks"] == 10


def ids_of(one, text):
    answer = one.ask("POST", "/tokenize", {"model": "mock", "prompt": text})
    assert answer.status == 200, answer.body
    return answer.json["tokens"]


def test_hits_are_found_where_they_are_and_followed_when_they_go(engine, serve):
    """Prompts that this router never sent, by their token ids: only events can tell where they are cached."""
    one, two = engine(blocks=120), engine(blocks=120)
    router = serve(replicas=[f"{e.url},events=auto" for e in (one, two)])
    for e in (one, two):
        router.wait_ready(e)
        wait_stream(router, e, state="live", trusted=True)
    texts = [prompt(20) for _ in range(8)]
    for i, text in enumerate(texts[:4]):
        (one, two)[i % 2].fill(text)
    for e in (one, two):
        wait_caught_up(router, e)

    def body(text):
        return {"model": "mock", "prompt": ids_of(one, text), "max_tokens": 1}

    def exact(text):
        """What is predicted for each engine is what it holds."""
        for e in (one, two):
            held = e.ask("POST", "/mock/match?path=/v1/completions", {"model": "mock", "prompt": text}).json["match_tokens"]
            assert router.match_of(body(text), e.name, "/v1/completions") == held, (text[:20], e.name)
    for i, text in enumerate(texts[:4]):
        exact(text)
        answer = router.post("/v1/completions", body(text))
        assert answer.status == 200, answer
        assert answer.replica == (one, two)[i % 2].name
        assert answer.match == answer.json["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    # Past the router until the first ones are evicted.
    for text in texts[4:] + [prompt(40) for _ in range(4)]:
        one.fill(text)
    for e in (one, two):
        wait_caught_up(router, e)
    time.sleep(0.1)
    wait_for(lambda: router.match_of(body(texts[0]), one.name, "/v1/completions") == 0, 8, "evicted, and known to be")
    for text in texts[1:]:
        wait_for(lambda t=text: exact(t) is None, 8)
    # A restart in place voids all of it at once.
    two.restart()
    wait_for(lambda: router.match_of(body(texts[1]), two.name, "/v1/completions") == 0, 10, "nothing is promised there")


# ---- gaps

def test_gap_replay_live(engine, serve):
    one = engine()
    router = live(serve, one)
    one.fill(prompt(20))
    wait_stream(router, one, seq=0)
    one.order(drop=3)
    for _ in range(3):
        one.fill(prompt(20))
    assert stream(router, one)["seq"] == 0
    one.fill(prompt(20))
    status = wait_caught_up(router, one, state="live", trusted=True)
    assert (status["gaps"], status["lost"], status["clears"]) == (1, 0, 0)
    assert status["blocks"] == cached_blocks(one) == 100


def test_replies_of_older_engines_lack_the_topic_frame(engine, serve):
    one = engine("--events-topic", "kv@pod-1@mock")
    one.order(replay_old=True)
    one.fill(prompt(20))
    router = live(serve, one)
    assert stream(router, one)["topic"] == "kv@pod-1@mock"
    one.order(drop=1)
    one.fill(prompt(20))
    one.fill(prompt(20))
    status = wait_caught_up(router, one, state="live", trusted=True)
    assert (status["gaps"], status["lost"], status["malformed"]) == (1, 0, 0)
    assert status["blocks"] == 60


def test_too_old_relearning_trusted_again(engine, serve):
    one = engine()
    router = live(serve, one)
    one.fill(prompt(20))
    wait_caught_up(router, one)
    one.order(drop=3)
    for _ in range(3):
        one.fill(prompt(20))
    one.order(keep=1)
    one.fill(prompt(20))
    status = wait_caught_up(router, one, state="relearning", trusted=False)
    assert status["too_old"] == 1 and status["lost"] > 0
    assert status["blocks"] < 60                # what may have missed a removal is forgotten
    assert router.replica(one.name)["residency"] == "history"
    wait_for(lambda: router.metrics().sum("event_stream_trusted", replica=one.name) == 0, what="the gauge")
    one.fill(prompt(20))
    wait_stream(router, one, state="live", trusted=True)
    assert router.replica(one.name)["residency"] == "events"
    wait_for(lambda: router.metrics().sum("event_stream_trusted", replica=one.name) == 1)


def test_gap_without_replay(engine, serve):
    one = engine(replay=False)
    router = serve(replicas=[f"{one.url},events=auto"])
    wait_stream(router, one, connected=True)
    one.fill(prompt(20))
    wait_stream(router, one, state="live", trusted=True, blocks=20)     # from batch 0 on: nothing is missing
    one.order(drop=1)
    one.fill(prompt(20))
    one.fill(prompt(20))
    wait_stream(router, one, trusted=False, lost=1, blocks=20)
    wait_stream(router, one, state="live", trusted=True)


def test_silent_replay(engine, serve):
    one = engine()
    router = live(serve, one)
    one.fill(prompt(20))
    wait_caught_up(router, one)
    one.order(drop=1, replay_mute=True)
    one.fill(prompt(20))
    one.fill(prompt(20))
    wait_stream(router, one, state="replaying")
    status = wait_stream(router, one, timeout=12, state="relearning", replays_failed=1, lost=1)
    assert status["blocks"] == 20
    wait_stream(router, one, state="live", trusted=True)


def test_repeated_batches_count_once(engine, serve):
    one = engine(blocks=64)
    router = live(serve, one)
    one.order(repeat=50)
    for _ in range(10):
        one.fill(prompt(20))
    status = wait_caught_up(router, one)
    wait_stream(router, one, duplicates=10)
    assert status["restarts"] == 0
    assert status["blocks"] == cached_blocks(one)


# ---- restarts

@pytest.mark.parametrize("down_ms", [0, 1500])
def test_restart_in_place(engine, serve, down_ms):
    """Field report: an engine restarts on its port, and its old blocks stay."""
    one = engine()
    router = live(serve, one)
    for _ in range(4):
        one.fill(prompt(20))
    assert wait_caught_up(router, one)["blocks"] == 80
    one.restart(down_ms)
    wait_stream(router, one, timeout=10, blocks=0)
    wait_for(lambda: one.ask("GET", "/health").status == 200 if down_ms == 0 or _up(one) else False, 10, "it is back")
    one.fill(prompt(20))
    status = wait_stream(router, one, timeout=10, state="live", trusted=True, seq=0, blocks=20)
    assert status["restarts"] >= 1
    # Whatever happened before: the log's last word is what is.
    wait_for(lambda: [line for line in router.lines if "trusted: hits are" in line][-1].find("are trusted") > 0, what="the last word")


def _up(one):
    try:
        with socket.create_connection(("127.0.0.1", one.port), 1):
            return True
    except OSError:
        return False


def test_numbers_that_fall_are_a_restart(engine, serve):
    one = engine()
    router = live(serve, one)
    for _ in range(4):
        one.fill(prompt(20))
    assert wait_caught_up(router, one)["blocks"] == 80
    one.order(seq=0)
    one.fill(prompt(10))
    status = wait_stream(router, one, state="live", trusted=True, seq=0)
    assert (status["restarts"], status["blocks"]) == (1, 10)


# ---- silence

def test_no_events_is_said_and_history_takes_over(engine, serve):
    """Field report: precise matching is configured, and silently is not running."""
    one = engine()
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    router = serve(replicas=[f"{one.url},events=tcp://127.0.0.1:{port}"])
    router.wait_ready(one)
    text = prompt(20)
    for i in range(30):
        answer = router.post("/v1/completions", {"model": "mock", "prompt": prompt(20), "max_tokens": 1})
        assert answer.status == 200
    router.post("/v1/completions", {"model": "mock", "prompt": text, "max_tokens": 1})
    again = router.post("/v1/completions", {"model": "mock", "prompt": text, "max_tokens": 1})
    assert again.match > 0                                             # by history
    assert router.replica(one.name)["residency"] == "history"

    def alarm():
        router.post("/v1/completions", {"model": "mock", "prompt": prompt(20), "max_tokens": 1})
        found = [a for a in router.admin_request("GET", "/kvroute/alarms").json["alarms"] if a["alarm"] == "events_silent"]
        return found[0] if found else None
    raised = wait_for(alarm, 20, "the alarm")
    assert raised["replica"] == one.name
    status = wait_for(lambda: (lambda s: s if s["why"] else None)(stream(router, one)), 15, "a reason")
    assert status["why"].startswith(f"no events from {one.name} for ") and "not connected" in status["why"]


def test_another_topic(engine, serve):
    """The subscription hears nothing; the replay, which has no topics, shows that there is something."""
    one = engine("--events-topic", "kv@other")
    router = serve(replicas=[f"{one.url},events=auto,events-topic=kv@mine"])
    wait_stream(router, one, state="live", connected=True)

    def deaf():
        one.fill(prompt(5))
        status = stream(router, one)
        return status if "topic" in status["why"] else None
    status = wait_for(deaf, 45, "a reason", every=1)
    assert not status["trusted"] and status["unheard"] > 0 and status["heard_s"] is None
    assert router.replica(one.name)["residency"] == "history"
    # Set right while all runs.
    one.order(topic="kv@mine")
    one.fill(prompt(5))
    wait_stream(router, one, state="live", trusted=True)


def test_topic_filter_lets_through_what_begins_so(engine, serve):
    one = engine("--events-topic", "kv@pod-1@mock")
    router = live(serve, one, extra=",events-topic=kv@pod-1")
    one.fill(prompt(20))
    assert wait_caught_up(router, one)["heard_s"] is not None


# ---- hostile

def batch(router, one, bytes_or_size):
    one.order(batch=bytes_or_size.hex() if isinstance(bytes_or_size, bytes) else bytes_or_size)


def test_one_bad_event_costs_itself(engine, serve):
    msgpack = pytest.importorskip("msgpack")
    one = engine()
    router = live(serve, one)
    stored = {"type": "BlockStored", "block_hashes": [1, 2], "parent_block_hash": None, "token_ids": list(range(32)),
              "block_size": 16, "medium": "GPU"}
    events = [stored, 7, {"type": 1}, ["BlockRemoved", [1.5]], {"type": "BlockMoved"}, {**stored, "token_ids": "x"},
              {**stored, "block_hashes": [3, 4], "parent_block_hash": 77}, ["BlockRemoved", [2], "GPU"]]
    batch(router, one, msgpack.packb([time.time(), events, 0]))
    status = wait_stream(router, one, seq=0, stored=2, removed=1)
    assert (status["blocks"], status["orphans"], status["unreadable"]) == (1, 2, 0)
    assert status["trusted"]
    wait_for(lambda: router.metrics().sum("events_total", kind="bad") == 4, what="bad events counted")
    assert router.metrics().sum("events_useless_total", reason="tag") == 1


def test_more_blocks_than_there_is_room_for_are_said_aloud(engine, serve):
    """An engine that takes nothing back fills the index: less is known then, and that is no secret."""
    msgpack = pytest.importorskip("msgpack")
    one = engine()
    router = live(serve, one, "--event-memory", "1MiB", "--metrics-interval", "100ms")

    def stored(first, count):
        return {"type": "BlockStored", "block_hashes": list(range(first, first + count)), "parent_block_hash": None,
                "token_ids": [first] * 16 * count, "block_size": 16, "medium": "GPU"}

    def tell(*events):
        batch(router, one, msgpack.packb([time.time(), events, 0]))
    tell(stored(1, 40000))
    text = wait_raised(router, "events_full", one)
    wait_caught_up(router, one)
    known = blocks_of(router, one)
    assert 8000 < known < 25000
    assert f"no room for {40000 - known} of the blocks" in text and "--event-memory (1 MiB)" in text
    tell({"type": "BlockRemoved", "block_hashes": list(range(1, 10001)), "medium": "GPU"}, stored(50001, 10))
    wait_over(router, "events_full", one)


def test_hostile_bytes_never_stop_the_router(engine, serve):
    one, two = engine(), engine()
    router = serve(replicas=[f"{e.url},events=auto" for e in (one, two)])
    for e in (one, two):
        wait_stream(router, e, state="live", trusted=True)
    random = __import__("random").Random(7)
    million = struct.pack(">I", 1048576)
    for payload in [b"", b"\xc1", b"\x93", bytes(200), b"\x93\xc0\x91\xdd\xff\xff\xff\xff\x00",
                    b"\x93\xcb" + bytes(8) + b"\x91\x92\xacBlockRemoved\xdd" + million + bytes(1048576) + b"\x00",
                    b"\x91" * 100000, *(random.randbytes(random.randrange(1, 3000)) for _ in range(200))]:
        batch(router, one, payload or b"\xc0")
    for payload in (b"hello", b"\x00" * 100):
        one.order(message=payload.hex())
    one.order(batch=(32 if sanitized() else 63) << 20)
    # Meanwhile the other one's events are taken in, and requests are answered.
    for _ in range(5):
        assert router.post("/v1/completions", {"model": "mock", "prompt": prompt(5), "max_tokens": 1}).status == 200
    two.fill(prompt(20))
    wait_caught_up(router, two, timeout=30)
    status = wait_caught_up(router, one, timeout=30)
    assert status["malformed"] >= 2 and status["unreadable"] > 100
    # And it comes back by itself.
    one.fill(prompt(20))
    wait_stream(router, one, timeout=20, state="live", trusted=True)
    assert blocks_of(router, one) >= 20
    assert router.alive()


def test_beyond_64_mib_the_connection_is_closed_and_comes_back(engine, serve):
    one = engine()
    router = live(serve, one)
    answer = one.ask("POST", "/mock/events", {"batch": (64 << 20)})
    assert answer.status == 200
    wait_caught_up(router, one, timeout=30)
    router2 = router.memory()
    assert router2 < 2 << 30
    one.fill(prompt(20))
    wait_stream(router, one, timeout=20, state="live", trusted=True)


def test_a_stranger_on_the_port(serve, engine):
    """Something that is not ZeroMQ at all, and something that sends rubbish in its handshake."""
    one = engine()
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        router = serve(replicas=[f"{one.url},events=tcp://127.0.0.1:{port},replay=tcp://127.0.0.1:{port}"])
        stranger.settimeout(20)
        for _ in range(3):
            peer, _ = stranger.accept()
            peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" + os.urandom(3000))
            peer.close()
        router.wait_ready(one)
        assert not stream(router, one)["connected"]
        assert router.alive()


# ---- TensorRT-LLM's list

class Drained(http.server.BaseHTTPRequestHandler):
    """POST /kv_cache_events gives what has happened since the last time, and forgets it."""
    protocol_version = "HTTP/1.1"

    def answer(self, document, status=200):
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == "/v1/models":
            self.answer({"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "tensorrt_llm"}]})
        elif self.path in ("/health", "/version"):
            self.answer({"version": "1.2"})
        else:
            self.answer({}, 404)

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path != "/kv_cache_events":
            self.answer({}, 404)
            return
        with self.server.lock:
            events, self.server.events = self.server.events, []
            self.server.asked += 1
        self.answer(events)

    def log_message(self, *_):
        pass


def test_events_that_are_polled(serve):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Drained)
    server.events, server.lock, server.asked = [], threading.Lock(), 0
    threading.Thread(target=server.serve_forever, daemon=True).start()
    name = f"127.0.0.1:{server.server_port}"
    numbers = itertools.count()

    def publish(*events):
        with server.lock:
            server.events += [{"event_id": next(numbers), "data": e, "window_size": 4096} for e in events]

    def stored(first, count, parent=None):
        return {"type": "stored", "parent_hash": parent, "blocks": [
            {"block_hash": first + i, "tokens": [{"token_id": 7 * (first + i) + k} for k in range(32)], "cache_level": 0}
            for i in range(count)]}

    def status(**want):
        def there():
            now = router.replica(name)["events"]
            return now if now and all(now.get(k) == v for k, v in want.items()) else None
        return wait_for(there, 8, f"a stream with {want}")
    try:
        publish({"type": "created", "num_blocks_per_cache_level": [100, 0]}, stored(1, 4))
        router = serve(replicas=[f"http://{name},events=poll"])
        now = status(state="live", trusted=True, blocks=4)
        assert now["block_tokens"] == 32 and now["seq"] == 1
        publish(stored(5, 2, parent=4), {"type": "removed", "block_hashes": [6]}, {"type": "updated", "block_hash": 1})
        assert status(seq=4)["blocks"] == 5
        next(numbers)                                   # its buffer was full: an event is gone for good
        publish(stored(20, 3))
        assert status(state="relearning", trusted=False)["lost"] == 1
        status(blocks=3)
        status(state="live", trusted=True)
        numbers = itertools.count()                     # another process
        publish(stored(30, 1))
        status(state="live", trusted=True, blocks=1, restarts=1)
        assert server.asked > 5
    finally:
        server.shutdown()
        server.server_close()


# ---- reload

def test_a_reload_follows_another_source(engine, serve, tmp_path):
    one = engine()
    where = one.events()
    file = tmp_path / "k.yaml"
    file.write_text(f"replicas:\n  - {{ url: {one.url}, name: a, events: off }}\n")
    router = serve("--config", str(file))
    wait_for(lambda: router.replica("a")["state"] == "ready")
    assert router.replica("a")["events"] is None
    file.write_text(f"replicas:\n  - {{ url: {one.url}, name: a, events: '{where['endpoint']}', replay: '{where['replay']}' }}\n")
    router.signal(1)
    wait_for(lambda: (router.replica("a")["events"] or {}).get("trusted"), 8, "its events are trusted")
    file.write_text(f"replicas:\n  - {{ url: {one.url}, name: a, events: off }}\n")
    router.signal(1)
    wait_for(lambda: router.replica("a")["events"] is None, 8, "no events any more")
    stays(router.alive, 0.3)
