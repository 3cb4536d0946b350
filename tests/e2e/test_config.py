# SPDX-License-Identifier: Apache-2.0
"""Wrong usage and wrong configuration: status 2, and a message that names the option or place, the value and the fix."""
import re

import pytest

from harness import kvroute, wait_for

GOOD = "http://127.0.0.1:9"

WRONG = [
    (["serve", "--polciy", "kv", GOOD], ["--polciy", "--policy"]),
    (["serve", "--policy", "psychic", GOOD], ["--policy", "psychic", "kv"]),
    (["serve", "--listen", "nowhere", GOOD], ["--listen", "nowhere"]),
    (["serve", "--listen", "127.0.0.1:99999", GOOD], ["--listen", "99999"]),
    (["serve", "--max-body", "lots", GOOD], ["--max-body", "lots"]),
    (["serve", "--max-body", "1", GOOD], ["--max-body", "1"]),
    (["serve", "--queue-timeout", "5 parsecs", GOOD], ["--queue-timeout", "5 parsecs"]),
    (["serve", "--head-timeout", "-1s", GOOD], ["--head-timeout", "-1s"]),
    (["serve", "--threads", "many", GOOD], ["--threads", "many"]),
    (["serve", "--seed", "xyz", GOOD], ["--seed", "xyz"]),
    (["serve", "--replica", "127.0.0.1:8000"], ["127.0.0.1:8000", "http://"]),
    (["serve", "--replica", f"{GOOD},nmae=x"], ["nmae", "name"]),
    (["serve", "--replica", f"{GOOD},engine=steam"], ["engine", "steam"]),
    (["serve", GOOD, GOOD], ["127.0.0.1:9"]),
    (["serve", "--replica", f"{GOOD},name=a", "--replica", "http://127.0.0.1:10,name=a"], ["a"]),
    (["serve", "--log-level", "loud", GOOD], ["--log-level", "loud", "debug"]),
    (["serve", "--config", "/nonexistent/kvroute.yaml"], ["/nonexistent/kvroute.yaml"]),
    (["serve", "--alias", "noequals", GOOD], ["--alias", "noequals"]),
    (["serve", "--max-body"], ["--max-body"]),
    (["srve"], ["srve", "serve"]),
    ([], ["serve"]),
    (["check"], ["FILE"]),
    (["check", "/nonexistent/kvroute.yaml"], ["/nonexistent/kvroute.yaml"]),
    (["bench"], ["URL"]),
]


@pytest.mark.parametrize("args, needles", WRONG, ids=[" ".join(a) or "nothing" for a, _ in WRONG])
def test_wrong_usage(args, needles):
    ended = kvroute(*args)
    assert ended.status == 2, ended
    assert ended.out == "", "results go to standard output, complaints do not"
    for needle in needles:
        assert needle in ended.err, (needle, ended.err)
    assert len(ended.err.splitlines()) <= 12, "a message, not a manual"


FILES = [
    ("polcy: kv\n", "1:1", ["polcy", "policy"]),
    ("policy: kv\npolicy: kv\n", "2:1", ["policy"]),
    ("policy: psychic\n", "1:9", ["psychic"]),
    ("max-body: huge\n", "1:11", ["huge"]),
    ("replicas:\n  - { url: http://a:1, colour: red }\n", "2:", ["colour"]),
    ("replicas:\n  - { url: http://a:1, url: http://b:1 }\n", "2:", ["url"]),
    ("replicas:\n  - { name: a }\n", "2:", ["url"]),
    ("replicas: 7\n", "1:11", ["replicas"]),
    ("listen: [1, 2\n", ":", []),
    ("- a\n- b\n", "1:1", []),
    ("workloads:\n  - { name: a, paht: /x }\n", "2:", ["paht", "path"]),
    ("policy: &x kv\nlisten: *y\n", "2:", []),
]


@pytest.mark.parametrize("content, place, needles", FILES, ids=[c.replace("\n", "\\n") for c, _, _ in FILES])
def test_wrong_files(tmp_path, content, place, needles):
    """[85] Unknown and duplicate keys are errors, with file, line and column."""
    file = tmp_path / "bad.yaml"
    file.write_text(content)
    for command in (["check", file], ["serve", "--config", file, GOOD]):
        ended = kvroute(*command)
        assert ended.status == 2, ended
        assert f"bad.yaml:{place}" in ended.err if place != ":" else "bad.yaml" in ended.err, ended.err
        for needle in needles:
            assert needle in ended.err, (needle, ended.err)


def test_check_reports_all_mistakes(tmp_path):
    file = tmp_path / "bad.yaml"
    file.write_text("polcy: kv\nmax-body: huge\nreplicas:\n  - { url: http://a:1/v1 }\n"
                    "workloads:\n  - { name: a, paht: /x }\nseed: xyz\npolicy: psychic\n")
    ended = kvroute("check", file)
    lines = ended.err.splitlines()
    assert ended.status == 2 and len(lines) == 6, ended
    for place, word in ("1:1", "policy"), ("2:11", "huge"), ("4:12", "/v1"), ("6:16", "path"), ("7:7", "xyz"), ("8:9", "psychic"):
        assert any(f"bad.yaml:{place}:" in line and word in line for line in lines), (place, lines)


def test_no_replica_is_a_warning_that_names_the_next_step(fleet, tmp_path):
    file = tmp_path / "empty.yaml"
    file.write_text("policy: kv\n")
    ended = kvroute("check", file)
    assert ended.status == 0 and ended.out.strip().endswith("ok, policy kv, 0 replicas, 0 workloads")
    router = fleet.router(ready=False)
    for said in (ended.err, wait_for(lambda: router.err if "no replica" in router.err else None, what="a warning")):
        assert "no replica is configured" in said and "kvroute serve http://" in said and "/kvroute/replicas" in said
    assert ", 0 replicas" in router.ready_line


def test_one_is_singular_and_sizes_are_readable(fleet, tmp_path):
    engine = fleet.engine()
    file = tmp_path / "one.yaml"
    file.write_text(f"replicas: [{engine.url}]\nworkloads: [{{ name: a, path: /x }}]\n")
    assert kvroute("check", file).out.strip().endswith("1 replica, 1 workload")
    router = fleet.router("--config", file, "--threads", 1, "--index-memory", "64MiB", "--max-body", "2KiB", ready=False)
    assert router.ready_line.endswith(", 1 replica")
    assert any("index at most 64MiB, 1 thread" in line and "threads" not in line for line in router.lines)
    assert "2KiB" in router.chat("x" * 4000).json["error"]["message"]
    router.signal(1)
    wait_for(lambda: any("1 replica configured" in line for line in list(router.lines)), what="reloaded")


def test_a_good_file_is_checked_and_used(tmp_path, fleet):
    engine = fleet.engine()
    file = tmp_path / "good.yaml"
    file.write_text(f"""
policy: round_robin
health-interval: 200ms
replicas:
  - {{ url: {engine.url}, name: gpu-a, engine: vllm, max-running: 8 }}
workloads:
  - {{ name: agents, path: /v1/messages }}
  - {{ name: rag, header: {{ x-team: search }} }}
""")
    ended = kvroute("check", file)
    assert ended.status == 0, ended
    router = fleet.router("--config", file, "--policy", "kv", ready=False)
    router.wait_ready("gpu-a")
    settings = router.admin_request("GET", "/kvroute/config").json
    assert settings["policy"] == "kv", "flags win over the file"
    router.chat()
    router.chat(headers=[("x-team", "search")])
    router.post("/v1/messages", {"model": "m", "max_tokens": 2, "messages": [{"role": "user", "content": "x"}]})
    wait_for(lambda: router.metrics().sum("requests_total", workload="agents") == 1, what="the last one counted")
    assert router.metrics().sum("requests_total", workload="rag") == 1


def test_environment_variables_set_options(fleet):
    engine = fleet.engine()
    router = fleet.router(replicas=[engine], env={"KVROUTE_POLICY": "round_robin", "KVROUTE_MAX_BODY": "2KiB"})
    settings = router.admin_request("GET", "/kvroute/config").json
    assert settings["policy"] == "round_robin"
    assert router.chat("x" * 5000).status == 413


def test_secrets_are_masked(fleet):
    """[81] [85]"""
    engine = fleet.engine()
    router = fleet.router("--admin", "127.0.0.1:0", "--api-key", "sk-client-secret", "--upstream-key", "sk-up-secret",
                          "--auth", "replace", replicas=[engine])
    page = router.admin_request("GET", "/kvroute/config").body.decode()
    assert "secret" not in page and "***" in page
    assert "secret" not in router.err


def test_a_port_in_use_is_a_clear_error(fleet):
    router, (engine,) = fleet.start(1)
    ended = kvroute("serve", "--listen", "127.0.0.1:%d" % router.admin[1], "--admin", "off", engine.url)
    assert ended.status in (1, 2) and str(router.admin[1]) in ended.err and "in use" in ended.err.lower()


def test_the_effective_policy_is_printed(fleet):
    """[85]"""
    router, _ = fleet.start(1, "--policy", "power_of_two")
    assert any("power_of_two" in line for line in router.lines)


def test_help_and_version():
    version = kvroute("--version")
    assert version.status == 0 and re.search(r"kvroute \d+\.\d+\.\d+", version.out)
    for command in ([], ["serve"], ["mock"], ["bench"], ["demo"], ["simulate"], ["check"]):
        ended = kvroute(*command, "--help")
        assert ended.status == 0 and "kvroute" in ended.out and ended.err == "", command
    options = kvroute("serve", "--help").out
    for name in ("listen", "admin", "replica", "policy", "config", "threads", "index-memory", "max-body", "queue-requests",
                 "queue-timeout", "head-timeout", "connect-timeout", "first-byte-timeout", "idle-timeout", "drain-timeout",
                 "health-interval", "metrics-interval", "session-header", "seed", "access-log", "log-level", "log-format"):
        assert f"--{name}" in options, name
