#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Lays out the given C files, or all of them, with the version of clang-format that .clang-format is written for.
set -eu
top=$(cd "$(dirname "$0")/.." && pwd -P)
tool=$(command -v clang-format-14 || command -v clang-format) || {
    echo "format: clang-format is not installed: scripts/setup.sh test" >&2
    exit 1
}
case "$("$tool" --version)" in
*version\ 14.*) ;;
*)
    echo "format: the layout is defined by clang-format 14, this is $("$tool" --version)" >&2
    exit 1
    ;;
esac
if [ $# -eq 0 ]; then
    cd "$top"
    find include lib proto net engine router sim tests bench examples -name '*.[ch]' -exec "$tool" -i --style=file {} +
else
    "$tool" -i --style=file "$@"
fi
