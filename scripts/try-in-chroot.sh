#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Builds and tests this tree in a minimal root of another Debian release, the way a newcomer would: a copy of the tree,
# make build, unit tests.
#
#       scripts/try-in-chroot.sh trixie                 what is committed
#       scripts/try-in-chroot.sh --worktree bookworm    the files as they are now, without build directories
#       scripts/try-in-chroot.sh --keep trixie          leave the root in place: the next run is quicker
#       scripts/try-in-chroot.sh trixie make test       another command than the default
#
# Needs root and debootstrap. KVROUTE_CHROOT is where the root goes (default /var/tmp/kvroute-RELEASE).
set -eu

worktree=no
keep=no
while :; do
    case "${1:-}" in
    --worktree) worktree=yes ;;
    --keep) keep=yes ;;
    *) break ;;
    esac
    shift
done
[ $# -ge 1 ] || {
    echo "usage: scripts/try-in-chroot.sh [--worktree] [--keep] RELEASE [COMMAND...]" >&2
    exit 2
}
release=$1
shift
[ "$(id -u)" -eq 0 ] || {
    echo "try-in-chroot: needs root" >&2
    exit 1
}
command -v debootstrap >/dev/null 2>&1 || {
    echo "try-in-chroot: needs debootstrap (apt-get install debootstrap)" >&2
    exit 1
}
top=$(cd "$(dirname "$0")/.." && pwd -P)
root=${KVROUTE_CHROOT:-/var/tmp/kvroute-$release}

# The mirror this machine uses for Debian: the first source of a component main, in either of apt's formats.
mirror=$(
    {
        find /etc/apt/sources.list.d -name '*.sources' -type f -exec cat {} + 2>/dev/null |
            sed -n 's/^URIs:[ \t]*\([^ \t]*\).*/\1/p'
        find /etc/apt -maxdepth 2 -name '*.list' -type f -exec cat {} + 2>/dev/null |
            sed -n 's/^deb[ \t][ \t]*\(\[[^]]*\][ \t]*\)\{0,1\}\([^ \t]*\)[ \t].*/\2/p'
    } | grep -E '/debian/?$' | head -n 1
)
[ -n "$mirror" ] || {
    echo "try-in-chroot: no Debian mirror in /etc/apt" >&2
    exit 1
}

if [ ! -e "$root/etc/debian_version" ]; then
    echo "try-in-chroot: $release from $mirror into $root" >&2
    debootstrap --variant=minbase --include=ca-certificates "$release" "$root" "$mirror" >&2
fi
# Behind an inspecting proxy the outer system's certificates and apt settings are the ones that work.
cp /etc/resolv.conf "$root/etc/resolv.conf"
cp /etc/hosts "$root/etc/hosts"
if [ -r /etc/ssl/certs/ca-certificates.crt ]; then
    cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
fi
apt-config dump | grep -E '^Acquire::(http|https)::Proxy |^Acquire::Check-' >"$root/etc/apt/apt.conf.d/90outer" || true

rm -rf "$root/root/kvroute"
mkdir -p "$root/root/kvroute"
if [ "$worktree" = yes ]; then
    (cd "$top" && git ls-files -z --cached --others --exclude-standard | tar -c --null --ignore-failed-read -T - 2>/dev/null) |
        tar -x -C "$root/root/kvroute"
else
    git -C "$top" archive HEAD | tar -x -C "$root/root/kvroute"
fi

mounted=
finish() {
    for m in $mounted; do
        umount "$m" 2>/dev/null || umount -l "$m" || true
    done
    if [ "$keep" = no ]; then
        rm -rf --one-file-system "$root"
    fi
}
trap finish EXIT
trap 'exit 1' INT TERM HUP
mount -t proc proc "$root/proc"
mounted="$root/proc"
# The root has device nodes of its own (debootstrap makes them); the outer /dev stays out of it.
mkdir -p "$root/dev/shm"
mount -t tmpfs tmpfs "$root/dev/shm" && mounted="$root/dev/shm $mounted"
# Terminals of its own, for the tests that need one.
mkdir -p "$root/dev/pts"
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts "$root/dev/pts" && mounted="$root/dev/pts $mounted"
ln -sfn pts/ptmx "$root/dev/ptmx"

[ $# -gt 0 ] || set -- sh -c 'make build && ls -l build/kvroute && scripts/test.py unit arch install'
env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
    chroot "$root" sh -ec '
        command -v make >/dev/null 2>&1 || { apt-get -q update && apt-get -q -y install --no-install-recommends make; } >&2
        cd /root/kvroute
        exec "$@"
    ' sh "$@" </dev/null
