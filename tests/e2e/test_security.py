# SPDX-License-Identifier: Apache-2.0
"""Credentials, the admin side, and what must not be written down."""
import json

import pytest

from client import chat_body
from engine import reply
from harness import Router, wait_for
from texts import text

KEYS = [("Authorization", "Bearer sk-client"), ("x-api-key", "ak-client")]


@pytest.mark.parametrize("policy, authorization, api_key", [
    ("pass", "Bearer sk-client", "ak-client"), ("strip", None, None), ("replace", "Bearer sk-replica", None)])
def test_each_replica_has_a_policy_for_credentials(fleet, policy, authorization, api_key):
    """[81]"""
    engine = fleet.engine()
    spec = f"{engine.url},auth={policy}" + (",api-key=sk-replica" if policy == "replace" else "")
    router = fleet.router("--replica", spec, ready=False)
    router.wait_ready(engine)
    assert router.chat(headers=KEYS).status == 200
    seen = engine.last()
    assert seen.header("authorization") == authorization and seen.header("x-api-key") == api_key
    if policy != "replace":
        assert all("sk-replica" not in (p.header("authorization") or "") for p in engine.polls)
    else:
        assert any(p.header("authorization") == "Bearer sk-replica" for p in engine.polls), "polls need it too"


def test_the_routers_own_client_keys_are_not_sent_on(fleet):
    """[81]"""
    router, (engine,) = fleet.start(1, "--api-key", "sk-door")
    assert router.chat(headers=[("Authorization", "Bearer sk-door")]).status == 200
    assert "sk-door" not in engine.last().head.decode()
    assert router.chat(headers=[("x-api-key", "sk-door")]).status == 200
    assert "sk-door" not in engine.last().head.decode()


@pytest.mark.parametrize("headers", [[], [("Authorization", "Bearer wrong")], [("Authorization", "Basic sk-door")],
                                     [("x-api-key", "")], [("Authorization", "Bearer sk-doo")],
                                     [("Authorization", "Bearer sk-door2")]])
def test_without_the_key_nothing_passes(fleet, headers):
    router, (engine,) = fleet.start(1, "--api-key", "sk-door")
    for path in ("/v1/chat/completions", "/v1/made-up"):
        answer = router.post(path, chat_body(), headers)
        assert answer.status == 401 and answer.code == "unauthorized"
    assert router.get("/v1/models", headers).status == 401
    assert not engine.requests
    assert router.get("/healthz").status == 200


def test_secrets_do_not_show_up_in_errors_or_logs(fleet):
    """[81] Also when an engine echoes headers in its error."""
    engine = fleet.engine()
    router = fleet.router("--log-level", "debug", "--replica", f"{engine.url},auth=replace,api-key=sk-replica", ready=False)
    router.wait_ready(engine)

    async def echo(request, out):
        await out.whole(200, json.dumps({"seen": request.head.decode()}).encode())
    engine.script = echo
    assert "sk-client" not in router.chat(headers=KEYS).body.decode()
    engine.stop()
    router.chat(headers=KEYS)
    for secret in ("sk-client", "ak-client", "sk-replica"):
        assert secret not in router.err


ADMIN_PATHS = ["/kvroute/replicas", "/kvroute/alarms", "/kvroute/config", "/kvroute/ledger", "/kvroute/explain", "/metrics"]


@pytest.mark.parametrize("path", ADMIN_PATHS)
def test_admin_paths_do_not_exist_on_the_public_port(fleet, path):
    """[82]"""
    router, (engine,) = fleet.start(1)
    engine.routes[path] = reply(404, b'{"detail":"engine says not found"}')
    for method, body in (("GET", None), ("POST", b'{"url":"http://127.0.0.1:1"}'), ("DELETE", None)):
        answer = router.request(method, path, body)
        assert answer.status in (403, 404, 405)
    assert len(router.replicas()) == 1
    if path.startswith("/kvroute/"):
        assert not engine.requests, "the router's own name space is not forwarded"


@pytest.mark.parametrize("headers", [[], [("Authorization", "Bearer wrong")], [("Authorization", "tok")]])
def test_the_admin_side_asks_for_its_token(fleet, headers):
    """[82]"""
    engine = fleet.engine()
    router = Router("--admin-token", "tok", replicas=[engine])
    router.broken_ok = True
    fleet.routers.append(router)
    for method, path in (("GET", "/kvroute/replicas"), ("POST", "/kvroute/replicas"), ("GET", "/kvroute/config"),
                         ("DELETE", f"/kvroute/replicas/{engine.name}"), ("GET", "/metrics"),
                         ("POST", "/kvroute/explain")):
        body = b'{"url":"http://127.0.0.1:1"}' if method == "POST" else None
        answer = router.admin_request(method, path, body, headers)
        assert answer.status == 401, (method, path)
    assert b"vllm" not in router.admin_request("GET", "/").body, "the page itself holds nothing"
    assert router.admin_request("GET", "/healthz").status == 200
    good = router.admin_request("GET", "/kvroute/replicas", headers=[("Authorization", "Bearer tok")])
    assert good.status == 200


def test_admin_can_be_switched_off(fleet):
    engine = fleet.engine()
    router = fleet.router("--admin", "off", replicas=[engine], ready=False)
    wait_for(lambda: router.get("/readyz").status == 200, what="ready")
    assert router.admin is None and router.chat().status == 200


def test_admin_listens_on_loopback_by_default():
    """[82]"""
    from harness import kvroute
    shown = kvroute("serve", "--help").out
    assert "127.0.0.1:8081" in shown and "127.0.0.1:8080" in shown


ENGINE_ADMIN = ["/reset_prefix_cache", "/reset_mm_cache", "/sleep", "/wake_up", "/collective_rpc", "/pause", "/resume",
                "/abort_requests", "/flush_cache", "/pause_generation", "/continue_generation",
                "/update_weights_from_disk", "/release_memory_occupation", "/resume_memory_occupation",
                "/load_lora_adapter", "/v1/load_lora_adapter", "/unload_lora_adapter", "/v1/unload_lora_adapter",
                "/abort_request", "/server_info", "/slots/0?action=erase", "/kv_cache_events", "/metrics"]


@pytest.mark.parametrize("path", ENGINE_ADMIN)
def test_administrative_paths_of_engines_are_not_forwarded(fleet, path):
    router, (engine,) = fleet.start(1)
    engine.polls.clear()
    base = path.split("?")[0]
    for variant in (path, "/" + path, path.replace("_", "%5f", 1), "/./" + path[1:], base + "/"):
        answer = router.post(variant, b"{}")
        assert answer.status in (403, 404), variant
        assert not engine.requests, variant
    assert not [p for p in engine.polls if p.method == "POST" and p.path == base]


def test_they_are_forwarded_when_allowed(fleet):
    router, (engine,) = fleet.start(1, "--allow-engine-admin", "on")
    engine.script = reply(200, b'{"success":true}')
    assert router.post("/reset_prefix_cache", b"").json == {"success": True}


@pytest.mark.parametrize("level", ["info", "debug"])
def test_prompts_are_not_logged(fleet, tmp_path, level):
    """[82] A marker word sent in a prompt, in headers of the body's kind, and in a broken body."""
    log = tmp_path / "access.log"
    router, (engine,) = fleet.start(1, "--log-level", level, "--access-log", log)
    marker = "xylophone-in-the-prompt"
    router.chat(marker)
    router.chat(marker, stream=True)
    router.post("/v1/chat/completions", f'{{"messages": "{marker}'.encode())
    router.post("/v1/completions", {"model": "m", "prompt": marker})
    engine.script = lambda request, out: out.whole(500, marker.encode())
    router.chat(marker)
    engine.stop()
    router.chat(marker)
    wait_for(lambda: log.read_text().count("\n") >= 6, what="six lines")
    assert marker not in log.read_text() and marker not in router.err and marker not in router.metrics().text


def test_tenants_get_separate_caches_when_asked_for(fleet):
    """[83] Two keys, one prompt: different salts, no cross-tenant hit; a client's own value is overwritten."""
    router, (engine,) = fleet.start(1, "--tenant-salt", "on", "--api-key", "sk-a", "--api-key", "sk-b")
    a, b = [("Authorization", "Bearer sk-a")], [("Authorization", "Bearer sk-b")]
    prompt = text(3000)
    router.chat(prompt, a)
    salt_a = engine.last().json["cache_salt"]
    cross = router.chat(prompt, b, cache_salt=salt_a)
    salt_b = engine.last().json["cache_salt"]
    assert salt_a and salt_b and salt_a != salt_b and "sk-a" not in salt_a
    assert cross.match == 0
    again = router.chat(prompt, a)
    assert engine.last().json["cache_salt"] == salt_a and again.match > 400
    assert json.loads(engine.last().body)["messages"] == [{"role": "user", "content": prompt}]


def test_hostile_request_ids_are_replaced_and_do_not_reach_the_log(fleet, tmp_path):
    """[77]"""
    log = tmp_path / "access.log"
    router, (engine,) = fleet.start(1, "--access-log", log)
    assert router.chat(headers=[("x-request-id", "del\x7f")]).status == 400
    engine.forget()
    for hostile in ("i" * 4000, "a b\"c{}<script>", "caf\xe9-\xff", "back\\slash"):
        answer = router.chat(headers=[("x-request-id", hostile)])
        given = answer.header("x-request-id")
        assert answer.status == 200 and given and given != hostile and len(given) <= 128
        assert engine.last().all("x-request-id") == [given]
    wait_for(lambda: log.read_text().count("\n") >= 4, what="four lines")
    assert "script" not in log.read_text() and all(json.loads(line) for line in log.read_text().splitlines())
