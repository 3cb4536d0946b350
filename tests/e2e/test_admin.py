# SPDX-License-Identifier: Apache-2.0
"""The admin API: who may change something, what it says to people who ask wrongly."""
import json
import re
import shlex
import socket

import pytest

from client import chat_body, fetch
from harness import ROOT, wait_for

JSON = ("Content-Type", "application/json")


def own(router):
    return "%s:%d" % router.admin


FOREIGN = [
    ("a page of another origin", lambda r: [("Host", own(r)), ("Origin", "https://evil.example")], 403, "Origin"),
    ("a sandboxed page", lambda r: [("Host", own(r)), ("Origin", "null")], 403, "Origin"),
    ("a page of another port", lambda r: [("Host", own(r)), ("Origin", "http://127.0.0.1:1")], 403, "Origin"),
    ("a name made to stand for our address", lambda r: [("Host", f"evil.example:{r.admin[1]}"),
                                                        ("Origin", f"http://evil.example:{r.admin[1]}")], 403, "Host"),
    ("the same without Origin", lambda r: [("Host", f"evil.example:{r.admin[1]}")], 403, "Host"),
    ("a form", lambda r: [("Host", own(r)), ("Content-Type", "text/plain")], 415, "application/json"),
    ("another form", lambda r: [("Host", own(r)), ("Content-Type", "application/x-www-form-urlencoded")], 415,
     "application/json"),
]


@pytest.mark.parametrize("headers, status, said", [row[1:] for row in FOREIGN], ids=[row[0] for row in FOREIGN])
def test_a_browser_cannot_be_made_to_change_the_fleet(fleet, headers, status, said):
    router, (engine,) = fleet.start(1)
    other = fleet.engine()
    fields = headers(router)
    bodies = [("POST", "/kvroute/replicas", json.dumps({"url": other.url}).encode()),
              ("POST", "/kvroute/explain?path=/v1/chat/completions", chat_body("x"))]
    if status == 403:
        bodies += [("DELETE", f"/kvroute/replicas/{engine.name}", None), ("POST", f"/kvroute/replicas/{engine.name}/drain", None)]
    for method, path, body in bodies:
        answer = fetch(router.admin, method, path, fields, body)
        assert answer.status == status and said in answer.json["error"]["message"], (method, path, answer)
    assert list(router.replicas()) == [engine.name] and router.state(engine) == "ready"
    assert fetch(router.admin, "GET", "/kvroute/replicas", fields).status == 200, "reading changes nothing"


def test_the_listeners_own_page_and_scripts_may(fleet):
    router, (engine,) = fleet.start(1)
    port = router.admin[1]
    for host in (own(router), f"localhost:{port}", f"[::1]:{port}"):
        for fields in ([("Host", host)], [("Host", host), ("Origin", f"http://{host}")]):
            other = fleet.engine()
            body = json.dumps({"url": other.url}).encode()
            assert fetch(router.admin, "POST", "/kvroute/replicas", [*fields, JSON], body).status == 201, fields
            assert fetch(router.admin, "DELETE", f"/kvroute/replicas/{other.name}", fields).status == 200, fields
    assert fetch(router.admin, "GET", "/", [("Host", own(router))]).status in (200, 404)


def test_with_the_token_any_name_is_fine_but_no_other_origin(fleet):
    router, (engine,) = fleet.start(1, "--admin-token", "t0ken", ready=False)
    token = ("Authorization", "Bearer t0ken")
    host = ("Host", "kvroute.prod.svc:8081")
    path = f"/kvroute/replicas/{engine.name}/drain"
    assert fetch(router.admin, "POST", path, [host, token]).status == 200
    assert fetch(router.admin, "POST", path, [host, token, ("Origin", "http://evil.example")]).status == 403
    missing = fetch(router.admin, "POST", path, [host])
    wrong = fetch(router.admin, "POST", path, [host, ("Authorization", "Bearer other")])
    for answer, words in ((missing, "is needed"), (wrong, "is not the router's")):
        assert answer.status == 401
        for word in (words, "--admin-token", "KVROUTE_ADMIN_TOKEN", "Authorization: Bearer TOKEN"):
            assert word in answer.json["error"]["message"], answer.json
    router.admin = None     # the checks at the end do not know the token


def test_the_machines_own_name_is_ours(fleet):
    engine = fleet.engine()
    router = fleet.router("--admin", "localhost:0", replicas=[engine])
    path = f"/kvroute/replicas/{engine.name}/undrain"
    for name in {socket.gethostname(), socket.gethostname().split(".")[0]}:
        assert fetch(router.admin, "POST", path, [("Host", f"{name}:{router.admin[1]}")]).status == 200, name


# ---- explain ---------------------------------------------------------------------------------------------------------------


def test_explain_of_an_unknown_path_names_the_known_ones(fleet):
    router, _ = fleet.start(1)
    for path in ("/v1/chat/completion", "", "/v1/models", "%2Fv1%2Fchat"):
        answer = router.admin_request("POST", f"/kvroute/explain?path={path}", chat_body("x"))
        assert answer.status == 400, path
        assert "/v1/chat/completions" in answer.json["error"]["message"] and "/v1/messages" in answer.json["error"]["message"]
    for path in ("/v1/chat/completions", "%2Fv1%2Fchat%2Fcompletions"):
        assert router.admin_request("POST", f"/kvroute/explain?path={path}", chat_body("x")).status == 200, path
    assert router.admin_request("POST", "/kvroute/explain", chat_body("x")).status == 200, "chat unless it is said"


def test_get_of_explain_gives_a_line_that_works(fleet):
    router, (engine,) = fleet.start(1)
    answer = router.admin_request("GET", "/kvroute/explain")
    assert answer.status == 405
    line = re.search(r"curl .*", answer.json["error"]["message"])[0]
    words = shlex.split(line)
    assert words[0] == "curl" and words[1] == f"http://{own(router)}/kvroute/explain?path=/v1/chat/completions"
    name, value = words[words.index("-H") + 1].split(": ")
    body = words[words.index("-d") + 1].replace("NAME", "m").encode()
    again = router.admin_request("POST", words[1].split(own(router))[1], body, [(name, value)])
    assert again.status == 200 and again.json["chosen"] == engine.name


# ---- the client port --------------------------------------------------------------------------------------------------------


def test_the_root_of_the_client_port_is_the_routers(fleet):
    """An engine's web page must not pass for it; other paths that are not known still go to an engine."""
    router, (engine,) = fleet.start(1)
    answer = router.get("/")
    assert answer.status == 200 and answer.header("content-type") == "application/json"
    assert answer.json["name"] == "kvroute" and "/v1/models" in answer.json["paths"]
    assert router.request("HEAD", "/").body == b""
    assert router.get("/?x=1").json["name"] == "kvroute"
    assert not engine.requests
    router.get("/v1/made-up")
    router.post("/", b"{}")
    wait_for(lambda: [r.path for r in engine.requests] == ["/v1/made-up", "/"], what="passed on")


def test_the_root_needs_the_key_as_all_else(fleet):
    router, _ = fleet.start(1, "--api-key", "sk-door")
    assert router.get("/").status == 401
    assert router.get("/", [("x-api-key", "sk-door")]).status == 200


# ---- the page that describes it ---------------------------------------------------------------------------------------------


def test_every_path_and_field_is_documented(fleet):
    page = (ROOT / "docs" / "admin.md").read_text()
    router, (engine,) = fleet.start(1)
    dead = fleet.router(replicas=["http://name.invalid:1,name=x"], ready=False)
    wait_for(lambda: dead.replica("x").get("resolve_error"), 20, "not resolved")
    fields = set(router.replica(engine)) | set(dead.replica("x")) | {"load_error", "error"}
    story = router.explain("x")
    fields |= set(story) | set(story["candidates"][0])
    assert sorted(field for field in fields if f"`{field}`" not in page) == []
    known = router.admin_request("GET", "/kvroute/nothing").json["error"]["message"]
    paths = re.findall(r"/[\w/]*", known)
    assert len(paths) > 6 and [path for path in paths if f"{path}`" not in page and f"{path} " not in page] == []
