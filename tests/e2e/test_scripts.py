# SPDX-License-Identifier: Apache-2.0
"""What the scripts make of their arguments."""
import importlib.machinery
import importlib.util

import pytest

from harness import ROOT


def load(name):
    loader = importlib.machinery.SourceFileLoader(name.replace("-", "_"), str(ROOT / "scripts" / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


@pytest.mark.parametrize("given,own,extra", [
    (["up", "3"], (3, 9001, 2), []),
    (["up", "2", "--port", "9100", "--slots", "4"], (2, 9100, 4), []),
    (["up", "2", "--", "--cache-reuse", "64"], (2, 9001, 2), ["--cache-reuse", "64"]),
    (["up", "--slots", "1", "2", "--", "--port", "1"], (2, 9001, 1), ["--port", "1"]),
    (["up", "2", "--", "--no-slots", "--", "x"], (2, 9001, 2), ["--no-slots", "--", "x"]),
])
def test_options_of_the_engine_stand_behind_two_dashes(given, own, extra):
    args, rest = load("llama-replicas").parse(given)
    assert (args.count, args.port, args.slots) == own and rest == extra


@pytest.mark.parametrize("given", [["up", "--", "--cache-reuse"], ["up", "2", "--cache-reuse"], ["down", "--", "--x"], []])
def test_what_makes_no_sense_is_refused(given, capsys):
    with pytest.raises(SystemExit) as ended:
        load("llama-replicas").parse(given)
    assert ended.value.code == 2 and "usage" in capsys.readouterr().err
