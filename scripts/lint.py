#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The checks that read the source: formatting, refused functions, cppcheck, clang-tidy, syntax of the scripts.

    scripts/lint.py                     all of them over the whole tree; prints TAP
    scripts/lint.py --only tidy         one of them: format, refused, cppcheck, tidy, scripts
    scripts/lint.py lib/prompt.c ...    only these files

clang-tidy takes its compile commands from build-clang (scripts/configure.sh clang). What it found clean is remembered
in there by content, so a second run looks only at what changed.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD_CLANG = os.path.join(ROOT, os.environ.get("KVROUTE_BUILD_ROOT", "."), "build-clang")
LAYERS = ["include", "lib", "proto", "net", "engine", "router", "sim"]
C_DIRS = LAYERS + ["tests", "bench", "examples"]
# Layout is what this version makes of .clang-format; others differ in details, so they are not asked.
FORMAT_VERSION = 14
JOBS = os.cpu_count() or 1

# Each has a bounded or checked counterpart: snprintf, memcpy with a length, strtoul behind a checked parser, an array.
REFUSED = ["strcpy", "stpcpy", "strcat", "sprintf", "vsprintf", "strtok", "gets", "alloca",
           "atoi", "atol", "atoll", "atof", "tmpnam", "mktemp"]


def c_files(only):
    if only:
        return [f for f in only if f.endswith((".c", ".h"))]
    found = []
    for top in C_DIRS:
        for folder, _, names in os.walk(os.path.join(ROOT, top)):
            found += [os.path.relpath(os.path.join(folder, n), ROOT) for n in names if n.endswith((".c", ".h"))]
    return sorted(found)


def product_files(files):
    """What ships. Tests and benchmarks are left to the compilers and sanitizers: they run all of that code, while the
    checkers stumble over test macros and over values that only an assertion makes certain."""
    return [f for f in files if f.endswith(".c") and not f.endswith("_test.c") and f.split("/")[0] in LAYERS]


def run(command, timeout=900):
    try:
        done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=timeout, text=True, errors="replace")
    except subprocess.TimeoutExpired:
        return 1, "gave no result within %d s: %s" % (timeout, " ".join(command[:3]))
    return done.returncode, done.stdout


def tool(name):
    """The one of version FORMAT_VERSION where there are several."""
    return shutil.which("%s-%d" % (name, FORMAT_VERSION)) or shutil.which(name)


def check_format(files):
    clang_format = tool("clang-format")
    if not clang_format:
        return None, "clang-format is not installed"
    version = re.search(r"version (\d+)", run([clang_format, "--version"])[1])
    if not version or int(version.group(1)) != FORMAT_VERSION:
        return None, "the layout is defined by clang-format %d" % FORMAT_VERSION
    status, out = run([clang_format, "--dry-run", "-Werror", "--style=file"] + files) if files else (0, "")
    places = {}
    for hit in re.finditer(r"^(\S+?):\d+:\d+: error: ", out, re.M):
        places[hit.group(1)] = places.get(hit.group(1), 0) + 1
    return status == 0, "\n".join("%s: %d places; make format" % (f, n) for f, n in places.items()) or out


def without_comments_and_strings(text):
    """Blanks them, so that line numbers stay right."""
    pattern = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
    return pattern.sub(lambda m: re.sub(r"[^\n]", " ", m.group(0)), text)


def check_refused(files):
    call = re.compile(r"(?<![\w.>])(%s)\s*\(" % "|".join(REFUSED))
    out = []
    for name in files:
        with open(os.path.join(ROOT, name), encoding="utf-8") as f:
            text = without_comments_and_strings(f.read())
        for number, line in enumerate(text.split("\n"), 1):
            for hit in call.finditer(line):
                out.append("%s:%d: %s is refused here" % (name, number, hit.group(1)))
    return not out, "\n".join(out)


def check_cppcheck(files):
    if not shutil.which("cppcheck"):
        return None, "cppcheck is not installed"
    sources = product_files(files)
    if not sources:
        return True, ""
    cache = os.path.join(BUILD_CLANG, "cppcheck")
    os.makedirs(cache, exist_ok=True)
    # One configuration: the defaults of our own #ifs. All of them would be the product of glibc's feature macros.
    options = ["--max-configs=1"]
    version = re.search(r"(\d+)\.(\d+)", run(["cppcheck", "--version"])[1])
    if version and (int(version.group(1)), int(version.group(2))) > (2, 10):
        # Arrays that a loop or a called function fills count as uninitialized: "the loop may run zero times". The
        # compilers warn of the real thing, and valgrind and the sanitizers run everything.
        options.append("--suppress=uninitvar")
    status, out = run(["cppcheck", "-j%d" % JOBS, "--quiet", "--std=c11", "--language=c", "--library=posix",
                       "--library=gnu", *options,
                       "--enable=warning,performance,portability", "--inline-suppr", "--suppressions-list=.cppcheck",
                       "--error-exitcode=1", "--cppcheck-build-dir=" + cache, "-I.", "-Iinclude",
                       "-D__GNUC__=12", "--include=scripts/cppcheck.h"] + sources)
    return status == 0, out


def tidy_key(compile_args, name, common):
    digest = hashlib.sha256(common)
    digest.update(compile_args.encode())
    with open(os.path.join(ROOT, name), "rb") as f:
        digest.update(f.read())
    return digest.hexdigest()


def check_tidy(files):
    clang_tidy = tool("clang-tidy")
    if not clang_tidy:
        return None, "clang-tidy is not installed"
    database = os.path.join(BUILD_CLANG, "compile_commands.json")
    if not os.path.exists(database):
        return False, "no %s: run scripts/configure.sh clang first" % os.path.relpath(database, ROOT)
    with open(database) as f:
        commands = {os.path.relpath(os.path.join(c["directory"], c["file"]), ROOT): c["command"] for c in json.load(f)}

    # A header's change may matter to any file, so all of them are part of every key.
    common = hashlib.sha256(run([clang_tidy, "--version"])[1].encode())
    rules = [os.path.join(d, ".clang-tidy") for d in ["."] + C_DIRS]
    for name in rules + [f for f in c_files(None) if f.endswith(".h")]:
        if not os.path.exists(os.path.join(ROOT, name)):
            continue
        with open(os.path.join(ROOT, name), "rb") as f:
            common.update(f.read())
    cache = os.path.join(BUILD_CLANG, "tidy-clean")
    os.makedirs(cache, exist_ok=True)

    def one(name):
        stamp = os.path.join(cache, tidy_key(commands[name], name, common.digest()))
        if os.path.exists(stamp):
            return 0, ""
        status, out = run([clang_tidy, "--quiet", "-p", BUILD_CLANG, name], timeout=300)
        if status == 0:
            open(stamp, "w").close()
        return status, re.sub(r"^\d+ warnings? generated\.\n", "", out, flags=re.M)

    chosen = [f for f in product_files(files) if f in commands]
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        results = list(pool.map(one, chosen))
    bad = [out for status, out in results if status != 0]
    return not bad, "\n".join(bad)


def check_scripts(_files):
    out = []
    for folder in ["scripts", ".ci", "tests", "packaging", "docs", "bench"]:
        for where, _, names in os.walk(os.path.join(ROOT, folder)):
            if "node_modules" in where or ".venv" in where:
                continue
            for name in sorted(names):
                path = os.path.join(where, name)
                with open(path, "rb") as f:
                    first = f.readline()
                if name.endswith(".py"):
                    with open(path, encoding="utf-8") as f:
                        try:
                            compile(f.read(), path, "exec")
                        except SyntaxError as e:
                            out.append("%s:%s: %s" % (path, e.lineno, e.msg))
                elif first.startswith(b"#!") and first.rstrip().endswith(b"sh"):
                    shell = "bash" if b"bash" in first else "sh"
                    status, said = run([shell, "-n", path])
                    if status:
                        out.append(said)
                    elif shutil.which("shellcheck"):
                        status, said = run(["shellcheck", "-S", "warning", path])
                        if status:
                            out.append(said)
    return not out, "\n".join(out)


CHECKS = [
    ("scripts", "the scripts parse", check_scripts),
    ("refused", "no refused function is called", check_refused),
    ("format", "clang-format would change nothing", check_format),
    ("cppcheck", "cppcheck finds nothing", check_cppcheck),
    ("tidy", "clang-tidy finds nothing", check_tidy),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", action="append", choices=[c[0] for c in CHECKS])
    parser.add_argument("files", nargs="*")
    args = parser.parse_args()
    files = c_files([os.path.relpath(os.path.abspath(f), ROOT) for f in args.files])
    checks = [c for c in CHECKS if not args.only or c[0] in args.only]
    failed = False
    print("1..%d" % len(checks))
    for number, (_, title, check) in enumerate(checks, 1):
        good, out = check(files)
        if good is None:
            print("ok %d - %s # SKIP %s" % (number, title, out))
        else:
            print("%s %d - %s" % ("ok" if good else "not ok", number, title))
            if not good:
                failed = True
                print("\n".join("# " + line for line in out.strip().split("\n")))
        sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
