# SPDX-License-Identifier: Apache-2.0
"""A scripted inference engine: an HTTP server on raw sockets whose every misdeed is under the test's control.

Nothing here is polite by default of a library: bytes are recorded as they came, connections are numbered, and an answer
can be delayed, cut, reset or left unfinished at any byte. All engines of a test process share one event loop in one
background thread (the hub); tests themselves stay ordinary synchronous code.

    engine = Engine(hub, kind="vllm", models=["m"])          # answers like a small LLM with a prefix cache
    engine.next(reply(429, headers=[("Retry-After", "2")]))  # ... except for the next request
    engine.script = sse(["a", "b"], gap=0.1, end=RESET)      # ... or for all of them

It can also be run as a process of its own, for tests that need something to kill: python3 engine.py --port N.
"""
import argparse
import asyncio
import collections
import errno
import gzip
import json
import os
import random
import socket
import struct
import threading
import time
import zlib

FIN = "fin"      # close the connection in an orderly way
RESET = "reset"  # close it with a TCP reset
HANG = "hang"    # say nothing more and wait until the other side gives up
DONE = "done"    # end the answer properly

REASONS = {100: "Continue", 101: "Switching Protocols", 200: "OK", 204: "No Content", 304: "Not Modified",
           400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed", 413: "Too Large",
           422: "Unprocessable", 429: "Too Many Requests", 500: "Internal Server Error", 501: "Not Implemented",
           502: "Bad Gateway", 503: "Service Unavailable", 504: "Gateway Timeout"}

BYTES_PER_TOKEN = 4


class Hub:
    """One event loop in one thread. run() and call() are for other threads."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._main, name="hub", daemon=True)
        self.thread.start()

    def _main(self):
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def run(self, coroutine, timeout=60):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout)

    def call(self, function, *args):
        async def wrapped():
            return function(*args)
        return self.run(wrapped())

    def close(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(5)


class Request:
    """What one request looked like on the wire, and what became of it."""

    def __init__(self, conn, head, at):
        self.conn = conn.number
        self.at = at                # monotonic seconds: the head was complete
        self.body_at = None         # the body was complete
        self.first_byte_at = None   # we wrote the first byte of an answer
        self.gone_at = None         # the other side closed before we were done
        self.gone_how = None        # FIN or RESET
        self.finished_at = None     # our script ran to its end
        self.head = head            # exact bytes, blank line included
        lines = head[:-4].split(b"\r\n")
        self.request_line = lines[0].decode("latin-1")
        self.method, self.target, self.version = self.request_line.split(" ", 2)
        self.path = self.target.split("?", 1)[0]
        self.headers = []
        for line in lines[1:]:
            name, _, value = line.decode("latin-1").partition(":")
            self.headers.append((name, value.strip(" \t")))
        self.body = b""             # content, framing removed
        self.framed = b""           # the body exactly as it came
        self.chunked = "chunked" in (self.header("transfer-encoding") or "").lower()
        self.trailers = b""

    def header(self, name):
        values = self.all(name)
        return values[0] if values else None

    def all(self, name):
        return [v for n, v in self.headers if n.lower() == name.lower()]

    @property
    def json(self):
        data = self.body
        if "gzip" in (self.header("content-encoding") or ""):
            data = gzip.decompress(data)
        elif "deflate" in (self.header("content-encoding") or ""):
            data = zlib.decompress(data)
        elif "zstd" in (self.header("content-encoding") or ""):
            data = zstd_stored(data)
        return json.loads(data)

    def __repr__(self):
        return f"<{self.request_line} conn={self.conn} body={len(self.body)}>"


def zstd_stored(data):
    """The content of a zstd frame of raw blocks, the only kind that these tests make (texts.zstd_store)."""
    content, at, last = b"", 6, False
    while not last:
        head = int.from_bytes(data[at:at + 3], "little")
        last, size = head & 1, head >> 3
        if data[:4] != b"\x28\xb5\x2f\xfd" or head & 6 or at + 3 + size > len(data):
            raise ValueError("not a whole zstd frame of raw blocks")
        content += data[at + 3:at + 3 + size]
        at += 3 + size
    return content


class Gone(Exception):
    """The other side closed the connection."""


class Connection(asyncio.Protocol):
    def __init__(self, engine):
        self.engine = engine
        self.buffer = bytearray()
        self.opened_at = time.monotonic()
        self.closed_at = None
        self.closed_by = None       # "peer" or "engine"
        self.eof_at = None
        self.served = 0
        self.request = None
        self.task = None
        self.transport = None
        self.number = 0
        self._wake = asyncio.Event()
        self._can_write = asyncio.Event()
        self._can_write.set()

    # ---- asyncio's side

    def connection_made(self, transport):
        self.transport = transport
        self.number = self.engine._register(self)
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.task = self.engine.hub.loop.create_task(self._serve())

    def data_received(self, data):
        self.buffer += data
        self._wake.set()

    def eof_received(self):
        self._left(FIN)
        return True     # we decide ourselves when to close

    def connection_lost(self, error):
        self._left(RESET if error else FIN)
        self.closed_at = self.closed_at or time.monotonic()
        self.closed_by = self.closed_by or "peer"
        self.engine.live.discard(self)
        if self.task:
            self.task.cancel()

    def pause_writing(self):
        self._can_write.clear()

    def resume_writing(self):
        self._can_write.set()

    def _left(self, how):
        if self.closed_by == "engine":
            return
        if self.eof_at is None:
            self.eof_at = time.monotonic()
            if self.request and self.request.finished_at is None:
                self.request.gone_at = self.eof_at
                self.request.gone_how = how
        self._wake.set()
        # Real engines take a FIN for "gone" and drop the work; so do we, unless the test wants to look closer.
        if not self.engine.ignore_eof:
            if self.task:
                self.task.cancel()
            self.closed_by = self.closed_by or "peer"
            self.transport.close()

    # ---- reading

    async def _more(self, timeout=None):
        if self.eof_at:
            raise Gone()
        self._wake.clear()
        try:
            await asyncio.wait_for(self._wake.wait(), timeout)
        except asyncio.TimeoutError:
            raise Gone() from None

    async def _until(self, mark, start=0, timeout=None):
        while True:
            at = self.buffer.find(mark, start)
            if at >= 0:
                return at + len(mark)
            await self._more(timeout)

    async def take(self, count):
        while len(self.buffer) < count:
            await self._more()
        data = bytes(self.buffer[:count])
        del self.buffer[:count]
        return data

    async def _body(self, request):
        if request.chunked:
            content, framed = bytearray(), bytearray()
            while True:
                end = await self._until(b"\r\n")
                line = bytes(self.buffer[:end])
                del self.buffer[:end]
                framed += line
                size = int(line.split(b";")[0].strip(), 16)
                if size == 0:
                    while True:
                        end = await self._until(b"\r\n")
                        line = bytes(self.buffer[:end])
                        del self.buffer[:end]
                        framed += line
                        if line == b"\r\n":
                            break
                        request.trailers += line
                    break
                data = await self.take(size + 2)
                framed += data
                content += data[:-2]
            request.body, request.framed = bytes(content), bytes(framed)
        else:
            length = int(request.header("content-length") or 0)
            request.body = request.framed = await self.take(length) if length else b""
        request.body_at = time.monotonic()

    # ---- serving

    async def _serve(self):
        engine = self.engine
        try:
            while True:
                idle = engine.idle_close if self.served else None
                if not self.buffer:
                    try:
                        await asyncio.wait_for(self._wake.wait(), idle)
                    except asyncio.TimeoutError:
                        self.close(FIN)
                        return
                end = await self._until(b"\r\n\r\n")
                head = bytes(self.buffer[:end])
                del self.buffer[:end]
                request = Request(self, head, time.monotonic())
                self.request = request
                engine._note(request)
                if (request.header("expect") or "").lower() == "100-continue" and engine.send_continue:
                    self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                await self._body(request)
                self._wake.clear()
                self.served += 1
                reply = Reply(self, request)
                working = request.path not in engine.CONTROL
                engine.active += working
                try:
                    await engine._handler(request)(request, reply)
                finally:
                    engine.active -= working
                request.finished_at = time.monotonic()
                if self.transport.is_closing():
                    return
                if not reply.keep_alive or engine.close_after and self.served >= engine.close_after:
                    self.close(FIN)
                    return
        except Gone:
            self.close(FIN)
        except asyncio.CancelledError:
            pass
        except Exception as error:      # a malformed request or a broken script: the fixture fails the test
            engine.protocol_errors.append(repr(error))
            self.close(RESET)

    def write(self, data):
        if self.transport.is_closing():
            raise Gone()
        if self.request and self.request.first_byte_at is None:
            self.request.first_byte_at = time.monotonic()
        self.transport.write(data)

    async def drained(self):
        await self._can_write.wait()
        if self.transport.is_closing():
            raise Gone()

    def close(self, how):
        if self.transport.is_closing():
            return
        self.closed_by = self.closed_by or "engine"
        self.closed_at = time.monotonic()
        if how == RESET:
            sock = self.transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()
        else:
            self.transport.close()


class Reply:
    """The answering side of a request, as low as needed: whole answers, chunks, or raw bytes."""

    def __init__(self, conn, request):
        self.conn = conn
        self.request = request
        self.chunked = False
        self.keep_alive = request.version == "HTTP/1.1" and "close" not in (request.header("connection") or "").lower()

    @property
    def engine(self):
        return self.conn.engine

    def raw(self, data):
        self.conn.write(data)

    def head(self, status=200, headers=(), *, length=None, chunked=False, version="HTTP/1.1"):
        lines = [f"{version} {status} {REASONS.get(status, 'Unknown')}"]
        if self.engine.server_header:
            lines.append(f"Server: {self.engine.server_header}")
        lines += [f"{n}: {v}" for n, v in headers]
        self.chunked = chunked
        if chunked:
            lines.append("Transfer-Encoding: chunked")
        elif length is not None:
            lines.append(f"Content-Length: {length}")
        self.conn.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))

    async def whole(self, status, body=b"", headers=(), content_type="application/json"):
        if isinstance(body, (dict, list)):
            body = json.dumps(body).encode()
        headers = list(headers)
        if content_type and not any(n.lower() == "content-type" for n, _ in headers):
            headers.append(("Content-Type", content_type))
        if self.engine.kind == "llamacpp" and 400 <= status < 500:
            headers.append(("Connection", "close"))
            self.keep_alive = False
        self.head(status, headers, length=len(body))
        if self.request.method != "HEAD":
            self.conn.write(body)
        await self.conn.drained()

    async def chunk(self, data):
        if self.chunked:
            self.conn.write(b"%x\r\n" % len(data) + data + b"\r\n")
        else:
            self.conn.write(data)
        await self.conn.drained()

    async def end(self, how=DONE):
        if how == DONE:
            if self.chunked:
                self.conn.write(b"0\r\n\r\n")
            if self.engine.kind == "llamacpp":
                self.keep_alive = False     # closes after every stream, whatever it said in the head
        elif how == HANG:
            await self.forever()
        else:
            # What was written before must have left, or a reset would overtake it.
            while self.conn.transport.get_write_buffer_size():
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.02)
            self.conn.close(how)

    async def forever(self):
        await asyncio.Event().wait()


# ---- scripts: handlers made of parts ----------------------------------------------------------------------------------


def reply(status=200, body=b"{}", headers=(), delay=0.0, content_type="application/json"):
    """A whole answer after a delay."""
    async def handler(_request, out):
        if delay:
            await asyncio.sleep(delay)
        await out.whole(status, body, headers, content_type)
    return handler


def raw(*parts):
    """Bytes are written, numbers are waited for, FIN / RESET / HANG end it."""
    async def handler(_request, out):
        out.keep_alive = False
        for part in parts:
            if isinstance(part, bytes):
                out.raw(part)
                await out.conn.drained()
            elif isinstance(part, (int, float)):
                await asyncio.sleep(part)
            else:
                await out.end(part)
                return
        out.keep_alive = True
    return handler


def event(data, name=None):
    """One server-sent event; objects become JSON."""
    if not isinstance(data, str):
        data = json.dumps(data)
    return ((f"event: {name}\n" if name else "") + f"data: {data}\n\n").encode()


def delta(text, model="m", **extra):
    """A chat completion chunk."""
    return event({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": model,
                  "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}], **extra})


DONE_EVENT = b"data: [DONE]\n\n"


def sse(events, *, head_delay=0.0, first=0.0, gap=0.0, end=DONE, status=200, headers=(), chunked=True, hold=None):
    """A stream: head after head_delay, first event after `first` more, then one per `gap`; strings become chat deltas.
    With `hold` (a threading.Event) the end waits until the test sets it."""
    async def handler(_request, out):
        if head_delay:
            await asyncio.sleep(head_delay)
        out.head(status, [("Content-Type", "text/event-stream"), ("Cache-Control", "no-cache"), *headers],
                 chunked=chunked)
        if not chunked:
            out.keep_alive = False
        for number, item in enumerate(events):
            pause = first if number == 0 else gap
            if pause:
                await asyncio.sleep(pause)
            await out.chunk(item if isinstance(item, bytes) else delta(item))
        while hold is not None and not hold.is_set():
            await asyncio.sleep(0.01)
        await out.end(end)
    return handler


def die(how=FIN, after=0.0, head=False):
    """Takes the request and closes without an answer, or after the head alone."""
    async def handler(_request, out):
        if head:
            out.head(200, [("Content-Type", "text/event-stream")], chunked=True)
        if after:
            await asyncio.sleep(after)
        await out.end(how)
    return handler


def hang(head=False):
    return die(HANG, head=head)


def until(gate, then=None):
    """Waits for a threading.Event, then answers (by default as the LLM does)."""
    async def handler(request, out):
        while not gate.is_set():
            await asyncio.sleep(0.005)
        await (then or out.engine.llm)(request, out)
    return handler


def flood(total, piece=65536, line_breaks=True, start=b""):
    """A stream of `total` bytes as fast as the other side takes them."""
    async def handler(_request, out):
        out.head(200, [("Content-Type", "text/event-stream")], chunked=True)
        if start:
            await out.chunk(start)
        sent, data = 0, (b"data: " + b"x" * (piece - 8) + b"\n\n") if line_breaks else b"y" * piece
        while sent < total:
            await out.chunk(data[:min(piece, total - sent)])
            sent += min(piece, total - sent)
        await out.end()
    return handler


# ---- the prefix cache -------------------------------------------------------------------------------------------------


class PrefixCache:
    """Blocks of prompt text, chained to their parents, least recently used out first and tails before heads.

    keep=N models a server with slots instead: it remembers its last N prompts whole.
    """

    def __init__(self, block_tokens=16, capacity_blocks=1 << 30, keep=None):
        self.block_tokens = block_tokens
        self.capacity = capacity_blocks
        self.keep = keep
        self.blocks = collections.OrderedDict()
        self.prompts = []

    def clear(self):
        self.blocks.clear()
        self.prompts.clear()

    def _chain(self, namespace, text):
        size, key, keys = self.block_tokens * BYTES_PER_TOKEN, hash(namespace), []
        for at in range(0, len(text) - size + 1, size):
            key = hash((key, text[at:at + size]))
            keys.append(key)
        return keys

    def serve(self, namespace, text):
        """(prompt tokens, cached tokens) of a prompt, which is cached afterwards."""
        total = max(1, (len(text) + BYTES_PER_TOKEN - 1) // BYTES_PER_TOKEN)
        if self.keep is not None:
            best = 0
            for entry in self.prompts:
                if entry[0] == namespace:
                    best = max(best, len(os.path.commonprefix([entry[1], text])))
            mine = max((e for e in self.prompts if e[0] == namespace and text.startswith(e[1])), default=None,
                       key=lambda e: len(e[1]))
            if mine:
                self.prompts.remove(mine)
            self.prompts.append((namespace, text))
            del self.prompts[:-self.keep]
            return total, min(best // BYTES_PER_TOKEN, total - 1)
        keys = self._chain(namespace, text)
        matched = 0
        while matched < len(keys) and keys[matched] in self.blocks:
            matched += 1
        for key in reversed(keys):
            self.blocks[key] = None
            self.blocks.move_to_end(key)
        while len(self.blocks) > self.capacity:
            self.blocks.popitem(last=False)
        return total, min(matched, (total - 1) // self.block_tokens) * self.block_tokens


def prompt_of(path, body):
    """(namespace, text) of a request the way an engine would render it, roughly."""
    def flat(content):
        if isinstance(content, str):
            return content
        if isinstance(content, list):
            return "".join(p.get("text") or json.dumps(p, sort_keys=True) if isinstance(p, dict) else str(p)
                           for p in content)
        return "" if content is None else json.dumps(content)
    namespace = (body.get("model"), body.get("cache_salt"))
    text = ""
    if body.get("tools"):
        text += json.dumps(body["tools"])
    if path.endswith("/completions") and "messages" not in body:
        prompt = body.get("prompt")
        if isinstance(prompt, list):
            text += "".join(p if isinstance(p, str) else f"{p}," for p in prompt)
        else:
            text += prompt if isinstance(prompt, str) else json.dumps(prompt)
    else:
        text += flat(body.get("system") or body.get("instructions"))
        source = body.get("messages") or body.get("input") or []
        if isinstance(source, str):
            source = [{"role": "user", "content": source}]
        for message in source:
            message = message if isinstance(message, dict) else {"content": str(message)}
            text += f"<{message.get('role')}>{flat(message.get('content'))}"
    return namespace, text


# ---- the engine -------------------------------------------------------------------------------------------------------

SERVER_HEADERS = {"vllm": "uvicorn", "sglang": "uvicorn", "llamacpp": "llama.cpp", "openai": None}
OWNERS = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llamacpp", "openai": "someone"}
PORTS = range(10000, 32000)     # below the range from which outgoing connections take theirs


def free_socket(port=0, host="127.0.0.1"):
    """A bound socket on loopback; its port will not be taken by a passing client connection while we restart."""
    for _ in range(200):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port or random.choice(PORTS)))
            return sock
        except OSError as error:
            sock.close()
            if error.errno != errno.EADDRINUSE:
                raise
            if port:
                time.sleep(0.05)
    raise OSError("no free port")


class Engine:
    def __init__(self, hub, kind="vllm", models=("m",), *, port=0, speed=None, gap=0.0, tokens=4, block_tokens=16,
                 capacity_blocks=1 << 30, keep=None, usage=True, start=True,
                 host="127.0.0.1"):
        self.host = host            # the address to listen on
        self.hub, self.kind, self.models = hub, kind, list(models)
        self.speed = speed          # prefill tokens per second, one prompt at a time; None: no time at all
        self.gap = gap              # seconds between output tokens
        self.tokens = tokens        # output tokens unless the request says max_tokens
        self.usage = usage          # report cached tokens
        self.cache = PrefixCache(block_tokens, capacity_blocks, keep)
        self.script = None          # handler for every inference request; None: the small LLM
        self.routes = {}            # path -> handler, for inference and control paths alike
        self.health = reply(200, b"")
        self.gauges = {}            # overrides of reported figures: running, waiting, kv_usage, capacity_tokens, ...
        self.idle_close = None      # seconds; None: never
        self.close_after = 100 if kind == "llamacpp" else None
        self.ignore_eof = False     # True: a FIN from the router does not end our work
        self.send_continue = True
        self.server_header = SERVER_HEADERS[kind]
        self.requests = []          # inference and unknown paths, in order of arrival
        self.polls = []             # health, models, metrics and other look-ups by the router itself
        self.connections = []
        self.live = set()
        self.active = 0
        self.protocol_errors = []
        self.prompt_tokens = self.cached_tokens = self.served = 0
        self._queue = collections.deque()
        self._server = None
        self._prefill = None
        self._sock = free_socket(port, host)
        self.port = self._sock.getsockname()[1]
        if start:
            self.start()

    @property
    def url(self):
        return f"http://{self.host}:{self.port}"

    @property
    def name(self):
        return f"{self.host}:{self.port}"

    def __repr__(self):
        return f"<engine {self.port} {len(self.requests)} requests>"

    # ---- life

    def start(self):
        """Also a restart in place: same port, empty cache."""
        self.cache.clear()

        async def go():
            self._prefill = asyncio.Lock()
            sock = self._sock or free_socket(self.port, self.host)
            self._sock = None
            self._server = await self.hub.loop.create_server(lambda: Connection(self), sock=sock, backlog=4096)
        self.hub.run(go())

    def stop(self, how=RESET):
        """As a killed process: port closed, every connection cut."""
        async def go():
            if self._server:
                self._server.close()
                self._server = None
            self.drop(how)
            await asyncio.sleep(0)
            try:
                self._sock = free_socket(self.port, self.host)     # bound but not listening: connections are refused
            except OSError:
                self._sock = None
        if self._server:
            self.hub.run(go())

    def drop(self, how=RESET):
        for conn in list(self.live):
            if conn.task:
                conn.task.cancel()
            conn.close(how)

    def close(self):
        self.stop()
        if self._sock:
            self._sock.close()
            self._sock = None

    # ---- record

    def _register(self, conn):
        self.connections.append(conn)
        self.live.add(conn)
        return len(self.connections)

    CONTROL = {"/health", "/ready", "/metrics", "/v1/models", "/load", "/v1/loads", "/get_load", "/version", "/props",
               "/slots", "/server_info", "/get_server_info", "/model_info", "/get_model_info", "/kv_event_sources",
               "/tokenize", "/info", "/api/version", "/is_sleeping", "/prometheus/metrics", "/health_generate"}

    def _note(self, request):
        (self.polls if request.path in self.CONTROL else self.requests).append(request)

    def count(self, path=None):
        return sum(1 for r in self.requests if path is None or r.path == path)

    def forget(self):
        """Starts the record anew."""
        self.requests.clear()
        self.polls.clear()
        self.prompt_tokens = self.cached_tokens = self.served = 0

    def last(self):
        return self.requests[-1]

    # ---- answers

    def next(self, *handlers):
        """Handlers for the next inference requests, ahead of the script."""
        self._queue.extend(handlers)

    def _handler(self, request):
        if request.path in self.routes:
            return self.routes[request.path]
        if request.path in self.CONTROL:
            return self._control
        if self._queue:
            return self._queue.popleft()
        return self.script or self.llm

    async def _control(self, request, out):
        path = request.path
        if path in ("/health", "/ready"):
            if path == "/ready" and self.kind != "sglang":
                await out.whole(404, {"detail": "Not Found"})
            else:
                await self.health(request, out)
        elif path == "/v1/models":
            entries = [{"id": m, "object": "model", "created": 1, "owned_by": OWNERS[self.kind]} for m in self.models]
            if self.kind == "vllm":
                for entry in entries:
                    entry |= {"root": entry["id"], "parent": None, "max_model_len": 131072}
            await out.whole(200, {"object": "list", "data": entries})
        elif path == "/metrics" and self.kind != "openai":
            await out.whole(200, self.metrics_text().encode(), content_type="text/plain; version=0.0.4")
        elif path == "/version" and self.kind == "vllm":
            await out.whole(200, {"version": "0.32.0"})
        elif path == "/load" and self.kind == "vllm":
            await out.whole(200, {"server_load": self.gauges.get("load", 0)})
        elif path == "/props" and self.kind == "llamacpp":
            await out.whole(200, {"build_info": "b11669-test", "total_slots": self.gauges.get("slots", 4),
                                  "default_generation_settings": {"n_ctx": 32768}, "model_path": "/m.gguf"})
        elif path == "/slots" and self.kind == "llamacpp":
            await out.whole(200, [{"id": i, "n_ctx": 32768, "is_processing": False}
                                  for i in range(self.gauges.get("slots", 4))])
        elif path in ("/server_info", "/get_server_info") and self.kind == "sglang":
            await out.whole(200, {"version": "0.5.23", "page_size": self.cache.block_tokens, "kv_events": None,
                                  "max_total_num_tokens": self.gauges.get("capacity_tokens", 100000)})
        elif path == "/v1/loads" and self.kind == "sglang":
            await out.whole(200, {"timestamp": time.time(), "version": "0.5.23", "loads": [
                {"timestamp": time.time(), "dp_rank": 0, "num_running_reqs": self.gauges.get("running", self.active),
                 "num_waiting_reqs": self.gauges.get("waiting", 0), "num_waiting_uncached_tokens": 0,
                 "max_total_num_tokens": self.gauges.get("capacity_tokens", 100000),
                 "token_usage": self.gauges.get("kv_usage", 0.0)}]})
        else:
            await out.whole(404, {"detail": "Not Found"})

    def metrics_text(self):
        g = self.gauges
        running, waiting, usage = g.get("running", self.active), g.get("waiting", 0), g.get("kv_usage", 0.0)
        capacity, block = g.get("capacity_tokens", 1000000), self.cache.block_tokens
        lines = []

        def gauge(name, value, labels=""):
            if value is not None:
                lines.append(f"# TYPE {name} gauge\n{name}{labels} {value}")
        if self.kind == "vllm":
            labels = '{engine="0",model_name="%s"}' % self.models[0]
            gauge("vllm:num_requests_running", running, labels)
            gauge("vllm:num_requests_waiting", waiting, labels)
            gauge("vllm:kv_cache_usage_perc", usage, labels)
            if capacity is not None:
                gauge("vllm:cache_config_info", 1.0, '{block_size="%d",enable_prefix_caching="True",engine="0",'
                      'kv_cache_size_tokens="%d",num_gpu_blocks="%d"}' % (block, capacity, capacity // block))
        elif self.kind == "sglang":
            labels = '{engine_type="unified",model_name="%s",tp_rank="0"}' % self.models[0]
            gauge("sglang:num_running_reqs", running, labels)
            gauge("sglang:num_queue_reqs", waiting, labels)
            gauge("sglang:token_usage", usage, labels)
            gauge("sglang:max_total_num_tokens", capacity, labels)
        elif self.kind == "llamacpp":
            gauge("llamacpp:requests_processing", running)
            gauge("llamacpp:requests_deferred", waiting)
        return "\n".join(lines) + "\n"

    async def llm(self, request, out):
        """A small language model: counts tokens, keeps a prefix cache, streams if asked to."""
        if request.method not in ("POST",):
            await out.whole(200, {"path": request.path, "method": request.method})
            return
        try:
            body = request.json
            assert isinstance(body, dict)
        except (ValueError, AssertionError, OSError, EOFError, zlib.error):
            known = request.path.startswith("/v1/")
            await out.whole(400 if known else 200, {"error": {"message": "not a JSON object", "type": "BadRequestError",
                                                              "param": None, "code": 400}})
            return
        namespace, text = prompt_of(request.path, body)
        total, cached = self.cache.serve(namespace, text)
        self.prompt_tokens += total
        self.cached_tokens += cached
        self.served += 1
        if self.speed:
            async with self._prefill:
                await asyncio.sleep((total - cached) / self.speed)
        count = body.get("max_tokens") or body.get("max_completion_tokens") or body.get("max_output_tokens")
        count = min(count if isinstance(count, int) else self.tokens, 4096)
        await speak(self, request, out, body, total, cached, count)


async def speak(engine, request, out, body, total, cached, count):
    """Writes the answer in the shape of the API that the path names."""
    words = [f"w{i} " for i in range(count)]
    model = body.get("model") or engine.models[0]
    details = {"cached_tokens": cached} if engine.usage else None
    number = f"{engine.port}-{len(engine.requests)}"
    timings = {"cache_n": cached, "prompt_n": total - cached, "predicted_n": count}
    extra = {"timings": timings} if engine.kind == "llamacpp" else {}
    path, stream = request.path, bool(body.get("stream"))
    if path == "/v1/messages":
        usage = {"input_tokens": total - cached, "output_tokens": count}
        if engine.usage:
            usage |= {"cache_read_input_tokens": cached, "cache_creation_input_tokens": 0}
        message = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": model, "stop_sequence": None}
        if not stream:
            await out.whole(200, message | {"content": [{"type": "text", "text": "".join(words)}], "usage": usage,
                                            "stop_reason": "end_turn"})
            return
        parts = [("message_start", {"type": "message_start", "message": message | {
            "content": [], "stop_reason": None, "usage": usage | {"output_tokens": 0}}}),
            ("content_block_start", {"type": "content_block_start", "index": 0,
                                     "content_block": {"type": "text", "text": ""}})]
        parts += [("content_block_delta", {"type": "content_block_delta", "index": 0,
                                           "delta": {"type": "text_delta", "text": w}}) for w in words]
        parts += [("content_block_stop", {"type": "content_block_stop", "index": 0}),
                  ("message_delta", {"type": "message_delta", "delta": {"stop_reason": "end_turn",
                                                                        "stop_sequence": None}, "usage": usage}),
                  ("message_stop", {"type": "message_stop"})]
        events = [event(data, name) for name, data in parts]
    elif path == "/v1/responses":
        answer = {"id": f"resp_{number}", "object": "response", "created_at": 1, "status": "completed", "model": model,
                  "output": [{"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
                              "content": [{"type": "output_text", "text": "".join(words), "annotations": []}]}],
                  "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
                  "usage": {"input_tokens": total, "input_tokens_details": {"cached_tokens": cached},
                            "output_tokens": count, "output_tokens_details": {"reasoning_tokens": 0},
                            "total_tokens": total + count}}
        if not stream:
            await out.whole(200, answer)
            return
        started = answer | {"status": "in_progress", "output": [], "usage": None}
        events = [event({"type": "response.created", "response": started}, "response.created")]
        events += [event({"type": "response.output_text.delta", "delta": w}, "response.output_text.delta")
                   for w in words]
        events.append(event({"type": "response.completed", "response": answer}, "response.completed"))
    elif path in ("/v1/chat/completions", "/v1/completions"):
        chat = path == "/v1/chat/completions"
        usage = {"prompt_tokens": total, "completion_tokens": count, "total_tokens": total + count,
                 "prompt_tokens_details": details}
        base = {"id": f"{'chatcmpl' if chat else 'cmpl'}-{number}", "created": 1, "model": model}

        def choice(text, finish=None, streamed=True):
            if chat:
                part = {"role": "assistant", "content": text}
                return {"index": 0, "delta" if streamed else "message": part, "finish_reason": finish}
            return {"index": 0, "text": text, "finish_reason": finish}
        if not stream:
            base["object"] = "chat.completion" if chat else "text_completion"
            await out.whole(200, base | {"choices": [choice("".join(words), "stop", False)], "usage": usage} | extra)
            return
        base["object"] = "chat.completion.chunk" if chat else "text_completion"
        asked = (body.get("stream_options") or {}).get("include_usage")
        events = [event(base | {"choices": [choice(w)]} | ({"usage": None} if asked else {})) for w in words]
        events.append(event(base | {"choices": [choice("", "stop")]} | ({"usage": None} if asked else {}) |
                            (extra if not asked else {})))
        if asked:
            events.append(event(base | {"choices": [], "usage": usage} | extra))
        events.append(DONE_EVENT)
    else:
        await out.whole(200, {"path": path, "data": [], "usage": {"prompt_tokens": total, "total_tokens": total}})
        return
    out.head(200, [("Content-Type", "text/event-stream; charset=utf-8")], chunked=True)
    for item in events:
        await out.chunk(item)
        if engine.gap:
            await asyncio.sleep(engine.gap)
    await out.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--kind", default="vllm", choices=sorted(OWNERS))
    parser.add_argument("--model", action="append")
    parser.add_argument("--speed", type=float)
    parser.add_argument("--gap", type=float, default=0.0)
    args = parser.parse_args()
    engine = Engine(Hub(), args.kind, args.model or ["m"], port=args.port, speed=args.speed, gap=args.gap)
    print(engine.url, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
