# SPDX-License-Identifier: Apache-2.0
"""The routers, each as its own documentation says it should be set for prefix caches. They listen on 127.0.0.1 and write
no access log, but for kvroute, whose log is the input of the calibration; none is told anything about the load to come.

nginx            round robin or least_conn; connections kept to both sides, no buffering, bodies in memory
sglang-router    --policy cache_aware, thresholds as by default (0.3, 64, 1.5), which its documentation recommends
smg              the same policy and values; loads of engines read every second, not every ten, as kvroute reads them.
                 Its event-driven index wants workers that speak gRPC, which none of these does
vllm-router      cache_aware; with vLLM also kv_aware, which follows KV events and is the best that it has for vLLM; with
                 llama.cpp also consistent_hash, since cache_aware asks engines for a tokenizer that only vLLM has
kvroute          as it comes; with engines that publish KV events: events=auto
"""
import os
import pathlib
import shutil
import subprocess
import sys

from common import Failed, Process, ask, free_port, http, say, wait_for

HERE = pathlib.Path(__file__).resolve().parent
ENV = pathlib.Path(os.environ.get("KVROUTE_PEERS") or "/var/tmp/kvroute-peers") / "env"

NGINX = """\
worker_processes auto;
daemon off;
pid {dir}/nginx.pid;
error_log {dir}/error.log error;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    tcp_nodelay on;
    client_max_body_size 64m;
    client_body_buffer_size 2m;
    client_body_temp_path {dir}/body;
    proxy_temp_path {dir}/proxy;
    fastcgi_temp_path {dir}/fastcgi;
    uwsgi_temp_path {dir}/uwsgi;
    scgi_temp_path {dir}/scgi;
    upstream engines {{
        zone engines 256k;
        {method}
{servers}
        keepalive 64;
        keepalive_timeout 4s;
    }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://engines;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $host;
            proxy_buffering off;
            proxy_read_timeout 300s;
            proxy_next_upstream error timeout non_idempotent;
            proxy_next_upstream_tries 3;
        }}
    }}
}}
"""


def install():
    """The peers from PyPI into a folder of their own, once, with the pip settings that this machine has."""
    wanted = HERE / "requirements.txt"
    mark = ENV / "installed.txt"
    if mark.exists() and mark.read_text() == wanted.read_text():
        return
    python = shutil.which("python3.11")
    if not python:
        raise Failed("the peers need python3.11 (with venv)")
    say(f"installing the peers into {ENV}")
    ENV.parent.mkdir(parents=True, exist_ok=True)
    for argv in ([python, "-m", "venv", "--clear", ENV], [ENV / "bin/pip", "install", "-q", "--no-deps", "-r", wanted]):
        done = subprocess.run(list(map(str, argv)), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Failed("the peers cannot be installed: " + (done.stderr.strip() or "no message").splitlines()[-1])
    mark.write_text(wanted.read_text())


class Router:
    """name: as in the table. Started against a fleet for one measurement, then ended."""
    log_requests = False

    def __init__(self, name):
        self.name = name
        self.process = self.url = None

    def start(self, fleet, directory):
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.process = Process(self.name, self.command(fleet, directory, port), directory / f"{self.name}.log")
        try:
            wait_for(self.name, lambda: self.process.check() and self.ready(fleet), 90)
        except Failed:
            self.stop()
            raise

    def ready(self, fleet):
        return ask(self.url, fleet.model) == 200

    def stop(self):
        if self.process:
            self.process.stop()
            self.process = None


class Nginx(Router):
    def __init__(self, name, method=""):
        super().__init__(name)
        self.method = method

    @staticmethod
    def binary():
        return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")

    def command(self, fleet, directory, port):
        if not self.binary():
            raise Failed("nginx is not installed (scripts/setup.sh bench)")
        servers = "\n".join(f"        server {url.split('//')[1]} max_fails=0;" for url in fleet.urls)
        place = directory / self.name
        place.mkdir(exist_ok=True)
        (place / "nginx.conf").write_text(NGINX.format(dir=place, port=port, servers=servers, method=self.method))
        return [self.binary(), "-p", place, "-c", place / "nginx.conf", "-e", place / "error.log"]


class FromPython(Router):
    def __init__(self, name, module, *options):
        super().__init__(name)
        self.module, self.options = module, options

    def command(self, fleet, directory, port):
        install()
        return [ENV / "bin/python", "-m", *self.module, "--host", "127.0.0.1", "--port", port, "--worker-urls", *fleet.urls,
                "--log-level", "error", "--prometheus-host", "127.0.0.1", "--prometheus-port", free_port(),
                "--worker-startup-check-interval", 1, *self.options, *self.extra(fleet)]

    def extra(self, _fleet):
        return []


class KvAware(FromPython):
    def extra(self, fleet):
        words = ["--kv-event-block-size", fleet.block_tokens, "--kv-event-model", fleet.model]
        for url in fleet.urls:
            words += ["--kv-event-source", f"{url}={fleet.events[url]}", "--kv-event-replay-source",
                      f"{url}={fleet.replay[url]}"]
        return words


class Kvroute(Router):
    log_requests = True

    def __init__(self, name, binary, policy=None, options=()):
        super().__init__(name)
        self.binary, self.policy, self.options = binary, policy, list(options)
        self.log = self.capture = None

    def command(self, fleet, directory, port):
        # What was logged stays with the results: it tells why a request went where it went.
        self.log, self.capture = directory / f"{self.name}.access.log", directory / f"{self.name}.capture.jsonl"
        for file in (self.log, self.capture):
            file.unlink(missing_ok=True)
        key = ",events=auto" if fleet.has_events else ""
        return [self.binary, "serve", "--listen", f"127.0.0.1:{port}", "--admin", "127.0.0.1:0", "--access-log", self.log,
                "--capture", self.capture, "--capture-block-tokens", 16, *(["--policy", self.policy] if self.policy else []),
                *self.options, *[url + key for url in fleet.urls]]

    def ready(self, fleet):
        return http("GET", self.url + "/readyz")[0] == 200 and super().ready(fleet)


def peers(args):
    """All routers by name."""
    sglang = ["sglang_router.launch_router"]
    return {router.name: router for router in (
        Nginx("nginx"),
        Nginx("nginx-least-conn", "least_conn;"),
        FromPython("sglang-router", sglang, "--policy", "cache_aware"),
        FromPython("smg", ["smg", "launch"], "--policy", "cache_aware", "--load-monitor-interval", 1),
        FromPython("vllm-router", ["vllm_router.launch_router"], "--policy", "cache_aware"),
        FromPython("vllm-router-hash", ["vllm_router.launch_router"], "--policy", "consistent_hash"),
        KvAware("vllm-router-kv", ["vllm_router.launch_router"], "--policy", "kv_aware"),
        Kvroute("kvroute", args.kvroute, None, args.option),
    )}


def usual(fleet):
    """Those that are compared in front of a fleet unless the command line names some."""
    names = ["nginx", "nginx-least-conn", "sglang-router", "smg", "vllm-router", "kvroute"]
    if fleet == "vllm":
        names.insert(5, "vllm-router-kv")
    if fleet == "llama":
        names.insert(5, "vllm-router-hash")
    return names


def policies(args):
    names = args.routers or ["kv", "round_robin", "random", "least_requests", "least_tokens", "power_of_two",
                             "consistent_hash", "longest_prefix"]
    return {name: Kvroute(name, args.kvroute, name, args.option) for name in names}


if __name__ == "__main__":
    sys.exit("see run.py")
