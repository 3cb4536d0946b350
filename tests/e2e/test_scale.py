# SPDX-License-Identifier: Apache-2.0
"""Many connections, slow readers, endless lines, and memory that stays where it should."""
import asyncio
import random
import resource
import threading
import time

import pytest

from client import aread, build, chat_body
from engine import flood, hang, reply, sse
from harness import sanitized, spawn, together, wait_for
from texts import text

MIB = 1 << 20


# ---- memory ------------------------------------------------------------------------------------------------------------------


def test_slow_readers_and_endless_lines_do_not_fill_memory(fleet):
    """[80] Twenty clients stop reading in the middle of 40 MB streams; others are unaffected; all bytes arrive in the end."""
    router, (engine,) = fleet.start(1)
    total = 40 * MIB
    router.chat("warm")
    before = router.memory()
    engine.next(*[flood(total, line_breaks=bool(n % 2)) for n in range(20)])
    conns = []
    for number in range(20):
        conn = router.connect(rcvbuf=65536, timeout=60)
        conn.request("POST", "/v1/chat/completions", body=chat_body(stream=True))
        conns.append((conn, conn.head()))
    time.sleep(1.0)
    if not sanitized():
        grown = router.memory() - before
        assert grown < 40 * MIB, f"{grown >> 20} MiB for streams that nobody reads"
    started = time.monotonic()
    assert router.chat("others").status == 200
    assert time.monotonic() - started < 1.0

    def drain(conn, head):
        count = sum(len(data) for data in conn.pieces(head))
        conn.close()
        return count, head.complete
    for count, complete in together([lambda c=c, h=h: drain(c, h) for c, h in conns[:4]], timeout=90):
        assert count == total and complete
    for conn, _ in conns[4:]:
        conn.abort()
    if not sanitized():
        assert router.memory() - before < 60 * MIB


def test_a_line_of_50_megabytes_passes(fleet):
    """[80]"""
    router, (engine,) = fleet.start(1)
    router.chat("warm")
    before = router.memory()
    engine.script = flood(50 * MIB, line_breaks=False, start=b"data: ")
    with router.connect(timeout=60) as conn:
        conn.request("POST", "/v1/chat/completions", body=chat_body(stream=True))
        head = conn.head()
        count = sum(len(data) for data in conn.pieces(head))
    assert head.complete and count == 50 * MIB + 6
    if not sanitized():
        assert router.memory() - before < 30 * MIB


def test_large_answers_are_not_gathered(fleet):
    router, (engine,) = fleet.start(1)
    router.chat("warm")
    before = router.memory()

    async def big(request, out):
        out.head(200, [("Content-Type", "application/json")], length=80 * MIB)
        for _ in range(80):
            await out.chunk(b"z" * MIB)
    engine.script = big
    with router.connect(timeout=60) as conn:
        conn.request("POST", "/v1/chat/completions", body=chat_body())
        head = conn.head()
        assert sum(len(data) for data in conn.pieces(head)) == 80 * MIB and head.complete
    if not sanitized():
        assert router.memory() - before < 40 * MIB


def test_the_index_keeps_its_limit(fleet):
    """[78] Scaled: distinct 8 kB prompts far beyond a cap of 4 MiB; memory is flat and lookups still work."""
    router, (engine,) = fleet.start(1, "--index-memory", "4MiB")
    engine.gauges["capacity_tokens"] = 1 << 40
    engine.script = reply(200, b'{"ok":1}')
    paragraphs = [text(500, f"paragraph-{n}") for n in range(64)]

    def churn(worker, count):
        rng = random.Random(worker)
        with router.connect() as conn:
            for number in range(count):
                body = chat_body(f"{worker}-{number} " + " ".join(rng.choice(paragraphs) for _ in range(16)))
                conn.request("POST", "/v1/chat/completions", body=body)
                assert conn.response().status == 200
    together([lambda w=w: churn(w, 400) for w in range(8)], timeout=60)
    middle = router.memory()
    metrics = router.metrics()
    assert metrics.sum("index_bytes") <= 4 * MIB == metrics.sum("index_bytes_max")
    together([lambda w=w: churn(w + 100, 400) for w in range(8)], timeout=60)
    metrics = router.metrics()
    assert metrics.sum("index_bytes") <= 4 * MIB and metrics.sum("index_evictions_total") > 0
    if not sanitized():
        assert router.memory() - middle < 8 * MIB, "flat under churn"
    fresh = text(8000)
    router.chat(fresh)
    assert router.match_of(chat_body(fresh), engine) > 1000


def test_memory_is_flat_over_many_requests(fleet):
    router, engines = fleet.start(2)
    prompts = [text(3000, f"flat-{n}") for n in range(20)]

    def work(count):
        def one(worker):
            with router.connect() as conn:
                for number in range(count):
                    conn.request("POST", "/v1/chat/completions", body=chat_body(prompts[(worker + number) % 20],
                                                                                stream=bool(number % 2)))
                    assert conn.response().complete
        together([lambda w=w: one(w) for w in range(8)], timeout=60)
    work(150)
    middle = router.memory()
    descriptors = router.descriptors()
    work(400)
    if not sanitized():
        assert router.memory() - middle < 4 * MIB
    assert router.descriptors() <= descriptors + 8


def test_bodies_in_memory_have_a_budget(fleet):
    """[45] Beyond --body-memory a request is refused with 503, not killed with the rest."""
    router, (engine,) = fleet.start(1, "--body-memory", "8MiB", "--max-body", "6MiB")
    engine.script = hang()
    conns = []
    for _ in range(4):
        conn = router.connect()
        conn.send(build("POST", "/v1/chat/completions", [("Content-Length", str(5 * MIB))], b""))
        conn.sock.settimeout(2)
        try:
            conn.send(b"q" * (5 * MIB - 1))
        except OSError:
            pass
        conns.append(conn)
    refused = 0
    for conn in conns:
        try:
            data = conn.read(timeout=1)
        except (TimeoutError, OSError):
            continue
        refused += data.startswith(b"HTTP/1.1 503")
    assert 2 <= refused <= 3
    assert router.metrics().sum("body_memory_bytes") <= 8 * MIB
    for conn in conns:
        conn.close()
    engine.script = None
    wait_for(lambda: router.metrics().sum("body_memory_bytes") < MIB, what="given back")
    assert router.chat().status == 200


# ---- numbers -------------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_ten_thousand_idle_and_two_thousand_active(fleet):
    """[49] 10,000 idle client connections and 2,000 streams at once on two engines: every stream complete, a new request
    is answered meanwhile, memory per connection stays small, everything is given back."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    active = 2000 if hard >= 19000 else 400
    idle = min(10000, hard - 4 * active - 500)
    router, engines = fleet.start(2, "--keep-alive", "10m", "--max-connections", "20000")
    gate = threading.Event()
    for engine in engines:
        engine.script = sse(["one", "two"], hold=gate)
    before = router.memory()

    async def open_idle():
        conns, at_once = [], asyncio.Semaphore(200)

        async def one():
            async with at_once:
                conns.append(await asyncio.open_connection(*router.address))
        await asyncio.gather(*[one() for _ in range(idle)])
        return conns

    async def close_all(conns):
        for _, writer in conns:
            writer.close()

    idle_conns = fleet.hub.run(open_idle(), 60)
    wait_for(lambda: router.metrics().sum("client_connections") >= idle, 10, "all idle connections there")
    per_idle = (router.memory() - before) / idle
    data = build("POST", "/v1/chat/completions", body=chat_body("active", stream=True))

    async def run_active():
        at_once = asyncio.Semaphore(200)

        async def one():
            async with at_once:
                reader, writer = await asyncio.open_connection(*router.address)
                writer.write(data)
            try:
                return await asyncio.wait_for(aread(reader), 60)
            finally:
                writer.close()
        return await asyncio.gather(*[one() for _ in range(active)])

    running = spawn(fleet.hub.run, run_active(), 90)
    wait_for(lambda: sum(e.active for e in engines) == active, 40, "all streams at the engines", every=0.1)
    in_flight = sum(e["in_flight"] for e in router.replicas().values())
    assert in_flight == active
    counts = [e.active for e in engines]
    assert max(counts) - min(counts) <= active * 0.2, counts
    assert router.get("/readyz").status == 200
    per_active = (router.memory() - before) / active
    gate.set()
    results = running.result(90)
    assert all(status == 200 and complete for status, _, _, complete in results)
    fleet.hub.run(close_all(idle_conns), 60)
    wait_for(lambda: router.metrics().sum("client_connections") <= 2, 10, "all closed")
    if not sanitized():
        assert per_idle < 4096, f"{per_idle:.0f} bytes for an idle connection"
        assert per_active < 100_000, f"{per_active:.0f} bytes for a stream"


@pytest.mark.slow
def test_out_of_descriptors_means_clean_refusals_and_recovery(fleet):
    """[49] 2,000 streams with room for 1,024 descriptors: no crash, no hang, and fine again afterwards."""
    engines = [fleet.engine() for _ in range(2)]
    router = fleet.router(replicas=engines, files=1024)
    gate = threading.Event()
    for engine in engines:
        engine.script = sse(["one", "two"], hold=gate)
    data = build("POST", "/v1/chat/completions", body=chat_body("x", stream=True))

    async def run():
        at_once = asyncio.Semaphore(100)

        async def one():
            try:
                async with at_once:
                    reader, writer = await asyncio.wait_for(asyncio.open_connection(*router.address), 20)
                    writer.write(data)
                try:
                    return (await asyncio.wait_for(aread(reader), 30))[0::3]
                finally:
                    writer.close()
            except (OSError, asyncio.TimeoutError) as error:
                return type(error).__name__, False
        return await asyncio.gather(*[one() for _ in range(2000)])
    running = spawn(fleet.hub.run, run(), 120)
    time.sleep(3)
    assert router.alive()
    gate.set()
    results = running.result(120)
    served = sum(r == (200, True) for r in results)
    assert served >= 200, served
    assert not [r for r in results if r == (200, False)], "nothing that had begun was cut"
    assert not [r for r in results if r[0] in ("TimeoutError",)], "nobody hangs"
    wait_for(lambda: router.chat("after").status == 200, 10, "recovered")
    router.wait_idle()


def test_connections_beyond_the_limit_are_closed(fleet):
    router, (engine,) = fleet.start(1, "--max-connections", "20")
    conns = [router.connect() for _ in range(20)]
    time.sleep(0.2)
    extra = router.connect()
    assert extra.closed_by_peer(3)
    for conn in conns:
        conn.close()
    wait_for(lambda: router.metrics().sum("client_connections") == 0, 5, "room again")
    assert router.chat().status == 200
    assert router.metrics().sum("client_connections_refused_total") >= 1


@pytest.mark.slow
def test_everything_at_once(fleet):
    """A mixed minute in a few seconds: streams, aborts, slow readers, retries, a replica that restarts, a reload; the books
    balance afterwards."""
    router, engines = fleet.start(3, engine={"gap": 0.005, "tokens": 10})
    stop = time.monotonic() + 6
    problems = []

    def client(worker):
        rng = random.Random(worker)
        while time.monotonic() < stop:
            stream = rng.random() < 0.6
            prompt = text(2000, f"mixed-{rng.randrange(12)}") + text(rng.choice([20, 2000]), f"{worker}-{rng.random()}")
            conn = router.connect()
            try:
                conn.request("POST", "/v1/chat/completions", body=chat_body(prompt, stream=stream),
                             chunked=rng.choice([None, 333]))
                fate = rng.random()
                if fate < 0.15:
                    time.sleep(rng.random() * 0.05)
                    (conn.abort if fate < 0.08 else conn.close)()
                    continue
                answer = conn.response()
                if answer.status != 200:
                    problems.append(answer)
            except OSError as error:
                problems.append(error)
            finally:
                conn.close()
    clients = [spawn(client, n) for n in range(24)]
    for _ in range(3):
        time.sleep(1.2)
        engines[0].stop()
        time.sleep(0.4)
        engines[0].start()
        router.signal(1)
    for c in clients:
        c.result(30)
    assert router.alive()
    assert len(problems) <= 3, problems[:5]
    router.wait_idle()
    metrics = router.metrics()
    assert metrics.sum("requests_total") > 500
    served = sum(e.served for e in engines)
    assert metrics.sum("requests_total", code="200") <= served
