#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""CPU per request of `kvroute serve` beside nginx: same back ends, same load, same core.

    bench/proxy/run.py [--quick] [--build DIR] [--json FILE] [--only SIZE[,SIZE]] [--docs docs/benchmarks.md]

All routers run at the same time, each with one worker, pinned to one core; back ends and load share the other one. Per
size the rounds go A B C A B C ..., each sends prompts that were not sent before, and the processor time comes from the
kernel's scheduler accounts in nanoseconds, summed over all threads of all processes of a router. The figure is the median
over the rounds. The ratio to nginx is the median over the rounds too, each round with the nginx beside it: what else the
machine does, and how fast its core runs, changes within minutes. Ends with 1 if any answer was wrong or a router died.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent

# name, body bytes, stream, requests of a round (full, quick)
SIZES = [
    ("300 B", 300, False, 8000, 3000),
    ("8 KB", 8192, False, 6000, 2000),
    ("32 KB", 32768, False, 4000, 1200),
    ("128 KB", 131072, False, 2000, 500),
    ("512 KB", 524288, False, 600, 150),
    ("stream", 300, True, 400, 150),
]

# One worker, both sides kept alive, no buffering of answers, bodies in memory: what a careful operator would set. The
# request body is read in full before it is sent on, as kvroute does.
NGINX = """\
worker_processes 1;
daemon off;
pid {dir}/nginx.pid;
error_log {dir}/error.log warn;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    tcp_nodelay on;
    keepalive_requests 100000000;
    keepalive_timeout 75s;
    client_max_body_size 64m;
    client_body_buffer_size 2m;
    client_body_temp_path {dir}/body;
    proxy_temp_path {dir}/proxy;
    fastcgi_temp_path {dir}/fastcgi;
    uwsgi_temp_path {dir}/uwsgi;
    scgi_temp_path {dir}/scgi;
    upstream engines {{
{servers}
        keepalive 64;
        keepalive_requests 100000000;
    }}
    server {{
        listen 127.0.0.1:{port} reuseport;
        location / {{
            proxy_pass http://engines;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $host;
            proxy_buffering off;
        }}
    }}
}}
"""


class Failed(Exception):
    pass


def thread_ns(pid):
    """Nanoseconds on a processor of all threads of a process, by thread."""
    spent = {}
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            spent[task] = int(pathlib.Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[0])
        except (FileNotFoundError, ProcessLookupError):
            pass  # it ended between the two looks
    return spent


def children(pid):
    found = pathlib.Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in found.read_text().split()] if found.exists() else []


class Router:
    def __init__(self, name, argv, core, log):
        self.name = name
        self.port = None
        self.log = log
        self.process = subprocess.Popen(["taskset", "-c", str(core), *argv], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=open(log, "wb"))

    def pids(self):
        return [self.process.pid, *children(self.process.pid)]

    def cpu_ns(self):
        if self.process.poll() is not None:
            raise Failed(f"{self.name} ended with {self.process.returncode}:\n{pathlib.Path(self.log).read_text()[-2000:]}")
        return sum(sum(thread_ns(pid).values()) for pid in self.pids())

    def memory_mib(self):
        total = 0
        for pid in self.pids():
            status = pathlib.Path(f"/proc/{pid}/status").read_text()
            total += int(re.search(r"VmRSS:\s+(\d+)", status).group(1))
        return total / 1024

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def wait_for(what, probe, seconds=20):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            found = probe()
            if found:
                return found
        except (OSError, ValueError):
            pass
        time.sleep(0.05)
    raise Failed(f"{what}: not ready after {seconds} s")


def free_port():
    import socket
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start_nginx(directory, core, ports):
    binary = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if not binary:
        raise Failed("nginx is not installed (scripts/setup.sh bench)")
    port = free_port()
    servers = "\n".join(f"        server 127.0.0.1:{p};" for p in ports)
    config = directory / "nginx.conf"
    config.write_text(NGINX.format(dir=directory, port=port, servers=servers))
    router = Router("nginx", [binary, "-p", str(directory), "-c", str(config), "-e", str(directory / "error.log")], core,
                    directory / "nginx.log")
    router.port = port
    wait_for("nginx", lambda: urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).status == 200)
    return router


def start_kvroute(binary, directory, core, ports, policy, options):
    log = directory / f"kvroute-{policy}.log"
    argv = [str(binary), "serve", "--threads", "1", "--listen", "127.0.0.1:0", "--admin", "off", "--policy", policy,
            *options, *[f"http://127.0.0.1:{p}" for p in ports]]
    router = Router(f"kvroute {policy}", argv, core, log)

    def ready_line():
        router.cpu_ns()  # or it has ended
        return re.search(rb"ready on http://[^ ]*:(\d+)", log.read_bytes())

    router.port = int(wait_for(router.name, ready_line).group(1))
    url = f"http://127.0.0.1:{router.port}/readyz"
    wait_for(router.name, lambda: urllib.request.urlopen(url, timeout=1).status == 200)
    return router


class Load:
    """Runs the load generator; every run sends prompts with new numbers."""

    def __init__(self, binary, core):
        self.binary, self.core, self.next_prompt = binary, core, 0

    def run(self, port, requests, size, stream):
        argv = ["taskset", "-c", str(self.core), str(self.binary), str(port), str(requests), str(size)]
        argv += ["stream"] if stream else []
        argv += ["--first", str(self.next_prompt)]
        self.next_prompt += requests
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            raise Failed(f"load: {done.stdout}{done.stderr}")
        return json.loads(done.stdout)


def measure(load, routers, size, stream, requests, rounds):
    """Per router: list of (CPU µs per request, what the load generator saw)."""
    seen = {router.name: [] for router in routers}
    for router in routers:
        load.run(router.port, max(requests // 4, 64), size, stream)  # connections, buffers, the index
    for _ in range(rounds):
        for router in routers:
            before = router.cpu_ns()
            result = load.run(router.port, requests, size, stream)
            seen[router.name].append(((router.cpu_ns() - before) / requests / 1000, result))
    return seen


def summary(values, reference):
    costs = [cost for cost, _ in values]
    ratios = sorted(cost / other for cost, (other, _) in zip(costs, reference))
    return {
        "cpu_us": statistics.median(costs),
        "ratio": statistics.median(ratios),
        "ratio_quartiles": statistics.quantiles(ratios, n=4)[::2] if len(ratios) > 1 else ratios * 2,
        "cpu_us_min": min(costs),
        "cpu_us_max": max(costs),
        "requests_per_s": statistics.median(r["requests_per_s"] for _, r in values),
        "p50_us": statistics.median(r["p50_us"] for _, r in values),
        "p99_us": statistics.median(r["p99_us"] for _, r in values),
    }


def show(name, rows):
    for router, row in rows.items():
        low, high = row["ratio_quartiles"]
        print(f"{name:8} {router:22} {row['cpu_us']:9.1f} us  ({row['cpu_us_min']:7.1f} to {row['cpu_us_max']:7.1f})"
              f"  {row['ratio']:5.2f} x ({low:.2f} to {high:.2f})   {row['requests_per_s']:7.0f} req/s"
              f"  p50 {row['p50_us']:8.0f} us  p99 {row['p99_us']:8.0f} us", flush=True)


def table(results, reference):
    """The same as a Markdown table: CPU µs per request, ratio to the reference in brackets."""
    sizes = list(results)
    routers = list(next(iter(results.values())))
    lines = ["| CPU per request, µs | " + " | ".join(sizes) + " |", "|---|" + "---:|" * len(sizes)]
    for router in routers:
        cells = []
        for size in sizes:
            row = results[size][router]
            cells.append(f"{row['cpu_us']:.0f}" + (f" ({row['ratio']:.2f})" if router != reference else ""))
        lines.append(f"| {router} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def machine():
    model = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    return f"{model.group(1) if model else 'unknown processor'}, {os.cpu_count()} cores, Linux {os.uname().release}"


def fill(page, name, text):
    """Replaces what stands between the marks of that name in a page."""
    old = page.read_text()
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->\n"
    if begin not in old or end not in old:
        raise Failed(f"{page}: no marks for {name}")
    head, tail = old.split(begin)[0], old.split(end)[1]
    page.write_text(head + begin + text.strip("\n") + "\n" + end + tail)


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build", help="build directory")
    parser.add_argument("--kvroute", type=pathlib.Path, help="binary to measure (BUILD/kvroute)")
    parser.add_argument("--tools", type=pathlib.Path, help="directory of backend and load (BUILD/bench/proxy)")
    parser.add_argument("--quick", action="store_true", help="under a minute, noisier")
    parser.add_argument("--rounds", type=int, help="rounds per size (9, quick: 5)")
    parser.add_argument("--backends", type=int, default=4)
    parser.add_argument("--gap-us", type=int, default=1000, help="between two events of a stream")
    parser.add_argument("--only", help="sizes to measure, e.g. '300 B,stream'")
    parser.add_argument("--policies", default="kv,round_robin", help="of kvroute")
    parser.add_argument("--option", action="append", default=[], help="passed on to kvroute serve")
    parser.add_argument("--json", type=pathlib.Path, help="write all figures there")
    parser.add_argument("--docs", type=pathlib.Path, help="page whose figures are replaced (with those of `decision`)")
    parser.add_argument("--limit", type=float, help="exit with 1 if a ratio of kvroute to nginx is above this")
    return parser.parse_args(argv)


def start_all(args, stack, directory, cores):
    tools = (args.tools or args.build / "bench" / "proxy").resolve()
    backend = subprocess.Popen(["taskset", "-c", str(cores[1]), str(tools / "backend"), str(args.backends),
                                str(args.gap_us)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    stack.append(lambda: (backend.stdin.close(), backend.wait(10)))
    ports = [int(word) for word in backend.stdout.readline().split()]
    routers = [start_nginx(directory, cores[0], ports)]
    stack.append(routers[0].stop)
    for policy in args.policies.split(","):
        routers.append(start_kvroute((args.kvroute or args.build / "kvroute").resolve(), directory, cores[0], ports, policy,
                                     args.option))
        stack.append(routers[-1].stop)
    return routers, Load(tools / "load", cores[1])


def decision(tools, core):
    return subprocess.run(["taskset", "-c", str(core), str(tools.resolve() / "decision")], stdout=subprocess.PIPE, text=True,
                          check=True).stdout


def run(args, stack, directory):
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        raise Failed("needs two cores: one for the router, one for load and back ends")
    routers, load = start_all(args, stack, directory, cores)
    rounds = args.rounds or (5 if args.quick else 9)
    results = {}
    title = (f"{machine()}; {args.backends} back ends, 16 connections, 64 groups that share 75 %, {rounds} rounds; "
             f"load average before: {os.getloadavg()[0]:.1f}")
    print(title)
    for name, size, stream, full, quick in SIZES:
        if args.only and name not in args.only.split(","):
            continue
        seen = measure(load, routers, size, stream, quick if args.quick else full, rounds)
        results[name] = {router: summary(values, seen["nginx"]) for router, values in seen.items()}
        show(name, results[name])
    if not results:
        raise Failed("--only names none of: " + ", ".join(size[0] for size in SIZES))
    text = table(results, "nginx") + "\n\nResident memory at the end: " + ", ".join(
        f"{r.name} {r.memory_mib():.0f} MiB" for r in routers) + "."
    print("\n" + text)
    if args.json:
        args.json.write_text(json.dumps({"machine": machine(), "rounds": rounds, "sizes": results}, indent=1) + "\n")
    if args.docs:
        fill(args.docs, "proxy", title + ".\n\n" + text)
        fill(args.docs, "decision", "```\n" + decision((args.tools or args.build / "bench" / "proxy"), cores[1]) + "```")
    worst = max((rows[r]["ratio"] for rows in results.values() for r in rows if r != "nginx"), default=0)
    if args.limit and worst > args.limit:
        raise Failed(f"a ratio of {worst:.2f} is above the limit of {args.limit}")


def main(argv):
    args = parse(argv)
    stack = []
    with tempfile.TemporaryDirectory(prefix="kvroute-bench-") as directory:
        try:
            run(args, stack, pathlib.Path(directory))
        except Failed as failure:
            print(f"bench/proxy: {failure}", file=sys.stderr)
            return 1
        finally:
            for stop in reversed(stack):
                stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
