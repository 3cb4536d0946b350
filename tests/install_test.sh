#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Installs a build directory below a scratch root and uses the result as a stranger would: by pkg-config, from C and C++,
# with the shared and the static library. Prints TAP.
#
#       tests/install_test.sh BUILD-DIRECTORY
set -u
build=$1
top=$(cd "$(dirname "$0")/.." && pwd -P)
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
number=0
failed=0

check() { # TITLE COMMAND...
    title=$1
    shift
    number=$((number + 1))
    if "$@" >"$scratch/out" 2>&1; then
        echo "ok $number - $title"
    else
        echo "not ok $number - $title"
        sed 's/^/# /' "$scratch/out"
        failed=1
    fi
}

if ! DESTDIR=$scratch/root meson install -C "$build" --no-rebuild --quiet >"$scratch/log" 2>&1; then
    echo "not ok 1 - meson install"
    sed 's/^/# /' "$scratch/log"
    echo "1..1"
    exit 1
fi
pc=$(find "$scratch/root" -name libkvroute.pc | head -n 1)
PKG_CONFIG_PATH=$(dirname "$pc")
PKG_CONFIG_SYSROOT_DIR=$scratch/root
export PKG_CONFIG_PATH PKG_CONFIG_SYSROOT_DIR
libdir=$scratch/root$(env -u PKG_CONFIG_SYSROOT_DIR pkg-config --variable=libdir libkvroute)
CC=${CC:-cc}

cat >"$scratch/stranger.c" <<'PROGRAM'
#include <kvroute/kvroute.h>

#include <stdio.h>

int main(void)
{
        struct kvr_slice path = {"/v1/chat/completions", sizeof "/v1/chat/completions" - 1};

        printf("%s %s\n", kvr_status_name(KVR_OK), kvr_api_name(kvr_api_of_path(path)));
        return kvr_api_of_path(path) == KVR_API_CHAT ? 0 : 1;
}
PROGRAM

for header in "$top"/include/kvroute/*.h; do
    name=$(basename "$header")
    echo "#include <kvroute/$name>" >"$scratch/alone.c"
    # shellcheck disable=SC2046
    check "kvroute/$name stands alone" "$CC" -std=c11 -Wall -Wextra -pedantic -Werror -fsyntax-only \
        $(pkg-config --cflags libkvroute) "$scratch/alone.c"
done

shared() {
    # shellcheck disable=SC2046
    "$CC" "$scratch/stranger.c" -o "$scratch/shared" $(pkg-config --cflags --libs libkvroute) &&
        LD_LIBRARY_PATH=$libdir "$scratch/shared"
}
check "a program with the shared library" shared

static() {
    rm -f "$libdir"/libkvroute.so*
    # shellcheck disable=SC2046
    "$CC" "$scratch/stranger.c" -o "$scratch/static" $(pkg-config --static --cflags --libs libkvroute) && "$scratch/static"
}
check "a program with the static library" static

if command -v g++ >/dev/null 2>&1; then
    cp "$scratch/stranger.c" "$scratch/stranger.cc"
    # shellcheck disable=SC2046
    check "the headers from C++" g++ -std=c++17 -Wall -Wextra -Werror -fsyntax-only \
        $(pkg-config --cflags libkvroute) "$scratch/stranger.cc"
fi

program=$(find "$scratch/root" -path '*/bin/kvroute' | head -n 1)
version() {
    env -u LD_LIBRARY_PATH "$program" --version | grep -qE '^kvroute [0-9]+\.[0-9]+'
}
check "the installed program runs without the library beside it" version

echo "1..$number"
exit "$failed"
