# SPDX-License-Identifier: Apache-2.0
"""The real binary as a child process: start it on free ports, wait for its ready line, read its books, end it."""
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import threading
import time

from client import Conn, chat_body, fetch

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("KVROUTE_BIN") or str(ROOT / "build" / "kvroute")
READY = re.compile(r"kvroute: ready on (\S+?)(?:, \S+)* \(admin (\S+)\), (\d+) replicas?")
READY_NO_ADMIN = re.compile(r"kvroute: ready on (http\S+?)[, ]")
SANITIZER = re.compile(r"(AddressSanitizer|ThreadSanitizer|LeakSanitizer|MemorySanitizer|runtime error:)")
# Sanitizers and a busy machine make everything slower; waits are bounds, not sleeps, so they may be generous.
PATIENCE = float(os.environ.get("KVROUTE_TEST_PATIENCE", "1"))


def sanitized():
    """Whether the binary carries a sanitizer (limits on memory and speed then say nothing)."""
    with open(BINARY, "rb") as file:
        data = file.read()
    return b"__asan_init" in data or b"__tsan_init" in data


def wait_for(condition, timeout=5.0, what="condition", every=0.02):
    """Polls until condition() is true and returns its value; fails the test otherwise."""
    deadline = time.monotonic() + timeout * PATIENCE
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout} s: {what} (last value {value!r})")
        time.sleep(every)


def stays(condition, seconds, what="condition", every=0.02):
    """Fails if condition() turns false within the given time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert condition(), what
        time.sleep(every)


class Metrics:
    """A page in Prometheus' text format."""

    LINE = re.compile(r'^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)(?: \d+)?$')
    LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

    def __init__(self, text):
        self.text = text
        self.samples = collections.defaultdict(list)
        self.types = {}
        for line in text.splitlines():
            if line.startswith("# TYPE "):
                _, _, name, kind = line.split(" ", 3)
                self.types[name] = kind
            elif line and not line.startswith("#"):
                match = self.LINE.match(line)
                assert match, f"not a sample: {line!r}"
                labels = dict(self.LABEL.findall(match[2] or ""))
                self.samples[match[1]].append((labels, float(match[3])))

    def sum(self, name, **labels):
        """Sum over the samples of that name (kvroute_ is added) with these labels."""
        return sum(v for have, v in self.samples.get("kvroute_" + name, [])
                   if all(have.get(k) == w for k, w in labels.items()))

    def has(self, name):
        return "kvroute_" + name in self.samples


class Finished:
    def __init__(self, process):
        self.status = process.returncode
        self.out = process.stdout
        self.err = process.stderr

    def __repr__(self):
        return f"<exit {self.status} out={self.out!r} err={self.err!r}>"


def kvroute(*args, timeout=20, env=None, stdin=None):
    """Runs a command to its end."""
    return Finished(subprocess.run([BINARY, *map(str, args)], capture_output=True, text=True, input=stdin,
                                   timeout=timeout * PATIENCE, env={**os.environ, **(env or {})}))


class Router:
    """kvroute serve. Options are given as on the command line; fast polling is the tests' default."""

    def __init__(self, *args, replicas=(), env=None, files=None, defaults=True, wait=True, admin=True, out=None):
        command = [BINARY, "serve"]
        given = " ".join(map(str, args))
        if defaults:
            if "--listen" not in given:
                command += ["--listen", "127.0.0.1:0"]
            if not any(arg == "--admin" or arg.startswith("--admin=") for arg in map(str, args)):
                command += ["--admin", "127.0.0.1:0" if admin else "off"]
            if "--health-interval" not in given:
                command += ["--health-interval", "100ms"]
            if "--metrics-interval" not in given:
                command += ["--metrics-interval", "100ms"]
        command += [str(a) for a in args]
        for replica in replicas:
            if isinstance(replica, str):
                command += ["--replica", replica]
            else:
                command += ["--replica", replica.url]
        self.command = command
        self.lines = []
        self.out = []
        self.broken_ok = False      # the test kills it on purpose

        def limits():
            if files:
                resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE if out is None else out, stderr=subprocess.PIPE,
                                        env={**os.environ, **(env or {})},
                                        preexec_fn=limits if files else None)
        self._threads = [threading.Thread(target=self._read, args=(stream, lines), daemon=True)
                         for stream, lines in ((self.process.stderr, self.lines), (self.process.stdout, self.out)) if stream]
        for thread in self._threads:
            thread.start()
        self.address = self.admin = None
        if wait:
            self.wait_started()

    @staticmethod
    def _read(stream, lines):
        for line in stream:
            lines.append(line.decode("utf-8", "replace").rstrip("\n"))

    @property
    def err(self):
        return "\n".join(self.lines)

    @property
    def pid(self):
        return self.process.pid

    @property
    def url(self):
        return "http://%s:%d" % self.address

    @property
    def admin_url(self):
        return "http://%s:%d" % self.admin

    def wait_started(self):
        def ready():
            if self.process.poll() is not None:
                raise AssertionError(f"exit {self.process.returncode} at start: {self.err}")
            return next((line for line in list(self.lines) if line.startswith("kvroute: ready on ")), None)
        line = wait_for(ready, 10, "the ready line", every=0.005)
        self.ready_line = line

        def pair(url):
            host, _, port = url.split("//")[1].rpartition(":")
            return host, int(port)
        match = READY.match(line)
        if match:
            self.address, self.admin = pair(match[1]), pair(match[2])
        else:
            self.address = pair(READY_NO_ADMIN.match(line)[1])

    # ---- asking

    def request(self, method, path, body=None, headers=(), **options):
        return fetch(self.address, method, path, headers, body, **options)

    def post(self, path, body, headers=(), **options):
        if isinstance(body, (dict, list)):
            body = json.dumps(body).encode()
        return self.request("POST", path, body, headers, **options)

    def get(self, path, headers=(), **options):
        return self.request("GET", path, None, headers, **options)

    def chat(self, prompt="hello", headers=(), *, path="/v1/chat/completions", timeout=20, **extra):
        return self.post(path, chat_body(prompt, **extra), headers, timeout=timeout)

    def connect(self, **options):
        return Conn(self.address, **options)

    def start_chat(self, prompt="hello", headers=(), **extra):
        """A connection with the request sent and nothing read."""
        conn = self.connect()
        conn.request("POST", "/v1/chat/completions", headers, chat_body(prompt, **extra))
        return conn

    # ---- admin

    def admin_request(self, method, path, body=None, headers=()):
        if isinstance(body, (dict, list)):
            body = json.dumps(body).encode()
        if not any(name.lower() == "host" for name, _ in headers):
            headers = [*headers, ("Host", "%s:%d" % self.admin)]
        return fetch(self.admin, method, path, headers, body)

    def metrics(self):
        answer = self.admin_request("GET", "/metrics")
        assert answer.status == 200, answer
        return Metrics(answer.body.decode())

    def replicas(self):
        """{name: entry} of /kvroute/replicas."""
        answer = self.admin_request("GET", "/kvroute/replicas")
        assert answer.status == 200, answer
        entries = answer.json
        if isinstance(entries, dict):
            entries = entries["replicas"]
        return {entry["name"]: entry for entry in entries}

    def ledger(self, by=None):
        answer = self.admin_request("GET", "/kvroute/ledger" + (f"?by={by}" if by else ""))
        assert answer.status == 200, answer
        return answer.json

    def replica(self, which):
        return self.replicas()[which if isinstance(which, str) else which.name]

    def state(self, which):
        entry = self.replicas().get(which if isinstance(which, str) else which.name)
        return entry and entry["state"]

    def explain(self, body, path="/v1/chat/completions"):
        if isinstance(body, str):
            body = chat_body(body)
        answer = self.admin_request("POST", f"/kvroute/explain?path={path}", body)
        assert answer.status == 200, answer
        return answer.json

    def match_of(self, body, which, path="/v1/chat/completions"):
        """Tokens that the router believes `which` holds of this request."""
        name = which if isinstance(which, str) else which.name
        return next(c["match_tokens"] for c in self.explain(body, path)["candidates"] if c["replica"] == name)

    def wait_ready(self, *engines, timeout=8):
        names = [e if isinstance(e, str) else e.name for e in engines]

        def all_ready():
            entries = self.replicas()
            picked = names or list(entries)
            return all(entries.get(n, {}).get("state") == "ready" and
                       entries[n].get("models") not in (None, []) for n in picked)
        wait_for(all_ready, timeout, f"ready and models known of {names or 'all'}")
        return self

    def add(self, engine, **extra):
        url = engine if isinstance(engine, str) else engine.url
        answer = self.admin_request("POST", "/kvroute/replicas", {"url": url, **extra})
        assert answer.status in (200, 201, 202), answer
        return answer

    def remove(self, which):
        name = which if isinstance(which, str) else which.name
        answer = self.admin_request("DELETE", f"/kvroute/replicas/{name}")
        assert answer.status in (200, 202, 204), answer
        return answer

    # ---- at rest

    def busy(self):
        return {name: (e["in_flight"], e["uncached_tokens_booked"]) for name, e in self.replicas().items()
                if e["in_flight"] or e["uncached_tokens_booked"]}

    def wait_idle(self, timeout=5):
        last = {}

        def idle():
            nonlocal last
            last = self.busy()
            return not last
        try:
            wait_for(idle, timeout, "no load booked")
        except AssertionError:
            raise AssertionError(f"load still booked at rest (in_flight, uncached tokens): {last}") from None

    def alive(self):
        return self.process.poll() is None

    def memory(self):
        """Resident bytes."""
        with open(f"/proc/{self.pid}/status") as file:
            for line in file:
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) * 1024
        raise AssertionError("no VmRSS")

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    # ---- ending

    def signal(self, number):
        self.process.send_signal(number)

    def terminate(self):
        self.signal(signal.SIGTERM)

    def wait_exit(self, timeout=10):
        self.process.wait(timeout * PATIENCE)
        for thread in self._threads:
            thread.join(5)
        return self.process.returncode

    def check_and_stop(self):
        """The invariants at rest, then an orderly end: what every test checks on its way out."""
        if self.process.poll() is None and not self.broken_ok:
            if self.admin:
                self.wait_idle()
            self.terminate()
            try:
                code = self.wait_exit()
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.wait_exit()
                raise AssertionError(f"did not end within 10 s of SIGTERM while idle\n{self.tail()}") from None
            assert code == 0, f"exit status {code} after SIGTERM\n{self.tail()}"
        elif self.process.poll() is None:
            self.process.kill()
            self.wait_exit()
        else:
            code = self.wait_exit()
            assert code == 0 or self.broken_ok, f"ended by itself: {code}\n{self.tail()}"
        found = SANITIZER.search(self.err)
        assert not found, self.err
        return self

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def tail(self, count=60):
        return "\n".join(self.lines[-count:])


POOL = concurrent.futures.ThreadPoolExecutor(max_workers=256, thread_name_prefix="client")


def spawn(function, *args, **kwargs):
    return POOL.submit(function, *args, **kwargs)


def together(functions, timeout=60):
    """Runs all at once (up to 256) and returns their results in order."""
    futures = [POOL.submit(f) for f in functions]
    return [f.result(timeout * PATIENCE) for f in futures]


def shares(answers):
    """{replica: part of the answers}."""
    counts = collections.Counter(a.replica for a in answers)
    return {name: n / len(answers) for name, n in counts.items()}
