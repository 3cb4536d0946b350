# SPDX-License-Identifier: Apache-2.0
"""Replicas by host name: names that do not resolve yet, names that move, and a name server that is gone."""
import pathlib
import re
import shutil
import subprocess
import time

import pytest

from engine import sse
from harness import BINARY, stays, wait_for
from texts import text

SOURCE = pathlib.Path(__file__).with_name("resolver.c")


@pytest.fixture(scope="session")
def resolver(tmp_path_factory):
    """Path of the library that answers for names in .test."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if not compiler:
        pytest.skip("no C compiler for the tests' resolver")
    if any(name in pathlib.Path(BINARY).read_bytes() for name in (b"libasan.so", b"libtsan.so")):
        pytest.skip("the sanitizer's library wants to be loaded first (clang's is a part of the program)")
    library = tmp_path_factory.mktemp("resolver") / "resolver.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-D_GNU_SOURCE", "-o", library, SOURCE, "-ldl"], check=True)
    return library


class Names:
    """What the name server says."""

    def __init__(self, resolver, path):
        self.path = path
        self.env = {"LD_PRELOAD": str(resolver), "KVROUTE_TEST_HOSTS": str(path)}
        self.say()

    def say(self, **names):
        """name=[addresses] (without .test); [] never answers. What is not named does not exist."""
        fresh = self.path.with_suffix(".new")
        fresh.write_text("".join(" ".join([f"{name}.test", *addresses]) + "\n" for name, addresses in names.items()))
        fresh.rename(self.path)


@pytest.fixture
def names(resolver, tmp_path):
    return Names(resolver, tmp_path / "hosts")


def result_of(router, result):
    return router.metrics().sum("config_reloads_total", result=result)


def test_a_name_that_cannot_be_resolved_is_down_says_why_and_comes_up_when_it_can(fleet, names):
    a, b = fleet.engine(), fleet.engine()
    router = fleet.router(replicas=[a.url, f"http://late.test:{b.port},name=late"], env=names.env, ready=False)
    router.wait_ready(a.name)
    wait_for(lambda: router.state("late") == "down", what="down, not forgotten")
    entry = router.replica("late")
    assert "cannot be resolved" in entry["why"] and "late.test" in entry["resolve_error"] and entry["address"] is None
    assert any("late" in line and "cannot be resolved" in line for line in router.lines), "start warns"
    assert router.chat().status == 200
    names.say(late=["127.0.0.1"])
    router.wait_ready("late", timeout=15)
    entry = router.replica("late")
    assert entry["address"] == f"127.0.0.1:{b.port}" and "resolve_error" not in entry
    wait_for(lambda: router.chat(text(300)).replica == "late", what="gets requests")


def test_alone_it_is_503_and_not_the_end(fleet, names):
    router = fleet.router(replicas=["http://nowhere.test:8000,name=x"], env=names.env, ready=False)
    wait_for(lambda: router.state("x") == "down", what="down")
    answer = router.chat()
    assert answer.status == 503 and answer.code == "no_replica"
    assert router.get("/readyz").status == 503 and router.alive()


def test_the_admin_api_takes_a_name_that_does_not_resolve_yet(fleet, names):
    engine = fleet.engine()
    router = fleet.router(replicas=[engine], env=names.env)
    answer = router.admin_request("POST", "/kvroute/replicas", {"url": f"http://soon.test:{engine.port}", "name": "soon"})
    assert answer.status == 201
    wait_for(lambda: router.state("soon") == "down", what="down")
    names.say(soon=["127.0.0.1"])
    router.wait_ready("soon", timeout=15)


def test_a_reload_with_a_name_that_does_not_resolve_keeps_the_good_ones(fleet, names, tmp_path):
    """The same replica, now with a name that is not there: it is replaced as written, and visible as down."""
    a, b = fleet.engine(), fleet.engine()
    config = tmp_path / "kvroute.yaml"
    config.write_text(f"replicas:\n  - {{ url: {a.url}, name: a }}\n")
    router = fleet.router("--config", config, env=names.env, ready=False)
    router.wait_ready("a")
    config.write_text(f"replicas:\n  - {{ url: {a.url}, name: a }}\n  - {{ url: 'http://b.test:{b.port}', name: b }}\n")
    router.signal(1)
    wait_for(lambda: result_of(router, "ok") == 1, what="reloaded")
    wait_for(lambda: router.state("b") == "down", what="there, and down")
    assert router.state("a") == "ready" and router.chat().status == 200
    names.say(b=["127.0.0.1"])
    router.wait_ready("b", timeout=15)


def test_a_changed_answer_is_followed_and_the_cache_is_forgotten(fleet, names):
    """As when Kubernetes moves a pod: another address, another process, an empty cache."""
    old = fleet.engine()
    new = fleet.engine(host="127.0.0.2", port=old.port)
    names.say(pod=["127.0.0.1"])
    router = fleet.router("--resolve-interval", "200ms", replicas=[f"http://pod.test:{old.port},name=pod"], env=names.env)
    prompt = text(4000)
    router.chat(prompt)
    assert router.chat(prompt).match > 800
    served = len(old.requests)
    names.say(pod=["127.0.0.2"])
    wait_for(lambda: router.replica("pod")["address"] == f"127.0.0.2:{old.port}", 10, "the new address")
    router.wait_ready("pod")
    answer = router.chat(prompt)
    assert answer.status == 200 and answer.match == 0, "what was believed of the old process is void"
    assert len(old.requests) == served and len(new.requests) == 1, "kept connections to the old address are not used"
    assert any("127.0.0.2" in line and "was 127.0.0.1" in line for line in router.lines)


def test_a_running_stream_ends_where_it_began(fleet, names):
    old = fleet.engine()
    new = fleet.engine(host="127.0.0.2", port=old.port)
    names.say(pod=["127.0.0.1"])
    router = fleet.router("--resolve-interval", "200ms", replicas=[f"http://pod.test:{old.port},name=pod"], env=names.env)
    old.script = sse(["x"] * 20, gap=0.1)
    conn = router.start_chat(stream=True)
    head = conn.head()
    names.say(pod=["127.0.0.2"])
    router.wait_ready("pod")
    wait_for(lambda: router.chat().status == 200 and new.requests, 10, "new requests at the new address")
    assert conn.finish(head).complete


def test_a_failed_connection_asks_at_once(fleet, names):
    """Without waiting for the interval."""
    old = fleet.engine()
    new = fleet.engine(host="127.0.0.2", port=old.port)
    names.say(pod=["127.0.0.1"])
    router = fleet.router("--resolve-interval", "1h", replicas=[f"http://pod.test:{old.port},name=pod"], env=names.env)
    assert router.chat().status == 200
    names.say(pod=["127.0.0.2"])
    stays(lambda: router.replica("pod")["address"].startswith("127.0.0.1:"), 0.5, "nothing failed yet")
    old.stop()
    wait_for(lambda: router.replica("pod")["address"].startswith("127.0.0.2:"), 10, "the new address")
    wait_for(lambda: router.chat().status == 200, 10, "served")
    assert new.requests


def test_the_other_address_of_a_name_is_tried_when_the_first_refuses(fleet, names):
    """localhost is two addresses, and an engine may listen on the second only."""
    engine = fleet.engine(host="127.0.0.2")
    names.say(two=["127.0.0.1", "127.0.0.2"])
    router = fleet.router(replicas=[f"http://two.test:{engine.port},name=two"], env=names.env, ready=False)
    router.wait_ready("two", timeout=15)
    assert router.chat().status == 200
    assert sum("stands for 2 addresses" in line for line in router.lines) == 1


def test_the_order_of_an_answer_moves_nothing(fleet, names):
    a = fleet.engine()
    b = fleet.engine(host="127.0.0.2", port=a.port)
    names.say(two=["127.0.0.1", "127.0.0.2"])
    router = fleet.router("--resolve-interval", "100ms", replicas=[f"http://two.test:{a.port},name=two"], env=names.env)
    names.say(two=["127.0.0.2", "127.0.0.1"])
    stays(lambda: router.replica("two")["address"].startswith("127.0.0.1:"), 1.0, "it answers where it is")
    assert not b.requests


def test_without_the_name_server_the_last_address_stays(fleet, names):
    engine = fleet.engine()
    names.say(pod=["127.0.0.1"])
    router = fleet.router("--resolve-interval", "100ms", replicas=[f"http://pod.test:{engine.port},name=pod"], env=names.env)
    names.say()
    wait_for(lambda: router.replica("pod").get("resolve_error"), what="the failed look-up is shown")
    assert router.state("pod") == "ready" and router.chat().status == 200


def test_a_name_server_that_never_answers_blocks_nothing(fleet, names):
    """Neither requests, nor the admin API, nor the end of the program."""
    engine = fleet.engine()
    names.say(slow=[])
    router = fleet.router(replicas=[engine.url, "http://slow.test:1,name=slow"], env=names.env, ready=False)
    router.wait_ready(engine.name)
    started = time.monotonic()
    assert router.chat().status == 200
    assert "being resolved" in router.replica("slow")["why"]
    assert time.monotonic() - started < 2
    router.terminate()
    assert router.wait_exit(5) == 0


def test_a_reload_that_cannot_be_followed_changes_nothing(fleet, tmp_path):
    """Also where only the fleet that is there can tell: a name that the admin API has given to another replica."""
    a, b, c = (fleet.engine() for _ in range(3))
    config = tmp_path / "kvroute.yaml"
    config.write_text(f"policy: kv\nreplicas:\n  - {{ url: {a.url}, name: a }}\n")
    router = fleet.router("--config", config, ready=False)
    router.add(b, name="b")
    router.wait_ready("a", "b")
    config.write_text(f"policy: random\nreplicas:\n  - {{ url: {c.url}, name: c }}\n  - {{ url: {a.url}, name: b }}\n")
    router.signal(1)
    wait_for(lambda: result_of(router, "error") == 1, what="refused")
    assert result_of(router, "ok") == 0
    assert {name: entry["url"] for name, entry in router.replicas().items()} == {"a": a.url, "b": b.url}
    assert router.admin_request("GET", "/kvroute/config").json["policy"] == "kv"
    assert any(re.search(r"reload refused.*replica b: .*admin API", line) for line in router.lines)
    assert router.chat().status == 200


def test_what_a_reload_does_with_replicas_of_the_admin_api(fleet, tmp_path):
    """Those it added stay; one that the file now names as well belongs to the file; one it removed comes back."""
    a, b, c = (fleet.engine() for _ in range(3))
    config = tmp_path / "kvroute.yaml"

    def write(*engines):
        config.write_text("replicas:\n" + "".join(f"  - {{ url: {e.url} }}\n" for e in engines))

    def reload(count):
        router.signal(1)
        wait_for(lambda: result_of(router, "ok") == count, what="reloaded")
    write(a)
    router = fleet.router("--config", config, ready=False)
    router.add(b)
    router.add(c)
    router.wait_ready(a, b, c)
    router.remove(a)
    write(a, b)
    reload(1)
    router.wait_ready(a, b, c)
    origins = {name: entry["origin"] for name, entry in router.replicas().items()}
    assert origins == {a.name: "config", b.name: "config", c.name: "api"}
    write(a)
    reload(2)
    assert set(router.replicas()) == {a.name, c.name}, "b left the file it had come to"
