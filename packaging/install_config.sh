#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Run by `meson install`: the example becomes the configuration where there is none yet; an existing one is somebody's.
#
#       packaging/install_config.sh EXAMPLE DIRECTORY
set -eu
target=${DESTDIR:-}$2/kvroute.yaml
[ ! -e "$target" ] || exit 0
mkdir -p "$(dirname "$target")"
cp "$1" "$target"
chmod 644 "$target"
[ -n "${MESON_INSTALL_QUIET:-}" ] || echo "Installing example configuration to $target"
