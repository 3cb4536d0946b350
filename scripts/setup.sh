#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Installs what the given groups need from the distribution's packages, and does nothing (in a fraction of a second)
# when it is all there:
#
#       scripts/setup.sh build                compiler, meson, libraries
#       scripts/setup.sh build test           and clang, the checkers, pytest
#       scripts/setup.sh build test bench     and the servers and load generators that benchmarks compare with
#       scripts/setup.sh --print build        only lists what is missing; exit status 1 if anything is
#
# Runs as root or through sudo. On Debian 12 two small libraries come from Debian 13: see pin_two_libraries.
set -eu

# package|how to see that its purpose is served already, whoever installed it: cmd:NAME or pc:PKG-CONFIG-NAME
BUILD_PACKAGES='
gcc|cmd:gcc
libc6-dev|dpkg
meson|cmd:meson
ninja-build|cmd:ninja
pkg-config|cmd:pkg-config
python3|cmd:python3
libuv1-dev|pc:libuv
libxxhash-dev|pc:libxxhash
libyaml-dev|pc:yaml-0.1
zlib1g-dev|pc:zlib
libzstd-dev|pc:libzstd
libzmq3-dev|pc:libzmq
libcmocka-dev|pc:cmocka
libllhttp-dev|pc:libllhttp
libyyjson-dev|pc:yyjson
libjs-chart.js|dpkg
'
TEST_PACKAGES='
clang|cmd:clang
llvm|cmd:llvm-symbolizer
LIBCLANG_RT|dpkg
clang-tidy|cmd:clang-tidy
clang-format|cmd:clang-format
cppcheck|cmd:cppcheck
curl|cmd:curl
python3-pytest|dpkg
python3-pytest-xdist|dpkg
python3-msgpack|dpkg
python3-venv|dpkg
nodejs|cmd:node
npm|cmd:npm
CHROMIUM|cmd:chromium-headless-shell
'
BENCH_PACKAGES='
wrk|cmd:wrk
nginx-light|cmd:nginx
valgrind|cmd:valgrind
'

say() {
    echo "setup: $*" >&2
}

die() {
    say "$*"
    exit 1
}

installed() { # PACKAGE: is it, by dpkg's own book?
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

satisfied() { # PACKAGE CHECK
    case "$2" in
    cmd:*) command -v "${2#cmd:}" >/dev/null 2>&1 || [ -x "/usr/sbin/${2#cmd:}" ] ;;
    pc:*) command -v pkg-config >/dev/null 2>&1 && pkg-config --exists "${2#pc:}" ;;
    *) installed "$1" ;;
    esac
}

# Which sources name the release $1 as a suite of its own (not its updates or security suite) with the component main,
# as lines "URI|options for Signed-By|Trusted". Reads both formats of apt: one line per source, and stanzas (deb822).
sources_of() {
    find /etc/apt/sources.list /etc/apt/sources.list.d -maxdepth 1 -name '*.list' -type f \
        -exec cat {} + 2>/dev/null | awk -v suite="$1" '
        $1 == "deb" {
            signed = ""; trusted = ""; i = 2
            if ($2 ~ /^\[/) {
                while (i <= NF && $i !~ /\]$/)
                    i++
                options = ""
                for (j = 2; j <= i; j++)
                    options = options " " $j
                gsub(/[][]/, " ", options)
                n = split(options, o, " ")
                for (j = 1; j <= n; j++) {
                    if (o[j] ~ /^signed-by=/) signed = substr(o[j], 11)
                    if (o[j] ~ /^trusted=/) trusted = substr(o[j], 9)
                }
                i++
            }
            uri = $i; main = 0
            if ($(i + 1) != suite) next
            for (j = i + 2; j <= NF; j++)
                if ($j == "main") main = 1
            if (main && uri !~ /^cdrom:/) print uri "|" signed "|" trusted
        }'
    find /etc/apt/sources.list.d -maxdepth 1 -name '*.sources' -type f 2>/dev/null | sort | while read -r file; do
        # An empty line ends the last stanza of each file.
        { cat "$file"; echo; } | awk -v suite="$1" '
        function has(list, word,   n, w, k) {
            n = split(list, w, /[ \t]+/)
            for (k = 1; k <= n; k++)
                if (w[k] == word) return 1
            return 0
        }
        function stanza(   n, u, k) {
            if (has(f["types"], "deb") && has(f["suites"], suite) && has(f["components"], "main") &&
                tolower(f["enabled"]) != "no") {
                n = split(f["uris"], u, /[ \t]+/)
                for (k = 1; k <= n; k++)
                    if (u[k] != "" && u[k] !~ /^cdrom:/) {
                        # A key that is written out in the stanza itself cannot be named; the default one is used.
                        print u[k] "|" (f["signed-by"] ~ /^\// ? f["signed-by"] : "") "|" f["trusted"]
                        break
                    }
            }
            split("", f)
        }
        /^#/ { next }
        /^[ \t]*$/ { stanza(); next }
        /^[ \t]/ { f[name] = f[name] $0; next }
        {
            at = index($0, ":")
            name = tolower(substr($0, 1, at - 1))
            value = substr($0, at + 1)
            gsub(/^[ \t]+|[ \t]+$/, "", value)
            f[name] = value
        }'
    done
}

# Debian 12 lacks yyjson and has llhttp only inside nodejs. Both exist in Debian 13 and need nothing newer than
# Debian 12's libc. The preferences let exactly these packages through, by the release's code name so that the rule stays
# right when there is a Debian 14, and give everything else of Debian 13 a negative priority: an upgrade proposes nothing.
pin_two_libraries() {
    if [ -e /etc/apt/sources.list.d/trixie-pinned.sources ] || [ -n "$(sources_of trixie)" ]; then
        return 0
    fi
    source=$(sources_of bookworm | head -n 1)
    [ -n "$source" ] || die "found no source for bookworm main in /etc/apt: cannot tell which mirror this machine uses"
    uri=${source%%|*}
    rest=${source#*|}
    signed=${rest%%|*}
    trusted=${rest#*|}
    [ -n "$signed" ] || signed=/usr/share/keyrings/debian-archive-keyring.gpg
    say "Debian 12: adding $uri trixie, pinned to libyyjson and libllhttp"

    # Preferences first: there must be no moment at which the new source is known and not held back.
    $SUDO tee /etc/apt/preferences.d/trixie-pinned >/dev/null <<PREFERENCES
Package: *
Pin: release n=trixie*
Pin-Priority: -10

Package: libyyjson0 libyyjson-dev libllhttp9.2 libllhttp-dev
Pin: release n=trixie*
Pin-Priority: 500
PREFERENCES
    {
        echo "Types: deb"
        echo "URIs: $uri"
        echo "Suites: trixie"
        echo "Components: main"
        [ ! -e "$signed" ] || echo "Signed-By: $signed"
        [ -z "$trusted" ] || echo "Trusted: $trusted"
    } | $SUDO tee /etc/apt/sources.list.d/trixie-pinned.sources >/dev/null
}

# apt waits for dpkg's lock by itself, but not for the lock on its lists: try again for up to five minutes.
apt_update() {
    tries=0
    while :; do
        if out=$($SUDO apt-get -q update 2>&1); then
            return 0
        fi
        case "$out" in
        *"Could not get lock"* | *"Unable to lock"*) ;;
        *)
            # Some other source of this machine may be broken; whether ours are good shows in the installation.
            printf '%s\n' "$out" | tail -n 5 >&2
            return 0
            ;;
        esac
        tries=$((tries + 1))
        [ "$tries" -lt 60 ] || die "apt is locked by another program for five minutes now"
        sleep 5
    done
}

print_only=no
if [ "${1:-}" = --print ]; then
    print_only=yes
    shift
fi
[ $# -gt 0 ] || set -- build

VERSION_CODENAME=
# shellcheck disable=SC1091
[ ! -r /etc/os-release ] || . /etc/os-release

wanted=
for group in "$@"; do
    case "$group" in
    build) wanted="$wanted $BUILD_PACKAGES" ;;
    test)
        # The fuzzer's and sanitizers' runtime has its compiler's version in its name.
        case "$VERSION_CODENAME" in
        bookworm) rt=14 ;;
        trixie) rt=19 ;;
        *) rt=$(apt-cache depends clang 2>/dev/null | sed -n 's/.*Depends: clang-\([0-9][0-9]*\)$/\1/p' | head -n 1) ;;
        esac
        # The browser that looks at the dashboard (100 MB to fetch, 310 MB on disk) is Debian's; elsewhere those tests
        # are skipped if there is none.
        case "$VERSION_CODENAME" in
        bookworm | trixie) chromium='s/CHROMIUM/chromium-headless-shell/' ;;
        *) chromium='/CHROMIUM/d' ;;
        esac
        wanted="$wanted $(printf '%s' "$TEST_PACKAGES" | sed -e "s/LIBCLANG_RT/libclang-rt-${rt:-14}-dev/" -e "$chromium")"
        ;;
    bench) wanted="$wanted $BENCH_PACKAGES" ;;
    *) die "no group '$group': build, test or bench" ;;
    esac
done

missing=
for row in $wanted; do
    satisfied "${row%%|*}" "${row#*|}" || missing="$missing ${row%%|*}"
done
[ -n "$missing" ] || exit 0

if [ "$print_only" = yes ]; then
    printf '%s\n' $missing
    exit 1
fi

command -v apt-get >/dev/null 2>&1 || die "needs$missing: install them by your system's means (there is no apt-get here)"
SUDO=
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null 2>&1 || die "needs$missing: run as root once, or install sudo"
    SUDO=sudo
    # Without a terminal sudo could only hang or fail at its question.
    [ -t 0 ] || SUDO="sudo -n"
    $SUDO true || die "needs$missing, and sudo refuses: run as root once"
fi

if [ "$VERSION_CODENAME" = bookworm ]; then
    case "$missing" in
    *libllhttp-dev* | *libyyjson-dev*) pin_two_libraries ;;
    esac
fi

say "installing$missing"
apt_update
# shellcheck disable=SC2086
$SUDO env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 \
    install --no-install-recommends $missing >&2 || die "apt-get could not install$missing"

for row in $wanted; do
    satisfied "${row%%|*}" "${row#*|}" || die "${row%%|*} is installed but ${row#*|} still does not answer"
done
