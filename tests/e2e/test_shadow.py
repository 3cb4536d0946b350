# SPDX-License-Identifier: Apache-2.0
"""serve --shadow: what kv would have gained, against really running kv on the same arrivals; copies of requests as a
mirror; and nothing left booked in either brain."""
import json
import pathlib
import random
import re
import signal
import subprocess
import threading

import pytest

from client import chat_body
from engine import RESET, hang, reply, sse
from harness import BINARY, kvroute, spawn, together, wait_for
from test_ledger import life, send, three_workloads
from texts import text, turns


def page(router):
    answer = router.admin_request("GET", "/kvroute/ledger")
    assert answer.status == 200, answer
    return answer.json


def shadow(router, requests=None):
    """The section, once nothing is on its way on either fleet."""
    router.wait_idle()

    def at_rest():
        found = page(router)["shadow"]
        return found if found["in_flight"] == 0 and requests in (None, found["requests"]) else None
    return wait_for(at_rest, 40, "nothing left on the virtual fleet")


class Mocks:
    """`kvroute mock` on free ports."""

    def __init__(self, count, *args):
        self.process = subprocess.Popen([BINARY, "mock", "--count", str(count), "--listen", "127.0.0.1:0", "--model", "m",
                                         *map(str, args)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE, text=True)
        self.lines = []
        threading.Thread(target=lambda: self.lines.extend(iter(self.process.stderr.readline, "")), daemon=True).start()
        self.urls = wait_for(lambda: (lambda u: u if len(u) == count else None)(
            re.findall(r"ready on (http://127\.0\.0\.1:\d+)", "".join(self.lines))), 10, "the ready lines")

    def stop(self):
        self.process.terminate()
        assert self.process.wait(10) == 0


@pytest.fixture
def mocks():
    running = []

    def start(*args):
        running.append(Mocks(*args))
        return running[-1].urls
    yield start
    for one in running:
        one.stop()


# ---- is it right?


def test_agrees_with_really_running_kv(fleet):
    arrivals = three_workloads()
    router, _ = fleet.start(3, "--shadow", "--policy", "round_robin")
    send(router, arrivals)
    found = shadow(router, len(arrivals))
    other, _ = fleet.start(3, "--policy", "kv")
    send(other, arrivals)
    other.wait_idle()
    real = life(page(other)["accounts"]["all"][0])
    really = real["observed_tokens"] / real["prompt_tokens"]
    kv, actual = found["kv"], found["actual"]
    assert abs(kv["hit_rate"] - really) < 0.02, (kv["hit_rate"], really)
    assert abs(kv["hit_rate_calibrated"] - really) < 0.02
    # What it says of the policy in force is what the ledger says, and the choice matters on this mix.
    own = life(page(router)["accounts"]["all"][0])
    assert found["prompt_tokens"] == own["prompt_tokens"] == real["prompt_tokens"]
    assert actual["observed_tokens"] == own["observed_tokens"] == actual["avoided_tokens"]
    assert actual["hit_rate"] == pytest.approx(own["observed_tokens"] / own["prompt_tokens"], rel=1e-4)
    assert kv["hit_rate"] > actual["hit_rate"] + 0.1
    assert found["gain"]["hit_rate"] == pytest.approx(kv["hit_rate"] - actual["hit_rate"], abs=1e-6)
    assert found["gain"]["avoided_tokens"] == kv["avoided_tokens"] - actual["avoided_tokens"]
    # By workload both stand side by side, and the questions gain what they gain when kv routes.
    accounts = {account["name"]: account["windows"]["life"] for account in found["accounts"]["workload"]}
    there = {account["name"]: life(account) for account in page(other)["accounts"]["workload"]}
    for name in ("agents", "questions", "once"):
        assert abs(accounts[name]["kv_hit_rate"] - there[name]["observed_tokens"] / there[name]["prompt_tokens"]) < 0.03, name
    whole = found["accounts"]["all"][0]["windows"]["life"]
    assert whole["requests"] == len(arrivals) and whole["kv_avoided_tokens"] == kv["avoided_tokens"]
    assert found["undecided_requests"] == found["dropped_requests"] == 0


def groups_and_sessions(count, seed):
    """Questions behind shared system prompts, some asked far more often than others, and conversations."""
    rng = random.Random(seed)
    open_turns = [list(turns(6, f"talk-{seed}-{number}", 1600)) for number in range(count // 12)]
    arrivals = []
    for number in range(count):
        if number % 3 == 0 and any(open_turns):
            talk = rng.choice([t for t in open_turns if t])
            arrivals.append(talk.pop(0))
        else:
            group = min(int(rng.expovariate(0.35)), 11)
            arrivals.append([{"role": "system", "content": text(6000, f"group-{seed}-{group}")},
                             {"role": "user", "content": text(400, f"question-{seed}-{number}")}])
    return arrivals


def ask(router, arrivals, clients):
    """All of them, in order, by so many clients at a time."""
    lock, left = threading.Lock(), list(reversed(arrivals))

    def client():
        while True:
            with lock:
                if not left:
                    return
                messages = left.pop()
            answer = router.chat(messages, max_tokens=8)
            assert answer.status == 200, answer
    together([client] * clients)


@pytest.mark.parametrize("clients", [1, 6])
def test_small_caches_and_queues(fleet, mocks, clients):
    """Caches hold a part of what is asked for, and answers take their time. That what is told is what kv really reuses there
    is shown by router/shadow_engines_test.c, where time is counted: here it is the machine's, and a stall among the first
    answers teaches the router that some replicas are slow, so no two runs need to agree."""
    arrivals = groups_and_sessions(240, f"small-{clients}")
    router = fleet.router("--shadow", replicas=mocks(4, "--capacity-blocks", 900, "--speed", 25, "--preset", "llama3-8b-h100"))
    ask(router, arrivals, clients)
    found = shadow(router, len(arrivals))
    kv, actual = found["kv"], found["actual"]
    assert found["prompt_tokens"] == life(page(router)["accounts"]["all"][0])["prompt_tokens"]
    assert actual["hit_rate"] == pytest.approx(actual["hit_rate_observed"], abs=1e-6)
    assert kv["hit_rate"] > actual["hit_rate"] + 0.05
    # Work avoided is told for both at the same learned speeds, so it is in proportion to the tokens.
    assert kv["avoided_s"] > actual["avoided_s"] > 0
    per_token = [side["avoided_s"] / (side["avoided_tokens"] - side["untimed_tokens"]) for side in (kv, actual)]
    assert per_token[0] == pytest.approx(per_token[1], rel=0.25)
    assert 0 < kv["ttft_s"]["mean"] < actual["ttft_s"]["mean"]
    assert actual["ttft_observed_s"]["mean"] > 0 and kv["ttft_calibrated_s"] < actual["ttft_observed_s"]["mean"]
    assert kv["balance"]["requests"]["max_mean"] < 2 and actual["balance"]["requests"]["max_mean"] < 1.1


# ---- nothing is left over


def test_nothing_is_left_booked_when_requests_fail(fleet):
    router, engines = fleet.start(2, "--shadow", "--retries", "1")
    for messages in turns(4, "fine", 1500):
        assert router.chat(messages).status == 200
    engines[0].next(reply(500))
    engines[1].next(reply(503, headers=[("Retry-After", "1")]))
    router.chat(text(3000))
    for engine in engines:
        engine.next(reply(400))
    assert router.chat(text(3000)).status in (200, 400)
    for engine in engines:
        engine.script = hang()
    leaving = [router.start_chat(text(3000), stream=True) for _ in range(3)]
    wait_for(lambda: sum(e["in_flight"] for e in router.replicas().values()) == 3, what="three on their way")
    assert page(router)["shadow"]["in_flight"] >= 3
    for conn in leaving:
        conn.close()
    shadow(router)
    for engine in engines:
        engine.script = sse(["a", "b", "c"], end=RESET)
    router.chat(text(3000), stream=True)
    found = shadow(router)
    # Only what was computed is compared.
    own = life(page(router)["accounts"]["all"][0])
    assert found["requests"] == own["computed"] < own["requests"]
    assert found["prompt_tokens"] == own["prompt_tokens"]


def test_replicas_come_and_go(fleet):
    router, engines = fleet.start(2, "--shadow")
    third = fleet.engine()
    system = {"role": "system", "content": text(4000, "shared")}

    def ask_some(count):
        for _ in range(count):
            assert router.chat([system, {"role": "user", "content": text(200)}]).status == 200
    ask_some(6)
    router.add(third)
    router.wait_ready(third)
    ask_some(6)
    router.remove(engines[0])
    ask_some(6)
    found = shadow(router, 18)
    assert found["kv"]["hit_rate"] > 0.7
    engines[1].close()
    wait_for(lambda: router.state(engines[1]) == "down", 10, "it is found to be down")
    ask_some(6)
    assert shadow(router, 24)["undecided_requests"] == 0


def test_previous_responses_are_followed_there_too(fleet):
    router, _ = fleet.start(3, "--shadow")
    answer = router.post("/v1/responses", {"model": "m", "input": text(2000)})
    assert answer.status == 200, answer
    for _ in range(3):
        answer = router.post("/v1/responses", {"model": "m", "input": text(100), "previous_response_id": answer.json["id"]})
        assert answer.status == 200, answer
    assert shadow(router)["undecided_requests"] == 0


# ---- as it is switched on


@pytest.mark.parametrize("args,words", [
    (("--shadow", "--policy", "kv"), ["--shadow", "the policy is kv", "--policy round_robin"]),
    (("--shadow=on", "--ledger", "off"), ["--shadow", "needs the ledger"]),
    (("--shadow", "perhaps",), ["perhaps"]),
    (("--shadow=perhaps",), ["--shadow", "perhaps", "off, on, mirror"]),
    (("--shadow", "--index-memory", "1MiB"), ["--index-memory", "2MiB"]),
    (("--shadow", "mirror"), ["--shadow", "capacity-tokens"]),
])
def test_what_makes_no_sense_is_said(args, words):
    done = kvroute("serve", "--listen", "127.0.0.1:0", "--admin", "off", *args)
    assert done.status == 2, done
    for word in words:
        assert word in done.err, done.err


def test_alone_it_routes_in_turn(fleet):
    router, engines = fleet.start(2, "--shadow")
    assert router.admin_request("GET", "/kvroute/config").json["policy"] == "round_robin"
    for _ in range(6):
        assert router.chat(text(2000, "same")).status == 200
    assert [len(engine.requests) for engine in engines] == [3, 3]
    found = shadow(router, 6)
    assert found["mode"] == "on" and found["actual"]["policy"] == "round_robin" and found["kv"]["policy"] == "kv"
    looks = wait_for(lambda: (lambda out: out if "shadow: kv would have reused" in out else None)(
        kvroute("top", router.admin_url, "--once").out), what="both sides in top")
    assert "\nkv (shadow)" in looks
    # Two caches are filled in turn, where one would have done.
    assert found["kv"]["hit_rate"] > found["actual"]["hit_rate"] + 0.1
    off, _ = fleet.start(1)
    assert page(off)["shadow"] is None


def test_metrics_and_the_last_word(fleet):
    router, _ = fleet.start(2, "--shadow", "--policy", "random")
    for messages in turns(5, "told", 2000):
        router.chat(messages)
    found = shadow(router, 5)
    metrics = router.metrics()
    assert metrics.sum("shadow_prompt_tokens_total") == found["prompt_tokens"]
    assert metrics.sum("shadow_cached_tokens_total", policy="kv") == found["kv"]["avoided_tokens"]
    assert metrics.sum("shadow_cached_tokens_total", policy="random") == found["actual"]["avoided_tokens"]
    router.terminate()
    router.wait_exit()
    said = re.search(r"shadow: kv would have served ([\d.]+) % of (\d+) prompt tokens from cache, random did ([\d.]+) % "
                     r"\(5 requests\)", router.err)
    assert said, router.err
    assert float(said[1]) == pytest.approx(100 * found["kv"]["hit_rate"], abs=0.06)
    assert int(said[2]) == found["prompt_tokens"]


def reload(router, file, text, said):
    file.write_text(text)
    router.signal(signal.SIGHUP)
    wait_for(lambda: said in router.err, what=said)


def test_a_reload_does_not_switch_it(fleet, tmp_path):
    engine = fleet.engine()
    replicas = f"replicas:\n  - url: {engine.url}\n"
    file = tmp_path / "kvroute.yaml"
    file.write_text(f"shadow: on\npolicy: least_requests\n{replicas}")
    router = fleet.router("--config", file)
    router.wait_ready(engine)
    router.chat(text(1000))
    # Nothing of such a file is taken: without a shadow its policy would be another one.
    reload(router, file, f"retries: 0\n{replicas}", "the old configuration stays: shadow is switched by a restart only")
    reload(router, file, f"shadow: on\npolicy: kv\n{replicas}", "the policy is kv; choose the one to compare with")
    config = router.admin_request("GET", "/kvroute/config").json
    assert config["policy"] == "least_requests" and config["retries"] == 2
    router.chat(text(1000))
    assert shadow(router, 2)["mode"] == "on"
    # The rule to compare with may change.
    reload(router, file, f"shadow: on\npolicy: random\n{replicas}", "configuration reloaded, policy random")
    router.chat(text(1000))
    assert shadow(router, 3)["actual"]["policy"] == "random"


def test_switching_it_on_needs_a_restart(fleet, tmp_path):
    engine = fleet.engine()
    file = tmp_path / "kvroute.yaml"
    file.write_text(f"replicas:\n  - url: {engine.url}\n")
    router = fleet.router("--config", file)
    router.wait_ready(engine)
    reload(router, file, f"shadow: on\nreplicas:\n  - url: {engine.url}\n", "shadow is switched by a restart only")
    assert router.chat(text(500)).status == 200
    assert router.admin_request("GET", "/kvroute/config").json["policy"] == "kv"
    assert page(router)["shadow"] is None


# ---- as a mirror


def imagined(count, capacity=200000):
    return [f"http://r{number}.invalid:8000,capacity-tokens={capacity},block-tokens=16" for number in range(count)]


def mirror(fleet, replicas, *args):
    """Its replicas are ready at once, and nobody is asked for their models."""
    router = fleet.router("--shadow=mirror", *args, replicas=replicas, ready=False)
    wait_for(lambda: all(entry["state"] == "ready" for entry in router.replicas().values()), what="all are ready")
    return router


def test_a_mirror_answers_at_once_and_measures(fleet):
    arrivals = three_workloads()
    router = mirror(fleet, imagined(3), "--prefill-speed", "40000")
    for workload, messages in arrivals:
        answer = router.chat(messages, [("x-kvroute-workload", workload)], max_tokens=4, stream=True)
        assert answer.status == 200 and answer.json == {} and answer.header("content-type") == "application/json"
    found = shadow(router, len(arrivals))
    assert found["mode"] == "mirror" and found["actual"]["ttft_observed_s"]["mean"] is None
    # The same arrivals on engines that really are there.
    for policy, side in (("kv", "kv"), ("round_robin", "actual")):
        other, _ = fleet.start(3, "--policy", policy)
        send(other, arrivals)
        other.wait_idle()
        real = life(page(other)["accounts"]["all"][0])
        assert found[side]["hit_rate"] == pytest.approx(real["observed_tokens"] / real["prompt_tokens"], abs=0.04), side
    assert found["kv"]["hit_rate"] > found["actual"]["hit_rate"] + 0.1
    assert {entry["state"] for entry in router.replicas().values()} == {"ready"}
    accounts = {account["name"] for account in found["accounts"]["workload"]}
    assert {"agents", "questions", "once"} <= accounts
    # What is told of it to people is told as a prediction.
    seen = json.loads(kvroute("report", router.admin_url, "--json", "--min-requests", "10").out)
    assert seen["mirror"] is True and seen["shadow"] is True
    assert any("every figure here is predicted" in reason for reason in seen["verdict"]["reasons"])
    assert "\nmirror: kv would have reused " in kvroute("top", router.admin_url, "--once").out


def test_a_mirror_contacts_nobody(fleet):
    engine = fleet.engine()
    router = mirror(fleet, [f"{engine.url},capacity-tokens=100000"])
    for _ in range(5):
        assert router.chat(text(1000), max_tokens=4).json == {}
    assert router.post("/v1/audio/transcriptions", b"\0\1", [("content-type", "audio/wav")]).status == 200
    assert shadow(router, 5)["in_flight"] == 0
    assert engine.requests == []


def test_a_mirror_without_sizes_is_warned_of(fleet):
    router = mirror(fleet, ["http://r1.invalid:8000"])
    wait_for(lambda: "has no capacity-tokens" in router.err, what="the warning")


def test_a_mirror_behind_nginx(fleet, tmp_path):
    """As docs/shadow.md shows it: clients get the engine's answer, the router a copy of each request."""
    nginx = next((path for path in ("/usr/sbin/nginx", "/usr/bin/nginx") if pathlib.Path(path).exists()), None)
    if not nginx:
        pytest.skip("no nginx")
    engine = fleet.engine()
    router = mirror(fleet, imagined(2))
    conf = tmp_path / "nginx.conf"
    conf.write_text(f"""
        daemon off; pid {tmp_path}/pid; error_log stderr;
        events {{}}
        http {{
            access_log off; client_body_temp_path {tmp_path}/body; proxy_temp_path {tmp_path}/proxy;
            fastcgi_temp_path {tmp_path}/f; uwsgi_temp_path {tmp_path}/u; scgi_temp_path {tmp_path}/s;
            client_max_body_size 64m; client_body_buffer_size 1m;
            server {{
                listen unix:{tmp_path}/front;
                location / {{ mirror /copy; proxy_pass {engine.url}; }}
                location = /copy {{ internal; proxy_pass {router.url}$request_uri; }}
            }}
        }}""")
    process = subprocess.Popen([nginx, "-c", str(conf), "-p", str(tmp_path)], stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: (tmp_path / "front").exists(), what="nginx listens")
        for messages in turns(4, "copied", 1500):
            done = subprocess.run(["curl", "-sS", "--unix-socket", str(tmp_path / "front"), "--data-binary", "@-", "-H",
                                   "content-type: application/json", "http://front/v1/chat/completions"],
                                  input=chat_body(messages, max_tokens=4), capture_output=True, check=True)
            assert json.loads(done.stdout)["choices"]
        found = shadow(router, 4)
        assert found["kv"]["hit_rate"] > 0.4
    finally:
        process.terminate()
        process.wait(10)


# ---- under load


def test_many_at_once_leave_nothing(fleet, mocks):
    router = fleet.router("--shadow", "--policy", "least_requests", replicas=mocks(2, "--speed", 200))
    conns = []

    def some(number):
        for step in range(6):
            messages = [{"role": "system", "content": text(2000, f"s-{number % 4}")}, {"role": "user", "content": text(100)}]
            if step == 3:
                conns.append(router.start_chat(messages, stream=True))
                conns[-1].close()
            else:
                assert router.chat(messages, max_tokens=4, stream=bool(step % 2)).status == 200
    futures = [spawn(some, number) for number in range(24)]
    for future in futures:
        future.result(60)
    found = shadow(router)
    assert found["requests"] >= 24 * 5
    assert found["kv"]["avoided_tokens"] > 0
