# SPDX-License-Identifier: Apache-2.0
"""What is installed beside the program: the example configuration, the unit, the image's recipe."""
import re
import shutil
import subprocess

import pytest

from harness import BINARY, ROOT, kvroute

PACKAGING = ROOT / "packaging"


def test_the_example_configuration_is_accepted():
    done = kvroute("check", PACKAGING / "kvroute.yaml")
    assert done.status == 0, done.err
    assert "2 replicas" in done.out + done.err


def test_what_it_shows_in_comments_is_accepted_too(tmp_path):
    """Every commented-out key, with its files in place, so that nobody is offered a line that is refused."""
    text = (PACKAGING / "kvroute.yaml").read_text()
    shown = re.sub(r"^#(?! [^ ])", "", text, flags=re.M)
    keys = tmp_path / "keys"
    keys.write_text("sk-test\n")
    shown = re.sub(r"file:\S+", f"file:{keys}", shown)
    (tmp_path / "kvroute.yaml").write_text(shown)
    done = kvroute("check", tmp_path / "kvroute.yaml")
    assert done.status == 0, done.err
    for key in ("admin-token", "api-key", "drain-timeout", "access-log", "workloads"):
        assert re.search(rf"^{key}:", shown, re.M), key


def unit():
    return (PACKAGING / "kvroute.service.in").read_text()


def test_the_unit_waits_longer_than_answers_may_take_to_end():
    options = kvroute("check", PACKAGING / "kvroute.yaml", "--json").out
    drain = int(re.search(r'"drain-timeout":\s*"?(\d+)s', options)[1])
    assert int(re.search(r"^TimeoutStopSec=(\d+)s$", unit(), re.M)[1]) > drain


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze")
def test_systemd_understands_the_unit(tmp_path):
    text = unit().replace("@bindir@/kvroute", BINARY).replace("@confdir@", "/etc/kvroute")
    assert "@bindir@" not in text and "@confdir@" not in text
    path = tmp_path / "kvroute.service"
    path.write_text(text)
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(path)],
                          capture_output=True, text=True, timeout=60, check=False)
    about = [line for line in (done.stdout + done.stderr).splitlines() if "kvroute.service" in line]
    assert done.returncode == 0 and not about, done.stderr


def test_the_image_has_the_packages_that_a_build_needs():
    """The list in scripts/setup.sh is the one that is tested on fresh machines; the image must not fall behind."""
    setup = (ROOT / "scripts" / "setup.sh").read_text()
    wanted = re.findall(r"^([a-z0-9.+-]+)\|", re.search(r"BUILD_PACKAGES='(.*?)'", setup, re.S)[1], re.M)
    assert "meson" in wanted and len(wanted) > 10
    recipe = (PACKAGING / "Containerfile").read_text()
    stage = recipe.split("\nFROM ")[1]
    missing = [name for name in wanted if name not in stage.split() and name != "libcmocka-dev"]
    assert not missing
    assert all(line.startswith("FROM docker.io/library/debian:13-slim") for line in re.findall("^FROM.*", recipe, re.M))
