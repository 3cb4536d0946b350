#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds and runs the tests, in stages, and ends with one line: N passed, N failed.

    scripts/test.py                 all stages
    scripts/test.py unit lint       some of them
    scripts/test.py --list          what the stages are

A stage that cannot be built or started counts as one failure. What a stage printed is in build/test-logs/; the end of
it is shown where something failed. Every stage has a time limit, and no command waits for input.
"""

import argparse
import glob
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD_ROOT = os.path.join(ROOT, os.environ.get("KVROUTE_BUILD_ROOT", "."))
JOBS = os.cpu_count() or 1
SECOND_TRIES = 8  # failed end-to-end tests that are tried once more
SHOWN_LINES = 60  # of a failed stage's output
SHOWN_WIDTH = 300


def end_on_signal(number, _frame):
    raise SystemExit(128 + number)


class Failed(Exception):
    """The stage could not go on; it counts as one failure."""


class Stage:
    def __init__(self, name):
        self.name = name
        self.passed = 0
        self.skipped = 0
        self.failures = []  # names
        self.log_path = os.path.join(BUILD_ROOT, "build", "test-logs", name + ".log")
        os.makedirs(os.path.dirname(self.log_path), exist_ok=True)
        self.log = open(self.log_path, "w", encoding="utf-8", errors="replace")

    def run(self, command, timeout, env=None, cwd=ROOT):
        """Runs in a process group of its own, so that a time-out takes the children along. Returns status, output."""
        self.log.write("$ %s\n" % " ".join(command))
        self.log.flush()
        process = subprocess.Popen(command, cwd=cwd, env=dict(os.environ, **(env or {})), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                                   start_new_session=True)
        try:
            out, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                out, _ = process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                out, _ = process.communicate()
            out += "\n%s: no end after %d s\n" % (command[0], timeout)
            process.returncode = -1
        except BaseException:
            # We are told to end: nothing of ours stays behind.
            os.killpg(process.pid, signal.SIGKILL)
            raise
        self.log.write(out + "\n")
        self.log.flush()
        return process.returncode, out

    def must(self, what, command, timeout, **more):
        status, out = self.run(command, timeout, **more)
        if status != 0:
            raise Failed(what)
        return out

    def configure(self, kind):
        self.must("configure " + kind, [os.path.join(ROOT, "scripts/configure.sh"), kind], 300)
        return os.path.join(BUILD_ROOT, "build" if kind == "release" else "build-" + kind)

    def build(self, kind):
        folder = self.configure(kind)
        # -k 0: report all that does not compile, not only the first.
        self.must("build " + kind, ["ninja", "-C", folder, "--quiet", "-k", "0"], 1200)
        return folder

    def tap(self, text, prefix):
        """Counts the cases of one TAP text; returns how many there were."""
        seen = 0
        for line in text.split("\n"):
            case = re.match(r"\s*(not )?ok\b(?:\s+\d+)?\s*-?\s*(.*)", line)
            if not case:
                continue
            seen += 1
            title = case.group(2)
            if re.search(r"#\s*skip", title, re.I):
                self.skipped += 1
            elif case.group(1):
                self.failures.append("%s: %s" % (prefix, title))
            else:
                self.passed += 1
        return seen

    def meson_tests(self, folder, suites, env=None, timeout=900):
        command = ["meson", "test", "-C", folder, "--no-rebuild", "--print-errorlogs"]
        for suite in suites:
            command += ["--suite", suite]
        results = os.path.join(folder, "meson-logs", "testlog.json")
        if os.path.exists(results):
            os.remove(results)
        status, _ = self.run(command, timeout, env)
        if not os.path.exists(results):
            raise Failed("meson test gave no results")
        with open(results, encoding="utf-8", errors="replace") as f:
            records = [json.loads(line) for line in f]
        if not records:
            raise Failed("no tests in the suites %s" % ", ".join(suites))
        before = len(self.failures)
        for record in records:
            name = record["name"].split(" / ")[-1]
            bad = len(self.failures)
            cases = self.tap(record.get("stdout", ""), name)
            if record["result"] not in ("OK", "SKIP", "EXPECTEDFAIL"):
                # meson shows what failed without the lines that say why.
                self.log.write("---- %s\n%s%s\n" % (name, record.get("stdout", ""), record.get("stderr", "")))
                # A crash or a time-out may leave nothing but good cases behind.
                if len(self.failures) == bad:
                    self.failures.append("%s: %s" % (name, record["result"].lower()))
            elif cases == 0:
                if record["result"] == "SKIP":
                    self.skipped += 1
                else:
                    self.passed += 1
        if status != 0 and len(self.failures) == before:
            self.failures.append("meson test: exit status %d" % status)

    def pytest(self, kvroute, env=None, timeout=600, select=None, folders=("e2e",)):
        folders = folders_of(*folders)
        for folder in folders:
            if not glob.glob(os.path.join(folder, "test_*.py")):
                raise Failed("no tests in %s" % folder)
        if not os.path.exists(kvroute):
            raise Failed("no program %s" % kvroute)
        report = self.log_path[:-4] + ".xml"
        if os.path.exists(report):
            os.remove(report)
        command = [python_with_pytest(), "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider",
                   "--junitxml=" + report] + folders
        if select:
            command += ["-m", select]
        env = dict(env or {}, KVROUTE_BIN=kvroute, PYTHONDONTWRITEBYTECODE="1")
        # End-to-end tests mostly wait. Real engines want the machine for themselves.
        several = ["-n", str(JOBS + 1)] if folders_of("e2e") == folders and has_xdist() else []
        status, _ = self.run(command + several, timeout, env)
        passed, skipped, failed = pytest_results(report)
        if passed + skipped + len(failed) == 0:
            raise Failed("pytest ran nothing")
        if status != 0 and not failed:
            self.failures.append("pytest: exit status %d" % status)
        self.passed += passed
        self.skipped += skipped
        if 0 < len(failed) <= SECOND_TRIES:
            failed = self.second_try(command, failed, report, timeout, env)
        self.failures += failed

    def second_try(self, command, failed, report, timeout, env):
        """Tests against the clock can fail on a busy machine: few failures are tried once more, and it is said aloud."""
        os.remove(report)
        first = [part for part in command if not part.startswith(os.path.join(ROOT, "tests"))]
        self.run(first + [os.path.join(ROOT, name) for name in failed], timeout, env)
        passed, skipped, still = pytest_results(report)
        if passed + skipped + len(still) < len(failed):
            return failed
        self.passed += passed
        self.skipped += skipped
        for name in failed:
            if name not in still:
                print("   UNSTEADY  %s: passed at the second try" % name, flush=True)
        return still


def folders_of(*names):
    return [os.path.join(ROOT, "tests", name) for name in names]


def has_xdist():
    return subprocess.run([python_with_pytest(), "-c", "import xdist"], stdin=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL, check=False).returncode == 0


def pytest_results(report):
    """Numbers of passed and skipped cases of a junit file, and the failed ones' names as pytest takes them."""
    if not os.path.exists(report):
        raise Failed("pytest gave no results")
    passed = skipped = 0
    failed = []
    for case in xml.etree.ElementTree.parse(report).getroot().iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            name = "%s.py::%s" % (case.get("classname", "").replace(".", "/"), case.get("name", ""))
            if name not in failed:
                failed.append(name)
        elif case.find("skipped") is not None:
            skipped += 1
        else:
            passed += 1
    return passed, skipped, failed


def python_with_pytest():
    """The distribution's python has the distribution's pytest; another one may come first in the PATH."""
    for python in ["/usr/bin/python3", sys.executable]:
        if os.path.exists(python) and subprocess.run([python, "-c", "import pytest"], stdin=subprocess.DEVNULL,
                                                     stderr=subprocess.DEVNULL, check=False).returncode == 0:
            return python
    raise Failed("no python3 with pytest: scripts/setup.sh test")


# The sanitizers end the program with a status of their own, so that a report can never pass as an expected failure.
SANITIZER_ENV = {
    "ASAN_OPTIONS": "exitcode=97:abort_on_error=0:detect_leaks=1:detect_stack_use_after_return=1"
                    ":allocator_may_return_null=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1:exitcode=97",
    "TSAN_OPTIONS": "exitcode=97:halt_on_error=1:second_deadlock_stack=1"
                    ":suppressions=" + os.path.join(ROOT, "tests", "sanitizers", "tsan.supp"),
    "LSAN_OPTIONS": "suppressions=" + os.path.join(ROOT, "tests", "sanitizers", "lsan.supp"),
}


def stage_unit(stage, _args):
    """gcc, optimized: unit tests, replay of the fuzzers' corpora, examples"""
    folder = stage.build("release")
    stage.meson_tests(folder, ["unit", "replay", "examples"])


def stage_arch(stage, _args):
    """who may include whom, what each library may call and export, and other rules of the house"""
    folder = stage.build("release")
    stage.meson_tests(folder, ["arch"])


def stage_install(stage, _args):
    """an installed tree is complete: headers, pkg-config file and library build a stranger's program"""
    folder = stage.build("release")
    status, out = stage.run([os.path.join(ROOT, "tests", "install_test.sh"), folder], 300)
    if stage.tap(out, "install") == 0 or (status != 0 and not stage.failures):
        raise Failed("tests/install_test.sh: exit status %d" % status)


def stage_lint(stage, _args):
    """formatting, refused functions, cppcheck, clang-tidy"""
    stage.configure("clang")
    status, out = stage.run([sys.executable, os.path.join(ROOT, "scripts", "lint.py")], 900)
    if stage.tap(out, "lint") == 0 or (status != 0 and not stage.failures):
        raise Failed("scripts/lint.py: exit status %d" % status)


def stage_clang(stage, _args):
    """clang, optimized: its warnings, and the unit tests as it compiles them"""
    folder = stage.build("clang")
    stage.meson_tests(folder, ["unit"])


def stage_e2e(stage, _args):
    """end-to-end tests of the program"""
    folder = stage.build("release")
    stage.pytest(os.path.join(folder, "kvroute"), timeout=700)


def stage_real(stage, _args):
    """real llama.cpp servers and the official clients; what cannot be installed here is skipped, with the reason"""
    folder = stage.build("release")
    stage.pytest(os.path.join(folder, "kvroute"), timeout=900, folders=("real", "clients"))


def stage_asan(stage, _args):
    """unit and end-to-end tests under the address and undefined-behaviour sanitizers"""
    folder = stage.build("asan")
    stage.meson_tests(folder, ["unit", "replay"], SANITIZER_ENV)
    stage.pytest(os.path.join(folder, "kvroute"), dict(SANITIZER_ENV, KVROUTE_TEST_PATIENCE="4"), timeout=600,
                 select="not slow")


def stage_tsan(stage, _args):
    """unit and end-to-end tests under the thread sanitizer"""
    folder = stage.build("tsan")
    stage.meson_tests(folder, ["unit"], SANITIZER_ENV)
    stage.pytest(os.path.join(folder, "kvroute"), dict(SANITIZER_ENV, KVROUTE_TEST_PATIENCE="6"), timeout=600,
                 select="not slow")


def stage_fuzz(stage, args):
    """every fuzz target for some seconds, from its corpus"""
    folder = stage.build("asan")
    targets = sorted(glob.glob(os.path.join(folder, "tests", "fuzz", "fuzz_*")))
    targets = [t for t in targets if os.access(t, os.X_OK) and os.path.isfile(t)]
    if not targets:
        raise Failed("no fuzz targets in %s/tests/fuzz" % folder)
    for target in targets:
        name = os.path.basename(target)
        with tempfile.TemporaryDirectory(prefix="kvroute-fuzz-") as scratch:
            seeds = [os.path.join(ROOT, "tests", "fuzz", "corpus", name[len("fuzz_"):])]
            command = [target, "-max_total_time=%d" % args.fuzz_seconds, "-timeout=10", "-rss_limit_mb=2048",
                       "-artifact_prefix=%s/" % os.path.dirname(stage.log_path), "-print_final_stats=1", scratch]
            status, out = stage.run(command + [s for s in seeds if os.path.isdir(s)], args.fuzz_seconds + 60,
                                    SANITIZER_ENV)
        runs = re.search(r"number_of_executed_units:\s*(\d+)", out)
        if status == 0 and runs and int(runs.group(1)) > 0:
            stage.passed += 1
        else:
            stage.failures.append("%s: exit status %d after %s runs" % (name, status, runs.group(1) if runs else "no"))


STAGES = {
    "unit": stage_unit,
    "arch": stage_arch,
    "e2e": stage_e2e,
    "real": stage_real,
    "install": stage_install,
    "clang": stage_clang,
    "lint": stage_lint,
    "asan": stage_asan,
    "fuzz": stage_fuzz,
    "tsan": stage_tsan,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=", ".join(STAGES))
    parser.add_argument("--list", action="store_true", help="print the stages")
    parser.add_argument("--fuzz-seconds", type=int, default=5, metavar="N", help="per fuzz target (default 5)")
    args = parser.parse_args()
    if args.list:
        for name, function in STAGES.items():
            print("%-10s %s" % (name, function.__doc__))
        return 0
    for name in args.stages:
        if name not in STAGES:
            parser.error("no stage '%s': %s" % (name, ", ".join(STAGES)))

    signal.signal(signal.SIGTERM, end_on_signal)
    signal.signal(signal.SIGHUP, end_on_signal)
    passed = failed = 0
    began = time.monotonic()
    for name in args.stages or list(STAGES):
        print("== %-8s %s" % (name, STAGES[name].__doc__), flush=True)
        start = time.monotonic()
        stage = Stage(name)
        try:
            STAGES[name](stage, args)
        except Failed as e:
            stage.failures.append(str(e))
        except (OSError, ValueError, xml.etree.ElementTree.ParseError) as e:
            stage.failures.append("%s: %s" % (type(e).__name__, e))
        stage.log.close()
        for failure in stage.failures:
            print("   FAILED  %s" % failure)
        if stage.failures:
            with open(stage.log_path, encoding="utf-8", errors="replace") as f:
                for line in f.read().rstrip().split("\n")[-SHOWN_LINES:]:
                    print("   | " + line[:SHOWN_WIDTH])
            print("   all of it: %s" % os.path.relpath(stage.log_path, ROOT))
        print("   %-8s %d good, %d bad, %d skipped, %.0f s"
              % (name, stage.passed, len(stage.failures), stage.skipped, time.monotonic() - start), flush=True)
        passed += stage.passed
        failed += len(stage.failures)
    if passed + failed == 0:
        print("nothing ran")
        failed = 1
    print("== all of it took %.0f s" % (time.monotonic() - began))

    # .ci/run prints this line itself, as the last one of its output.
    line = "%d passed, %d failed" % (passed, failed)
    summary = os.environ.get("KVROUTE_TEST_SUMMARY")
    if summary:
        with open(summary, "w", encoding="utf-8") as f:
            f.write(line + "\n")
    else:
        print(line)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
