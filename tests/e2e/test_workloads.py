# SPDX-License-Identifier: Apache-2.0
"""Names of workloads: who may invent them, and how many."""
import json

from client import chat_body
from harness import wait_for

NAMES_MAX = 64      # WORKLOAD_NAMES_MAX


def named(router, names, headers=()):
    with router.connect() as conn:
        for name in names:
            conn.request("POST", "/v1/chat/completions", [("x-kvroute-workload", name), *headers], chat_body("x"))
            conn.response()


def counted(router):
    """{workload: requests}"""
    page = router.metrics()
    names = {labels["workload"] for labels, _ in page.samples["kvroute_requests_total"]}
    return {name: page.sum("requests_total", workload=name) for name in names}


def test_clients_cannot_fill_the_metrics_with_names(fleet, tmp_path):
    """The first 64 names count, those of rules always, all others together."""
    engine = fleet.engine()
    file = tmp_path / "kvroute.yaml"
    file.write_text(f"replicas: [{engine.url}]\nworkloads:\n  - {{ name: agents, path: /v1/messages }}\n")
    log = tmp_path / "access.log"
    router = fleet.router("--config", file, "--threads", "2", "--access-log", log, ready=False)
    router.wait_ready(engine)
    named(router, ["default", "other"])
    named(router, [f"w{n}" for n in range(300)])
    named(router, ["w0", "agents", f"w{NAMES_MAX - 1}", f"w{NAMES_MAX}", "Other", "DEFAULT", "agent", "agents2"])
    wait_for(lambda: router.metrics().sum("requests_total") == 310, what="all counted")
    expected = {f"w{n}": 1 for n in range(NAMES_MAX)} | {"default": 1, "other": 1 + 236 + 5, "agents": 1}
    expected["w0"] = expected[f"w{NAMES_MAX - 1}"] = 2
    assert counted(router) == expected
    wait_for(lambda: log.read_text().count("\n") == 310, what="all logged")
    assert sum(json.loads(line)["workload"] == "other" for line in log.read_text().splitlines()) == 242


def test_who_is_not_let_in_names_nothing(fleet):
    router, _ = fleet.start(1, "--api-key", "sk-door")
    for number in range(80):
        assert router.chat(headers=[("x-kvroute-workload", f"bad{number}")]).status == 401
    named(router, ["good"], [("Authorization", "Bearer sk-door")])
    wait_for(lambda: router.metrics().sum("requests_total") == 81, what="all counted")
    assert counted(router) == {"default": 80, "good": 1}
