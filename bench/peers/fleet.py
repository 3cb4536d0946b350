# SPDX-License-Identifier: Apache-2.0
"""The replicas behind the routers: real engines that the repository's own scripts start, or kvroute mock. Each is started
once and emptied between two measurements; all have a toy model on this machine's processor."""
import os
import pathlib
import re
import subprocess

from common import ROOT, Failed, Process, ask, free_port, http, say, wait_for

SCRIPTS = ROOT / "scripts"


def call(*argv, timeout=900):
    done = subprocess.run([str(word) for word in argv], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=timeout, check=False)
    if done.returncode:
        raise Failed((done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1])
    return done.stdout


def sample(url, name):
    """Sum over a counter's series on a metrics page."""
    page = http("GET", url + "/metrics")[1]
    return sum(float(value) for value in re.findall(r"(?m)^" + re.escape(name) + r"(?:\{[^}]*\})? (\S+)", page))


class Fleet:
    """urls, model, and for engines with KV events the endpoints by URL."""
    model, block_tokens, has_events = "tiny", 0, False
    counter = None      # of finished requests

    def __init__(self, count):
        self.count = count
        self.urls, self.events, self.replay, self.pids = [], {}, {}, []
        self.ours = False   # there may be something to end; not when others have the ports

    def wake(self):
        """Every replica answers once: it is up, and an engine that tells of a reset with its next step has done so."""
        for url in self.urls:
            wait_for(url, lambda url=url: ask(url, self.model) == 200, 60)

    def requests(self):
        """Finished so far, by replica."""
        return [sample(url, self.counter) for url in self.urls]

    def sessions(self):
        return self.pids

    def script(self, *argv):
        """Starts replicas by one of the repository's scripts, which ends what it started when it fails; when we are ended
        meanwhile, that is ours to do."""
        self.ours = True
        try:
            return call(*argv)
        except Failed:
            self.ours = False
            raise


class Mock(Fleet):
    """kvroute mock: for trying the tool out."""
    name, model, counter, block_tokens = "mock", "mock", "vllm:request_success_total", 16

    def __init__(self, args, directory):
        super().__init__(args.replicas or 3)
        self.kvroute, self.directory, self.speed, self.process = args.kvroute, directory, args.speed, None

    def up(self):
        # Ports in a row, as the engines' own scripts have them; another try if somebody was there first.
        for _ in range(5):
            first = free_port()
            self.process = Process("mock", [self.kvroute, "mock", "--count", self.count, "--listen", f"127.0.0.1:{first}",
                                            "--preset", "llama3-8b-h100", "--capacity-blocks", "2048", "--speed", self.speed],
                                   self.directory / "mock.log")
            self.urls = [f"http://127.0.0.1:{first + n}" for n in range(self.count)]
            self.pids = [self.process.session]
            try:
                self.wake()
                return
            except Failed:
                self.process.stop()
        raise Failed("mock: no ports in a row\n" + self.process.text()[-500:])

    def reset(self):
        for url in self.urls:
            status, text = http("POST", url + "/reset_prefix_cache")
            if status != 200:
                raise Failed(f"mock: reset: {status} {text[:100]}")
        self.wake()

    def down(self):
        if self.process:
            self.process.stop()


class Llama(Fleet):
    """llama.cpp. Emptied by starting it again, which takes a second: an erased slot leaves what was moved to host memory."""
    name = "llama"
    first = int(os.environ.get("KVROUTE_PEERS_LLAMA_PORT", "23101"))
    slots = 8

    def __init__(self, args, _directory):
        super().__init__(args.replicas or 3)
        self.slots = args.slots or self.slots
        self.root = pathlib.Path((os.environ.get("LLAMA_ROOT") or "/var/tmp/llama-replicas").rstrip("/") + ".run")
        self.ports = [self.first + n for n in range(self.count)]

    def up(self):
        self.urls = self.script(SCRIPTS / "llama-replicas", "up", self.count, "--port", self.first, "--slots", self.slots).split()
        self.pids = [int((self.root / f"{port}.pid").read_text()) for port in self.ports]
        self.wake()

    def reset(self):
        self.down()
        self.up()

    def requests(self):
        # It has no counter of requests, but a line in its log for each.
        return [(self.root / f"{port}.log").read_text(errors="replace").count("stop processing") for port in self.ports]

    def down(self):
        if self.ours:
            call(SCRIPTS / "llama-replicas", "down", *self.ports)


class WithEvents(Fleet):
    has_events = True

    def __init__(self, args, _directory):
        super().__init__(args.replicas or 2)
        self.root = pathlib.Path((os.environ.get(self.name.upper() + "_ROOT") or f"/var/tmp/{self.name}-replicas").rstrip("/")
                                 + ".run")
        self.ports = [self.first + n for n in range(self.count)]

    def up(self):
        say(f"{self.name}: starting {self.count} replicas, which takes a minute or three")
        for line in self.script(SCRIPTS / "engine-replicas", self.name, "up", self.count, "--port", self.first).splitlines():
            url, events, replay = line.split()
            self.urls.append(url)
            self.events[url], self.replay[url] = events, replay
        self.pids = [int((self.root / f"{port}.pid").read_text()) for port in self.ports]
        self.wake()

    def reset(self):
        def done(url):
            status, text = http("POST", url + self.reset_path)
            return status == 200 and '"success": false' not in text and '"success":false' not in text
        for url in self.urls:
            wait_for(f"{self.name}: reset of {url}", lambda url=url: done(url), 60)
        self.wake()

    def down(self):
        if self.ours:
            call(SCRIPTS / "engine-replicas", self.name, "down", *self.ports)


class Vllm(WithEvents):
    name, first, reset_path, block_tokens = "vllm", 9311, "/reset_prefix_cache", 32
    counter = "vllm:request_success_total"


class Sglang(WithEvents):
    name, first, reset_path, block_tokens = "sglang", 9511, "/flush_cache", 1
    counter = "sglang:num_requests_total"


FLEETS = {fleet.name: fleet for fleet in (Llama, Vllm, Sglang, Mock)}
