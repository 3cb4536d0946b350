# SPDX-License-Identifier: Apache-2.0
"""The proxy's craft: bodies, headers, connections, time-outs, and not getting in its own way."""
import json
import shutil
import statistics
import subprocess
import threading
import time

import pytest

from client import Broken, chat_body, fetch
from engine import HANG, hang, reply, sse
from harness import sanitized, spawn, together, wait_for
from texts import gzip_bomb, packed, text, zstd_bomb

MIB = 1 << 20


# ---- compressed bodies -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [500, 3 * MIB])
def test_compressed_bodies_are_routed_by_their_text(fleet, size):
    """[42] Plain, gzip and zstd reach the replica in a form it reads, and all match the same prefix."""
    router, engines = fleet.start(3)
    prompt = text(size, f"packed-{size}")
    plain = chat_body(prompt)
    first = router.post("/v1/chat/completions", plain)
    home = fleet.by_name(first.replica)
    for how in (None, "gzip", "deflate", "zstd"):
        data, encoding = packed(plain, how)
        headers = [("Content-Encoding", encoding)] if encoding else []
        answer = router.post("/v1/chat/completions", data, headers, timeout=40)
        assert answer.status == 200, (how, answer)
        assert answer.replica == home.name and (answer.match > 0.15 * size or size < 1000), how
        seen = home.last()
        assert seen.body == data and seen.header("content-encoding") == encoding, "the client's own bytes"
        assert seen.json == json.loads(plain), how
        assert int(seen.header("content-length") or 0) == len(seen.body) or seen.chunked
    assert sum(e.count() for e in engines) == 5


@pytest.mark.skipif(not shutil.which("zstd"), reason="no zstd program to compress with")
@pytest.mark.parametrize("level", ["-1", "-19", "--long=23"])
def test_zstd_of_all_levels(fleet, level):
    """[42] Really compressed, by the reference program; windows up to the 8 MiB that HTTP allows (RFC 9659)."""
    router, (engine,) = fleet.start(1, "--forward-decoded", "on")
    plain = chat_body(text(400_000, "for-zstd"))
    data = subprocess.run(["zstd", "-q", "-c", level], input=plain, stdout=subprocess.PIPE, check=True).stdout
    assert len(data) < len(plain) / 2
    assert router.post("/v1/chat/completions", data, [("Content-Encoding", "zstd")]).status == 200
    assert engine.last().body == plain
    assert router.post("/v1/chat/completions", plain).match > 50000


@pytest.mark.parametrize("how", ["gzip", "deflate", "zstd"])
def test_bodies_are_sent_on_decoded_when_configured(fleet, how):
    """[42] For engines that refuse compressed bodies."""
    router, (engine,) = fleet.start(1, "--forward-decoded", "on")
    plain = chat_body(text(5000))
    data, encoding = packed(plain, how)
    assert router.post("/v1/chat/completions", data, [("Content-Encoding", encoding)]).status == 200
    assert engine.last().body == plain and engine.last().all("content-encoding") == []
    assert engine.last().header("content-length") == str(len(plain))


@pytest.mark.parametrize("how", ["gzip", "zstd"])
def test_a_small_body_that_unpacks_to_gigabytes_is_refused(fleet, how):
    """[42] Refused with 413, memory flat."""
    router, (engine,) = fleet.start(1)
    router.chat("warm-up")
    engine.forget()
    before = router.memory()
    start = b'{"model":"m","messages":[{"role":"user","content":"'
    data = gzip_bomb(2048 * MIB, start) if how == "gzip" else zstd_bomb(2048 * MIB)
    assert len(data) < 3 * MIB
    answer = router.post("/v1/chat/completions", data, [("Content-Encoding", how)], timeout=60)
    assert answer.status == 413 and answer.code == "body_too_large"
    assert not engine.requests
    if not sanitized():
        assert router.memory() - before < 200 * MIB
    assert router.chat("still there").status == 200


@pytest.mark.parametrize("encoding", ["br", "x-made-up", "gzip, zstd"])
def test_an_unknown_encoding_is_forwarded_untouched(fleet, encoding):
    """[42] Routed by load, bytes as they came."""
    router, (engine,) = fleet.start(1)
    engine.script = reply(200, b'{"ok":1}')
    data = bytes(range(256)) * 4
    assert router.post("/v1/chat/completions", data, [("Content-Encoding", encoding)]).status == 200
    assert engine.last().body == data and engine.last().header("content-encoding") == encoding


@pytest.mark.parametrize("how", ["gzip", "zstd"])
def test_a_broken_compressed_body_is_the_engines_to_judge(fleet, how):
    router, (engine,) = fleet.start(1)
    data, encoding = packed(chat_body(text(5000)), how)
    answer = router.post("/v1/chat/completions", data[:len(data) // 2], [("Content-Encoding", encoding)])
    assert answer.status == 400
    if engine.requests:
        assert engine.last().body == data[:len(data) // 2] and engine.last().header("content-encoding") == encoding
    assert router.chat("still there").status == 200


# ---- long waits ---------------------------------------------------------------------------------------------------------


def test_no_hidden_limit_on_the_wait_for_a_head(fleet):
    """[44] Scaled: every limit that has a default in seconds is set to 300 ms, the head comes after 3 s."""
    router, (engine,) = fleet.start(1, "--connect-timeout", "300ms", "--head-timeout", "300ms", "--health-timeout", "300ms",
                                    "--keep-alive", "300ms", "--pool-idle", "300ms", "--drain-timeout", "300ms",
                                    "--queue-timeout", "300ms")
    engine.script = reply(200, b'{"ok":1}', delay=3.0)
    assert router.chat().json == {"ok": 1}
    engine.script = sse(["late"], head_delay=0.1, first=2.0)
    assert router.chat(stream=True).complete


@pytest.mark.parametrize("stream, script", [(False, hang()), (True, hang()), (True, hang(head=True))])
def test_the_first_byte_limit_fires_when_set_and_says_so(fleet, stream, script):
    """[44] [60] It fails at the limit with 504 that names the option, and is not repeated elsewhere."""
    router, engines = fleet.start(2, "--first-byte-timeout", "700ms")
    for engine in engines:
        engine.script = script
    started = time.monotonic()
    answer = router.chat(stream=stream)
    assert 0.65 < time.monotonic() - started < 3
    assert answer.status == 504 and answer.code == "upstream_timeout"
    assert "first-byte-timeout" in answer.json["error"]["message"]
    assert sum(e.count() for e in engines) == 1, "B got nothing"
    wait_for(lambda: all(e.active == 0 for e in engines), what="the work was called off")


def test_the_idle_limit_ends_a_silent_stream(fleet):
    """[44]"""
    router, (engine,) = fleet.start(1, "--idle-timeout", "500ms")
    engine.script = sse(["one"], end=HANG)
    started = time.monotonic()
    answer = router.chat(stream=True)
    assert 0.4 < time.monotonic() - started < 3
    assert answer.status == 200 and not answer.complete
    wait_for(lambda: engine.active == 0, what="the engine's side closed")


def test_a_replica_that_cannot_be_connected_to_is_left_in_time(fleet, hub):
    """[44] [49] A listener whose queue is full: the connect limit fires and another replica answers."""
    import socket
    good = fleet.engine()
    trap = socket.socket()
    trap.bind(("127.0.0.1", 0))
    trap.listen(0)
    plugs = []
    for _ in range(4):
        plug = socket.socket()
        plug.setblocking(False)
        plug.connect_ex(trap.getsockname())
        plugs.append(plug)
    url = "http://127.0.0.1:%d" % trap.getsockname()[1]
    router = fleet.router("--connect-timeout", "300ms", "--replica", f"{url},name=trap,models=m", replicas=[good], ready=False)
    router.wait_ready(good)
    for _ in range(5):
        started = time.monotonic()
        assert router.chat(text(300)).replica == good.name
        assert time.monotonic() - started < 2
    for sock in [trap, *plugs]:
        sock.close()


# ---- bodies -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunked", [None, 8000], ids=["length", "chunked"])
@pytest.mark.parametrize("size", [100_000, 3 * MIB, 40 * MIB])
def test_long_bodies_arrive_unchanged(fleet, size, chunked):
    """[45]"""
    router, (engine,) = fleet.start(1)
    engine.script = reply(200, b'{"ok":1}')
    body = chat_body(text(1000) + "y" * size)
    answer = router.post("/v1/chat/completions", body, chunked=chunked and size // 50, timeout=60)
    assert answer.json == {"ok": 1}
    assert engine.last().body == body


def test_many_long_bodies_at_once(fleet):
    """[45] Fifty bodies of 3 MB in parallel, memory within reason."""
    router, engines = fleet.start(2)
    for engine in engines:
        engine.script = reply(200, b'{"ok":1}')
    bodies = [chat_body(f"{n}" + "z" * (3 * MIB)) for n in range(50)]
    answers = together([lambda b=b, n=n: router.post("/v1/chat/completions", b, chunked=[None, 100000][n % 2], timeout=90)
                        for n, b in enumerate(bodies)], timeout=120)
    assert all(a.status == 200 for a in answers)
    got = [r.body for e in engines for r in e.requests]
    assert sorted(map(hash, got)) == sorted(map(hash, bodies))
    if not sanitized():
        assert router.memory() < 700 * MIB


def test_body_limit(fleet):
    """[45] 413 beyond --max-body, told before the body is sent where a length is announced, and the connection goes on
    being sane."""
    router, (engine,) = fleet.start(1, "--max-body", "1MiB")
    fits = chat_body("f" * (MIB - 200))
    assert len(fits) <= MIB
    assert router.post("/v1/chat/completions", fits).status == 200
    engine.forget()
    with router.connect() as conn:
        conn.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n{" % (MIB + 1))
        answer = conn.response()
        assert answer.status == 413 and answer.code == "body_too_large" and "max-body" in answer.json["error"]["message"]
    with router.connect() as conn:
        conn.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            for _ in range(20):
                conn.send(b"%x\r\n%b\r\n" % (100000, b"c" * 100000))
        except OSError:
            pass
        answer = conn.response()
        assert answer.status == 413 and answer.code == "body_too_large"
    assert not engine.requests


def test_body_limit_can_be_raised(fleet):
    """[45] 120 MB with --max-body 128MiB."""
    router, (engine,) = fleet.start(1, "--max-body", "128MiB")
    engine.script = reply(200, b'{"ok":1}')
    body = chat_body("y" * (120 * 1000 * 1000))
    assert router.post("/v1/chat/completions", body, timeout=90).status == 200
    assert engine.last().body == body


def test_answers_before_the_whole_body_was_sent(fleet):
    """An engine that refuses early (413) is heard although the body is not through."""
    router, (engine,) = fleet.start(1)

    async def refuse(request, out):
        await out.whole(413, b'{"error":{"message":"engine says no"}}', [("Connection", "close")])
        out.keep_alive = False
    engine.script = refuse
    answer = router.post("/v1/chat/completions", chat_body("q" * (8 * MIB)), timeout=30)
    assert answer.status == 413 and b"engine says no" in answer.body


# ---- connections ---------------------------------------------------------------------------------------------------------


def test_idle_connections_that_the_engine_closes_cause_no_errors(fleet):
    """[47] The engine closes after 150 ms; requests come at gaps just around it. No error, and nothing runs twice."""
    router, (engine,) = fleet.start(1)
    engine.idle_close = 0.15
    with router.connect() as conn:
        for number in range(60):
            time.sleep(0.140 + (number % 21) / 1000)
            conn.request("POST", "/v1/chat/completions", [("x-number", str(number))], chat_body(f"n{number}"))
            assert conn.response().status == 200, number
    seen = [r.header("x-number") for r in engine.requests]
    assert seen == [str(n) for n in range(60)], "each exactly once"


def test_a_stale_connection_is_replaced_once_and_safely(fleet):
    """[47] The engine resets the reused connection when the next request comes: a new connection gets it, the client
    sees nothing, and the replica is not blamed."""
    router, (engine,) = fleet.start(1, "--threads", "1")
    assert router.chat("first").status == 200
    for conn in list(engine.live):
        original = conn.data_received

        def slam(data, conn=conn, original=original):
            if data.startswith(b"POST"):
                conn.close("reset")
            else:
                original(data)
        conn.data_received = slam
    answer = router.chat("second")
    assert answer.status == 200
    assert engine.count() == 2
    assert router.state(engine) == "ready"


def test_upstream_connections_are_kept_and_reused(fleet):
    router, (engine,) = fleet.start(1, "--threads", "1")
    for number in range(30):
        assert router.chat(f"n{number}").status == 200
    assert len({r.conn for r in engine.requests}) == 1
    assert router.metrics().sum("upstream_connections_total", kind="reused") >= 29


def test_pooled_connections_are_given_up_in_time(fleet):
    router, (engine,) = fleet.start(1, "--pool-idle", "300ms")
    router.chat("a")
    number = engine.last().conn
    conn = engine.connections[number - 1]
    wait_for(lambda: conn.closed_at, 3, "closed by the router")
    assert conn.closed_by == "peer"
    router.chat("b")
    assert engine.last().conn != number


def test_client_connections_are_kept_alive(fleet):
    router, (engine,) = fleet.start(1)
    with router.connect() as conn:
        for number in range(20):
            conn.request("POST", "/v1/chat/completions", body=chat_body(f"n{number}", stream=bool(number % 2)),
                         chunked=[None, 10][number % 3 == 0])
            assert conn.response().complete
    assert engine.count() == 20


def test_idle_clients_are_closed_after_keep_alive(fleet):
    router, (engine,) = fleet.start(1, "--keep-alive", "300ms")
    with router.connect() as conn:
        conn.request("POST", "/v1/chat/completions", body=chat_body())
        assert conn.response().status == 200
        started = time.monotonic()
        assert conn.closed_by_peer(3)
        assert time.monotonic() - started > 0.2


# ---- headers -------------------------------------------------------------------------------------------------------------


def test_end_to_end_headers_pass_and_hop_by_hop_do_not(fleet):
    """[48]"""
    router, (engine,) = fleet.start(1)
    engine.script = reply(200, b"{}", [("X-Answer", "1"), ("x-twice", "a"), ("x-twice", "b"), ("Keep-Alive", "timeout=5"),
                                       ("X-Private", "gone"), ("Connection", "keep-alive, x-private"),
                                       ("Set-Cookie", "a=1"), ("Set-Cookie", "b=2")])
    sent = [("X-Custom", "one"), ("x-custom", "two"), ("Accept", "*/*"), ("Cookie", "c=d"), ("User-Agent", "test/1"),
            ("Connection", "keep-alive, X-Hop"), ("X-Hop", "secret"), ("Keep-Alive", "timeout=9"), ("TE", "trailers"),
            ("Proxy-Authorization", "Basic x"), ("Proxy-Connection", "keep-alive"), ("Authorization", "Bearer me"),
            ("X-Long", "v" * 20000), ("X-Empty", "")]
    answer = router.chat(headers=sent)
    seen = engine.last()
    assert seen.all("x-custom") == ["one", "two"]
    assert seen.header("accept") == "*/*" and seen.header("cookie") == "c=d" and seen.header("user-agent") == "test/1"
    assert seen.header("authorization") == "Bearer me" and seen.header("x-long") == "v" * 20000
    assert seen.all("x-empty") == [""]
    for name in ("x-hop", "keep-alive", "te", "proxy-authorization", "proxy-connection", "expect", "upgrade"):
        assert seen.all(name) == [], name
    assert not any("x-hop" in v.lower() for v in seen.all("connection"))
    for name in ("host", "content-length", "content-type"):
        assert len(seen.all(name)) == 1, name
    assert seen.header("host") == engine.name, "the replica's own name"
    assert answer.all("x-twice") == ["a", "b"] and answer.all("set-cookie") == ["a=1", "b=2"]
    assert answer.header("x-answer") == "1" and answer.all("x-private") == []
    for name in ("content-length", "x-request-id", "x-kvroute-replica", "content-type"):
        assert len(answer.all(name)) == 1, name


def test_a_form_upload_keeps_its_bytes_and_credentials(fleet):
    """[48]"""
    router, (engine,) = fleet.start(1)
    body = (b"--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n" + bytes(range(256)) * 500 +
            b"\r\n--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--b--\r\n")
    engine.script = reply(200, b'{"text":"hi"}')
    answer = router.post("/v1/audio/transcriptions", body, [("Content-Type", "multipart/form-data; boundary=b"),
                                                            ("Authorization", "Bearer k")])
    seen = engine.last()
    assert answer.json == {"text": "hi"} and seen.body == body
    assert seen.header("content-type") == "multipart/form-data; boundary=b" and seen.header("authorization") == "Bearer k"


@pytest.mark.parametrize("target", ["/v1/chat/completions?api-version=2026&x=%2F", "/v1/models/some%20model", "/a//b/../c",
                                    "/x?y=1?z=2", "/%E2%82%AC"])
def test_the_target_passes_as_it_is(fleet, target):
    router, (engine,) = fleet.start(1)
    router.request("POST", target, chat_body())
    assert engine.last().target == target


def test_a_prefix_in_a_replicas_url_goes_before_the_path(fleet):
    engine = fleet.engine()

    async def health(request, out):
        await out.whole(200, b"")
    engine.routes["/llm/health"] = health
    engine.routes["/llm/v1/models"] = reply(
        200, b'{"object":"list","data":[{"id":"m","object":"model","owned_by":"vllm"}]}')
    router = fleet.router("--replica", f"{engine.url}/llm,name=p,engine=vllm", ready=False)
    router.wait_ready("p")
    assert router.chat().status == 200
    assert [r.path for r in engine.requests if r.method == "POST"] == ["/llm/v1/chat/completions"]


# ---- not in its own way ---------------------------------------------------------------------------------------------------


def test_a_hung_replica_does_not_slow_the_others(fleet):
    """[49] A accepts and never answers with 300 requests open; B is as quick as before."""
    a, b = fleet.engine(models=["m", "only-a"]), fleet.engine(models=["only-b"])
    router = fleet.router(replicas=[a, b])

    def sample():
        times = []
        for _ in range(60):
            started = time.monotonic()
            assert router.chat("quick", model="only-b").status == 200
            times.append(time.monotonic() - started)
        return statistics.median(times)
    before = sample()
    a.script = hang()
    conns = [router.start_chat(f"stuck {n}", model="only-a", stream=True) for n in range(300)]
    wait_for(lambda: a.count() == 300, 10, "300 requests at A")
    after = sample()
    for conn in conns:
        conn.close()
    assert after < before + 0.02, (before, after)
    wait_for(lambda: a.active == 0, 10, "A's work is called off")


def test_choosing_is_quick_and_health_is_not_starved(fleet):
    """[50] 500 kB prompts from 32 clients at once: a decision takes a millisecond or two, /healthz stays quick."""
    router, engines = fleet.start(2)
    for engine in engines:
        engine.script = reply(200, b'{"ok":1}')
    prompts = [chat_body(text(500_000, f"half-megabyte-{n}")) for n in range(4)]
    stop = threading.Event()
    waits = []

    def probe():
        while not stop.is_set():
            started = time.monotonic()
            assert router.get("/healthz").status == 200
            waits.append(time.monotonic() - started)
            time.sleep(0.02)
    prober = spawn(probe)
    together([lambda n=n: [router.post("/v1/chat/completions", prompts[(n + k) % 4], timeout=60) for k in range(3)]
              for n in range(32)], timeout=90)
    stop.set()
    prober.result(10)
    metrics = router.metrics()
    mean = metrics.sum("decision_seconds_sum") / metrics.sum("decision_seconds_count")
    if not sanitized():
        assert mean < 0.005, f"{mean * 1000:.2f} ms per decision"
        assert statistics.median(waits) < 0.25, sorted(waits)[-5:]


@pytest.mark.parametrize("shift", range(0, 64, 7))
def test_characters_across_block_boundaries(fleet, shift):
    """[51] 2-, 3- and 4-byte characters at every place of a block; bytes pass unchanged."""
    router, (engine,) = fleet.start(1)
    prompt = "a" * shift + "×λ語🎈" * 300
    for ascii_only in (True, False):
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": prompt}]}, ensure_ascii=ascii_only).encode()
        assert router.post("/v1/chat/completions", body).status == 200
        assert engine.last().body == body


# ---- stopping ---------------------------------------------------------------------------------------------------------------


def test_a_stop_signal_lets_running_streams_end(fleet):
    """[53] Ten streams of two seconds, the signal in the middle: all complete, new work is refused, then it exits."""
    router, engines = fleet.start(2)
    for engine in engines:
        engine.script = sse(["x"] * 20, gap=0.1)
    conns = [router.start_chat(f"s{n}", stream=True) for n in range(10)]
    idle = router.connect()
    heads = [c.head() for c in conns]
    router.terminate()
    time.sleep(0.3)
    assert router.alive()
    try:
        idle.request("POST", "/v1/chat/completions", body=chat_body())
        refused = idle.response()
        assert refused.status == 503 and refused.code == "draining"
    except (Broken, OSError):
        pass                                            # closing the listener is a refusal as well
    answers = [c.finish(h) for c, h in zip(conns, heads)]
    assert all(a.complete and len(a.events) == 20 for a in answers)
    assert router.wait_exit() == 0


def test_a_stop_has_a_limit(fleet):
    """[53]"""
    router, (engine,) = fleet.start(1, "--drain-timeout", "500ms")
    engine.script = sse(["x"], end=HANG)
    with router.start_chat(stream=True) as conn:
        head = conn.head()
        started = time.monotonic()
        router.terminate()
        assert router.wait_exit() == 0
        assert 0.4 < time.monotonic() - started < 5
        assert not conn.finish(head).complete


def test_a_second_signal_stops_at_once(fleet):
    """[53]"""
    router, (engine,) = fleet.start(1, "--drain-timeout", "1h")
    engine.script = sse(["x"], end=HANG)
    with router.start_chat(stream=True) as conn:
        conn.head()
        router.terminate()
        time.sleep(0.3)
        assert router.alive()
        router.terminate()
        router.broken_ok = True
        router.wait_exit(5)


def test_readiness_says_draining_before_the_end(fleet):
    """[53] [71] /readyz turns to 503 when the stop begins, /healthz stays 200: outer balancers get their warning."""
    router, (engine,) = fleet.start(1)
    assert router.get("/readyz").status == 200
    engine.script = sse(["x"] * 10, gap=0.1)
    with router.start_chat(stream=True) as conn:
        head = conn.head()
        router.terminate()
        time.sleep(0.2)
        try:
            ready = fetch(router.admin, "GET", "/readyz")
            assert ready.status == 503
            assert fetch(router.admin, "GET", "/healthz").status == 200
        except OSError:
            pass
        assert conn.finish(head).complete
    assert router.wait_exit() == 0
