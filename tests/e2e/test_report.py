# SPDX-License-Identifier: Apache-2.0
"""kvroute report: a verdict on a running router, its figures against the admin API's, its page in a real browser.

Pictures of the page go to a directory of the test, or to KVROUTE_PICTURES.
"""
import json
import re
import subprocess

import pytest

import browser
from engine import Engine
from harness import BINARY, Router, kvroute, wait_for
from texts import text

HOSTILE = "<img/src=x/onerror=document.title='broken'>"
WORKLOADS = {"support-bot": ["--groups", "6", "--requests", "120"],
             "coding-agents": ["--workload", "multi_turn", "--turns", "4", "--requests", "96"],
             HOSTILE: ["--workload", "unique", "--requests", "24"]}
REQUESTS = 240


@pytest.fixture(scope="module")
def served():
    """A router over four simulated engines that has seen three workloads and is idle now."""
    mocks = subprocess.Popen([BINARY, "mock", "--count", "4", "--listen", "127.0.0.1:0", "--preset", "llama3-8b-h100", "--speed", "20",
                              "--capacity-blocks", "1000"], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    urls = [re.search(r"ready on (http://\S+)", mocks.stderr.readline()).group(1) for _ in range(4)]
    router = Router(replicas=[f"{url},name=gpu-{letter}" for url, letter in zip(urls, "abcd")])
    try:
        router.wait_ready()
        loads = [subprocess.Popen([BINARY, "bench", router.url, "--no-progress", "--concurrency", "3", "--output-tokens", "8",
                                   "--header", "x-kvroute-workload: " + name, *options], stdout=subprocess.DEVNULL)
                 for name, options in WORKLOADS.items()]
        assert [load.wait(90) for load in loads] == [0, 0, 0]
        router.wait_idle()
        wait_for(lambda: router.ledger()["ledger"]["entries"] == REQUESTS, what="all booked")
        yield router
        router.check_and_stop()
    finally:
        router.kill()
        mocks.terminate()
        mocks.wait(10)
        mocks.stderr.close()


def report(*args, **more):
    done = kvroute("report", *args, **more)
    assert done.status == 0 and done.err == "", done
    return done.out


def life(accounts):
    return {account["name"]: account["windows"]["life"] for account in accounts}


def test_figures_are_the_admin_apis(served):
    seen = json.loads(report(served.admin_url, "--json", "--price", "2.5"))
    page = served.ledger()
    assert seen["policy"] == "kv" and seen["window"] == "life"
    for kind, key in [("workload", "workloads"), ("family", "families"), ("replica", "replicas")]:
        told = life(page["accounts"][kind])
        assert {a["name"] for a in seen[key]} == set(told)
        for account in seen[key]:
            sums = told[account["name"]]
            for field in ["requests", "prompt_tokens", "won_tokens", "placement_tokens", "staleness_tokens", "workload_tokens"]:
                assert account[field] == sums[field], (account["name"], field)
            assert account["observed_share"] == pytest.approx(sums["observed_tokens"] / sums["prompt_tokens"], abs=1e-6)
            assert account["predicted_share"] == pytest.approx(sums["predicted_tokens"] / sums["prompt_tokens"], abs=1e-6)
    whole = life(page["accounts"]["all"])["all"]
    rules = {rule["rule"]: rule for rule in seen["rules"]}
    virtual = life(page["accounts"]["virtual"])
    assert set(rules) == {"kv"} | set(virtual)
    assert rules["kv"]["reused"] == pytest.approx(whole["won_tokens"] / whole["prompt_tokens"], abs=1e-6)
    for name, sums in virtual.items():
        assert rules[name]["reused"] == pytest.approx(sums["won_tokens"] / sums["prompt_tokens"], abs=1e-6)
        assert rules[name]["computed_max_mean"] == pytest.approx(page["balance"][name]["computed_tokens"]["max_mean"], abs=1e-6)
    assert seen["curve"]["fleet_tokens"] == sum(replica["capacity_tokens"] for replica in served.replicas().values())
    assert seen["curve"]["ideal"] == pytest.approx(page["curve"]["life"]["ideal"], abs=1e-6)
    # The verdict is what the figures say.
    verdict = seen["verdict"]
    least = min((rules[name] for name in virtual), key=lambda rule: rule["computed_tokens"])
    assert verdict["work_gain"] == pytest.approx(1 - rules["kv"]["computed_tokens"] / least["computed_tokens"], abs=1e-6)
    calmest = min(rules[name]["computed_tokens"] * rules[name]["computed_max_mean"] for name in virtual)
    here = rules["kv"]["computed_tokens"] * rules["kv"]["computed_max_mean"]
    assert verdict["load_gain"] == pytest.approx(calmest / here - 1, abs=1e-6)
    assert verdict["by_work"] in ("not justified", "marginal", "justified") and verdict["price"] == 2.5
    assert any("Break-even" in sentence for sentence in verdict["reasons"])


def test_text_for_a_terminal(served):
    out = report(served.admin_url)
    assert out.startswith(f"Is cache-aware routing worth it at {served.admin_url}? It is ")
    for words in ["Reuse: of ", "round robin", "prefix hash", "Prediction: ", "Break-even: ", "support-bot", "gpu-a"]:
        assert words in out
    assert all(line.isprintable() for line in out.splitlines()) and len(max(out.splitlines(), key=len)) < 200


def test_the_page_in_a_browser(served, pictures, tmp_path):
    file = tmp_path / "report.html"
    report(served.admin_url, "--html", file, "--price", "3")
    html = file.read_text(encoding="utf-8")
    assert "<script" not in html and "@import" not in html and "url(" not in html and "nan" not in html
    assert re.findall(r"https?://[^\s\"'<?;]+", html.replace(served.admin_url, "")) == []
    if not browser.find():
        pytest.skip("no Chromium here")
    program = browser.Browser()
    try:
        for width in [1280, 360]:
            page = program.page(width=width)
            page.open(file.as_uri())
            assert page.run("document.title") == "kvroute report"
            # The verdict is what one sees first, in large letters, and nothing sticks out sideways.
            assert page.run("document.querySelector('.big').getBoundingClientRect().bottom") < 400
            assert page.run("document.querySelector('.big').textContent").startswith("It is ")
            assert page.run("document.documentElement.scrollWidth") <= width
            titles = page.run("[...document.querySelectorAll('h2')].map(h => h.textContent)")
            for title in ["Alarms", "Against simpler rules", "Would more memory do it, or better routing?",
                          "Does what is predicted come true?", "Is the work spread evenly?", "How much do prompts share?",
                          "How soon is it used again?", "What became of the prompts, by workload", "By family",
                          "The rules in figures", "Why requests went where they went"]:
                assert title in titles
            assert page.run("[...document.querySelectorAll('svg[role=img]')].length") == 6
            # No label of an axis reaches over its picture's edge, and none lies on its neighbour.
            assert page.run("""[...document.querySelectorAll('svg[role=img]')].flatMap(svg => {
                const edge = svg.getBoundingClientRect();
                const texts = [...svg.querySelectorAll('text.t.m')].map(t => t.getBoundingClientRect());
                const out = [...svg.querySelectorAll('text')].map(t => t.getBoundingClientRect())
                    .filter(t => t.left < edge.left - 1 || t.right > edge.right + 1);
                const touching = texts.filter((a, i) => texts.some((b, j) => i < j && a.right > b.left + 1 && b.right > a.left + 1));
                return [...out, ...touching];
            }).length""") == 0
            assert page.run("document.querySelectorAll('img').length") == 0
            assert HOSTILE in page.run("document.body.textContent")
            page.picture(pictures / f"report-{width}.png")
            assert (pictures / f"report-{width}.png").stat().st_size > 20000
            page.listen()
            assert page.complaints == [] and [url for url in page.requests if not url.startswith("file:")] == []
            page.close()
    finally:
        program.close()


def test_too_few_requests_say_when_to_come_back(served):
    done = kvroute("report", served.admin_url, "--min-requests", "1240")
    assert done.status == 1 and done.out == ""
    assert f"{REQUESTS} with a known prompt" in done.err and "Come back after 1000 more, in about " in done.err


def test_what_cannot_be_reported_is_said(hub, fleet, tmp_path, served):
    done = kvroute("report", "http://127.0.0.1:1")
    assert done.status == 1 and "cannot connect" in done.err
    done = kvroute("report", served.url)
    assert done.status == 1 and "this is no admin listener of kvroute (--admin)" in done.err
    router, _ = fleet.start(2, "--ledger", "off")
    router.chat(text(2000))
    done = kvroute("report", router.admin_url)
    assert done.status == 1 and "the ledger is switched off" in done.err and "--ledger on" in done.err
    router, _ = fleet.start(2)
    done = kvroute("report", router.admin_url)
    assert done.status == 1 and "0 with a known prompt" in done.err and "Come back after 200 more" in done.err
    done = kvroute("report", served.admin_url, "--html", tmp_path / "no" / "page.html")
    assert done.status == 1 and "page.html" in done.err
    # Before anything is asked.
    done = kvroute("report", "http://127.0.0.1:1", "--html", tmp_path / "no" / "page.html")
    assert done.status == 1 and "page.html: No such file" in done.err and "connect" not in done.err
    assert kvroute("report", "http://127.0.0.1:1", "--html", tmp_path / "page.html").status == 1
    assert not (tmp_path / "page.html").exists()
    for args in [["ftp://x"], ["--window", "2h"], ["--price", "much"], ["--token-file", tmp_path / "none"]]:
        assert kvroute("report", *args).status == 2, args
    engine = Engine(hub)
    guarded = Router(replicas=[engine], env={"KVROUTE_ADMIN_TOKEN": "s3cret"})
    try:
        done = kvroute("report", guarded.admin_url)
        assert done.status == 1 and "wants its admin token" in done.err and "--token-file" in done.err
        done = kvroute("report", guarded.admin_url, env={"KVROUTE_ADMIN_TOKEN": "wrong"})
        assert done.status == 1 and "another admin token than the one from KVROUTE_ADMIN_TOKEN" in done.err
        (tmp_path / "token").write_text("wrong\n")
        done = kvroute("report", guarded.admin_url, "--token-file", tmp_path / "token")
        assert done.status == 1 and "the one from --token-file" in done.err and "--admin-token" in done.err
        done = kvroute("report", guarded.admin_url, env={"KVROUTE_ADMIN_TOKEN": "s3cret"})
        assert done.status == 1 and "too few requests" in done.err
    finally:
        guarded.terminate()
        assert guarded.wait_exit() == 0
        engine.close()


def test_unknown_stays_unknown(fleet):
    """Engines that tell nothing: what was reused is as predicted, and that is said."""
    engine = fleet.engine(usage=False)
    router = fleet.router(replicas=[engine])
    router.wait_ready(engine)
    prompt = text(3000)
    for _ in range(5):
        router.chat(prompt)
    router.wait_idle()
    wait_for(lambda: router.ledger()["ledger"]["entries"] == 5, what="all booked")
    seen = json.loads(report(router.admin_url, "--json", "--min-requests", "5"))
    assert seen["all"]["observed_share"] is None and seen["all"]["predicted_share"] is None
    out = report(router.admin_url, "--min-requests", "5")
    assert "no engine told" in out and "unknown" in out


def test_another_policy_is_not_judged(fleet):
    router, _ = fleet.start(2, "--policy", "round_robin")
    for _ in range(6):
        router.chat(text(3000))
    router.wait_idle()
    wait_for(lambda: router.ledger()["ledger"]["entries"] == 6, what="all booked")
    seen = json.loads(report(router.admin_url, "--json", "--min-requests", "6"))
    assert seen["verdict"]["by_work"] == "unknown" and seen["policy"] == "round_robin"
    assert "this router runs round_robin" in seen["verdict"]["words"]


def test_a_shadow_is_judged(fleet):
    """Round robin in force, kv measured beside it: kv is what the verdict is on."""
    router, _ = fleet.start(3, "--policy", "round_robin", "--shadow", "on")
    prompts = [text(4000) for _ in range(8)]
    for _ in range(4):
        for prompt in prompts:
            assert router.chat(prompt).status == 200
    router.wait_idle()
    wait_for(lambda: (router.ledger()["shadow"] or {}).get("requests") == 32, what="both sides booked", timeout=20)
    seen = json.loads(report(router.admin_url, "--json", "--min-requests", "32"))
    shadow = router.ledger()["shadow"]
    assert seen["shadow"] is True and seen["policy"] == "round_robin" and seen["verdict"]["by_work"] != "unknown"
    rules = {rule["rule"]: rule for rule in seen["rules"]}
    assert set(rules) == {"kv", "round_robin", "least_tokens", "prefix_hash"}
    assert rules["kv"]["reused"] == pytest.approx(shadow["kv"]["hit_rate_calibrated"], abs=1e-6)
    assert rules["round_robin"]["reused"] == pytest.approx(seen["all"]["won_tokens"] / seen["all"]["prompt_tokens"], abs=1e-6)
    assert rules["kv"]["reused"] > rules["round_robin"]["reused"]
    assert seen["verdict"]["words"].startswith("It would be ")


def test_help():
    done = kvroute("report", "--help")
    assert done.status == 0
    for option in ["--window", "--min-requests", "--price", "--token-file", "--json", "--html"]:
        assert option in done.out
    assert "report" in kvroute("--help").out
