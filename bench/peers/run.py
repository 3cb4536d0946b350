#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""kvroute beside other routers, and its policies beside each other, in front of real engines on this machine.

    bench/peers/run.py [--fleets llama,vllm,sglang|mock] [--routers NAME,...] [--seeds 3] [--requests N] [--json FILE]
    bench/peers/run.py --policies [--workloads chat,groups,agents] [--seeds 5] [--calibrate] ...

Every router gets the same requests at the same times (`kvroute bench`, open loop), with empty caches, one router after
the other; with the next seed again, beginning with another one. The load is found first: the rate at which the mean time
to first token behind nginx's round robin (with --policies: kvroute's) is three times what it is when the same requests
are asked one at a time. All sizes are in workloads.py, all settings of the routers in routers.py.

Engines, routers and load share this machine's processors. How much of them others used meanwhile is printed: figures of
a busy machine are worth nothing.
"""
import argparse
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import calibrate  # noqa: E402
import routers as routing  # noqa: E402
import workloads  # noqa: E402
from common import ROOT, Account, Failed, say  # noqa: E402
from fleet import FLEETS  # noqa: E402

TIMES_IDLE = 3.0        # the load: so many times the idle time to first token
TIMES_ENOUGH = 5.0      # a load that asks more is looked for again
SEARCH_STEPS = 8
SEARCH_SEED = 1000      # not one of those that are measured
FOREIGN = 0.15          # processors that others may use before a run is marked


# ---- one measurement -----------------------------------------------------------------------------------------------

class Bench:
    def __init__(self, args, fleet, directory):
        self.args, self.fleet, self.directory = args, fleet, directory

    def load(self, router, load, seed, requests, rate):
        """kvroute bench's figures; rate 0: one request at a time."""
        argv = [self.args.kvroute, "bench", router.url, *workloads.options(load, self.fleet.name), "--requests", requests,
                "--seed", seed, "--model", self.fleet.model, "--json", "--no-progress"]
        argv += ["--rate", f"{rate:.4f}"] if rate else ["--concurrency", 1]
        done = subprocess.run([str(word) for word in argv], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode or not done.stdout.startswith("{"):
            raise Failed(f"kvroute bench: {done.stderr.strip()[-300:] or done.stdout[-300:]}")
        return json.loads(done.stdout)

    def cell(self, router, load, seed, requests, rate):
        """A router in front of empty caches, loaded once."""
        self.fleet.reset()
        router.start(self.fleet, self.directory)
        try:
            time.sleep(self.args.settle)    # the first reports of load, the first events
            before = self.fleet.requests()
            account = Account([*self.fleet.sessions(), router.process.session])
            seen = self.load(router, load, seed, requests, rate)
            foreign = account.foreign()
            counts = [after - old for after, old in zip(self.fleet.requests(), before)]
        finally:
            router.stop()
        mean = sum(counts) / len(counts)
        return {"router": router.name, "seed": seed, "rate": rate, "requests": requests, "foreign": foreign, "counts": counts,
                "mean": seen["ttft_s"]["mean"], "p50": seen["ttft_s"]["p50"], "p90": seen["ttft_s"]["p90"],
                "p99": seen["ttft_s"]["p99"], "hit": seen["observed_hit_rate"], "errors": seen["errors"] + seen["rejected"],
                "balance": max(counts) / mean if mean else None, "late_p99": seen["late_s"]["p99"], "bench": seen}


def idle_mean(bench, router, load, requests, key):
    """The same requests one at a time. What kvroute logs then tells the simulator how fast an engine is."""
    cell = bench.cell(router, load, SEARCH_SEED, requests, 0)
    if not cell["mean"]:
        raise Failed("no time to first token when idle")
    if isinstance(router, routing.Kvroute):
        calibrate.keep(cell, router, bench.args.keep, f"{key}-idle")
    say(f"  {router.name}, one at a time: mean {cell['mean']:.3f} s; others used {cell['foreign']:.2f} processors")
    return cell["mean"]


def search(bench, router, load, requests, idle):
    """(rate, mean at that rate): the lowest rate that was seen to ask enough of round robin."""
    rate, seen = bench.args.first_rate or 1 / idle, {}
    for _ in range(SEARCH_STEPS):
        cell = bench.cell(router, load, SEARCH_SEED, requests, rate)
        times = seen[rate] = cell["mean"] / idle
        say(f"  {router.name} at {rate:.2f} a second: mean {cell['mean']:.3f} s, {times:.1f} times the idle one; others used "
            f"{cell['foreign']:.2f} processors")
        below = max((r for r in seen if seen[r] < TIMES_IDLE), default=None)
        above = min((r for r in seen if seen[r] >= TIMES_IDLE), default=None)
        if above and seen[above] <= TIMES_ENOUGH:
            break
        if above and below:
            rate = (above * below) ** 0.5
        else:
            rate = rate / 1.6 if above else rate * (2.0 if times < 1.5 else 1.4)
    if not above:
        raise Failed("no load found that slows round robin down")
    return above, seen[above] * idle


# ---- figures over seeds --------------------------------------------------------------------------------------------

def average(cells, key):
    values = [cell[key] for cell in cells if cell[key] is not None]
    return statistics.fmean(values) if values else None


# Student's t for a two-sided 90 % interval, by degrees of freedom.
T90 = [6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.89, 1.86, 1.83]


def compare(ours, theirs, key):
    """Over equal seeds: the mean difference, and whether it is more than chance: the 90 % interval of the mean difference leaves
    zero out. With one seed nothing is known of chance."""
    old = {cell["seed"]: cell[key] for cell in theirs}
    pairs = [cell[key] - old[cell["seed"]] for cell in ours if None not in (cell[key], old.get(cell["seed"]))]
    if len(pairs) < 2:
        return None, "one seed: nothing known of chance"
    mean, error = statistics.fmean(pairs), statistics.stdev(pairs) / len(pairs) ** 0.5
    if abs(mean) <= T90[min(len(pairs) - 1, len(T90)) - 1] * error:
        return mean, "level within the spread"
    return mean, "lower" if mean < 0 else "higher"


def table(cells, names):
    """Lines of the table: per router the mean over seeds, with the least and the greatest of the seeds."""
    head = ["", "TTFT mean", "p50", "p90", "p99", "hit rate", "errors", "max/mean", "others"]
    rows = [head]
    for name in names:
        mine = [cell for cell in cells if cell["router"] == name]
        if not mine:
            continue
        row = [name]
        for key in ("mean", "p50", "p90", "p99"):
            values = [cell[key] for cell in mine if cell[key] is not None]
            row.append(f"{statistics.fmean(values):.3f} ({min(values):.3f}-{max(values):.3f})" if values else "-")
        hits = [100 * cell["hit"] for cell in mine if cell["hit"] is not None]
        row.append(f"{statistics.fmean(hits):.1f} ({min(hits):.1f}-{max(hits):.1f}) %" if hits else "-")
        row.append(str(sum(cell["errors"] for cell in mine)))
        row.append(f"{average(mine, 'balance'):.2f}")
        row.append(f"{max(cell['foreign'] for cell in mine):.2f}")
        rows.append(row)
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    return ["  ".join(word.ljust(width) if i == 0 else word.rjust(width) for i, (word, width) in enumerate(zip(row, widths)))
            .rstrip() for row in rows]


def verdicts(cells, names, ours):
    """How ours compares with each of the others."""
    mine = [cell for cell in cells if cell["router"] == ours]
    lines = []
    for name in names:
        other = [cell for cell in cells if cell["router"] == name]
        if name == ours or not mine or not other:
            continue
        words = []
        for key, label, unit in (("mean", "mean", "ms"), ("p90", "p90", "ms"), ("hit", "hit rate", "points")):
            difference, word = compare(mine, other, key)
            if difference is None:
                words.append(f"{label}: {word}")
            else:
                scaled = difference * (1000 if unit == "ms" else 100)
                words.append(f"{label} {scaled:+.{0 if unit == 'ms' else 1}f} {unit} ({word})")
        lines.append(f"  {ours} against {name}: " + ", ".join(words))
    return lines


def doubts(cells):
    lines = []
    busy = [cell for cell in cells if cell["foreign"] > FOREIGN]
    if busy:
        lines.append(f"  {len(busy)} of {len(cells)} runs are doubtful: other programs used up to "
                     f"{max(cell['foreign'] for cell in busy):.2f} processors.")
    late = max((cell["late_p99"] or 0) for cell in cells)
    if late > 0.05:
        lines.append(f"  Requests went out up to {1000 * late:.0f} ms late (99th percentile): the load generator waited for a "
                     "processor.")
    return lines


# ---- runs ----------------------------------------------------------------------------------------------------------

def measure(bench, entrants, load, rate, requests, seeds, results, key):
    names = list(entrants)
    for number, seed in enumerate(seeds):
        for name in names[number % len(names):] + names[:number % len(names)]:
            try:
                cell = bench.cell(entrants[name], load, seed, requests, rate)
            except Failed as failure:
                say(f"  seed {seed} {name}: {failure}")
                results.setdefault("failed", []).append({"key": key, "router": name, "seed": seed, "why": str(failure)})
                continue
            if isinstance(entrants[name], routing.Kvroute):
                calibrate.keep(cell, entrants[name], bench.args.keep, f"{key}-{seed}")
            results["cells"][key].append(cell)
            say(f"  seed {seed} {name}: mean {cell['mean']:.3f} p90 {cell['p90']:.3f} hit {100 * (cell['hit'] or 0):.1f} % "
                f"errors {cell['errors']} max/mean {cell['balance']:.2f} others {cell['foreign']:.2f}")
            bench.args.save(results)


def workload(bench, entrants, reference, name, results, ours):
    """Finds the load, measures all and prints the table."""
    fleet, args = bench.fleet, bench.args
    load = workloads.of(fleet.name, name)
    key = f"{fleet.name}-{name}"
    say(f"{key}: {load['is']}")
    requests = args.requests or load["requests"]
    given = args.rates.get(key) or args.rates.get(fleet.name)
    idle = given[1] if given and len(given) > 1 else idle_mean(bench, reference, load, requests, key)
    rate, at = (given[0], None) if given else search(bench, reference, load, requests, idle)
    results["loads"][key] = {"idle_mean": idle, "rate": rate, "search_mean": at, "load": load, "replicas": fleet.count}
    results["cells"].setdefault(key, [])
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    measure(bench, entrants, load, rate, requests, seeds, results, key)
    print(report(results, key, list(entrants), reference.name, ours), flush=True)


def report(results, key, names, reference, ours):
    load, cells = results["loads"][key], results["cells"][key]
    if not cells:
        return f"\n{key}: nothing was measured"
    lines = ["", f"{key}: {load['replicas']} replicas, {load['load']['is']}; {cells[0]['requests']} requests at "
             f"{load['rate']:.2f} a second, seeds {sorted({cell['seed'] for cell in cells})}; TTFT in seconds, mean over the seeds "
             "(least-greatest)"]
    if load["idle_mean"]:
        there = average([cell for cell in cells if cell["router"] == reference], "mean")
        lines.append(f"idle: {load['idle_mean']:.3f} s" + (f"; {reference} here: {there / load['idle_mean']:.1f} times that"
                                                           if there else ""))
    return "\n".join([*lines, "", *table(cells, names), *verdicts(cells, names, ours), *doubts(cells)])


def run_fleet(args, name, results):
    with tempfile.TemporaryDirectory(prefix="kvroute-peers-") as place:
        directory = pathlib.Path(place)
        fleet = FLEETS[name](args, directory)
        bench = Bench(args, fleet, directory)
        try:
            fleet.up()
            if args.policies:
                entrants = routing.policies(args)
                reference, ours = routing.Kvroute("round_robin", args.kvroute, "round_robin"), "kv"
            else:
                known = routing.peers(args)
                entrants = {router: known[router] for router in args.routers or routing.usual(name)}
                reference, ours = known["nginx"], "kvroute"
            for load in args.workloads:
                workload(bench, entrants, reference, load, results, ours)
                if args.calibrate:
                    print(calibrate.report(args, fleet, results, f"{name}-{load}"), flush=True)
        finally:
            fleet.down()


def machine():
    model = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    return f"{model.group(1) if model else 'unknown processor'}, {os.cpu_count()} cores, Linux {os.uname().release}"


def rates(text):
    """llama-chat=3.2:0.21,...: rate, and if known the idle mean, found by an earlier run."""
    found = {}
    for part in filter(None, (text or "").split(",")):
        name, _, values = part.partition("=")
        found[name] = [float(value) for value in values.split(":")]
    return found


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words = lambda text: [word for word in text.split(",") if word]     # noqa: E731
    parser.add_argument("--kvroute", type=pathlib.Path, default=ROOT / "build" / "kvroute", help="binary (build/kvroute)")
    parser.add_argument("--fleets", type=words, default=["llama"], help="llama, vllm, sglang, mock; one after the other (llama)")
    parser.add_argument("--replicas", type=int, help="of a fleet (llama and mock 3, vllm and sglang 2)")
    parser.add_argument("--slots", type=int, help="of a llama.cpp server (8)")
    parser.add_argument("--speed", type=float, default=1, help="of the mock (1)")
    parser.add_argument("--routers", type=words, help="names as in routers.py; with --policies policies")
    parser.add_argument("--policies", action="store_true", help="kvroute's policies instead of other routers")
    parser.add_argument("--workloads", type=words, help="chat, groups, agents (chat; with --policies all)")
    parser.add_argument("--calibrate", action="store_true", help="also the simulator, calibrated by the access log of kv")
    parser.add_argument("--seeds", type=int, help="repetitions (3; with --policies 5)")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--requests", type=int, help="of a measurement (by workload)")
    parser.add_argument("--settle", type=float, default=2.0, help="seconds between a router's start and the load (2)")
    parser.add_argument("--first-rate", type=float, help="where the search begins")
    parser.add_argument("--rates", type=rates, default={}, help="FLEET[-WORKLOAD]=RATE[:IDLE],...: no search; without IDLE that is still measured")
    parser.add_argument("--option", action="append", default=[], help="passed on to kvroute serve")
    parser.add_argument("--keep", type=pathlib.Path, help="folder for kvroute's access logs and captures")
    parser.add_argument("--json", type=pathlib.Path, help="all figures, written anew after every measurement")
    args = parser.parse_args(argv)
    args.workloads = args.workloads or (list(workloads.WORKLOADS) if args.policies else ["chat"])
    args.seeds = args.seeds or (5 if args.policies else 3)
    for given, known in ((args.fleets, FLEETS), (args.workloads, workloads.WORKLOADS)):
        for word in given:
            if word not in known:
                parser.error(f"{word}: not one of {', '.join(known)}")
    if args.routers and not args.policies:
        for word in args.routers:
            if word not in routing.peers(args):
                parser.error(f"{word}: not one of {', '.join(routing.peers(args))}")
    if args.calibrate and not args.policies:
        parser.error("--calibrate goes with --policies")

    def save(results):
        if args.json:
            args.json.parent.mkdir(parents=True, exist_ok=True)
            args.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    args.save = save
    return args


def main(argv):
    args = parse(argv)
    # Whoever ends it by a signal, also from a shell's background, should find no engines left behind.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(130))
    results = {"machine": machine(), "began": time.strftime("%Y-%m-%d %H:%M:%S"), "loads": {}, "cells": {}}
    print(f"{results['machine']}; load average before: {os.getloadavg()[0]:.1f}", flush=True)
    with tempfile.TemporaryDirectory(prefix="kvroute-peers-logs-") as logs:
        args.keep = args.keep or pathlib.Path(logs)
        args.keep.mkdir(parents=True, exist_ok=True)
        try:
            for name in args.fleets:
                run_fleet(args, name, results)
        except Failed as failure:
            print(f"bench/peers: {failure}", file=sys.stderr)
            return 1
        finally:
            args.save(results)
    return 1 if results.get("failed") else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
