#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the program says about itself and what docs/ says are one text; prints TAP.

    check_docs.py KVROUTE DOCS-DIR             compare
    check_docs.py --write KVROUTE DOCS-DIR     bring the pages up to date (make docs)

Pages that come whole from the program's tables (kvroute --dump-docs NAME) are compared byte by byte.
"""

import os
import subprocess
import sys

PAGES = ["options", "metrics"]


def output(arguments):
    done = subprocess.run(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          timeout=60, check=False)
    return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


def main():
    arguments = [a for a in sys.argv[1:] if a != "--write"]
    write = len(arguments) != len(sys.argv) - 1
    kvroute, docs = arguments
    results = []
    for page in PAGES:
        path = os.path.join(docs, page + ".md")
        status, text, errors = output([kvroute, "--dump-docs", page])
        if status != 0 or not text:
            results.append(("docs/%s.md" % page, ["--dump-docs %s: exit status %d" % (page, status)] + errors.split("\n")))
            continue
        if write:
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
        have = ""
        if os.path.exists(path):
            with open(path, encoding="utf-8") as f:
                have = f.read()
        results.append(("docs/%s.md is what the program's table says" % page,
                        [] if have == text else ["differs: run make docs"]))

    status, man, errors = output([kvroute, "--dump-man"])
    results.append(("the man page is one", [] if status == 0 and man.startswith((".TH ", ".\\\"")) else
                    ["--dump-man: exit status %d" % status] + errors.split("\n")))
    # Every option of the table is in the man page and in --help.
    status, help_text, errors = output([kvroute, "serve", "--help"])
    names = [line.split("`")[1].split()[0] for line in output([kvroute, "--dump-docs", "options"])[1].split("\n")
             if line.startswith("| `--")]
    absent = [n for n in names if n not in help_text or n.replace("-", "\\-") not in man and n not in man]
    results.append(("--help and the man page name every option of docs/options.md",
                    ["not there: " + n for n in absent] if names else ["no options found"]))

    print("1..%d" % len(results))
    for number, (title, bad) in enumerate(results, 1):
        print("%s %d - %s" % ("not ok" if bad else "ok", number, title))
        for line in bad:
            print("#   " + line)
    return 1 if any(bad for _, bad in results) else 0


if __name__ == "__main__":
    sys.exit(main())
