# SPDX-License-Identifier: Apache-2.0
"""Silent degradation is said aloud: alarms in the log, in the metrics and in the admin API, and gone when their cause is."""
import itertools
import re
import time

import pytest

from engine import hang, reply
from harness import ROOT, stays, wait_for
from texts import text, turns


def alarms(router):
    """{(alarm, replica or None): entry} of GET /kvroute/alarms."""
    answer = router.admin_request("GET", "/kvroute/alarms")
    assert answer.status == 200, answer
    return {(entry["alarm"], entry["replica"]): entry for entry in answer.json["alarms"]}


def said(router, word):
    """Log lines about alarms with this in them."""
    return [line for line in router.lines if "alarm " in line and word in line]


def gauge(router, name, replica):
    """The alarm's gauge, None while absent."""
    found = [value for labels, value in router.metrics().samples["kvroute_alarm"]
             if labels == {"alarm": name, "replica": replica or ""}]
    return found[0] if found else None


def wait_raised(router, name, engine=None, work=None, timeout=20):
    """Works until the alarm is raised, and checks that all places agree; its text."""
    replica = engine.name if engine else None

    def raised():
        if work:
            work()
        return alarms(router).get((name, replica))
    entry = wait_for(raised, timeout, f"alarm {name}")
    assert entry["for_s"] >= 0
    assert gauge(router, name, replica) == 1
    wait_for(lambda: said(router, f"alarm {name}: "), what="one line in the log")
    assert len(said(router, f"alarm {name}: ")) == 1
    assert entry["text"] in said(router, f"alarm {name}: ")[0] or "s old" in entry["text"]
    if engine:
        assert router.replica(engine)["alarms"].count(name) == 1
        assert f"replica {replica}: " in said(router, f"alarm {name}: ")[0]
    return entry["text"]


def wait_over(router, name, engine=None, work=None, timeout=20):
    replica = engine.name if engine else None

    def over():
        if work:
            work()
        return (name, replica) not in alarms(router)
    wait_for(over, timeout, f"alarm {name} over")
    assert gauge(router, name, replica) == 0
    wait_for(lambda: said(router, f"alarm {name} is over"), what="one line in the log")
    assert len(said(router, f"alarm {name} is over")) == 1
    if engine:
        assert name not in router.replica(engine)["alarms"]


def test_every_alarm_is_explained():
    names = re.findall(r'X\(WATCH_\w+, "(\w+)"\)', (ROOT / "router" / "watch.h").read_text())
    page = (ROOT / "docs" / "alarms.md").read_text()
    assert len(names) >= 9
    assert [name for name in names if f"| `{name}`" not in page] == []


# ---- cached tokens ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind, flag", [("vllm", "--enable-prompt-tokens-details"), ("sglang", "--enable-cache-report"),
                                        ("openai", "engine")])
def test_an_engine_that_reports_nothing(fleet, kind, flag):
    """[73] [85] Hits are predicted and not measured: the alarm says which flag of the engine is missing."""
    router, (engine,) = fleet.start(1, engine={"kind": kind, "usage": False})
    assert router.replica(engine)["unobserved_share"] is None and router.replica(engine)["trust"] is None
    found = wait_raised(router, "cached_tokens_unreported", engine, lambda: router.chat(text(4000)))
    assert flag in found and "inject-usage" in found
    assert set(alarms(router)) == {("cached_tokens_unreported", engine.name)}
    entry = router.replica(engine)
    assert entry["unobserved_share"] == 1 and entry["trust"] is None and entry["prediction_error"] is None
    metrics = router.metrics()
    assert metrics.sum("replica_unobserved_prompt_tokens_total") == metrics.sum("replica_prompt_tokens_total") > 5000
    assert not metrics.has("replica_trust_ratio"), "unknown is absent"
    engine.usage = True
    wait_over(router, "cached_tokens_unreported", engine, lambda: router.chat(text(4000)))
    assert router.replica(engine)["unobserved_share"] < 1


def test_streams_without_usage_are_told_from_an_engine_without_the_flag(fleet):
    """[75] The engine reports where it is asked; the alarm names the router's own remedy."""
    router, (engine,) = fleet.start(1)
    router.chat(text(400))
    found = wait_raised(router, "cached_tokens_unreported", engine, lambda: router.chat(text(4000), stream=True))
    assert "inject-usage on" in found and "--enable-prompt-tokens-details" not in found


def test_an_engine_that_cannot_report_is_no_alarm(fleet):
    engine = fleet.engine("openai", usage=False)
    router = fleet.router("--replica", engine.url + ",engine=ollama,models=m", ready=False)
    wait_for(lambda: router.get("/readyz").status == 200, what="ready")
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        router.chat(text(4000))
    assert not alarms(router) and router.replica(engine)["unobserved_share"] == 1


def test_an_engine_that_lies(fleet):
    """[21] [73] It reports 0 each time: nothing is promised there any more, and the alarm says why that may be."""
    router, (engine, honest) = fleet.start(2, engine={"models": ["m"]})
    router.remove(honest)
    engine.cache.capacity = 0
    prompt = text(4000)
    found = wait_raised(router, "predictions_fail", engine, lambda: router.chat(prompt))
    assert "0 each time" in found and "off" in found
    entry = router.replica(engine)
    assert entry["trust"] < 0.35 and entry["resets"] >= 1 and entry["unobserved_share"] == 0
    metrics = router.metrics()
    assert metrics.sum("replica_trust_ratio", replica=engine.name) == pytest.approx(entry["trust"], abs=0.2)
    assert metrics.sum("replica_resets_total", replica=engine.name) >= 1
    assert metrics.sum("replica_predicted_cached_tokens_total") == metrics.sum("replica_overpredicted_tokens_total") > 1000
    assert metrics.sum("replica_observed_cached_tokens_total") == 0
    engine.cache.capacity = 1 << 30
    wait_over(router, "predictions_fail", engine, lambda: router.chat(prompt))
    assert router.replica(engine)["trust"] > 0.7
    assert router.chat(prompt).match > 700, "it is believed again"


def test_an_engine_that_says_that_its_cache_is_off(fleet):
    engine = fleet.engine()
    page = engine.metrics_text()
    engine.routes["/metrics"] = reply(200, page.replace('caching="True"', 'caching="False"').encode())
    router = fleet.router(replicas=[engine])
    found = wait_raised(router, "prefix_caching_off", engine)
    assert "--no-enable-prefix-caching" in found and router.replica(engine)["prefix_caching"] is False
    engine.routes["/metrics"] = reply(200, page.encode())
    wait_over(router, "prefix_caching_off", engine)
    assert router.replica(engine)["prefix_caching"] is True


# ---- load ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [reply(404), reply(500), hang(), reply(200, b"<html>sign in</html>")],
                         ids=["404", "500", "hangs", "html"])
def test_a_load_page_that_vanishes(fleet, answer):
    """[38] [85] The replica still serves; its load is unknown, and that is said until the page is back."""
    router, (engine,) = fleet.start(1)
    wait_for(lambda: router.replica(engine)["load_known"] is True, what="load known")
    assert router.metrics().sum("replica_load_known", replica=engine.name) == 1
    engine.routes["/metrics"] = answer
    found = wait_raised(router, "load_stale", engine)
    assert "s old" in found
    wait_for(lambda: router.replica(engine)["load_known"] is False, 10, "load unknown")
    assert router.metrics().sum("replica_load_known", replica=engine.name) == 0
    assert router.chat().status == 200
    del engine.routes["/metrics"]
    engine.hub.call(engine.drop)
    wait_over(router, "load_stale", engine)
    assert router.replica(engine)["load_known"] is True and router.replica(engine)["running"] == 0


def test_a_load_page_that_never_was(fleet):
    """[38] [85]"""
    engine = fleet.engine()
    engine.routes["/metrics"] = reply(404)
    router = fleet.router(replicas=[engine])
    found = wait_raised(router, "load_missing", engine)
    assert "/metrics" in found and "404" in found
    assert router.replica(engine)["load_known"] is False and router.replica(engine)["running"] is None
    del engine.routes["/metrics"]
    wait_over(router, "load_missing", engine)
    assert len([line for line in router.lines if "metrics" in line and engine.name in line]) == 1, "one warning"


@pytest.mark.parametrize("kind, options", [("openai", ()), ("vllm", ("--metrics-interval", "off"))])
def test_no_load_is_missing_where_none_is_expected(fleet, kind, options):
    engine = fleet.engine(kind)
    engine.routes["/metrics"] = reply(404)
    router = fleet.router(*options, replicas=[engine])
    stays(lambda: not alarms(router), 2.5, "no alarm", every=0.1)
    assert router.replica(engine)["load_known"] is None
    assert not router.metrics().has("replica_load_known")


def test_a_replica_that_is_down_has_no_alarm_of_its_load(fleet):
    """Being down says enough, and coming back is no alarm either."""
    router, (engine, other) = fleet.start(2)
    wait_for(lambda: router.replica(engine)["load_known"] is True, what="load known")
    engine.stop()
    wait_for(lambda: router.state(engine) == "down", 8, "down")
    stays(lambda: not alarms(router), 2.5, "no alarm", every=0.1)
    engine.start()
    wait_for(lambda: router.state(engine) == "ready", 8, "ready again")
    stays(lambda: not alarms(router), 2, "no alarm", every=0.1)


def test_alarms_leave_with_their_replica(fleet):
    router, (engine, other) = fleet.start(2)
    wait_for(lambda: router.replica(engine)["load_known"] is True, what="load known")
    engine.routes["/metrics"] = reply(404)
    wait_raised(router, "load_stale", engine)
    router.remove(engine)
    wait_for(lambda: not alarms(router), what="no alarms")
    assert gauge(router, "load_stale", engine.name) is None


# ---- matching -----------------------------------------------------------------------------------------------------------


def report(prompt, cached):
    return reply(200, {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": 1, "total_tokens": prompt + 1,
                  "prompt_tokens_details": {"cached_tokens": cached}}})


def test_matching_that_stays_at_zero(fleet):
    """[11] [85] Engines report hits, look-ups find nothing. Matches clear it."""
    router, (engine,) = fleet.start(1)
    engine.script = report(1000, 800)
    found = wait_raised(router, "no_match", None, lambda: [router.chat(text(4000)) for _ in range(20)], 40)
    assert "look-ups find nothing" in found and "seed" in found
    ledger = router.admin_request("GET", "/kvroute/ledger").json
    assert ledger["lookups"] == ledger["lookups_without_match"] >= 300
    metrics = router.metrics()
    assert metrics.sum("index_lookups_total") == ledger["lookups"]
    assert metrics.sum("index_lookups_without_match_total") == ledger["lookups_without_match"]
    engine.script = None
    prompt = text(4000)
    wait_over(router, "no_match", None, lambda: [router.chat(prompt) for _ in range(20)], 40)
    assert router.metrics().sum("index_lookups_without_match_total") < router.metrics().sum("index_lookups_total")


def test_matching_that_stays_at_zero_for_want_of_index_memory(fleet):
    """[78] [85] Prompts come again, but the index has dropped them by then: the alarm names the option."""
    engine = fleet.engine()
    engine.gauges["capacity_tokens"] = 10 ** 9
    router = fleet.router("--index-memory", "1MiB", replicas=[engine])
    prompts = [text(60000, f"round-{n}") for n in range(300)]
    again = itertools.cycle(prompts)
    found = wait_raised(router, "no_match", None, lambda: [router.chat(next(again)) for _ in range(20)], 60)
    assert "index-memory" in found


def test_a_capacity_that_is_wrong_is_learned_and_no_alarm(fleet):
    """[18] The engine's cache is much larger than its page says: found out from what it reports as cached."""
    engine = fleet.engine()
    engine.gauges["capacity_tokens"] = 4000
    router = fleet.router(replicas=[engine])
    prompts = [text(4000, f"cycle-{n}") for n in range(100)]
    for _ in range(4):
        [router.chat(prompt) for prompt in prompts]
    metrics = router.metrics()
    assert metrics.sum("index_lookups_total") == 400
    assert 100 <= metrics.sum("index_lookups_without_match_total") <= 250
    assert router.replica(engine)["capacity_learned"] is True
    assert not alarms(router) and not said(router, "")


def test_one_replica_that_is_blind_among_others_that_are_not(fleet):
    """[11] [85] The fleet's look-ups find much, those of one replica's model nothing."""
    a, b = fleet.engine(models=["only-a"]), fleet.engine(models=["only-b"])
    a.script = report(1000, 800)
    router = fleet.router(replicas=[a, b])
    prompt = text(4000)

    def work():
        for _ in range(10):
            router.chat(text(4000), model="only-a")
            router.chat(prompt, model="only-b")
    found = wait_raised(router, "no_match", a, work, 40)
    assert "nothing is ever predicted" in found
    assert set(alarms(router)) == {("no_match", a.name)}
    a.script = None
    wait_over(router, "no_match", a, lambda: [router.chat(prompt, model="only-a") for _ in range(10)], 40)


def test_prompts_that_cannot_be_read(fleet):
    """[11] They are served, by load only; when that is most of them it is said."""
    router, (engine,) = fleet.start(1)
    engine.script = reply(200, b'{"object":"chat.completion"}')

    def odd():
        for _ in range(20):
            assert router.post("/v1/chat/completions", {"model": "m", "messages": 7}).status == 200
    found = wait_raised(router, "unread_prompts", None, odd)
    assert "unkeyed_requests_total" in found
    engine.script = None
    wait_over(router, "unread_prompts", None, lambda: [router.chat(text(2000)) for _ in range(20)])


# ---- no false alarms ----------------------------------------------------------------------------------------------------


def work_for(router, seconds, least, prompts):
    """For so many seconds and requests, whichever takes longer; how many requests it were."""
    deadline = time.monotonic() + seconds
    count = 0
    while time.monotonic() < deadline or count < least:
        router.chat(next(prompts))
        count += 1
    return count


def endless(make):
    number = 0
    while True:
        yield make(number)
        number += 1


def test_an_idle_router_has_no_alarms(fleet):
    router, engines = fleet.start(2)
    stays(lambda: not alarms(router), 3, "no alarm", every=0.1)
    assert not said(router, "")


def test_prompts_that_are_all_new_are_no_alarm(fleet):
    router, engines = fleet.start(2)
    count = work_for(router, 4.5, 350, endless(lambda n: text(1500)))      # enough for three windows
    assert not alarms(router) and not said(router, "")
    metrics = router.metrics()
    assert metrics.sum("index_lookups_without_match_total") == metrics.sum("index_lookups_total") == count


def test_ordinary_conversations_and_a_cold_start_are_no_alarm(fleet):
    """A second router before engines that are warm: their hits are unpredicted once."""
    router, engines = fleet.start(2)
    talks = [list(turns(8, f"talk-{n}", 1200)) for n in range(40)]
    for turn in range(4):
        for talk in talks:
            router.chat(talk[turn])
    fresh = fleet.router(replicas=engines)
    for turn in range(4, 8):
        for talk in talks:
            fresh.chat(talk[turn])
    time.sleep(2)
    for one in (router, fresh):
        assert not alarms(one) and not said(one, "")


def test_a_restart_without_a_sign_is_no_alarm(fleet):
    """[73] It costs some trust, and is counted; predictions come true again at once."""
    router, (engine,) = fleet.start(1)
    talks = [text(4000, f"restart-{n}") for n in range(10)]
    [router.chat(t) for t in talks + talks]
    engine.cache.clear()
    for _ in range(6):
        [router.chat(t) for t in talks]
    time.sleep(1.5)
    assert not alarms(router) and not said(router, "")
    entry = router.replica(engine)
    assert entry["resets"] == 1 and entry["trust"] > 0.7
    assert router.metrics().sum("replica_resets_total", replica=engine.name) == 1


# ---- replicas that are gone -------------------------------------------------------------------------------------------------


def test_a_replica_that_stays_down_and_then_no_replica_at_all(fleet):
    router, (a, b) = fleet.start(2)
    a.stop()
    text_of_a = wait_raised(router, "replica_down", a)
    assert "refused" in text_of_a
    assert ("no_replica", None) not in alarms(router) and ("replica_down", b.name) not in alarms(router)
    b.stop()
    assert "/kvroute/replicas" in wait_raised(router, "no_replica")
    a.start()
    wait_over(router, "no_replica")
    wait_over(router, "replica_down", a)
    router.remove(b)
    wait_for(lambda: ("replica_down", b.name) not in alarms(router), what="gone with its replica")


def test_who_is_still_starting_raises_nothing(fleet):
    engine = fleet.engine(start=False)
    engine.stop()
    router = fleet.router(replicas=[engine], ready=False)
    stays(lambda: not alarms(router), 5, "it may take as long as it takes")
    engine.start()
    router.wait_ready(engine)
    assert not alarms(router)


def test_without_replicas_there_is_none_that_is_ready(fleet):
    router = fleet.router(ready=False)
    assert "there is no replica" in wait_raised(router, "no_replica")
    router.add(fleet.engine())
    wait_over(router, "no_replica")
