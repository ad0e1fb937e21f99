#!/bin/sh
# base/packages.sh [--check]: installs the Debian packages that are missing, as root or with sudo; otherwise prints the one
# command that does. --check never installs. Exit 0: everything is there.
set -u
WANT="gcc libc6-dev make pkg-config libhdf5-dev libgsl-dev liblapacke-dev libopenblas-dev libpcre2-dev libjansson-dev
libutf8proc-dev libssl-dev libcmocka-dev libmpfr-dev gnuplot-nox fonts-dejavu-core"
missing=""
for p in $WANT; do
    case $p in
    gnuplot-nox) command -v gnuplot >/dev/null 2>&1 && continue ;; # gnuplot-x11 and -qt do as well
    gcc | make) command -v "$p" >/dev/null 2>&1 && continue ;;
    esac
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'install ok installed' || missing="$missing $p"
done
[ -z "$missing" ] && exit 0
if ! command -v apt-get >/dev/null 2>&1; then
    echo "attgeo needs the counterparts of these Debian packages:$missing" >&2
    exit 1
fi
sudo=""
if [ "$(id -u)" != 0 ]; then
    if command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then sudo="sudo"; else sudo="none"; fi
fi
if [ "${1:-}" = --check ] || [ "$sudo" = none ]; then
    echo "Debian packages are missing. Install them with:" >&2
    echo "  sudo apt-get update && sudo apt-get install -y$missing" >&2
    exit 1
fi
echo "installing:$missing" >&2
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086
$sudo apt-get update -qq >/dev/null && $sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null
