#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rules of the house that the text of the tree can be asked about; prints TAP.

    check_source.py [TREE]          the tree this file is in, by default

Who may include whom is ALLOWED below (docs/ARCHITECTURE.md says why). Each rule is first tried on a small tree with a
planted offence, so that a rule that has gone blind fails too.
"""

import os
import re
import subprocess
import sys
import tempfile

# layer -> layers whose headers its files may include. Lower layers first; nothing lower ever names what is above it.
ALLOWED = {
    "include": {"include"},
    "lib": {"lib", "include"},
    "proto": {"proto", "include"},
    "net": {"net", "proto", "include"},
    "engine": {"engine", "proto", "include"},
    "router": {"router", "engine", "net", "proto", "lib", "include"},
    "sim": {"sim", "engine", "net", "proto", "lib", "include"},
    "examples": {"examples", "include"},
    "scripts": {"include"},  # what tells the linters of libraries they cannot see
    "bench": {"bench", "sim", "router", "engine", "net", "proto", "lib", "include"},
    "tests": {"tests", "sim", "router", "engine", "net", "proto", "lib", "include"},
}
# Files with a wider view than their layer: main() hands over to the commands of both halves.
WIDER = {
    "router/main.c": {"sim"},
}
LAYERS_WITH_LISTS = ["lib", "proto", "net", "engine", "router", "sim"]

LINES_MAX = 1000  # of one C file; past about 600 it is time to split

# Text that has no business here: places of one machine, hosts that belong in the machine's own configuration. Put
# together from pieces, so that this file does not contain them.
FORBIDDEN = [
    ("a path of one machine", "/wo" + "rk/(?:main|shared|\\.)"),
    ("a path of one machine", "/tmp/" + "kv-"),
    ("a package host", "(?:deb|snapshot|security)" + "\\.debian\\.org"),
    ("a package host", "deb" + "\\.nodesource\\.com"),
    ("a package host", "registry" + "\\.npmjs\\.org"),
    ("a package host", "(?:files\\.pythonhosted|pypi)" + "\\.org/(?:simple|packages)"),
    ("a package host", "\\.pkg" + "\\.dev"),
    ("a merge conflict", "^(?:<{7} |>{7} )"),
]
TEXT_ENDINGS = (".c", ".h", ".py", ".sh", ".md", ".js", ".mjs", ".ts", ".html", ".css", ".json", ".yaml", ".yml", ".toml",
                ".txt", ".in", ".build", ".def", ".proto", ".service", ".lua", ".cfg", ".conf", ".supp", "Makefile",
                "Dockerfile", "Containerfile", "run", "LICENSE")
SPDX_ENDINGS = (".c", ".h", ".py", ".sh", ".js", ".mjs", ".css", ".build", ".def", ".proto", "Makefile")
SPDX = "SPDX-License-Identifier: Apache-2.0"
SKIPPED_DIRS = {".git", "node_modules", ".venv", "__pycache__", ".cache", ".pytest_cache"}


def tree_files(root):
    """Every file of the tree, as sorted relative paths; what git ignores is left out by the names above."""
    try:
        done = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=root,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
        listed = done.stdout.decode(errors="replace").split("\0") if done.returncode == 0 else []
    except OSError:
        listed = []
    found = [f for f in listed if f and os.path.isfile(os.path.join(root, f))]
    if not found:
        for folder, dirs, names in os.walk(root):
            dirs[:] = [d for d in dirs if d not in SKIPPED_DIRS and not re.match(r"build(-.*)?$", d)]
            found += [os.path.relpath(os.path.join(folder, n), root) for n in names]
    return sorted(found)


def read(root, name):
    with open(os.path.join(root, name), encoding="utf-8", errors="replace") as f:
        return f.read()


def included_file(root, name, target):
    """The file of the tree that this include in file `name` means, or None for a header of the system."""
    for base in [os.path.dirname(name), "", "include", "include/kvroute"]:
        candidate = os.path.normpath(os.path.join(base, target))
        if os.path.isfile(os.path.join(root, candidate)):
            return candidate
    return None


def rule_includes(root, files):
    """includes go in the allowed directions only"""
    bad = []
    for name in files:
        layer = name.split("/")[0]
        if not name.endswith((".c", ".h")):
            continue
        if layer not in ALLOWED:
            bad.append("%s: no layer '%s' in ALLOWED" % (name, layer))
            continue
        allowed = ALLOWED[layer] | WIDER.get(name, set())
        for number, line in enumerate(read(root, name).split("\n"), 1):
            include = re.match(r'\s*#\s*include\s*(["<])([^">]+)[">]', line)
            if not include:
                continue
            target = included_file(root, name, include.group(2))
            if target is None:
                if include.group(1) == '"' and not include.group(2).endswith((".inc.h", "_data.h")):
                    bad.append('%s:%d: "%s" is no file of the tree' % (name, number, include.group(2)))
                continue
            if target.split("/")[0] not in allowed:
                bad.append("%s:%d: %s may not include %s" % (name, number, layer, target))
    return bad


def rule_own_header_first(root, files):
    """a .c includes its own header first, so that the header is known to stand alone"""
    bad = []
    for name in files:
        if not name.endswith(".c") or name[:-2] + ".h" not in files:
            continue
        first = re.search(r'^\s*#\s*include\s*["<]([^">]+)[">]', read(root, name), re.M)
        target = included_file(root, name, first.group(1)) if first else None
        # mock.c may come by mock_int.h, which the files of one module share.
        if target not in (name[:-2] + ".h", name[:-2] + "_int.h"):
            bad.append("%s: the first include is not its own header" % name)
    return bad


def rule_public_header(root, files):
    """public headers are usable from C++ and guarded"""
    bad = []
    for name in files:
        if name.startswith("include/") and name.endswith(".h"):
            text = read(root, name)
            if not re.search(r"#ifndef KVROUTE_\w+_H", text):
                bad.append("%s: no include guard KVROUTE_..._H" % name)
            if re.search(r"\);", text) and 'extern "C"' not in text:
                bad.append('%s: declares functions without extern "C"' % name)
    return bad


def rule_listed(root, files):
    """every .c of a layer is named in its meson.build"""
    bad = []
    for layer in LAYERS_WITH_LISTS:
        if layer + "/meson.build" not in files:
            continue
        text = read(root, layer + "/meson.build")
        for name in files:
            if not name.startswith(layer + "/") or not name.endswith(".c"):
                continue
            inner = name[len(layer) + 1:]
            if "'%s'" % inner in text:
                continue
            if inner.endswith("_test.c") and "'%s'" % inner[:-len("_test.c")] in text:
                continue
            bad.append("%s: not in %s/meson.build" % (name, layer))
    return bad


def rule_spdx(root, files):
    """the licence is named in the first lines of every source file"""
    return [name + ": no " + SPDX for name in files
            if name.endswith(SPDX_ENDINGS) and SPDX not in "\n".join(read(root, name).split("\n")[:3])]


def rule_leftovers(_root, files):
    """no editor or patch left a file behind"""
    return [name + ": a leftover" for name in files if name.endswith((".orig", ".rej", ".bak", ".swp", "~"))]


def rule_length(root, files):
    """no C file is longer than the limit"""
    bad = []
    for name in files:
        if name.endswith((".c", ".h")):
            lines = read(root, name).count("\n")
            if lines > LINES_MAX:
                bad.append("%s: %d lines, the limit is %d" % (name, lines, LINES_MAX))
    return bad


def rule_forbidden(root, files):
    """nothing names a machine's paths or a package host"""
    bad = []
    for name in files:
        if not name.endswith(TEXT_ENDINGS):
            continue
        for number, line in enumerate(read(root, name).split("\n"), 1):
            for what, pattern in FORBIDDEN:
                if re.search(pattern, line):
                    bad.append("%s:%d: %s" % (name, number, what))
    return bad


RULES = [rule_includes, rule_own_header_first, rule_public_header, rule_listed, rule_spdx, rule_leftovers, rule_length, rule_forbidden]

HEAD = "/* " + SPDX + " */\n"
# rule -> a tree with one offence against it (and the offence's beginning)
PLANTED = {
    rule_includes: ({"lib/a.c": HEAD + '#include "net/n.h"\n', "net/n.h": HEAD}, "lib/a.c:2: lib may not include net/n.h"),
    rule_own_header_first: ({"lib/a.c": HEAD + '#include <stdio.h>\n#include "a.h"\n', "lib/a.h": HEAD}, "lib/a.c: "),
    rule_public_header: ({"include/kvroute/a.h": HEAD + "int kvr_a(void);\n"}, "include/kvroute/a.h: "),
    rule_listed: ({"lib/a.c": HEAD, "lib/meson.build": "lib_sources = files(\n        'b.c',\n)\n"}, "lib/a.c: not in"),
    rule_spdx: ({"lib/a.c": "int a;\n"}, "lib/a.c: no SPDX"),
    rule_leftovers: ({"lib/a.c.orig": HEAD}, "lib/a.c.orig: "),
    rule_length: ({"lib/a.c": HEAD + "\n" * LINES_MAX}, "lib/a.c: 1001 lines"),
    rule_forbidden: ({"docs/a.md": "see /wo" + "rk/main/a\n"}, "docs/a.md:1: a path"),
}


def planted_is_found(rule):
    tree, expected = PLANTED[rule]
    with tempfile.TemporaryDirectory() as root:
        for name, text in tree.items():
            os.makedirs(os.path.join(root, os.path.dirname(name)), exist_ok=True)
            with open(os.path.join(root, name), "w", encoding="utf-8") as f:
                f.write(text)
        found = rule(root, tree_files(root))
    return len([f for f in found if f.startswith(expected)]) > 0


def main():
    root = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else os.path.dirname(os.path.dirname(
        os.path.dirname(os.path.abspath(__file__))))
    files = tree_files(root)
    failed = False
    number = 0
    print("1..%d" % (2 * len(RULES)))
    for rule in RULES:
        number += 1
        seen = planted_is_found(rule)
        print("%s %d - a planted offence is found: %s" % ("ok" if seen else "not ok", number, rule.__doc__))
        number += 1
        bad = rule(root, files)
        print("%s %d - %s" % ("not ok" if bad else "ok", number, rule.__doc__))
        for line in bad[:50]:
            print("#   " + line)
        if bad or not seen:
            failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
