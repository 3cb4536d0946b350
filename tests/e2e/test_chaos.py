# SPDX-License-Identifier: Apache-2.0
"""Engines and clients that do everything wrong at once, with short limits: nothing crashes, and the books balance."""
import os
import random
import threading
import time

import pytest

from client import Broken, Conn, build, chat_body
from engine import DONE_EVENT, FIN, HANG, RESET, die, event, flood, hang, raw, reply, sse
from harness import spawn, wait_for
from texts import packed, text

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def misdeeds(rng):
    """One way for an engine to answer."""
    usage = event({"choices": [], "usage": {"prompt_tokens": 7, "prompt_tokens_details": {"cached_tokens": 5}}})
    return rng.choice([
        None, None, None,
        sse(["a", "b", usage, DONE_EVENT], gap=0.01),
        sse(["a"] * rng.randrange(1, 30), gap=0.005, end=rng.choice([FIN, RESET, HANG])),
        sse(["a"], head_delay=rng.random() * 0.2, first=rng.random() * 0.3, chunked=rng.random() < 0.5, end=FIN),
        sse([event({"error": {"message": "x", "code": 500}}), DONE_EVENT]),
        sse([b": ping\n\n", b"data: half an eve"], gap=0.05, end=rng.choice([FIN, RESET, HANG])),
        die(rng.choice([FIN, RESET]), after=rng.random() * 0.1, head=rng.random() < 0.5),
        hang(), hang(head=True),
        reply(rng.choice([400, 404, 429, 500, 502, 503, 504]), b'{"error":{}}',
              [("Retry-After", rng.choice(["0", "1", "x"]))] if rng.random() < 0.3 else ()),
        raw(HEAD + b"5\r\nhel", 0.02, rng.choice([FIN, RESET])), raw(HEAD + b"zz\r\n", FIN), raw(b"\x00\x01\x02", FIN),
        raw(HEAD[:rng.randrange(1, len(HEAD))], 0.02, rng.choice([FIN, RESET, HANG])),
        raw(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", 0.02, rng.choice([FIN, RESET, HANG])),
        raw(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n\r\nmore", FIN),
        raw(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 5, b"HTTP/1.1 204 No Content\r\n\r\n"),
        flood(rng.randrange(1, 3 << 20), line_breaks=rng.random() < 0.5),
    ])


def client(router, rng, stop):
    while time.monotonic() < stop:
        prompt = text(rng.choice([50, 2000, 100000]), f"chaos-{rng.randrange(20)}")
        extra = {"stream_options": rng.choice([None, {"include_usage": True}])} if rng.random() < 0.3 else {}
        body = chat_body(prompt, stream=rng.random() < 0.7, **extra)
        path, headers = "/v1/chat/completions", []
        dice = rng.random()
        if dice < 0.1:
            body, encoding = packed(body, rng.choice(["gzip", "zstd", "deflate"]))
            headers = [("Content-Encoding", encoding)]
        elif dice < 0.15:
            body = bytes(rng.randrange(256) for _ in range(50))
        elif dice < 0.2:
            path = rng.choice(["/v1/messages", "/v1/responses", "/x", "/v1/models", "/reset_prefix_cache"])
        data = build("POST", path, headers, body, chunked=rng.choice([None, 1000]),
                     version=rng.choice(["HTTP/1.1", "HTTP/1.1", "HTTP/1.0"]) if dice > 0.3 else "HTTP/1.1")
        if b"HTTP/1.0" in data[:100] and b"chunked" in data[:500]:
            continue
        try:
            conn = Conn(router.address, timeout=5, rcvbuf=rng.choice([None, 8192]))
        except OSError:
            assert router.alive(), "it is gone"
            raise
        try:
            fate = rng.random()
            if fate < 0.15:                                     # stops in the middle of the request, for good or for a while
                conn.send(data[:rng.randrange(1, len(data))])
                time.sleep(rng.choice([0.01, 0.05, 0.8]))
                continue
            conn.send(data if fate < 0.9 else data * 3)
            if fate < 0.3:                                      # leaves early
                time.sleep(rng.random() * 0.1)
                conn.abort()
            elif fate < 0.4:
                conn.half_close()
                conn.read()
            elif fate < 0.5:                                    # stops reading for longer than the idle limit
                conn.read(1000)
                time.sleep(rng.choice([0.05, 0.9]))
                conn.read(1000)
            else:
                for _ in range(3 if fate >= 0.9 else 1):
                    conn.response()
        except (Broken, OSError, ValueError):
            pass                                                # it asked for trouble
        finally:
            conn.close()


@pytest.mark.parametrize("options", [
    [], ["--inject-usage", "on", "--heartbeat", "150ms", "--forward-decoded", "on", "--retries", "3"],
    ["--hold-head", "off", "--queue-timeout", "300ms", "--threads", "4"]], ids=["plain", "extras", "no hold"])
def test_nothing_crashes_and_the_books_balance(fleet, options):
    seed = int(os.environ.get("KVROUTE_TEST_SEED") or random.randrange(1 << 30))
    print(f"KVROUTE_TEST_SEED={seed}")      # shown where it fails
    engines = [fleet.engine(kind) for kind in ("vllm", "sglang", "llamacpp")]
    router = fleet.router("--idle-timeout", "500ms", "--first-byte-timeout", "400ms", "--head-timeout", "300ms",
                          "--keep-alive", "400ms", "--pool-idle", "100ms", "--stall-timeout", "1s", *options,
                          *[x for e in engines for x in ("--replica", f"{e.url},max-running=20")], ready=False)
    router.wait_ready()
    rng = random.Random(seed)
    for engine in engines:
        def script(request, out):
            return (misdeeds(rng) or out.engine.llm)(request, out)
        engine.script = script
    stop = time.monotonic() + 4
    clients = [spawn(client, router, random.Random(seed + n), stop) for n in range(32)]
    again = threading.Event()

    def restarts():
        while not again.wait(0.7):
            engines[0].stop()
            time.sleep(0.1)
            engines[0].start()
    restarting = spawn(restarts)
    try:
        for c in clients:
            c.result(40)
    finally:
        again.set()
        restarting.result(10)
    assert router.alive()
    router.wait_idle(15)
    wait_for(lambda: router.metrics().sum("client_connections") == 0, 5, "all connections gone")
    for engine in engines:
        engine.script = None
    wait_for(lambda: router.chat("and now?").status == 200, 10, "it serves again", every=0.1)
    metrics = router.metrics()
    assert metrics.sum("in_flight_requests") == 0 and metrics.sum("queue_requests") == 0
    wait_for(lambda: router.metrics().sum("body_memory_bytes") == 0, 5, "all bodies given back")
