# SPDX-License-Identifier: Apache-2.0
"""serve --capture: what is in the file and what is not, that it replays to what was observed, rotation, disks that are
full."""
import json
import os
import signal
import stat

import pytest

from client import chat_body
from engine import DONE, reply, sse
from harness import kvroute, wait_for
from test_shadow import ask, groups_and_sessions, imagined, life, mirror, mocks, page  # noqa: F401
from texts import text, turns


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def wait_rows(path, count):
    wait_for(lambda: path.exists() and path.read_text().count("\n") >= count, 5, f"{count} lines in {path}")
    found = rows(path)
    assert len(found) == count
    return found


# ---- what is in it


def test_lengths_times_and_keys_and_no_text(fleet, tmp_path):
    file = tmp_path / "capture.jsonl"
    router, engines = fleet.start(1, "--capture", file)
    secret = "xylophone-heirloom"
    system = {"role": "system", "content": f"{secret} " + text(2000, "system")}
    first = router.chat([system, {"role": "user", "content": f"{secret} one"}],
                        [("x-kvroute-workload", "agents"), ("x-session-id", "alice@example.org")])
    second = router.chat([system, {"role": "user", "content": f"{secret} two, and more of it " + text(900)}], stream=True,
                         stream_options={"include_usage": True}, user="bob")
    assert first.status == second.status == 200
    one, two = wait_rows(file, 2)
    usage = first.json["usage"]
    assert one["input_length"] == usage["prompt_tokens"] and one["output_length"] == usage["completion_tokens"]
    assert one["input_exact"] == one["output_exact"] == 1
    assert one["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"]
    assert one["workload"] == "agents" and two["workload"] == "default" and one["model"] == "m"
    assert one["end"] == "finished" and 0 <= one["ttft_ms"] <= one["total_ms"]
    assert 0 <= one["timestamp"] <= two["timestamp"] < 60000 and one["dropped"] == 0
    for row in (one, two):
        assert len(row["hash_ids"]) == -(-row["input_length"] // 64)
        assert all(0 <= number < 1 << 53 for number in row["hash_ids"])
    # They share the system prompt, of 2,019 bytes: seven blocks of 64 tokens surely, and not the question.
    shared = next(i for i, (a, b) in enumerate(zip(one["hash_ids"], two["hash_ids"])) if a != b)
    assert 7 <= shared <= 8
    assert len(one["session"]) == 16 and one["session"] != two["session"]
    # No byte of what was said, nor by whom.
    for prompt in (r.body for r in engines[0].requests):
        for message in json.loads(prompt)["messages"]:
            assert not any(word in file.read_text() for word in set(message["content"].split()) if len(word) > 3)
    for name in (secret, "alice", "example", "bob"):
        assert name not in file.read_text()
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    metrics = router.metrics()
    assert metrics.sum("capture_lines_total") == 2 and metrics.sum("capture_dropped_total") == 0


def test_keys_are_the_deployments_own(fleet, tmp_path):
    ids = []
    for number, seed in enumerate(((), (), ("--seed", "abc"), ("--seed", "abc"), ("--seed", "abd"))):
        file = tmp_path / f"capture-{number}"
        router, _ = fleet.start(1, "--capture", file, *seed)
        assert router.chat("a prompt that anybody could guess").status == 200
        ids.append(wait_rows(file, 1)[0]["hash_ids"][0])
    assert ids[2] == ids[3]
    assert len({ids[0], ids[1], ids[2], ids[4]}) == 4


def test_what_engines_do_not_tell_is_marked(fleet, tmp_path):
    file = tmp_path / "capture"
    router, (engine,) = fleet.start(1, "--capture", file)
    engine.next(reply(200, b'{"choices":[{"message":{"role":"assistant","content":"hello there, and so on"}}]}'))
    assert router.chat(text(2000)).status == 200
    assert router.chat(text(2000), stream=True).status == 200
    plain, stream = wait_rows(file, 2)
    for row in (plain, stream):
        assert row["input_exact"] == row["output_exact"] == 0 and "cached_tokens" not in row
        assert 300 <= row["input_length"] <= 700 and row["output_length"] > 0


def test_only_what_was_computed(fleet, tmp_path):
    file = tmp_path / "capture"
    router, engines = fleet.start(2, "--capture", file, "--retries", "1")
    for engine in engines:
        engine.script = reply(400)
    assert router.chat(text(1000)).status == 400
    engines[0].close()
    engines[1].script = None
    assert router.post("/v1/chat/completions", b"{nonsense").status == 400
    assert router.chat(text(1000)).status == 200      # wherever it was tried before
    engines[1].script = sse(["a"] * 50, gap=0.05, end=DONE)
    conn = router.start_chat(text(1000), stream=True)
    conn.head()
    conn.close()
    found = wait_rows(file, 2)
    assert [row["end"] for row in found] == ["finished", "client"]


# ---- what it is good for


@pytest.mark.parametrize("policy,block", [("round_robin", 16), ("kv", 16), ("kv", 64)])
def test_a_replay_gives_what_was_observed(fleet, mocks, tmp_path, policy, block):  # noqa: F811
    file = tmp_path / "capture"
    arrivals = groups_and_sessions(240, f"replayed-{policy}")
    router = fleet.router("--policy", policy, "--capture", file, "--capture-block-tokens", block,
                          replicas=mocks(3, "--capacity-blocks", 1536, "--speed", 25, "--preset", "llama3-8b-h100"))
    ask(router, arrivals, 1)
    router.wait_idle()
    account = life(page(router)["accounts"]["all"][0])
    observed = account["observed_tokens"] / account["prompt_tokens"]
    found = wait_rows(file, len(arrivals))
    assert sum(row["input_length"] for row in found) == account["prompt_tokens"]
    done = kvroute("simulate", "--json", "--policies", policy, "--replicas", 3, "--capacity-blocks", 1536 * 16 // block,
                   "--preset", "llama3-8b-h100", "--loads", 0.3, file)
    assert done.status == 0, done
    row, = json.loads(done.out)["rows"]
    assert row["requests"] == len(arrivals) and row["block_tokens"] == block
    assert abs(row["hit_rate"] - observed) < 0.02, (row["hit_rate"], observed)
    # And it is not always the same: the other rule gives something else.
    other = {"round_robin": "kv", "kv": "round_robin"}[policy]
    done = kvroute("simulate", "--json", "--policies", other, "--replicas", 3, "--capacity-blocks", 1536 * 16 // block,
                   "--preset", "llama3-8b-h100", "--loads", 0.3, file)
    assert abs(json.loads(done.out)["rows"][0]["hit_rate"] - observed) > 0.05
    done = kvroute("analyze", "--json", file)
    assert done.status == 0, done
    assert json.loads(done.out)["account"]["requests"] == len(arrivals)


def test_sessions_are_told(fleet, tmp_path):
    file = tmp_path / "capture"
    router, _ = fleet.start(1, "--capture", file)
    for messages in turns(3, "talk"):
        router.chat(messages, [("x-session-id", "one")])
    router.chat(text(1000), [("x-session-id", "two")])
    found = wait_rows(file, 4)
    assert len({row["session"] for row in found[:3]}) == 1 and found[3]["session"] != found[0]["session"]
    done = kvroute("analyze", "--json", file)
    assert json.loads(done.out)["account"]["sessions"] == 2


def test_a_mirror_captures_too(fleet, tmp_path):
    file = tmp_path / "capture"
    router = mirror(fleet, imagined(2), "--capture", file)
    for messages in turns(3, "copied", 1000):
        assert router.chat(messages, max_tokens=4).json == {}
    found = wait_rows(file, 3)
    assert [row["end"] for row in found] == ["mirrored"] * 3
    assert all(row["input_exact"] == row["output_exact"] == 0 and row["output_length"] == 4 for row in found)
    assert found[1]["hash_ids"][:4] == found[2]["hash_ids"][:4]


# ---- files


def test_rotation(fleet, tmp_path):
    file = tmp_path / "capture"
    router, _ = fleet.start(1, "--capture", file, "--capture-size", "64KiB", "--capture-files", "3")
    for _ in range(60):
        assert router.chat(text(50000)).status == 200      # about 200 blocks, 3.6 KB
    wait_for(lambda: router.metrics().sum("capture_lines_total") == 60, what="all are written")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["capture", "capture.1", "capture.2"]
    lines = 0
    for name in names:
        found = rows(tmp_path / name)
        lines += len(found)
        assert os.path.getsize(tmp_path / name) <= 65536
        assert stat.S_IMODE(os.stat(tmp_path / name).st_mode) == 0o600
        assert [row["timestamp"] for row in found] == sorted(row["timestamp"] for row in found)
    assert 30 < lines < 60                                  # the oldest are gone
    assert min(os.path.getsize(tmp_path / name) for name in names[1:]) > 65536 - 6000
    assert rows(tmp_path / "capture.1")[-1]["timestamp"] <= rows(tmp_path / "capture")[0]["timestamp"]


def test_an_earlier_run_stays_apart(fleet, tmp_path):
    file = tmp_path / "capture"
    for _ in range(2):
        router, _ = fleet.start(1, "--capture", file)
        router.chat(text(500))
        wait_rows(file, 1)
        router.terminate()
        assert router.wait_exit() == 0
    assert len(rows(file)) == len(rows(tmp_path / "capture.1")) == 1


def test_hangup_opens_it_again(fleet, tmp_path):
    file = tmp_path / "capture"
    router, _ = fleet.start(1, "--capture", file)
    router.chat(text(500))
    wait_rows(file, 1)
    file.rename(tmp_path / "moved")
    router.signal(signal.SIGHUP)
    wait_for(file.exists, what="a new file")
    router.chat(text(500))
    wait_rows(file, 1)
    assert len(rows(tmp_path / "moved")) == 1
    assert "the capture was opened again" in router.err


def test_two_routers_do_not_write_one_file(fleet, tmp_path):
    file = tmp_path / "capture"
    router, _ = fleet.start(1, "--capture", file, "--capture-size", "64KiB")

    def second_is_refused():
        done = kvroute("serve", "--listen", "127.0.0.1:0", "--admin", "off", "--capture", file)
        assert done.status == 1 and f"--capture {file}: another kvroute writes to it" in done.err, done
    router.chat(text(500))
    wait_rows(file, 1)
    second_is_refused()
    assert len(rows(file)) == 1 and not (tmp_path / "capture.1").exists()
    router.signal(signal.SIGHUP)        # of its own file, where it is
    wait_for(lambda: "the capture was opened again" in router.err, what="opened again")
    second_is_refused()
    for _ in range(20):
        assert router.chat(text(50000)).status == 200
    wait_for((tmp_path / "capture.1").exists, what="a rotation")
    second_is_refused()
    router.terminate()
    assert router.wait_exit() == 0
    other, _ = fleet.start(1, "--capture", file)
    other.chat(text(500))
    wait_rows(file, 1)


def test_what_cannot_be_written_ends_the_start(fleet, tmp_path):
    for path, why in (("/dev/full", "No space left"), (tmp_path, "Is a directory"), (tmp_path / "no" / "file", "No such file")):
        done = kvroute("serve", "--listen", "127.0.0.1:0", "--admin", "off", "--capture", path)
        assert done.status == 1 and f"--capture {path}" in done.err and why in done.err, done
    done = kvroute("serve", "--capture-block-tokens", "7")
    assert done.status == 2 and "capture-block-tokens" in done.err


def test_requests_go_on_when_the_file_does_not(fleet, tmp_path):
    """The directory vanishes, and the next file cannot be begun: lines are dropped, counted, and answers are not held up."""
    inner = tmp_path / "inner"
    inner.mkdir()
    router, _ = fleet.start(1, "--capture", inner / "capture", "--capture-size", "64KiB")
    for _ in range(3):
        assert router.chat(text(50000)).status == 200
    wait_rows(inner / "capture", 3)
    inner.rename(tmp_path / "gone")
    for _ in range(30):
        assert router.chat(text(50000)).status == 200
    wait_for(lambda: router.metrics().sum("capture_lines_total") + router.metrics().sum("capture_dropped_total") == 33,
             what="all are counted")
    dropped = router.metrics().sum("capture_dropped_total")
    assert dropped > 0
    assert "its lines are dropped and counted" in router.err
    inner.mkdir()
    router.signal(signal.SIGHUP)
    wait_for((inner / "capture").exists, what="a new file")
    assert router.chat(text(500)).status == 200
    assert wait_rows(inner / "capture", 1)[-1]["dropped"] == dropped


def test_what_is_queued_is_written_at_the_end(fleet, tmp_path):
    file = tmp_path / "capture"
    router, _ = fleet.start(2, "--capture", file)
    body = chat_body(text(4000))
    for _ in range(50):
        assert router.post("/v1/chat/completions", body).status == 200
    router.terminate()
    assert router.wait_exit() == 0
    assert len(rows(file)) == 50
