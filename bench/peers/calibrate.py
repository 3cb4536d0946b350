# SPDX-License-Identifier: Apache-2.0
"""The simulator beside what was measured: its engines are calibrated by the access logs that kvroute wrote while policy kv
was measured, then it plays requests again under every policy.

Servers of one machine also slow each other down, by how much is found by trying: so many processors are shared in the
simulation as make kv's own time to first token what it was. What the other policies get is then foretold.

"kv's trace" is what somebody has who runs kv and asks what another policy would do: the requests that came under kv, later
turns waiting for the answers before them (--closed-loop). "own arrivals" are those of the policy's own run.
"""
import json
import os
import pathlib
import shutil
import statistics
import subprocess

from common import Failed

BLOCK_TOKENS = 16       # of captures (routers.py)
WITHIN = 0.20
SHARED_LEAST, SHARED_STEPS = 0.4, 8
SAME_TURN_BLOCKS = 4    # a prompt's last blocks may differ in the turn after: keys do not lie at the ends of blocks


def keep(cell, router, folder, name):
    """Puts a run's access log and capture aside, under a name of their own."""
    for kind, file in (("log", router.log), ("capture", router.capture)):
        if file and file.exists():
            there = folder / f"{name}-{router.name}.{kind}"
            shutil.copyfile(file, there)
            cell[kind] = str(there)


def common(a, b):
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


def rows(cell):
    """The captured requests of a run, without those before its load."""
    with open(cell["capture"], encoding="utf-8") as file:
        found = [json.loads(line) for line in file if line.strip()]
    return sorted(found, key=lambda row: row["timestamp"])[-cell["bench"]["requests"]:]


def name_sessions(trace):
    """The load names no sessions (that would help the router): a turn is known by beginning with the whole one before."""
    ends = []       # of each session: its last prompt
    for row in trace:
        best = max(range(len(ends)), key=lambda n: common(ends[n], row["hash_ids"]), default=None)
        if best is not None and common(ends[best], row["hash_ids"]) >= len(ends[best]) - SAME_TURN_BLOCKS:
            ends[best] = row["hash_ids"]
        else:
            best = len(ends)
            ends.append(row["hash_ids"])
        row["session"] = f"s{best}"


def write(trace, path, sessions):
    if sessions:
        name_sessions(trace)
    with open(path, "w", encoding="utf-8") as file:
        for row in trace:
            if not sessions:
                row.pop("session", None)
            file.write(json.dumps(row) + "\n")


def simulate(args, *words):
    argv = [args.kvroute, "simulate", "--json", "--no-progress", *words]
    done = subprocess.run([str(word) for word in argv], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed("kvroute simulate: " + (done.stderr.strip() or "no message").splitlines()[-1])
    return json.loads(done.stdout)


def engine(fleet):
    """What the simulator has to know of the engines besides their speed."""
    if fleet.name == "llama":
        # 16,384 tokens of context a slot; prompts in host memory (8 GiB) are not dropped in a run of minutes.
        return ["--slots", fleet.slots, "--capacity-blocks", fleet.slots * 16384 // BLOCK_TOKENS, "--slot-memory-blocks", 1000000,
                "--step-tokens", 2048]
    if fleet.name == "mock":
        return ["--capacity-blocks", 2048, "--step-tokens", 8192]
    return ["--capacity-blocks", 32000 // BLOCK_TOKENS, "--step-tokens", 2048]


def fitted(args, key, logs):
    """(log, fit, whose): of the runs under kv; where a busy replica was never alone with a prompt, of the idle run too."""
    idle = args.keep / f"{key}-idle-round_robin.log"
    joined = args.keep / f"{key}-kv-all.log"
    for more, of in (([], "kv"), ([idle], "kv and of the idle run")):
        if not all(log.exists() for log in more):
            break
        joined.write_bytes(b"".join(log.read_bytes() for log in [*logs, *more]))
        try:
            return joined, simulate(args, "--calibrate", joined)["calibration"], of
        except Failed as failure:
            why = failure
    raise why


def processors(args, fleet, log, cells, closed):
    """How many the servers of this machine seem to share: options of the simulator. With more of them kv would have been
    faster than it was, with fewer slower."""
    if fleet.name != "llama":
        return []
    measured = statistics.fmean(cell["mean"] for cell in cells)
    few, many = SHARED_LEAST, float(os.cpu_count())
    for _ in range(SHARED_STEPS):
        shared = (few * many) ** 0.5
        if means(args, fleet, log, cells, "kv", closed, ["--processors", f"{shared:.3f}"])[0] > measured:
            few = shared
        else:
            many = shared
    return ["--processors", f"{(few * many) ** 0.5:.3f}"]


def means(args, fleet, log, cells, policy, closed, shared):
    """Simulated mean and hit rate, over the runs whose requests are played."""
    found = []
    for number, cell in enumerate(cells):
        path = args.keep / f"trace-{number}.jsonl"
        write(rows(cell), path, closed)
        result = simulate(args, "--calibrate", log, "--replicas", fleet.count, "--policies", policy, *engine(fleet), *shared,
                          *(["--closed-loop"] if closed else []), path)
        row = result["rows"][0]
        found.append((row["ttft_s"]["mean"], row["hit_rate"]))
    return [statistics.fmean(values) for values in zip(*found)]


def report(args, fleet, results, key):
    """The table, as text; the figures go into results."""
    cells = [cell for cell in results["cells"].get(key, []) if "capture" in cell]
    ours = [cell for cell in cells if cell["router"] == "kv"]
    if not ours:
        return f"\n{key}: no run of kv, nothing to calibrate with"
    try:
        log, fit, of = fitted(args, key, [pathlib.Path(cell["log"]) for cell in ours])
    except Failed as failure:
        return f"\n{key}: cannot be calibrated: {failure}"
    several = results["loads"][key]["load"]["turns"] > 1
    shared = processors(args, fleet, log, ours, several)
    lines = [f"\n{key}: simulated TTFT beside the measured one (mean over seeds), calibrated by the access logs of {of}: "
             + json.dumps(fit) + (f"; {' '.join(shared)}, so that kv fits" if shared else ""), f"{'':18}{'measured':>10}{'kv trace':>10}{'ratio':>8}{'own arrivals':>14}{'ratio':>8}"
             f"{'hit':>9}{'simulated':>11}"]
    compared = results.setdefault("calibration", {})[key] = {"fit": fit, "shared": shared, "policies": {}}
    for policy in dict.fromkeys(cell["router"] for cell in cells):
        mine = [cell for cell in cells if cell["router"] == policy]
        measured, hit = (statistics.fmean(cell[k] for cell in mine) for k in ("mean", "hit"))
        try:
            trace, trace_hit = means(args, fleet, log, ours, policy, several, shared)
            own, _ = means(args, fleet, log, mine, policy, several, shared)
        except Failed as failure:
            lines.append(f"{policy:18}{measured:10.3f}  {failure}")
            continue
        compared["policies"][policy] = {"measured": measured, "trace": trace, "own": own, "hit": hit, "trace_hit": trace_hit}
        mark = "" if abs(trace / measured - 1) <= WITHIN else "  *"
        lines.append(f"{policy:18}{measured:10.3f}{trace:10.3f}{trace / measured:8.2f}{own:14.3f}{own / measured:8.2f}"
                     f"{100 * hit:8.1f}%{100 * trace_hit:10.1f}%{mark}")
    good = sum(abs(row["trace"] / row["measured"] - 1) <= WITHIN for row in compared["policies"].values())
    lines.append(f"  within {100 * WITHIN:.0f} %: {good} of {len(compared['policies'])} policies (* are not)")
    return "\n".join(lines)
