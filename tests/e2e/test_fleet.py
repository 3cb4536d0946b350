# SPDX-License-Identifier: Apache-2.0
"""Replicas come and go: start, admin API, reload, draining, models and aliases."""
import json
import time

import pytest

from client import fetch
from engine import HANG, reply, sse
from harness import kvroute, shares, wait_for
from texts import text


# ---- beginning ------------------------------------------------------------------------------------------------------------


def test_before_any_replica_is_known_requests_get_503_at_once_and_then_succeed(fleet):
    """[71] No restart needed."""
    engine = fleet.engine(start=False)
    engine.stop()
    router = fleet.router(replicas=[engine], ready=False)
    started = time.monotonic()
    answer = router.chat()
    assert time.monotonic() - started < 3
    assert answer.status == 503 and answer.code == "no_replica" and int(answer.header("retry-after")) >= 1
    assert router.get("/readyz").status == 503 and router.get("/healthz").status == 200
    engine.start()
    wait_for(lambda: router.get("/readyz").status == 200, 5, "ready")
    assert router.chat().status == 200


def test_the_ready_line_counts_replicas_and_names_real_ports(fleet):
    router, engines = fleet.start(3)
    assert router.ready_line.endswith(", 3 replicas")
    assert router.address[1] > 0 and router.admin[1] > 0
    single = fleet.router(replicas=engines[:1])
    assert ", 1 replica" in single.ready_line


def test_several_listeners(fleet):
    engine = fleet.engine()
    router = fleet.router("--listen", "127.0.0.1:0", "--listen", "127.0.0.1:0", replicas=[engine], ready=False)
    urls = [word.strip(",") for word in router.ready_line.split(" (admin")[0].split() if word.startswith("http://")]
    assert len(urls) == 2 and urls[0] != urls[1]
    router.wait_ready()
    for url in urls:
        assert fetch(url, "GET", "/readyz").status == 200


def test_plain_urls_as_arguments(fleet):
    engines = [fleet.engine() for _ in range(2)]
    router = fleet.router(*[e.url for e in engines], ready=False)
    router.wait_ready(*engines)
    assert router.chat().status == 200


def test_health_paths_on_both_listeners(fleet):
    router, _ = fleet.start(1)
    for target in (router.address, router.admin):
        for path in ("/healthz", "/readyz"):
            assert fetch(target, "GET", path).status == 200


# ---- admin API -------------------------------------------------------------------------------------------------------------


def test_the_list_of_replicas_has_all_that_is_promised(fleet):
    router, (engine,) = fleet.start(1)
    router.chat(text(2000))
    wait_for(lambda: router.replica(engine)["engine"] == "vllm", what="recognised")
    entry = router.replica(engine)
    assert entry["url"] == engine.url and entry["engine"] == "vllm" and entry["models"] == ["m"]
    assert entry["state"] == "ready" and entry["in_flight"] == 0 and entry["uncached_tokens_booked"] == 0
    assert entry["residency"] == "history"
    wait_for(lambda: router.replica(engine)["kv_usage"] is not None, what="polled")
    for key in ("running", "waiting", "kv_usage", "capacity_tokens", "prefill_tokens_per_second"):
        assert key in entry, key
    assert router.replica(engine)["capacity_tokens"] == 1000000


@pytest.mark.parametrize("kind", ["vllm", "sglang", "llamacpp"])
def test_engines_are_recognised(fleet, kind):
    router, (engine,) = fleet.start(1, engine={"kind": kind})
    wait_for(lambda: router.replica(engine)["engine"] == kind, what="recognised")


def test_add_and_remove(fleet):
    router, (a,) = fleet.start(1)
    b = fleet.engine()
    router.add(b)
    router.wait_ready(b)
    seen = {router.chat(text(300)).replica for _ in range(20)}
    assert seen == {a.name, b.name}
    router.remove(a)
    wait_for(lambda: a.name not in router.replicas(), what="gone")
    assert {router.chat(text(300)).replica for _ in range(10)} == {b.name}


@pytest.mark.parametrize("body, status", [
    (b'{"url":"ftp://x"}', 400), (b'{"url":7}', 400), (b"{}", 400), (b"nonsense", 400), (b'{"url":"http://127.0.0.1:1","bad":1}', 400),
    (b'{"url":"http://127.0.0.1:1","max-running":-3}', 400)])
def test_nonsense_is_refused_by_the_admin_api(fleet, body, status):
    router, _ = fleet.start(1)
    answer = router.admin_request("POST", "/kvroute/replicas", body)
    assert answer.status == status and answer.json["error"]["message"]
    assert len(router.replicas()) == 1


def test_the_admin_api_knows_duplicates_and_strangers(fleet):
    router, (engine,) = fleet.start(1)
    assert router.admin_request("POST", "/kvroute/replicas", {"url": engine.url}).status in (400, 409)
    assert router.admin_request("DELETE", "/kvroute/replicas/nobody").status == 404
    assert router.admin_request("PUT", "/kvroute/replicas").status == 405
    assert router.admin_request("GET", "/kvroute/nothing").status == 404


def test_removal_lets_streams_end_and_sends_nothing_new(fleet):
    """[53] [69] Health still says 200; running streams finish; its sessions move."""
    router, engines = fleet.start(2)
    prompt, session = text(3000), [("x-session-id", "s")]
    first = router.chat(prompt, session)
    home = fleet.by_name(first.replica)
    home.script = sse(["x"] * 15, gap=0.1)
    conns = [router.start_chat(prompt, session, stream=True) for _ in range(10)]
    wait_for(lambda: home.count() + sum(e.count() for e in engines if e is not home) == 11, what="ten streams")
    mine = home.count()
    heads = [c.head() for c in conns]
    router.remove(home)
    answers = [router.chat(prompt, session) for _ in range(10)]
    assert all(a.status == 200 and a.replica != home.name for a in answers)
    assert home.count() == mine
    assert all(c.finish(h).complete for c, h in zip(conns, heads))
    wait_for(lambda: home.name not in router.replicas(), 5, "gone once its streams ended")


def test_removal_has_a_limit(fleet):
    """[53]"""
    router, engines = fleet.start(2, "--drain-timeout", "500ms")
    for engine in engines:
        engine.script = sse(["x"], end=HANG)
    with router.start_chat(stream=True) as conn:
        head = conn.head()
        router.remove(head.replica)
        started = time.monotonic()
        assert not conn.finish(head).complete
        assert 0.3 < time.monotonic() - started < 4


# ---- models ----------------------------------------------------------------------------------------------------------------


def test_models_are_merged_without_duplicates(fleet):
    """[87]"""
    a, b = fleet.engine(models=["m1", "m2"]), fleet.engine(models=["m2", "m3"])
    router = fleet.router(replicas=[a, b])
    answer = router.get("/v1/models")
    assert answer.status == 200 and answer.json["object"] == "list"
    assert sorted(m["id"] for m in answer.json["data"]) == ["m1", "m2", "m3"]
    entry = next(m for m in answer.json["data"] if m["id"] == "m1")
    assert entry["object"] == "model" and entry["max_model_len"] == 131072, "what engines say of a model is kept"


def test_each_model_goes_where_it_is_served(fleet):
    """[87]"""
    a, b = fleet.engine(models=["m1", "m2"]), fleet.engine(models=["m2", "m3"])
    router = fleet.router(replicas=[a, b])
    for _ in range(10):
        assert router.chat(text(300), model="m1").replica == a.name
        assert router.chat(text(300), model="m3").replica == b.name
    assert {router.chat(text(300), model="m2").replica for _ in range(20)} == {a.name, b.name}


def test_an_unknown_model_is_404_with_the_known_ones(fleet):
    """[87]"""
    router = fleet.router(replicas=[fleet.engine(models=["m1", "m2"])])
    answer = router.chat(model="gpt-nothing")
    assert answer.status == 404 and answer.code == "model_not_found"
    message = answer.json["error"]["message"]
    assert "gpt-nothing" in message and "m1" in message and "m2" in message


@pytest.mark.parametrize("body", [b'{"messages":[]}', b'{"model":null,"messages":[]}', b'{"model":"","messages":[]}'])
def test_a_request_without_a_model_goes_anywhere(fleet, body):
    """Engines take that for their base model."""
    router, (engine,) = fleet.start(1)
    assert router.post("/v1/chat/completions", body).status == 200
    assert engine.last().body == body


def test_aliases(fleet):
    """[87] An alias is listed, is served by the target's replicas, shares its prefixes, and the engine sees its own name."""
    a, b = fleet.engine(models=["m1"]), fleet.engine(models=["real/model-name"])
    router = fleet.router("--alias", "m=real/model-name", replicas=[a, b])
    listed = sorted(x["id"] for x in router.get("/v1/models").json["data"])
    assert listed == ["m", "m1", "real/model-name"]
    prompt = text(3000)
    body = b'{ "stream" : false, "model" : "m" , "messages":[{"role":"user","content":%s}]}' % json.dumps(prompt).encode()
    answer = router.post("/v1/chat/completions", body)
    assert answer.status == 200 and answer.replica == b.name
    assert b.last().body == body.replace(b'"m" ,', b'"real/model-name" ,'), "only the name is replaced"
    assert router.chat(prompt, model="real/model-name").match > 500


def test_new_models_of_a_replica_are_noticed(fleet):
    router, (engine,) = fleet.start(1)
    assert router.chat(model="adapter").status == 404
    engine.models.append("adapter")
    wait_for(lambda: router.chat(model="adapter").status == 200, 15, "noticed")


def test_models_can_be_configured(fleet):
    engine = fleet.engine("openai", models=[])
    router = fleet.router("--replica", f"{engine.url},name=a,models=x+y", ready=False)
    wait_for(lambda: router.state("a") == "ready", what="ready")
    assert router.chat(model="y").status == 200 and router.chat(model="z").status == 404
    assert sorted(m["id"] for m in router.get("/v1/models").json["data"]) == ["x", "y"]


def test_a_wrong_port_is_visible(fleet):
    """[87] The probe's error is shown and logged, not retried in silence."""
    engine = fleet.engine()
    dead = fleet.engine(start=False)
    dead.stop()
    router = fleet.router(replicas=[engine, dead], ready=False)
    router.wait_ready(engine)
    wait_for(lambda: router.state(dead) in ("starting", "down"), what="not ready")
    entry = wait_for(lambda: router.replica(dead).get("error"), what="an error in the list")
    assert "refused" in entry.lower()
    assert any(dead.name in line and "refused" in line.lower() for line in router.lines)
    assert router.metrics().sum("replica_up", replica=dead.name) == 0


@pytest.mark.parametrize("tail", ["/v1", "/v1/"])
def test_a_url_that_ends_in_v1_is_refused_with_the_one_that_is_meant(fleet, tmp_path, tail):
    """Clients' base_url ends in /v1, and kvroute's replicas do not: every path would begin with it twice."""
    router, (engine,) = fleet.start(1)
    url, said = engine.url + tail, f"ends in /v1; did you mean {engine.url}?"
    file = tmp_path / "kvroute.yaml"
    file.write_text(f"replicas:\n  - {{ url: {url} }}\n")
    for command in (["serve", url], ["serve", "--replica", url + ",name=a"], ["check", file]):
        ended = kvroute(*command)
        assert ended.status == 2 and said in ended.err, ended
    answer = router.admin_request("POST", "/kvroute/replicas", {"url": url})
    assert answer.status == 400 and said in answer.json["error"]["message"]


def test_an_engine_without_models_is_not_ready_and_says_why(fleet):
    empty = reply(200, b'{"object":"list","data":[]}', headers=[("Content-Type", "application/json")])
    engine, other = fleet.engine(), fleet.engine()
    engine.routes["/v1/models"] = empty
    router = fleet.router("--replica", f"{engine.url},engine=vllm", replicas=[other], ready=False)
    router.wait_ready(other)
    entry = wait_for(lambda: (e := router.replica(engine)).get("error") and e, what="a reason")
    assert entry["state"] == "starting" and entry["why"] == "it serves no model"
    assert "/v1/models" in entry["error"] and "empty" in entry["error"]
    assert {router.chat(text(300)).replica for _ in range(10)} == {other.name}
    del engine.routes["/v1/models"]
    router.wait_ready(engine)
    engine.routes["/v1/models"] = empty
    wait_for(lambda: router.state(engine) == "down", 20, "not ready again")
    del engine.routes["/v1/models"]
    router.wait_ready(engine, timeout=10)


def test_a_known_engine_whose_list_is_not_there_is_not_ready(fleet):
    """vLLM behind a path of a gateway that passes on health checks only."""
    engine = fleet.engine()
    engine.routes["/v1/models"] = reply(404, b"{}")
    router = fleet.router("--replica", f"{engine.url},engine=vllm,name=a", ready=False)
    entry = wait_for(lambda: (e := router.replica("a")).get("error") and e, what="a reason")
    assert entry["state"] == "starting" and "/v1/models answered 404" in entry["error"]
    del engine.routes["/v1/models"]
    router.wait_ready("a")


# ---- reload ----------------------------------------------------------------------------------------------------------------


def write_config(path, engines, extra=""):
    lines = ["replicas:"] + [f"  - {{ url: {e.url} }}" for e in engines]
    path.write_text("\n".join(lines) + "\n" + extra)


def reload(router):
    before = router.metrics().sum("config_reloads_total")
    router.signal(1)
    wait_for(lambda: router.metrics().sum("config_reloads_total") > before, what="reloaded")


def test_reload_adds_and_removes_without_dropping_a_stream(fleet, tmp_path):
    a, b, c = (fleet.engine() for _ in range(3))
    config = tmp_path / "kvroute.yaml"
    write_config(config, [a, b])
    router = fleet.router("--config", config, ready=False)
    router.wait_ready(a, b)
    prompt = text(3000)
    keeper = router.chat(prompt)
    for engine in (a, b):
        engine.script = sse(["x"] * 15, gap=0.1)
    conns = [router.start_chat(text(200), stream=True) for _ in range(8)]
    heads = [conn.head() for conn in conns]
    assert a.name in {h.replica for h in heads}
    stay = b if keeper.replica == b.name else a
    leave = a if stay is b else b
    write_config(config, [stay, c])
    reload(router)
    router.wait_ready(c)
    stay.script = None
    answers = [router.chat(text(200)) for _ in range(20)]
    assert all(x.status == 200 for x in answers)
    assert leave.name not in shares(answers) and c.name in shares(answers)
    assert all(conn.finish(head).complete for conn, head in zip(conns, heads))
    assert router.chat(prompt).match > 500, "the one that stayed kept its index"
    wait_for(lambda: set(router.replicas()) == {stay.name, c.name}, 5, "the list is the file's")


def test_a_broken_file_changes_nothing_and_is_reported(fleet, tmp_path):
    engine = fleet.engine()
    config = tmp_path / "kvroute.yaml"
    write_config(config, [engine])
    router = fleet.router("--config", config, ready=False)
    router.wait_ready(engine)
    config.write_text("replicas:\n  - { url: http://127.0.0.1:1, colour: red }\n")
    router.signal(1)
    line = wait_for(lambda: next((x for x in list(router.lines) if "kvroute.yaml:2" in x), None), what="an error with its place")
    assert "colour" in line
    assert list(router.replicas()) == [engine.name] and router.chat().status == 200
    assert router.metrics().sum("config_reloads_total", result="error") == 1


def test_reload_changes_settings_and_says_what_needs_a_restart(fleet, tmp_path):
    engine = fleet.engine()
    config = tmp_path / "kvroute.yaml"
    write_config(config, [engine], "policy: kv\nmax-body: 1MiB\n")
    router = fleet.router("--config", config, ready=False)
    router.wait_ready(engine)
    write_config(config, [engine], "policy: round_robin\nmax-body: 2KiB\nindex-memory: 64MiB\n")
    reload(router)
    settings = router.admin_request("GET", "/kvroute/config").json
    assert settings["policy"] == "round_robin"
    assert router.chat("x" * 5000).status == 413
    assert any("index-memory" in line and "restart" in line for line in router.lines)
