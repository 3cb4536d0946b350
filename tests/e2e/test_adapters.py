# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters loaded and unloaded through the router: told to every replica, remembered, kept apart."""
import json
import threading

from engine import reply, until
from harness import spawn, stays, wait_for
from texts import text

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


class Adapters:
    """An engine's adapters: what it was told, and what it lists."""

    def __init__(self, engine):
        self.engine = engine
        self.told = []
        self.loaded = []
        engine.routes[LOAD] = self.load
        engine.routes[UNLOAD] = self.unload
        engine.routes["/v1/models"] = self.models

    async def load(self, request, out):
        name = request.json["lora_name"]
        self.told.append(("load", name))
        if name in self.loaded:
            await out.whole(400, {"error": {"message": f"{name} has already been loaded", "code": 400}})
            return
        self.loaded.append(name)
        await out.whole(200, b"Success: LoRA adapter added", content_type="text/plain")

    async def unload(self, request, out):
        name = request.json["lora_name"]
        self.told.append(("unload", name))
        if name not in self.loaded:
            await out.whole(404, {"error": {"message": f"{name} cannot be found", "code": 404}})
            return
        self.loaded.remove(name)
        await out.whole(200, b"Success", content_type="text/plain")

    async def models(self, _request, out):
        entries = [{"id": "m", "object": "model", "owned_by": "vllm", "root": "m", "parent": None}]
        entries += [{"id": name, "object": "model", "owned_by": "vllm", "root": "/" + name, "parent": "m"}
                    for name in self.loaded]
        await out.whole(200, {"object": "list", "data": entries})


def start(fleet, count, *options):
    router, engines = fleet.start(count, "--allow-engine-admin", "on", *options)
    return router, engines, [Adapters(engine) for engine in engines]


def test_all_replicas_are_told(fleet):
    """One request loads it everywhere, and the name can be asked for at once; likewise it goes."""
    router, engines, adapters = start(fleet, 3)
    answer = router.post(LOAD, {"lora_name": "ad1", "lora_path": "/ad1"})
    assert answer.status == 200, answer.body
    assert sorted(row["replica"] for row in answer.json["replicas"]) == sorted(e.name for e in engines)
    assert all(row["status"] == 200 for row in answer.json["replicas"])
    assert [a.told for a in adapters] == [[("load", "ad1")]] * 3
    wait_for(lambda: router.chat("hello", model="ad1").status == 200, 3, "requests for it are served")
    wait_for(lambda: all("ad1" in row["models"] for row in router.replicas().values()), 3, "all list it")
    assert router.post(UNLOAD, {"lora_name": "ad1"}).status == 200
    assert [a.loaded for a in adapters] == [[]] * 3
    wait_for(lambda: router.chat("hello", model="ad1").status == 404, 3, "nobody has it any more")


def test_a_restarted_replica_gets_it_again(fleet):
    """What was loaded through the router outlives the engine's process; what was unloaded does not come back."""
    router, (a, b), (one, two) = start(fleet, 2)
    for name in ("ad1", "ad2"):
        assert router.post(LOAD, {"lora_name": name, "lora_path": "/" + name}).status == 200
    assert router.post(UNLOAD, {"lora_name": "ad2"}).status == 200
    a.stop()
    wait_for(lambda: router.state(a) == "down", 5, "it is down")
    one.loaded.clear()
    one.told.clear()
    a.start()
    wait_for(lambda: one.loaded == ["ad1"], 8, "it has it again")
    assert one.told == [("load", "ad1")]
    assert two.told == [("load", "ad1"), ("load", "ad2"), ("unload", "ad2")]
    # and so does a newcomer
    late = fleet.engine()
    newcomer = Adapters(late)
    router.add(late)
    wait_for(lambda: newcomer.loaded == ["ad1"], 8, "the newcomer has it")


def test_refusals_are_told(fleet):
    """A replica that cannot is named, with its own words; the others have it."""
    router, (a, b), (one, two) = start(fleet, 2)
    b.routes[LOAD] = reply(400, {"error": {"message": "no such path", "code": 400}})
    answer = router.post(LOAD, {"lora_name": "ad1", "lora_path": "/nowhere"})
    assert answer.status == 400
    rows = {row["replica"]: row for row in answer.json["replicas"]}
    assert rows[a.name]["status"] == 200 and rows[b.name]["status"] == 400
    assert "no such path" in rows[b.name]["answer"]
    assert router.post(LOAD, {"lora_path": "/x"}).status == 400
    assert router.post(LOAD, b"not json").status == 400
    assert router.post(LOAD, {"lora_name": "x" * 300}).status == 400


def test_not_without_permission(fleet):
    router, (a,) = fleet.start(1)
    one = Adapters(a)
    assert router.post(LOAD, {"lora_name": "ad1", "lora_path": "/ad1"}).status == 403
    assert one.told == []


def test_a_client_that_does_not_wait(fleet):
    """Its request goes on, nothing is left behind, and other requests are served meanwhile."""
    router, (a,), (one,) = start(fleet, 1)
    gate = threading.Event()

    async def slow(request, out):
        await until(gate, one.load)(request, out)
    a.routes[LOAD] = slow
    conn = router.connect()
    conn.request("POST", LOAD, [], json.dumps({"lora_name": "ad1", "lora_path": "/ad1"}).encode())
    wait_for(lambda: any(r.path == LOAD for r in a.requests), what="the engine has it")
    assert spawn(router.chat, text(100)).result(5).status == 200
    conn.close()
    gate.set()
    wait_for(lambda: one.loaded == ["ad1"], what="it is loaded")
    stays(router.alive, 0.3)


def test_nobody_to_tell(fleet):
    router, (a,), _ = start(fleet, 1)
    a.stop()
    wait_for(lambda: router.state(a) == "down", 5, "it is down")
    assert router.post(LOAD, {"lora_name": "ad1", "lora_path": "/ad1"}).status == 503


def test_ranks_are_one_process(fleet):
    """Ranks behind one port share their adapters: the port is told once."""
    engine = fleet.engine("vllm")
    one = Adapters(engine)
    router = fleet.router("--allow-engine-admin", "on", "--replica", f"{engine.url},name=gpu,ranks=3", ready=False)
    router.wait_ready("gpu.dp0", "gpu.dp1", "gpu.dp2")
    answer = router.post(LOAD, {"lora_name": "ad1", "lora_path": "/ad1"})
    assert answer.status == 200 and [row["replica"] for row in answer.json["replicas"]] == ["gpu"]
    assert one.told == [("load", "ad1")]
    wait_for(lambda: all("ad1" in row["models"] for row in router.replicas().values()), 3, "all ranks list it")


def test_in_the_order_in_which_they_came(fleet):
    """A load that is slow somewhere is over before the unload behind it begins; what is remembered is the last word."""
    router, (a, b), (one, two) = start(fleet, 2)
    gate = threading.Event()

    async def slow(request, out):
        await until(gate, two.load)(request, out)
    b.routes[LOAD] = slow
    loading = spawn(router.post, LOAD, {"lora_name": "ad1", "lora_path": "/ad1"}, timeout=20)
    wait_for(lambda: any(r.path == LOAD for r in b.requests), what="the slow one has it")
    leaving = spawn(router.post, UNLOAD, {"lora_name": "ad1"}, timeout=20)
    stays(lambda: ("unload", "ad1") not in one.told, 0.3)
    gate.set()
    assert loading.result(20).status == 200 and leaving.result(20).status == 200
    assert one.told == two.told == [("load", "ad1"), ("unload", "ad1")]
    stays(lambda: one.loaded == two.loaded == [], 1)


def test_each_is_told_once(fleet):
    router, _engines, adapters = start(fleet, 2)
    for name in ("x", "y", "z"):
        assert router.post(LOAD, {"lora_name": name, "lora_path": "/" + name}).status == 200
    stays(lambda: all(a.told == [("load", n) for n in ("x", "y", "z")] for a in adapters), 1)


def test_the_clients_key_goes_along(fleet):
    router, (a,), _ = start(fleet, 1)
    answer = router.post(LOAD, {"lora_name": "ad1", "lora_path": "/ad1"}, [("Authorization", "Bearer mine")])
    assert answer.status == 200
    assert [r.header("authorization") for r in a.requests if r.path == LOAD] == ["Bearer mine"]


def test_a_long_key_is_not_cut(fleet):
    router, (a,), _ = start(fleet, 1)
    key = "Bearer " + "k" * 9000
    assert router.post(LOAD, {"lora_name": "ad1", "lora_path": "/ad1"}, [("Authorization", key)]).status == 200
    assert [r.header("authorization") for r in a.requests if r.path == LOAD] == [key]
    assert a.last().header("content-type") == "application/json"
