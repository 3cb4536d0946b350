# SPDX-License-Identifier: Apache-2.0
"""The dashboard in a real browser: figures are the API's, names are text, nothing is fetched from elsewhere.

Pictures of it go to a directory of the test, or to KVROUTE_PICTURES.
"""
import json
import math
import re
import signal
import subprocess
import time

import pytest

import browser
from engine import Engine
from harness import BINARY, Router, sanitized, wait_for
from texts import text


def needs_browser(test):
    """Also slow: the page is the same whatever the program was compiled with, so the sanitizers need not wait for it."""
    return pytest.mark.slow(pytest.mark.skipif(not browser.find(), reason="no Chromium here: scripts/setup.sh test "
                                               "installs chromium-headless-shell")(test))


HOSTILE = "<img/src=x/onerror=document.title='broken'>"
SHOWN = "!document.getElementById('figures').hidden"
WORKLOADS = {"support-bot": ["--groups", "6", "--requests", "60"],
             "coding-agents": ["--workload", "multi_turn", "--turns", "4", "--requests", "48"],
             "translation": ["--workload", "unique", "--requests", "24"]}


@pytest.fixture(scope="module")
def chromium():
    if not browser.find():
        pytest.skip("no Chromium here")
    program = browser.Browser()
    yield program
    program.close()


@pytest.fixture
def page(chromium):
    pages = []

    def opened(router, **options):
        pages.append(chromium.page(**options))
        pages[-1].open(router.admin_url + "/")
        return pages[-1]
    yield opened
    for one in pages:
        one.close()


@pytest.fixture(scope="module")
def served():
    """A router over four simulated engines that has seen three workloads and is idle now."""
    mocks = subprocess.Popen([BINARY, "mock", "--count", "4", "--listen", "127.0.0.1:0", "--preset", "llama3-8b-h100",
                              "--speed", "50", "--capacity-blocks", "1000"], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    urls = [re.search(r"ready on (http://\S+)", mocks.stderr.readline()).group(1) for _ in range(4)]
    router = Router(replicas=[f"{url},name=gpu-{letter}" for url, letter in zip(urls, "abcd")])
    try:
        router.wait_ready()
        loads = [subprocess.Popen([BINARY, "bench", router.url, "--no-progress", "--concurrency", "3", "--output-tokens", "8",
                                   "--header", "x-kvroute-workload: " + name, *options], stdout=subprocess.DEVNULL)
                 for name, options in WORKLOADS.items()]
        assert [load.wait(60) for load in loads] == [0, 0, 0]
        router.wait_idle()
        wait_for(lambda: router.ledger()["ledger"]["entries"] == 132, what="all booked")
        yield router
        router.check_and_stop()
    finally:
        router.kill()
        mocks.terminate()
        mocks.wait(10)
        mocks.stderr.close()


@pytest.fixture
def guarded(hub):
    """A router that asks for a token on its admin listener (the harness has none, so it is ended here)."""
    engine = Engine(hub)
    router = Router(replicas=[engine], env={"KVROUTE_ADMIN_TOKEN": "secret-1"})
    yield router
    router.terminate()
    assert router.wait_exit() == 0
    engine.close()


def choose(page, name, value):
    page.run(f"document.querySelector('input[name={name}][value=\"{value}\"]').click()")


def is_clean(page, router):
    """Nothing was complained about, and everything asked for was the router's own."""
    page.listen()
    assert page.complaints == [] and page.failures == []
    assert page.requests and [u for u in page.requests if not u.startswith(router.admin_url + "/")] == []


def cells(page, holder):
    """{name of the row: {column: exact figure}} of a table."""
    return json.loads(page.run(f"""JSON.stringify(Object.fromEntries([...document.querySelectorAll('#{holder} tbody tr')].map((row) =>
        [row.querySelector('th').textContent, Object.fromEntries([...row.querySelectorAll('td[data-column][data-value]')].map((cell) =>
            [cell.dataset.column, Number(cell.dataset.value)]))])))"""))


def content(page, selector):
    return page.run(f"document.querySelector({json.dumps(selector)}).textContent.replaceAll('\\u00a0', ' ')")


# ---- without a browser --------------------------------------------------------------------------------------------------


def test_the_page_comes_with_a_strict_policy_and_without_the_token(guarded):
    router = guarded
    answer = router.admin_request("GET", "/")
    assert answer.status == 200 and answer.header("content-type").startswith("text/html")
    policy = answer.header("content-security-policy")
    assert "default-src 'none'" in policy and "unsafe" not in policy and "script-src 'self'" in policy
    assert answer.header("x-content-type-options") == "nosniff"
    html = answer.body.decode()
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\bon\w+=", html), "nothing inline"
    for path in re.findall(r'(?:src|href)="(ui/[^"]+)"', html):
        part = router.admin_request("GET", "/" + path)
        assert part.status == 200 and len(part.body) > 100, path
        assert router.admin_request("GET", "/" + path, headers=[("if-none-match", part.header("etag"))]).status == 304
        for address in re.findall(rb"https?://[^\s\"'`)]+", part.body):
            assert path.endswith(("chart.min.js", "licences.txt")) or address == b"http://www.w3.org/2000/svg", address
    assert b"Chart.js v" in router.admin_request("GET", "/ui/chart.min.js").body[:200], "built without charts"
    assert b"Chart.js Contributors" in router.admin_request("GET", "/ui/licences.txt").body
    assert router.admin_request("GET", "/ui/none.js").status == 401
    assert router.admin_request("GET", "/kvroute/ledger").status == 401
    assert router.admin_request("POST", "/").status == 401


# ---- figures ------------------------------------------------------------------------------------------------------------


@needs_browser
def test_figures_are_those_of_the_ledger(served, page):
    view = page(served)
    view.wait(SHOWN)
    choose(view, "window", "life")
    truth = served.ledger()
    total = truth["accounts"]["all"][0]["windows"]["life"]
    assert total["requests"] == 132 and total["won_tokens"] > 0

    tiles = json.loads(view.run("JSON.stringify(Object.fromEntries([...document.querySelectorAll('#tiles > div')].map((t) =>"
                                "[t.dataset.tile, Number(t.dataset.value)])))"))
    share = total["won_tokens"] / total["prompt_tokens"]
    rules = {a["name"]: a["windows"]["life"]["won_tokens"] / a["windows"]["life"]["prompt_tokens"] for a in truth["accounts"]["virtual"]}
    assert tiles == pytest.approx({"reused": share, "avoided": total["avoided_ns"] / 1e9, "over-turns": share - rules["round_robin"],
                                   "over-best": share - max(rules.values())})
    assert content(view, "#tiles .figure") == f"{share * 100:.0f} %"
    assert f"{share * 100:.0f} % came out of caches" in content(view, "#verdict")
    assert content(view, "#verdict strong") in ("Yes.", "Barely.", "Yes, for the balance.")

    parts = json.loads(view.run("JSON.stringify(Object.fromEntries([...document.querySelectorAll('#account-legend > div')].map((t) =>"
                                "[t.dataset.part, Number(t.dataset.value)])))"))
    assert parts == {name: total[name + "_tokens"] for name in ("won", "placement", "staleness", "workload")}
    assert sum(parts.values()) == total["prompt_tokens"]

    for kind in ("workload", "family", "model", "replica"):
        choose(view, "kind", kind)
        shown, accounts = cells(view, "accounts"), truth["accounts"][kind]
        busy = sorted((a for a in accounts if a["windows"]["life"]["requests"]), key=lambda a: -a["windows"]["life"]["prompt_tokens"])
        assert busy and len(shown) == min(15, len(busy))
        for account in busy[:10]:
            sums, row = account["windows"]["life"], shown[account["name"]]
            assert {k: row[k] for k in ("requests", "prompt", "won", "placement", "staleness", "workload")} == {
                "requests": sums["requests"], "prompt": sums["prompt_tokens"], "won": sums["won_tokens"],
                "placement": sums["placement_tokens"], "staleness": sums["staleness_tokens"], "workload": sums["workload_tokens"]}
            assert row["avoided"] == pytest.approx(sums["avoided_ns"] / 1e9)
    assert set(WORKLOADS) == {a["name"] for a in truth["accounts"]["workload"]}

    shown = cells(view, "rules-table")
    assert shown["round robin"]["reuse"] == pytest.approx(rules["round_robin"])
    assert shown["kv (in force)"]["busiest"] == pytest.approx(truth["balance"]["real"]["computed_tokens"]["max_mean"])
    fleet = cells(view, "fleet")
    assert set(fleet) == {"gpu-a", "gpu-b", "gpu-c", "gpu-d"}
    for name, entry in served.replicas().items():
        assert fleet[name]["capacity"] == entry["capacity_tokens"] and fleet[name]["in_flight"] == 0
    assert sum(row["requests"] for row in cells(view, "reasons").values()) == 132
    assert "None" in content(view, "#alarms")
    is_clean(view, served)


@needs_browser
def test_the_last_requests_are_listed(fleet, page):
    router, _ = fleet.start(2)
    prompt = text(4000)
    for _ in range(3):
        assert router.chat(prompt, headers=[("x-kvroute-workload", "agents")]).status == 200
    assert router.chat("x", model="nobody").status == 404
    router.wait_idle()
    kept = wait_for(lambda: len(router.admin_request("GET", "/kvroute/decisions").json["decisions"]) == 3
                    and router.admin_request("GET", "/kvroute/decisions").json["decisions"], what="three noted")
    assert [d["reason"] for d in kept] == ["hit", "hit", "load"] and {d["workload"] for d in kept} == {"agents"}
    assert kept[0]["replica"] == kept[2]["replica"] in router.replicas() and kept[0]["status"] == 200
    assert kept[0]["observed_tokens"] > 900 and kept[2]["observed_tokens"] == 0
    assert kept[0]["predicted_tokens"] == kept[0]["best_tokens"] > 900
    view = page(router)
    view.wait(SHOWN)
    view.wait("document.querySelectorAll('#decisions tbody tr').length === 3")
    assert view.run("[...document.querySelectorAll('#decisions tbody tr')].map((r) => r.cells[4].textContent)") == ["hit", "hit", "load"]
    shown = view.run("[...document.querySelectorAll('#decisions td[data-column=price]')].map((c) => Number(c.dataset.value))")
    assert shown == pytest.approx([d["wait_s"] + d["own_s"] + d["toll_s"] for d in kept], abs=1e-9)
    is_clean(view, router)


@needs_browser
def test_charts_are_drawn_and_told_in_words(served, page):
    view = page(served)
    view.wait(SHOWN)
    for chart in ("time", "truth", "rules", "curve", "spread"):
        assert view.run(f"""(() => {{ const c = document.querySelector('#{chart} canvas');
            const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
            return new Set(Array.from({{length: d.length / 4}}, (_, i) => d[4 * i] << 16 | d[4 * i + 1] << 8 | d[4 * i + 2])).size; }})()""") > 10, chart
        assert len(view.run(f"document.querySelector('#{chart} canvas').getAttribute('aria-label')")) > 20
    view.run("document.querySelector('#curve summary').click()")
    view.wait("document.querySelectorAll('#curve tbody tr').length > 5")
    points = served.ledger()["curve"]["1h"]["points"]
    capacity = sum(e["capacity_tokens"] for e in served.replicas().values())
    (small, low), (large, high) = next(pair for pair in zip(points, points[1:]) if pair[0][0] <= capacity < pair[1][0])
    here = low + (high - low) * math.log(capacity / small) / math.log(large / small)
    assert re.search(rf"With the fleet's .* tokens {here * 100:.0f} %", content(view, "#curve-note"))
    # While the page is open its own steps are added to what the windows told of the time before.
    steps = view.run("document.querySelectorAll('#time tbody tr').length")
    view.run("document.querySelector('#time summary').click()")
    view.wait(f"document.querySelectorAll('#time tbody tr').length > {steps + 1}", 30, "the page's own history")
    is_clean(view, served)


@needs_browser
def test_pictures_and_narrow_screens(served, page, pictures):
    view = page(served)
    view.wait(SHOWN)
    for width in (1400, 1330, 768, 400, 320):
        for dark in (False, True):
            view.look(width, 900, dark)
            view.wait(f"innerWidth === {width} && matchMedia('(prefers-color-scheme: dark)').matches === {str(dark).lower()}")
            back = view.run("getComputedStyle(document.body).backgroundColor")
            assert (sum(map(int, re.findall(r"\d+", back))) < 200) == dark, back
            # As wide as the window, and so is everything in it that does not scroll by itself.
            assert view.run("document.documentElement.scrollWidth") <= width
            assert view.run("""[...document.querySelectorAll('main *')].filter((e) => !e.closest('.scroll, .hear, thead, canvas')
                && e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.outerHTML.slice(0, 120))""") == []
            if width in (1400, 400):
                time.sleep(0.5)  # the charts follow the window's size
                file = pictures / f"dashboard-{width}-{'dark' if dark else 'light'}.png"
                view.picture(file)
                assert file.stat().st_size > 20000
    is_clean(view, served)


@needs_browser
def test_it_can_be_used_with_the_keyboard(served, page):
    view = page(served)
    view.wait(SHOWN)
    order = []
    for _ in range(40):
        view.tab()
        now = view.run("(() => { const e = document.activeElement; return e === document.body ? null :"
                       " e.name || e.id || e.getAttribute('href') || e.closest('.chart')?.id + ' ' + e.tagName.toLowerCase(); })()")
        if now is None:
            break
        ring = view.run("(() => { const e = document.activeElement; const s = getComputedStyle(e.type === 'radio' ? e.nextElementSibling : e);"
                        " return s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 2; })()")
        assert ring, f"the focus on {now} cannot be seen"
        order.append(now)
    assert order[:4] == ["#main", "window", "kind", "subject"]
    assert [o for o in order if o.endswith(" summary")] == ["time summary", "truth summary", "curve summary", "spread summary"]
    assert order[-1] == "ui/licences.txt"
    # The arrow keys move within a group, and the page follows.
    view.run("document.querySelector('input[name=window]:checked').focus()")
    before = content(view, "#verdict")
    for _ in range(2):
        view.key("ArrowRight", number=39)
    assert view.run("document.querySelector('input[name=window]:checked').value") == "life"
    view.wait(f"document.getElementById('verdict').textContent.replaceAll('\\u00a0', ' ') !== {json.dumps(before)}")
    # A poll replaces figures, not what has the focus.
    at = view.run("document.getElementById('live').textContent")
    time.sleep(2.5)
    assert at and view.run("document.activeElement.value") == "life"


# ---- strangers, and what is not known ------------------------------------------------------------------------------------


@needs_browser
def test_families_are_called_as_the_configuration_does(fleet, page, tmp_path):
    file = tmp_path / "kvroute.yaml"
    file.write_text("policy: kv\n")
    router, _ = fleet.start(2, "--config", file, "--seed", "9")
    for _ in range(6):
        system = {"role": "system", "content": text(3000, "dashboard-family")}
        assert router.chat([system, {"role": "user", "content": text(200)}]).status == 200
    router.wait_idle()
    names = [a["name"] for a in wait_for(lambda: [a for a in router.ledger()["accounts"]["family"] if a["name"][0] != "("], what="a family")]
    file.write_text(f"families: {{ support-bot: {names[0]} }}\n")
    router.signal(signal.SIGHUP)
    view = page(router)
    view.wait(SHOWN)
    choose(view, "kind", "family")
    view.wait("[...document.querySelectorAll('#accounts tbody th')].some((c) => c.textContent === 'support-bot')")
    assert view.run("[...document.querySelectorAll('#accounts tbody th')].find((c) => c.textContent === 'support-bot').title") == names[0]
    assert "support-bot" in view.run("[...document.querySelectorAll('#subject option')].map((o) => o.textContent)")
    assert view.run("[...document.querySelectorAll('#fleet td[data-column=residency]')].map((c) => c.textContent)") == ["what was sent there"] * 2
    is_clean(view, router)


@needs_browser
def test_a_policy_without_a_cache_is_not_praised(fleet, page):
    router, _ = fleet.start(3, "--policy", "round_robin", "--shadow", "on")
    prompts = [text(4000) for _ in range(8)]
    for prompt in prompts * 3:
        assert router.chat(prompt).status == 200
    router.wait_idle()
    wait_for(lambda: (router.ledger()["shadow"] or {}).get("requests") == 24, 20, what="both sides booked")
    view = page(router)
    view.wait(SHOWN)
    view.wait("!!document.querySelector('[data-tile=shadow]')")
    choose(view, "window", "life")
    shadow = router.ledger()["shadow"]["accounts"]["all"][0]["windows"]["life"]
    assert float(view.run("document.querySelector('[data-tile=shadow]').dataset.value")) == pytest.approx(shadow["kv_hit_rate"])
    # More than what is in force, and no more than a hash of the beginning would have found.
    assert content(view, "#verdict strong") == "Hardly."
    assert "prefix hash" in content(view, "#verdict")
    assert "This router runs round_robin" in content(view, "#verdict")
    assert cells(view, "rules-table")["kv (shadow)"]["reuse"] == pytest.approx(shadow["kv_hit_rate"])
    is_clean(view, router)
    plain, _ = fleet.start(2, "--policy", "round_robin")
    plain.chat(prompts[0])
    plain.wait_idle()
    view = page(plain)
    view.wait(SHOWN)
    view.wait("document.querySelector('#verdict strong')?.textContent === 'Not known from here.'")
    is_clean(view, plain)


@needs_browser
def test_names_are_text(fleet, page, tmp_path):
    engine = fleet.engine(models=("m", HOSTILE))
    file = tmp_path / "names.yaml"
    file.write_text(f"replicas:\n  - {{ url: {engine.url}, name: {json.dumps('r' + HOSTILE)} }}\n"
                    f"workloads:\n  - {{ name: {json.dumps('w' + HOSTILE)}, path: /v1/chat/completions }}\n")
    router = fleet.router("--config", file, ready=False)
    router.wait_ready("r" + HOSTILE)
    for _ in range(6):
        assert router.chat(text(4000), model=HOSTILE).status == 200
    router.wait_idle()
    view = page(router)
    view.wait(SHOWN)
    for kind, name in (("workload", "w" + HOSTILE), ("model", HOSTILE), ("replica", "r" + HOSTILE)):
        choose(view, "kind", kind)
        assert name in cells(view, "accounts"), kind
    assert ("r" + HOSTILE) in cells(view, "fleet")
    assert f"workload w{HOSTILE}" in view.run("[...document.getElementById('subject').options].map((o) => o.textContent)")
    assert view.run("document.querySelectorAll('img, main script').length") == 0 and view.run("document.title") == "kvroute"
    is_clean(view, router)


@needs_browser
def test_unknown_is_said_and_alarms_are_shown(fleet, page, pictures):
    silent, gone = fleet.engine("openai", usage=False), fleet.engine()
    router = fleet.router(replicas=[silent, gone])
    gone.close()
    wait_for(lambda: router.state(gone) == "down", 10, "down")

    def raised():
        router.chat(text(4000))
        return router.admin_request("GET", "/kvroute/alarms").json["alarms"]
    wait_for(raised, 20, "an alarm")
    router.wait_idle()
    view = page(router)
    view.wait(SHOWN)
    rows = view.run("Object.fromEntries([...document.querySelectorAll('#fleet tbody tr')].map((r) => [r.cells[0].textContent, [...r.cells].map((c) => c.textContent)]))")
    assert rows[silent.name].count("unknown") >= 3, rows
    assert "cached tokens unreported" in rows[silent.name][-1]
    assert rows[gone.name][1].startswith("down") and rows[gone.name][4:6] == ["unknown", "unknown"], "old figures are none"
    assert "1 of 2 replicas" in content(view, "#fleet-note")
    assert "No engine told" in content(view, "#truth-note")
    for alarm in router.admin_request("GET", "/kvroute/alarms").json["alarms"]:
        assert alarm["alarm"].replace("_", " ") in content(view, "#alarms") and silent.name in content(view, "#alarms")
        assert re.sub(r"\d+", "#", alarm["text"]) in re.sub(r"\d+", "#", content(view, "#alarms"))
    view.picture(pictures / "dashboard-alarm.png")
    is_clean(view, router)


@needs_browser
def test_an_idle_router_and_one_without_a_ledger(fleet, page, pictures):
    for more in ((), ("--ledger=off",), ("--counterfactual=off",)):
        router, _ = fleet.start(1, *more)
        view = page(router)
        view.wait(SHOWN)
        wanted = "switched off" if more == ("--ledger=off",) else "Nothing to tell yet"
        assert wanted in content(view, "#verdict")
        if not more:
            view.picture(pictures / "dashboard-idle.png")
        if more == ("--counterfactual=off",):
            router.chat(text(4000))
            router.wait_idle()
            view.wait("document.getElementById('verdict').textContent.includes('came out of caches')", 10)
            assert "--counterfactual" in content(view, "#verdict") and "--counterfactual" in content(view, "#rules-table")
        assert "NaN" not in content(view, "main") and "undefined" not in content(view, "main")
        is_clean(view, router)


@needs_browser
def test_the_token_is_asked_for_and_kept_in_the_tab(guarded, page, pictures):
    router = guarded
    view = page(router)
    view.wait("!document.getElementById('ask').hidden")
    assert view.run("document.getElementById('figures').hidden") and view.run("document.activeElement.id") == "token"
    view.picture(pictures / "dashboard-token.png")
    view.write("wrong")
    view.key("Enter", number=13, text="\r")
    view.wait("document.getElementById('ask-error').textContent.includes('refused')")
    view.write("secret-1")
    view.key("Enter", number=13, text="\r")
    view.wait(SHOWN)
    assert view.run("sessionStorage.length") == 1 and view.run("localStorage.length") == 0 and view.run("document.cookie") == ""
    view.open(router.admin_url + "/")
    view.wait(SHOWN, what="still known after a reload")
    assert all("secret-1" not in url for url in view.requests)
    view.run("document.getElementById('forget').click()")
    view.wait("document.getElementById('ask')?.hidden === false && document.getElementById('figures').hidden")
    assert view.run("sessionStorage.length") == 0


@needs_browser
def test_it_says_when_the_router_is_gone_and_asks_less_often(fleet, page):
    router, _ = fleet.start(1)
    view = page(router)
    view.wait(SHOWN)
    router.check_and_stop()
    view.wait("document.getElementById('live').textContent.includes('no answer')", 20)
    assert view.run("document.getElementById('live').className") == "live bad"
    view.wait("/next try in [48]\\s?s/.test(document.getElementById('live').textContent)", 20)
    assert view.run(SHOWN), "the last figures stay"


@needs_browser
def test_the_watch_costs_little(served, page):
    """The page asks at most each two seconds, and not at all while nobody looks at it."""
    if sanitized():
        pytest.skip("slow with a sanitizer")
    view = page(served)
    view.wait(SHOWN)
    before = len([u for u in view.requests if u.endswith("/kvroute/ledger")])
    time.sleep(5)
    view.listen()
    assert 1 <= len([u for u in view.requests if u.endswith("/kvroute/ledger")]) - before <= 3
