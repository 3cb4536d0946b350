# SPDX-License-Identifier: Apache-2.0
"""packaging/grafana: the board and the alert rules name metrics and labels that exist, and a real Prometheus takes both.

Prometheus is Debian's: the one in the PATH, else the package unpacked into KVROUTE_CACHE (default ~/.cache/kvroute); it
is not installed, as it would start a service.
"""
import collections
import json
import os
import pathlib
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request

import pytest

from engine import free_socket
from harness import ROOT, wait_for
from texts import text

GRAFANA = ROOT / "packaging" / "grafana"
BOARD, ALERTS = GRAFANA / "kvroute-board.json", GRAFANA / "kvroute-alerts.yml"
CACHE = pathlib.Path(os.environ.get("KVROUTE_CACHE") or pathlib.Path.home() / ".cache" / "kvroute") / "prometheus"
RULES = 10


def metrics_defined():
    """{name: labels} of router/metrics.def; histograms by the names of their series."""
    found = {}
    for name, kind, labels in re.findall(r'^METRIC\(\w+, "(\w+)", (\w+), \w+, "([\w,]*)"', (ROOT / "router" / "metrics.def").read_text(), re.M):
        labels = set(filter(None, labels.split(",")))
        for suffix, more in {"HISTOGRAM": [("_bucket", {"le"}), ("_sum", set()), ("_count", set())]}.get(kind, [("", set())]):
            found["kvroute_" + name + suffix] = labels | more
    assert len(found) > 40
    return found


def expressions():
    """(where, expression) of all that is asked of Prometheus."""
    board = json.loads(BOARD.read_text())
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]
    for note in board["annotations"]["list"]:
        yield note["name"], note["expr"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], re.fullmatch(r"label_values\((.*), \w+\)", variable["definition"])[1]
    lines = ALERTS.read_text().splitlines()
    for number, line in enumerate(lines):
        if line.strip().startswith("expr:"):
            name = lines[number - 1].split(":")[1].strip()
            text_of = line.split("expr:", 1)[1].strip()
            if text_of == ">-":
                deeper = [more for more in lines[number + 1:number + 12]]
                end = next(i for i, more in enumerate(deeper) if re.match(r"\s+(for|labels):", more))
                text_of = " ".join(more.strip() for more in deeper[:end])
            yield name, text_of


def test_every_metric_and_label_exists():
    defined, used = metrics_defined(), collections.Counter()
    for where, expression in expressions():
        names = re.findall(r"\bkvroute_\w+", expression)
        assert names, (where, expression)
        for name in names:
            assert name in defined, f"{where}: no metric {name}"
            used[name] += 1
        everything = set().union(*(defined[name] for name in names)) | {"instance", "job"}
        for name, selector in re.findall(r"\b(kvroute_\w+)\{([^}]*)\}", expression):
            for label in re.findall(r'(\w+)\s*(?:=~|!~|!=|=)', selector):
                assert label in defined[name] | {"instance", "job"}, f"{where}: {name} has no label {label}"
        for labels in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression):
            assert set(re.findall(r"\w+", labels)) <= everything, f"{where}: by ({labels})"
    assert len(used) > 30
    assert {"kvroute_counterfactual_cached_tokens_total", "kvroute_account_tokens_total"} <= set(used)
    assert len([1 for line in ALERTS.read_text().splitlines() if "- alert:" in line]) == RULES


def test_the_board_is_in_order():
    board = json.loads(BOARD.read_text())
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids)) and board["uid"] == "kvroute" and not board.get("id")
    taken = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24 and not cells & taken, f"{panel['title']} lies on another panel"
        taken |= cells
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${source}" and panel["targets"]
    assert {v["name"] for v in board["templating"]["list"]} >= set(re.findall(r"\$(instance|model|workload)\b", BOARD.read_text()))


# ---- a real one ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tools():
    """{name: path} of prometheus and promtool."""
    found = {name: shutil.which(name) for name in ("prometheus", "promtool")}
    if all(found.values()):
        return found
    found = {name: str(CACHE / "usr" / "bin" / name) for name in found}
    if not all(os.access(path, os.X_OK) for path in found.values()):
        CACHE.mkdir(parents=True, exist_ok=True)
        for name, path in found.items():  # one package on Debian 12, two on 13
            if os.access(path, os.X_OK):
                continue
            try:
                subprocess.run(["apt-get", "-q", "download", name], cwd=CACHE, check=True, capture_output=True, timeout=120)
                package = next(CACHE.glob(f"{name}_*.deb"))
                subprocess.run(["dpkg-deb", "-x", package, CACHE], check=True, capture_output=True, timeout=120)
                package.unlink()
            except (OSError, subprocess.SubprocessError, StopIteration) as error:
                pytest.skip(f"no {name} here, and apt-get does not give one: {error}")
    return found


class Prometheus:
    def __init__(self, program, folder, admin):
        with free_socket() as probe:
            self.port = probe.getsockname()[1]
        (folder / "prometheus.yml").write_text(json.dumps({
            "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "1s"},
            "rule_files": [str(ALERTS)],
            "scrape_configs": [{"job_name": "kvroute", "static_configs": [{"targets": ["%s:%d" % admin]}]}]}))
        self.log = open(folder / "log", "wb")
        self.process = subprocess.Popen(
            [program, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
             f"--web.listen-address=127.0.0.1:{self.port}"], stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)

    def ask(self, path, **query):
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?" + urllib.parse.urlencode(query)
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{query}: {error.read().decode()}") from None

    def up(self):
        try:
            found = self.ask("query", query="up")["result"]
        except (OSError, AssertionError):  # it starts: 503
            return False
        return found and found[0]["value"][1] == "1"

    def close(self):
        self.process.terminate()
        self.process.wait(20)
        self.log.close()


@pytest.mark.slow
def test_a_real_prometheus_scrapes_and_answers_every_question(fleet, tools, tmp_path):
    router, engines = fleet.start(3)
    prompts = [text(2000) for _ in range(3)]
    prometheus = Prometheus(tools["prometheus"], tmp_path, router.admin)
    try:
        wait_for(prometheus.up, 30, "the first scrape")

        def counted():
            for prompt in prompts:
                assert router.chat(prompt).status == 200
            rate = prometheus.ask("query", query="sum(rate(kvroute_requests_total[30s]))")["result"]
            return rate and float(rate[0]["value"][1]) > 0.2
        wait_for(counted, 30, "a rate", every=0.3)
        empty = []
        for where, expression in expressions():
            for variable, value in (("$__rate_interval", "30s"), ("$instance", ".*"), ("$model", ".*"), ("$workload", ".*")):
                expression = expression.replace(variable, value)
            if not prometheus.ask("query", query=expression)["result"]:
                empty.append(where)
        # What is empty is what has not happened: alarms, errors, refusals, unread prompts.
        assert set(empty) <= {"Alarms raised", "Failed tries", "Refused, by reason", "Prompts that could not be read", "Router started",
                              "With --shadow: reused", *(name for name in re.findall(r"- alert: (\w+)", ALERTS.read_text()))}, empty
        reused = prometheus.ask("query", query="sum(kvroute_observed_cached_tokens_total)")["result"][0]["value"][1]
        assert 0 < float(reused) <= sum(e.cached_tokens for e in engines)
        by_rule = {s["metric"]["policy"]: float(s["value"][1])
                   for s in prometheus.ask("query", query="kvroute_counterfactual_cached_tokens_total")["result"]}
        assert set(by_rule) == {"actual", "round_robin", "least_tokens", "prefix_hash"}
        by_part = {s["metric"]["part"]: float(s["value"][1])
                   for s in prometheus.ask("query", query="sum by (part) (kvroute_account_tokens_total)")["result"]}
        assert set(by_part) == {"won", "placement", "staleness", "workload"} and 0 < by_part["won"] <= sum(e.cached_tokens for e in engines)
        groups = prometheus.ask("rules")["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        assert len(rules) == RULES
        wait_for(lambda: all(r["health"] == "ok" for g in prometheus.ask("rules")["groups"] for r in g["rules"]), 15, "rules evaluated")
        assert [r["name"] for r in rules if r["state"] == "firing"] == []
        page = router.admin_request("GET", "/metrics").body
        lint = subprocess.run([tools["promtool"], "check", "metrics"], input=page, capture_output=True, timeout=30)
        assert lint.returncode == 0, lint.stderr.decode()
    finally:
        prometheus.close()


CASES = """
rule_files: [%s]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - { series: 'kvroute_alarm{instance="a", alarm="no_match", replica=""}', values: '1x20' }
      - { series: 'kvroute_replica_up{instance="a", replica="x"}', values: '1x3 0x20' }
      - { series: 'kvroute_requests_total{instance="a", code="200"}', values: '0+60x20' }
      - { series: 'kvroute_requests_total{instance="a", code="502"}', values: '0+6x20' }
      - { series: 'kvroute_queue_requests{instance="a"}', values: '0x4 3x20' }
    alert_rule_test:
      - { eval_time: 4m, alertname: KvrouteDegraded, exp_alerts: [] }
      - eval_time: 6m
        alertname: KvrouteDegraded
        exp_alerts:
          - exp_labels: { severity: warning, instance: a, alarm: no_match }
            exp_annotations:
              summary: "kvroute a: no_match "
              description: "GET /kvroute/alarms on the admin listener says it in words, docs/alarms.md what to do."
      - { eval_time: 3m, alertname: KvrouteNoReplica, exp_alerts: [] }
      - eval_time: 6m
        alertname: KvrouteNoReplica
        exp_alerts:
          - { exp_labels: { severity: critical, instance: a }, exp_annotations: { summary: "kvroute a has no replica that takes requests" } }
      - eval_time: 15m
        alertname: KvrouteErrors
        exp_alerts:
          - { exp_labels: { severity: critical, instance: a }, exp_annotations: { summary: "kvroute a: 9.091%% of the answers are errors" } }
      - { eval_time: 9m, alertname: KvrouteQueue, exp_alerts: [] }
      - eval_time: 16m
        alertname: KvrouteQueue
        exp_alerts:
          - { exp_labels: { severity: warning, instance: a }, exp_annotations: { summary: "kvroute a: requests have been waiting for room for ten minutes" } }
  - interval: 1m
    input_series:
      - { series: 'kvroute_observed_cached_tokens_total{instance="a"}', values: '0+30000x120 3600000+6000x90' }
      - { series: 'kvroute_prompt_tokens_total{instance="a"}', values: '0+60000x210' }
    alert_rule_test:
      - { eval_time: 110m, alertname: KvrouteReuseFell, exp_alerts: [] }
      - eval_time: 190m
        alertname: KvrouteReuseFell
        exp_alerts:
          - { exp_labels: { severity: info, instance: a }, exp_annotations: { summary: "kvroute a: 10%% of the prompts are reused, less than half of yesterday's" } }
"""


@pytest.mark.slow
def test_the_alert_rules_fire_when_they_should(tools, tmp_path):
    (tmp_path / "cases.yml").write_text(CASES % ALERTS)
    done = subprocess.run([tools["promtool"], "test", "rules", tmp_path / "cases.yml"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
