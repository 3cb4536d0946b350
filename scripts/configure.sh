#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Prepares one of the build directories that are tested, once; later calls return at once:
#
#       scripts/configure.sh release    build/         gcc, optimized: what make build leaves
#       scripts/configure.sh clang      build-clang/   clang, optimized: its warnings, and the checkers' commands
#       scripts/configure.sh asan       build-asan/    clang, address and undefined-behaviour sanitizers, fuzz targets
#       scripts/configure.sh tsan       build-tsan/    clang, thread sanitizer
#
# Further arguments go to meson at the first set-up. KVROUTE_BUILD_ROOT puts the directories elsewhere.
set -eu

kind=$1
shift
cd "$(dirname "$0")/.."
root=${KVROUTE_BUILD_ROOT:-.}

case "$kind" in
release)
    dir=$root/build
    export CC="${CC:-gcc}"
    ;;
clang)
    dir=$root/build-clang
    export CC="${CLANG:-clang}"
    ;;
asan)
    dir=$root/build-asan
    export CC="${CLANG:-clang}"
    # Optimized a little: the sanitizers find the same, three times as fast.
    set -- -Db_sanitize=address,undefined -Db_lundef=false -Doptimization=1 -Dfuzz=true -Dbenchmarks=false "$@"
    ;;
tsan)
    dir=$root/build-tsan
    export CC="${CLANG:-clang}"
    set -- -Db_sanitize=thread -Db_lundef=false -Doptimization=1 -Dbenchmarks=false "$@"
    ;;
*)
    echo "configure: no kind '$kind': release, clang, asan or tsan" >&2
    exit 2
    ;;
esac

if [ -f "$dir/build.ninja" ]; then
    # A tree that was copied or moved carries paths of its old place.
    if grep -qF "\"$(pwd -P)\"" "$dir/meson-info/meson-info.json" 2>/dev/null; then
        exit 0
    fi
    set -- --wipe "$@"
fi
echo "configure: $dir ($CC, $kind)" >&2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# What meson found is of interest when something was not; it is in meson-logs/meson-log.txt besides.
if ! meson setup "$dir" "$@" >"$log" 2>&1; then
    cat "$log" >&2
    exit 1
fi
grep WARNING: "$log" >&2 || true
