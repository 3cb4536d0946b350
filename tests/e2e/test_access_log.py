# SPDX-License-Identifier: Apache-2.0
"""The access log: whose request, how it ended, and the file's rotation."""
import json
import os

from engine import sse
from harness import wait_for


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_lines(path, count):
    return wait_for(lambda: len(got := lines(path)) == count and got, what=f"{count} lines in {path.name}")


def test_rotation_by_mv_and_hangup(fleet, tmp_path):
    """As logrotate does it; a stream that runs meanwhile is in the new file."""
    log, old = tmp_path / "access.log", tmp_path / "access.log.1"
    router, (engine,) = fleet.start(1, "--access-log", log)
    router.chat()
    wait_lines(log, 1)
    engine.script = sse(["x"] * 10, gap=0.1)
    conn = router.start_chat(stream=True)
    head = conn.head()
    os.rename(log, old)
    router.signal(1)
    wait_for(log.exists, what="a new file")
    assert conn.finish(head).complete
    engine.script = None
    router.chat()
    assert [line["stream"] for line in wait_lines(log, 2)] == [True, False]
    assert len(lines(old)) == 1


def test_rotation_does_not_need_a_good_configuration(fleet, tmp_path):
    log, old, config = tmp_path / "access.log", tmp_path / "access.log.1", tmp_path / "kvroute.yaml"
    engine = fleet.engine()
    config.write_text(f"replicas: [{engine.url}]\n")
    router = fleet.router("--access-log", log, "--config", config, ready=False)
    router.wait_ready(engine)
    config.write_text("nonsense: 1\n")
    os.rename(log, old)
    router.signal(1)
    wait_for(log.exists, what="a new file")
    router.chat()
    wait_lines(log, 1)


def test_a_file_that_cannot_be_opened_again_is_reported_and_the_old_one_goes_on(fleet, tmp_path):
    folder = tmp_path / "logs"
    folder.mkdir()
    log, moved = folder / "access.log", tmp_path / "moved.log"
    router, _ = fleet.start(1, "--access-log", log)
    os.rename(log, moved)
    folder.rmdir()
    router.signal(1)
    wait_for(lambda: any("access log" in line and "cannot be opened again" in line for line in list(router.lines)),
             what="an error")
    router.chat()
    wait_lines(moved, 1)


def test_who_asked(fleet, tmp_path):
    """The client's address, and an id of its key that is the same for the same key and tells nothing of it."""
    log = tmp_path / "access.log"
    router, _ = fleet.start(1, "--access-log", log, "--seed", "7")
    keys = [[("Authorization", "Bearer sk-first-key")], [("x-api-key", "sk-first-key")], [("x-api-key", "sk-second-key")], []]
    for headers in keys:
        assert router.chat(headers=headers).status == 200
    one, same, other, none = wait_lines(log, 4)
    assert {line["client"] for line in (one, same, other, none)} == {"127.0.0.1"}
    assert one["key_id"] == same["key_id"] != other["key_id"] and none["key_id"] is None
    assert all(len(x["key_id"]) == 8 and int(x["key_id"], 16) >= 0 for x in (one, same, other))
    assert "sk-" not in log.read_text()


def test_how_it_ended_and_which_workload(fleet, tmp_path):
    """What the router answers itself with 200 is no refusal; a workload has the name that metrics give it."""
    log = tmp_path / "access.log"
    router, _ = fleet.start(1, "--access-log", log, "--threads", "1")  # lines of one thread are in order
    router.get("/v1/models")
    router.get("/healthz")
    router.get("/")
    router.chat()
    router.chat(model="unknown")
    router.chat(headers=[("x-kvroute-workload", "batch")])
    got = wait_lines(log, 6)
    assert [line["end"] for line in got] == ["finished"] * 4 + ["refused", "finished"]
    assert [line["workload"] for line in got] == ["default"] * 5 + ["batch"]
    assert router.metrics().sum("requests_total", workload="batch") == 1
    assert router.metrics().sum("requests_total", workload="default") == 5
