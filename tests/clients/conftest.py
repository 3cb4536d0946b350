# SPDX-License-Identifier: Apache-2.0
"""Installs the official clients from the package registries into a cache folder (KVROUTE_CACHE, default
~/.cache/kvroute), once; skips with the reason where a registry does not answer."""
import json
import os
import pathlib
import random
import select
import shutil
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "e2e"), str(HERE)]
os.environ.setdefault("PYTHONDONTWRITEBYTECODE", "1")

from e2e_fixtures import *      # noqa: E402,F401,F403
from harness import PATIENCE    # noqa: E402

CACHE = pathlib.Path(os.environ.get("KVROUTE_CACHE") or pathlib.Path.home() / ".cache" / "kvroute") / "clients"


def run(command, what, **options):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL, **options)
    except (OSError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"{what}: {error}")
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        pytest.skip(f"{what}: {lines[-1][:200]}")


@pytest.fixture(scope="session")
def python_clients():
    wanted = (HERE / "requirements.txt").read_text()
    venv, stamp = CACHE / "venv", CACHE / "venv" / "kvroute-requirements.txt"
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(venv, ignore_errors=True)
        CACHE.mkdir(parents=True, exist_ok=True)
        run([sys.executable, "-m", "venv", str(venv)], "no virtual environment")
        run([str(venv / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", "-r",
             str(HERE / "requirements.txt")], "PyPI does not answer")
        stamp.write_text(wanted)
    return venv / "bin" / "python"


@pytest.fixture(scope="session")
def node_clients():
    if not shutil.which("node") or not shutil.which("npm"):
        pytest.skip("no node or no npm on this machine")
    wanted = (HERE / "package.json").read_text()
    folder = CACHE / "node"
    stamp = folder / "node_modules" / "kvroute-package.json"
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "package.json").write_text(wanted)
        run(["npm", "install", "--no-audit", "--no-fund", "--silent"], "npm does not answer", cwd=folder)
        stamp.write_text(wanted)
    return folder


@pytest.fixture(scope="session")
def llama():
    """URL of a real llama.cpp server: the first of KVROUTE_LLAMA_URLS, or one started here where it is installed."""
    urls = (os.environ.get("KVROUTE_LLAMA_URLS") or "").split()
    if urls:
        yield urls[0]
        return
    script = HERE.parents[1] / "scripts" / "llama-replicas"
    root = os.environ.get("LLAMA_ROOT") or "/var/tmp/llama-replicas"
    if not os.access(os.path.join(root, "usr/bin/llama-server"), os.X_OK):
        pytest.skip("no llama.cpp installed (scripts/llama-replicas fetch)")
    port = str(random.randrange(12000, 30000))
    run([str(script), "up", "1", "--port", port], "llama.cpp does not start")
    yield f"http://127.0.0.1:{port}"
    subprocess.run([str(script), "down", port], stdin=subprocess.DEVNULL, timeout=60, check=False)


class Client:
    """A client in a process of its own, which runs one scenario after the other."""

    def __init__(self, command, env=None):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env={**os.environ, **(env or {})})

    def __call__(self, base, scenario, model="m"):
        self.process.stdin.write(f"{base} {scenario} {model}\n")
        self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], 60 * PATIENCE)[0]:
            raise AssertionError(f"{scenario}: no end within 60 s")
        line = self.process.stdout.readline()
        assert line, "the client has ended"
        answer = json.loads(line)
        assert "result" in answer, answer["exception"]
        return answer["result"]

    def close(self):
        self.process.stdin.close()
        self.process.wait(10)


@pytest.fixture(scope="session")
def python_openai(python_clients):
    client = Client([str(python_clients), str(HERE / "scenarios_openai.py")])
    yield client
    client.close()


@pytest.fixture(scope="session")
def node_openai(node_clients):
    client = Client(["node", str(HERE / "scenarios_openai.mjs")], {"KVROUTE_NODE_MODULES": str(node_clients)})
    yield client
    client.close()


@pytest.fixture(scope="session")
def anthropic_client(python_clients):
    client = Client([str(python_clients), str(HERE / "scenarios_anthropic.py")])
    yield client
    client.close()


@pytest.fixture(params=["python_openai", "node_openai"])
def openai_client(request):
    return request.getfixturevalue(request.param)
