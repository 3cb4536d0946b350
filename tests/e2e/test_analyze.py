# SPDX-License-Identifier: Apache-2.0
"""kvroute analyze: the account, the ladder and the verdicts, in all forms.

The verdicts about whole traces need the traces: KVROUTE_TRACES names the directory they are in.
"""
import json
import os
import re

import pytest

import browser
from harness import ROOT, kvroute, wait_for
from texts import turns

EXTRACTS = ROOT / "tests" / "data" / "traces"
TRACES = os.environ.get("KVROUTE_TRACES")
RUNGS = ["L0", "L1", "L2", "L3", "L4", "L5"]
WORDS = {"justified", "marginal", "not justified"}

needs_traces = pytest.mark.skipif(not TRACES, reason="KVROUTE_TRACES is not set")


def analyze(*args, **more):
    done = kvroute("analyze", "--no-progress", *map(str, args), **more)
    assert done.status == 0, done
    return done.out


def report(*args, **more):
    return json.loads(analyze("--json", *args, **more))


def by_rung(out):
    return {rung["rung"]: rung for rung in out["ladder"]}


# ---- whole traces --------------------------------------------------------------------------------------------------


@needs_traces
@pytest.mark.parametrize("trace", ["azure-llm-2023-conv.csv.gz", "azure-llm-2023-code.csv.gz"])
def test_lengths_without_anything_in_common_do_not_justify_it(trace):
    out = report(os.path.join(TRACES, trace), timeout=120)
    assert out["verdict"]["words"] == "not justified"
    assert (out["verdict"]["by_work"], out["verdict"]["by_latency"]) == ("not justified", "not justified")
    assert out["verdict"]["idle"] is True
    assert out["verdict"]["highest_justified"] == "L0"
    assert any("no verdict by latency" in reason for reason in out["verdict"]["reasons"])
    assert out["account"]["hit_rate"]["ideal"] == 0
    assert all(rung["hit_rate"] == 0 and rung["saved_replica_hours"] == 0 for rung in out["ladder"])


@needs_traces
def test_chat_is_marginal_by_work_and_justified_by_latency():
    out = report(os.path.join(TRACES, "mooncake-conversation.jsonl.gz"), timeout=240)
    assert out["verdict"]["words"] == "marginal over a hash by work, justified by tail latency"
    assert (out["verdict"]["by_work"], out["verdict"]["by_latency"]) == ("marginal", "justified")
    account, ladder = out["account"], by_rung(out)
    assert round(account["hit_rate"]["ideal"], 4) == .3736
    assert round(account["hit_rate"]["ideal_blocks"], 4) == .3664
    assert round(account["hit_rate"]["pooled_blocks"], 4) == .3320
    assert round(out["fleet"]["replica_hours_without_cache"], 2) == 4.36
    # With the H100 fit, as published beside the reference tables.
    assert abs(ladder["L0"]["replica_hours"] - 3.97) < .006
    assert abs(ladder["L2"]["replica_hours"] - 2.98) < .006
    assert ladder["L4"]["hit_rate"] > .30


@needs_traces
def test_agents_justify_it():
    out = report(os.path.join(TRACES, "claude-code-512.jsonl.gz"), timeout=600)
    assert out["verdict"]["words"] == "justified"
    assert (out["verdict"]["by_work"], out["verdict"]["by_latency"]) == ("justified", "justified")
    assert out["verdict"]["highest_justified"] == "L4"
    assert out["account"]["sessions"] == 710
    assert round(out["account"]["hit_rate"]["ideal"], 4) == .9614


@needs_traces
def test_capacities_of_the_reference_table():
    """Speed-up at which p90 is within 10 s, by the reference rules at load 1.0: table C to two digits."""
    out = report("--load", 1, "--ttft-target", "10s", "--capacity-tokens", 4000 * 512,
                 os.path.join(TRACES, "mooncake-conversation.jsonl.gz"), timeout=240)
    ladder = by_rung(out)
    for rung, wanted in [("L0", .52), ("L1", .99), ("L2", .59), ("L3", .83)]:
        assert abs(ladder[rung]["capacity"] - wanted) < .00501, rung
    for rung, hit, p90 in [("L0", .0981, 42.72), ("L1", .0983, 10.31), ("L2", .3312, 21.48), ("L3", .2205, 13.04)]:
        assert abs(ladder[rung]["block_hit_rate"] - hit) < .00005001
        assert abs(ladder[rung]["ttft_s"]["p90"] - p90) < .00501
    assert ladder["L4"]["capacity"] >= 1.22


# ---- extracts ------------------------------------------------------------------------------------------------------


def test_the_shape():
    out = report("--price", 4, EXTRACTS / "agents.jsonl.gz")
    assert list(out) == ["trace", "verdict", "fleet", "account", "ladder"]
    assert out["trace"] == "agents.jsonl.gz"
    assert [rung["rung"] for rung in out["ladder"]] == RUNGS
    assert {out["verdict"]["by_work"], out["verdict"]["by_latency"]} <= WORDS
    account = out["account"]
    assert (account["requests"], account["sessions"], account["block_tokens"]) == (1091, 8, 512)
    assert account["hit_rate"]["ideal"] >= account["hit_rate"]["pooled"] >= account["hit_rate"]["policy"] > .9
    assert abs(account["hit_rate"]["ideal"] - account["hit_rate"]["pooled"] - account["lost_to_capacity"]) < 1e-9
    assert account["cross_session_tokens"] == 0  # ids of the source are scoped by session
    assert sum(count for _, count in account["shared_prefix_histogram"]) == 1091
    rates = [rate for _, rate in account["curve"]]
    assert rates == sorted(rates) and abs(rates[-1] - account["hit_rate"]["ideal"]) < 1e-9
    for rung in out["ladder"]:
        assert rung["by_work"] in WORDS and rung["by_latency"] in WORDS
        assert 0 < rung["hit_rate"] <= account["hit_rate"]["ideal"] + 1e-9
        assert rung["cost"]["cpu_us_per_request"] > 0 and rung["cost"]["processes"] and rung["cost"]["failure_modes"]
        work = rung["work"]
        assert abs(work["jain"] - 1 / (1 + work["cv"] ** 2)) < 1e-9
    l3, l4 = out["ladder"][3:5]
    assert abs(l4["work_gain"] - (1 - l4["replica_hours"] / l3["replica_hours"])) < 1e-6
    saved = max(0, l3["replica_hours"] - l4["replica_hours"]) / (account["span_s"] / 3600) * 730
    assert abs(l4["break_even_replica_hours_month_work"] - saved) < 1e-6
    assert abs(l4["break_even_month_work"] - 4 * saved) < 1e-5
    assert out["ladder"][4]["cost"]["state_bytes"] > 1e5 > out["ladder"][3]["cost"]["state_bytes"]


def test_verdicts_of_extracts():
    """What the extracts say, which is not what the whole traces say: 300 chats share hardly more than their first block, and
    eight agents over fourteen hours never wait for each other."""
    chat = report(EXTRACTS / "conversation.jsonl.gz")["verdict"]
    assert (chat["words"], chat["idle"]) == ("not justified", False)
    lengths = report(EXTRACTS / "lengths.csv.gz")["verdict"]
    assert (lengths["words"], lengths["idle"]) == ("not justified", True)
    agents = report(EXTRACTS / "agents.jsonl.gz")["verdict"]
    assert (agents["by_work"], agents["by_latency"], agents["idle"]) == ("marginal", "not justified", True)
    pressed = report("--load", 1.5, EXTRACTS / "agents.jsonl.gz")["verdict"]
    assert (pressed["by_work"], pressed["by_latency"], pressed["idle"]) == ("marginal", "justified", False)


def test_it_does_not_depend_on_threads():
    args = ["--json", EXTRACTS / "conversation.jsonl.gz"]
    assert analyze("--threads", 1, *args) == analyze("--threads", 5, *args)


def test_hit_rates_are_those_of_the_simulator():
    out = kvroute("simulate", "--no-progress", "--json", "--reference", "--replicas", "4", "--capacity-blocks", "300",
                  "--policies", "rr,hash2,pooled,ideal", str(EXTRACTS / "agents.jsonl.gz"))
    wanted = {row["policy"]: row for row in json.loads(out.out)["rows"]}
    ours = report("--replicas", 4, "--capacity-tokens", 300 * 512, EXTRACTS / "agents.jsonl.gz")
    ladder, rates = by_rung(ours), ours["account"]["hit_rate"]
    for rung, policy in [("L0", "rr"), ("L2", "hash2")]:
        assert abs(ladder[rung]["hit_rate"] - wanted[policy]["hit_rate"]) < 1e-6
        assert abs(ladder[rung]["block_hit_rate"] - wanted[policy]["block_hit_rate"]) < 1e-6
    assert abs(rates["pooled"] - wanted["pooled"]["hit_rate"]) < 1e-6
    assert abs(rates["ideal"] - wanted["ideal"]["hit_rate"]) < 1e-6


def test_a_stretch_and_a_target():
    whole = report(EXTRACTS / "conversation.jsonl.gz")
    part = report("--from", 30, "--to", "60s", "--ttft-target", "3s", EXTRACTS / "conversation.jsonl.gz")
    assert part["account"]["requests"] < whole["account"]["requests"]
    assert part["account"]["span_s"] <= 30
    assert part["fleet"]["ttft_target_s"] == 3
    assert whole["fleet"]["ttft_target_s"] == 10


def test_a_target_out_of_reach_is_raised_and_said():
    out = report("--load", 1.5, EXTRACTS / "agents.jsonl.gz")
    assert out["fleet"]["ttft_target_s"] > 10 and out["fleet"]["ttft_target_s"] % 5 == 0
    assert any("instead of 10 s" in reason for reason in out["verdict"]["reasons"])


def test_idle_replicas_are_taken_in_turn(tmp_path):
    """An idle fleet's ties do not all go to the first replica, whose cache would be the merit of the least loaded rule."""
    trace = tmp_path / "idle.jsonl"
    with open(trace, "w", encoding="ascii") as file:
        for i in range(600):
            group = i * 7 % 60
            file.write(json.dumps({"timestamp": i * 2000, "input_length": 8 * 512, "output_length": 64,
                                   "hash_ids": [*range(group * 6, group * 6 + 6), 10000 + 2 * i, 10001 + 2 * i]}) + "\n")
    out = report(trace)
    rungs = by_rung(out["traces"][0] if "traces" in out else out)
    text = analyze(trace)
    assert "least loaded" not in text.split("highest rung that is justified:")[1].splitlines()[0]
    assert len(rungs) == 6


def test_several_traces():
    out = report(EXTRACTS / "conversation.jsonl.gz", EXTRACTS / "lengths.csv.gz")
    assert [one["trace"] for one in out["reports"]] == ["conversation.jsonl.gz", "lengths.csv.gz"]
    text = analyze(EXTRACTS / "conversation.jsonl.gz", EXTRACTS / "lengths.csv.gz")
    assert text.count("cache-aware routing: ") == 2


def test_the_table():
    text = analyze("--price", 2.5, EXTRACTS / "conversation.jsonl.gz")
    assert text.startswith("conversation.jsonl.gz\ncache-aware routing: not justified\n")
    for rung, name in zip(RUNGS, ["round robin", "least loaded", "prefix hash", "bounded hash", "router-side history",
                                  "engine events"]):
        assert len(re.findall(rf"^{rung} {name} ", text, re.M)) == 3, name
    for words in ["ideal 0.0810 >= pooled", "locality efficiency", "shared prefix (", "reuse (", "hit rate of one cache",
                  "busiest 1, 10, 100 blocks", "Jain", "what a rung costs to run", "at 2.50", "docs/benchmarks.md"]:
        assert words in text, words
    assert "nan" not in text and "inf " not in text


def test_progress_goes_to_stderr():
    done = kvroute("analyze", "--json", str(EXTRACTS / "conversation.jsonl.gz"))
    assert done.status == 0 and "capacity" in done.err
    json.loads(done.out)


# ---- an access log -------------------------------------------------------------------------------------------------


def test_the_access_log_of_a_router_that_ran(fleet, tmp_path):
    """What the log's account says is what the clients were told."""
    log = tmp_path / "access.log"
    router, _ = fleet.start(2, "--access-log", log)
    for number in range(3):
        for messages in turns(4, f"log-{number}", 1500):
            router.chat(messages)
    wait_for(lambda: log.read_text().count("/v1/chat/completions") == 12, what="12 lines")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    asked = [line for line in lines if line["path"] == "/v1/chat/completions"]
    out = report(log)
    assert out["kind"] == "access_log" and out["ladder"] == []
    account = out["account"]
    assert account["requests"] == len(asked) == 12
    assert account["observed_tokens"] == sum(line["observed_tokens"] for line in asked) > 0
    assert account["prompt_tokens"] == sum(line["prompt_tokens"] for line in asked)
    assert account["predicted_tokens"] == sum(line["predicted_tokens"] for line in asked)
    parts = [account[name + "_tokens"] for name in ["won", "staleness", "placement", "workload"]]
    assert sum(parts) == account["prompt_tokens"]
    assert sum(replica["requests"] for replica in account["replicas"].values()) == 12
    assert out["verdict"]["by_work"] in WORDS and out["verdict"]["bound"] is True
    text = analyze(log)
    assert "no ladder, and no verdict by latency" in " ".join(text.split())
    done = kvroute("analyze", "--no-progress", "--html", str(tmp_path / "page.html"), str(log))
    assert done.status == 1 and "access log" in done.err


# ---- the page ------------------------------------------------------------------------------------------------------


def test_a_page_that_cannot_be_written_is_told_before_the_work(tmp_path):
    for path, why in ((tmp_path / "no" / "page.html", "No such file"), (tmp_path, "Is a directory")):
        done = kvroute("analyze", "--html", str(path), str(EXTRACTS / "agents.jsonl.gz"))
        assert done.status == 1 and f"--html: cannot write {path}: {why}" in done.err, done
        assert done.out == "" and "capacity" not in done.err    # no verdict, no progress
    page = tmp_path / "page.html"
    page.write_text("what was there")
    assert kvroute("analyze", "--no-progress", "--html", str(page), str(tmp_path / "none.jsonl")).status == 1
    assert page.read_text() == "what was there"
    fresh = tmp_path / "fresh.html"
    assert kvroute("analyze", "--no-progress", "--html", str(fresh), str(tmp_path / "none.jsonl")).status == 1
    assert not fresh.exists()


def test_the_page_is_self_contained(tmp_path):
    page = tmp_path / "report.html"
    analyze("--html", page, EXTRACTS / "agents.jsonl.gz")
    html = page.read_text(encoding="utf-8")
    assert "<script" not in html and "http" not in html and "@import" not in html and "url(" not in html
    assert html.count("role=\"img\"") == 6
    assert html.index("Is cache-aware routing worth it for agents.jsonl.gz?") < html.index("<section><h2>")
    assert "no verdict: nothing queues" in html
    assert "nan" not in html.replace("finance", "") and "inf" not in html
    for rung in RUNGS:
        assert f"<td>{rung} " in html


@pytest.mark.skipif(not browser.find(), reason="no Chromium")
def test_the_page_in_a_browser(tmp_path):
    file = tmp_path / "report.html"
    analyze("--html", file, EXTRACTS / "conversation.jsonl.gz", EXTRACTS / "lengths.csv.gz")
    program = browser.Browser()
    try:
        for width in [1280, 400]:
            page = program.page(width=width)
            page.open(file.as_uri())
            # The verdict is what one sees first, and nothing sticks out sideways.
            top = page.run("document.querySelector('.big').getBoundingClientRect().bottom")
            assert top < 400
            assert page.run("document.querySelector('.big').textContent") == "It is not justified."
            assert page.run("document.documentElement.scrollWidth") <= width
            assert page.run("[...document.querySelectorAll('svg[role=img]')].every(s => s.getBoundingClientRect().width > 200)")
            # No label of an axis reaches over its picture's edge.
            assert page.run("""[...document.querySelectorAll('svg[role=img]')].flatMap(svg => {
                const edge = svg.getBoundingClientRect();
                return [...svg.querySelectorAll('text')].map(t => t.getBoundingClientRect())
                    .filter(t => t.left < edge.left - 1 || t.right > edge.right + 1);
            }).length""") == 0
            page.picture(tmp_path / f"report-{width}.png")
            page.listen()
            assert page.complaints == [] and [url for url in page.requests if not url.startswith("file:")] == []
            page.close()
    finally:
        program.close()


def test_wrong_use():
    trace = str(EXTRACTS / "conversation.jsonl.gz")
    for args, words in [
            ([], "FILE"),
            (["--ttft-target", "soon", trace], "--ttft-target"),
            (["--ttft-target", "0s", trace], "--ttft-target"),
            (["--preset", "none", trace], "--preset"),
            (["--from", "9", "--to", "4", trace], "--to"),
            (["--replicas", "0", trace], "--replicas"),
            (["--price", "-1", trace], "--price")]:
        done = kvroute("analyze", *args)
        assert done.status == 2 and words in done.err and not done.out, (args, done)


def test_what_cannot_be_read_or_written(tmp_path):
    done = kvroute("analyze", str(tmp_path / "none.jsonl"))
    assert done.status == 1 and "none.jsonl" in done.err
    done = kvroute("analyze", "--no-progress", "--html", str(tmp_path / "no" / "page.html"),
                   str(EXTRACTS / "lengths.csv.gz"))
    assert done.status == 1 and "page.html" in done.err


def test_help():
    done = kvroute("analyze", "--help")
    assert done.status == 0
    for option in ["--price", "--replicas", "--capacity-tokens", "--preset", "--ttft-target", "--json", "--from", "--to",
                   "--html", "--load"]:
        assert option in done.out
