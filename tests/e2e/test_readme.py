# SPDX-License-Identifier: Apache-2.0
"""The README's commands, as somebody would paste them."""
import json
import os
import re
import signal
import subprocess

from harness import BINARY, PATIENCE, ROOT
from test_mock import free_run

README = (ROOT / "README.md").read_text()


def blocks():
    """The indented blocks: what is to be pasted, and what is printed."""
    return re.findall(r"(?:^    .*\n)+", README, re.M)


def block_with(text):
    (found,) = [block for block in blocks() if text in block]
    return [line.strip() for line in found.splitlines()]


def test_no_command_has_an_ellipsis():
    commands = [line for block in blocks() for line in block.splitlines()
                if re.match(r"    (\$ )?(build/kvroute|scripts/|make|curl|chat=|meson|ninja)", line)]
    assert len(commands) > 10
    assert not [line for line in commands if "…" in line or "..." in line]


def test_the_lines_with_mock_engines_work():
    mock, serve = block_with("build/kvroute mock")
    curls = [line for line in block_with("scripts/llama-replicas up") if line.startswith(("chat=", "curl "))]
    assert len(curls) == 4
    first = free_run(5)
    script = "\n".join([mock, "engines=$!", serve + " & sleep 2", *curls, "kill $! $engines; wait"])
    script = script.replace("build/kvroute", BINARY).replace(":8080", f":{first + 3}").replace(":8081", f":{first + 4}")
    for n in (3, 2, 1):
        script = script.replace(f"127.0.0.1:900{n}", f"127.0.0.1:{first + n - 1}")
    assert not re.search(r":900\d\b", script)
    # Each `sleep` stands for somebody who takes a breath; a sanitizer's program needs a longer one.
    script = re.sub(r"sleep (\d+)", lambda m: f"sleep {int(m[1]) * PATIENCE}", script)
    script = script.replace(f"{BINARY} serve", f"{BINARY} serve --listen 127.0.0.1:{first + 3} --admin 127.0.0.1:{first + 4}")
    process = subprocess.Popen(["bash", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               start_new_session=True)
    try:
        out, err = process.communicate(timeout=60 * PATIENCE)
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    replicas = re.findall(r"^x-kvroute-replica: (\S+)", out, re.M)
    assert len(replicas) == 2 and replicas[0] == replicas[1], out + err
    assert re.findall(r"^x-kvroute-reason: (\w+)", out, re.M)[1] == "hit", out
    tokens = re.findall(r"^x-kvroute-match-tokens: (\d+)", out, re.M)
    assert int(tokens[0]) == 0 < int(tokens[1])
    explained = json.loads(out[out.index("\n{"):])
    assert len(explained["candidates"]) == 3 and explained["chosen"] == replicas[0]


def test_the_packages_that_are_named_are_those_that_are_needed():
    text = " ".join(README.split())
    place = text[text.index("Without apt"):]
    for name in ("meson", "ninja", "pkg-config", "python3", "libuv", "llhttp", "yyjson", "xxhash", "libyaml", "zlib", "zstd", "libzmq"):
        assert name in place[:400], name
    wanted = re.findall(r"dependency\('([a-z0-9.-]+)'", (ROOT / "meson.build").read_text())
    known = {"threads", "libuv", "libllhttp", "yyjson", "libxxhash", "yaml-0.1", "zlib", "libzstd", "libzmq", "cmocka"}
    assert set(wanted) <= known, "a new dependency: name it in the README"

