#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Builds what is installed (the program, libkvroute, the manual page) in a directory that scripts/configure.sh prepared,
# shows how far it is, and says where the program is:
#
#       scripts/build.sh [BUILD-DIRECTORY]
#
# On a terminal ninja draws its one line; elsewhere there is a line for each quarter. Tests are built by those who run them.
set -eu
cd "$(dirname "$0")/.."
build=${1:-build}

if [ -t 1 ]; then
    NINJA_STATUS='[%f/%t, %es] ' ninja -C "$build" product
else
    status=$(mktemp)
    trap 'rm -f "$status"' EXIT
    { NINJA_STATUS='[%f/%t] ' ninja -C "$build" product 2>&1 || echo $? >"$status"; } | awk '
        /^ninja: (Entering directory|no work to do)/ { next }
        /^\[[0-9]+\/[0-9]+\] / {
            split(substr($1, 2), n, /[\/\]]/)
            if (int(4 * n[1] / n[2]) > quarter && n[2] > 20) {
                quarter = int(4 * n[1] / n[2])
                print "build: " n[1] " of " n[2] " steps"
                fflush()
            }
            next
        }
        { print; fflush() }'
    [ ! -s "$status" ] || exit "$(cat "$status")"
fi
echo "build: the program is $build/kvroute"
