# SPDX-License-Identifier: Apache-2.0
"""HTTP clients on plain sockets: they can stop, abort, half-close, dawdle or break the rules at any byte, and they tell
how an answer was framed and whether it really ended."""
import asyncio
import json
import select
import socket
import struct
import time

TIMEOUT = 20.0


class Broken(Exception):
    """The answer ended before it was complete."""


class Response:
    def __init__(self):
        self.status = 0
        self.reason = ""
        self.version = ""
        self.headers = []           # (name, value) in order of arrival
        self.head = b""             # exact bytes
        self.body = b""             # content, framing removed
        self.pieces = []            # (monotonic time, content) per read
        self.interim = []           # statuses of 1xx answers before it
        self.chunked = False
        self.complete = False       # ended as its framing demands
        self.head_at = None
        self.end_at = None
        self.trailers = b""

    def header(self, name):
        values = self.all(name)
        return values[0] if values else None

    def all(self, name):
        return [v for n, v in self.headers if n.lower() == name.lower()]

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def replica(self):
        return self.header("x-kvroute-replica")

    @property
    def match(self):
        return int(self.header("x-kvroute-match-tokens") or 0)

    @property
    def reason_header(self):
        return self.header("x-kvroute-reason")

    @property
    def code(self):
        """The error's code, in OpenAI's or Anthropic's shape."""
        return self.json["error"].get("code")

    @property
    def events(self):
        return parse_events(self.body)

    def __repr__(self):
        return f"<{self.status} {self.body[:200]!r} complete={self.complete}>"


def parse_events(body):
    """[(event name or None, data)] of an event stream; comments and incomplete tails are left out."""
    found = []
    for block in body.replace(b"\r\n", b"\n").split(b"\n\n")[:-1]:
        name, data = None, []
        for line in block.split(b"\n"):
            if line.startswith(b"event:"):
                name = line[6:].strip().decode()
            elif line.startswith(b"data:"):
                data.append(line[5:].lstrip(b" "))
        if data or name:
            found.append((name, b"\n".join(data).decode("utf-8", "replace")))
    return found


def address(target):
    """('127.0.0.1', port) of a URL, a pair, or anything with an `address`."""
    if isinstance(target, tuple):
        return target
    if hasattr(target, "address"):
        return target.address
    host, _, port = target.split("//", 1)[-1].split("/")[0].rpartition(":")
    return host, int(port)


def build(method, target, headers=(), body=None, *, chunked=None, version="HTTP/1.1", host="kvroute.test"):
    """Request bytes. `chunked` is a piece size; headers given replace the ones made here."""
    names = {n.lower() for n, _ in headers}
    lines = [f"{method} {target} {version}"]
    if host and "host" not in names:
        lines.append(f"Host: {host}")
    if body is not None and "content-type" not in names:
        lines.append("Content-Type: application/json")
    lines += [f"{n}: {v}" for n, v in headers]
    if body is not None and not names & {"content-length", "transfer-encoding"}:
        lines.append("Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(body)}")
    head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
    if body is None:
        return head
    return head + (chunks(body, chunked) if chunked else body)


def chunks(body, size):
    parts = [b"%x\r\n%b\r\n" % (len(body[i:i + size]), body[i:i + size]) for i in range(0, len(body), size)]
    return b"".join(parts) + b"0\r\n\r\n"


class Conn:
    """One client connection."""

    def __init__(self, target, *, timeout=TIMEOUT, rcvbuf=None, source=None):
        self.sock = socket.socket()
        if rcvbuf:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        self.sock.settimeout(timeout)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if source:
            self.sock.bind(source)
        self.sock.connect(address(target))
        self.buffer = b""
        self.eof = False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # ---- sending

    def send(self, data):
        self.sock.sendall(data)

    def request(self, method, target, headers=(), body=None, **options):
        self.send(build(method, target, headers, body, **options))

    # ---- leaving

    def close(self):
        self.sock.close()

    def abort(self):
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def half_close(self):
        self.sock.shutdown(socket.SHUT_WR)

    # ---- receiving

    def _fill(self):
        if self.eof:
            return False
        try:
            data = self.sock.recv(1 << 18)
        except (ConnectionResetError, BrokenPipeError):
            data = b""
        if not data:
            self.eof = True
            return False
        self.buffer += data
        return True

    def _line(self):
        while b"\r\n" not in self.buffer:
            if not self._fill():
                raise Broken(f"closed within a line: {self.buffer[:80]!r}")
        line, self.buffer = self.buffer.split(b"\r\n", 1)
        return line

    def head(self):
        """The next final response head; its interim answers are noted in it."""
        interim = []
        while True:
            while b"\r\n\r\n" not in self.buffer:
                if not self._fill():
                    raise Broken(f"closed before an answer: {self.buffer[:200]!r}")
            head, self.buffer = self.buffer.split(b"\r\n\r\n", 1)
            answer = Response()
            answer.head = head + b"\r\n\r\n"
            answer.head_at = time.monotonic()
            lines = head.decode("latin-1").split("\r\n")
            answer.version, status, answer.reason = (lines[0] + " ").split(" ", 2)
            answer.status = int(status)
            for line in lines[1:]:
                name, _, value = line.partition(":")
                answer.headers.append((name, value.strip(" ")))
            answer.chunked = (answer.header("transfer-encoding") or "").lower() == "chunked"
            if 100 <= answer.status < 200 and answer.status != 101:
                interim.append(answer.status)
                continue
            answer.interim = interim
            return answer

    def pieces(self, answer, method="POST"):
        """Content as it arrives; sets answer.complete at the proper end, raises Broken at another one."""
        def note(data):
            answer.pieces.append((time.monotonic(), data))
            return data
        if method == "HEAD" or answer.status in (204, 304) or answer.status < 200:
            answer.complete = True
        elif answer.chunked:
            while True:
                size = int(self._line().split(b";")[0], 16)
                if size == 0:
                    while True:
                        line = self._line()
                        if not line:
                            break
                        answer.trailers += line + b"\r\n"
                    answer.complete = True
                    break
                while size:
                    if not self.buffer and not self._fill():
                        raise Broken("closed within a chunk")
                    data, self.buffer = self.buffer[:size], self.buffer[size:]
                    size -= len(data)
                    yield note(data)
                if self._line():
                    raise Broken("no line end after a chunk")
        elif answer.header("content-length") is not None:
            left = int(answer.header("content-length"))
            while left:
                if not self.buffer and not self._fill():
                    raise Broken(f"closed {left} bytes early")
                data, self.buffer = self.buffer[:left], self.buffer[left:]
                left -= len(data)
                yield note(data)
            answer.complete = True
        else:
            while self.buffer or self._fill():
                data, self.buffer = self.buffer, b""
                yield note(data)
            answer.complete = True      # ends with the connection: cannot be told from a cut
        answer.end_at = time.monotonic()

    def finish(self, answer, method="POST"):
        """The rest of the body. A broken end leaves complete False."""
        parts = [answer.body] if answer.body else []
        try:
            for data in self.pieces(answer, method):
                parts.append(data)
        except Broken:
            pass
        answer.body = b"".join(parts)
        return answer

    def response(self, method="POST"):
        return self.finish(self.head(), method)

    def read(self, size=65536, timeout=None):
        """Raw bytes: what the buffer holds, or one read. b"" at the end."""
        if self.buffer:
            data, self.buffer = self.buffer[:size], self.buffer[size:]
            return data
        if timeout is not None:
            if not select.select([self.sock], [], [], timeout)[0]:
                raise TimeoutError
        try:
            return self.sock.recv(size)
        except ConnectionResetError:
            return b""

    def closed_by_peer(self, timeout=2.0):
        """Whether the other side ends the connection within `timeout`; what it still sends is dropped."""
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            try:
                if self.read(timeout=left) == b"":
                    return True
            except TimeoutError:
                return False


def fetch(target, method, path, headers=(), body=None, *, timeout=TIMEOUT, **options):
    """One request on a connection of its own."""
    with Conn(target, timeout=timeout) as conn:
        conn.request(method, path, headers, body, **options)
        return conn.response(method)


def chat_body(prompt="hello", *, stream=None, model="m", **extra):
    """A chat request as bytes; the prompt is a text or a list of messages."""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    body = {"model": model, "messages": messages}
    if stream is not None:
        body["stream"] = stream
    return json.dumps(body | extra).encode()


# ---- many at once -----------------------------------------------------------------------------------------------------


async def afetch(target, data, *, read=True, started=None, timeout=60):
    """Sends prepared bytes and reads one answer on the hub's loop: (status, headers in lower case, body, complete).
    For tests with thousands of connections, where a thread each would be the bottleneck."""
    reader, writer = await asyncio.wait_for(asyncio.open_connection(*address(target)), timeout)
    try:
        writer.write(data)
        if started:
            started()
        return await asyncio.wait_for(aread(reader), timeout) if read else None
    finally:
        writer.close()


async def aread(reader):
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return 0, {}, b"", False
    lines = head[:-4].decode("latin-1").split("\r\n")
    status = int(lines[0].split(" ")[1])
    headers = {n.lower(): v.strip() for n, _, v in (line.partition(":") for line in lines[1:])}
    body = bytearray()
    try:
        if headers.get("transfer-encoding") == "chunked":
            while True:
                size = int(await reader.readuntil(b"\r\n"), 16)
                data = await reader.readexactly(size + 2)
                if size == 0:
                    return status, headers, bytes(body), True
                body += data[:-2]
        length = int(headers.get("content-length", 0))
        return status, headers, await reader.readexactly(length), True
    except (asyncio.IncompleteReadError, ConnectionError):
        return status, headers, bytes(body), False
