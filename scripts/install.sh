#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Installs what scripts/build.sh built, below DESTDIR if that is set:
#
#       scripts/install.sh PREFIX [BUILD-DIRECTORY]
set -eu
cd "$(dirname "$0")/.."
prefix=$1
build=${2:-build}
log=$build/meson-logs/install.txt

quietly() { # COMMAND...: its output is of interest when it fails
    "$@" >"$log" 2>&1 || {
        status=$?
        cat "$log" >&2
        exit "$status"
    }
}

now=$(python3 -c 'import json, sys
print(next(o["value"] for o in json.load(open(sys.argv[1])) if o["name"] == "prefix"))' \
    "$build/meson-info/intro-buildoptions.json")
if [ "$now" != "$prefix" ]; then
    # The prefix is in the unit, the pkg-config file and the place of the configuration: these are written anew.
    quietly meson configure "$build" "-Dprefix=$prefix"
    quietly ninja -C "$build" build.ninja
    quietly ninja -C "$build" product
fi
quietly meson install -C "$build" --no-rebuild --quiet
root=${DESTDIR:-}
echo "install: $root$prefix/bin/kvroute, with headers, library, manual page and systemd unit below $root$prefix"
