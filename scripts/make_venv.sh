#!/usr/bin/env bash
# Install this checkout, editable, with the extras given, into .venv: scripts/make_venv.sh EXTRA[,EXTRA...]
# PYTHON= names an interpreter; without it the first usable one is taken. Everything is printed to stderr, because
# `make run ARGS=--json` has one JSON object on stdout.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

extras=$1
venv=.venv
here=$(pwd -P)

say() { printf 'make: %s\n' "$*" >&2; }

usable() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

# A name may resolve to a shim that this user cannot run: only running it tells.
find_python() {
    if [ -n "${PYTHON:-}" ]; then
        usable "$PYTHON" && echo "$PYTHON" && return
        say "PYTHON=$PYTHON is no Python of 3.11 or later that runs"
        return 1
    fi
    local candidate
    for candidate in python3 python3.11 python3.12 python3.13 python3.14 /usr/bin/python3; do
        if usable "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    say "no Python of 3.11 or later found: apt-get install python3 python3-venv (Debian 12), or set PYTHON="
    return 1
}

# The venv module needs ensurepip, which Debian keeps in a package of its own: fall back to virtualenv, then to an
# environment without pip that another pip fills.
make_environment() {
    local python=$1
    rm -rf "$venv"
    "$python" -m venv "$venv" >/dev/null 2>&1 && return
    say "$python -m venv does not work here (python3-venv missing?), trying virtualenv"
    rm -rf "$venv"
    "$python" -m virtualenv --quiet "$venv" 2>/dev/null && return
    if command -v virtualenv >/dev/null && virtualenv --quiet --python "$python" "$venv" >&2; then return; fi
    say "no virtualenv either, trying an environment that the system's pip fills"
    rm -rf "$venv"
    if "$python" -m venv --without-pip "$venv" && "$python" -m pip --python "$venv/bin/python" install --quiet pip >&2; then
        return
    fi
    rm -rf "$venv"
    say "cannot make a virtual environment: apt-get install python3-venv"
    return 1
}

if ! [ -w . ]; then
    say "$here is not writable for $(id -un): clone it to a place of your own"
    exit 1
fi
# An environment belongs to the path that it was made at: entry points and the editable install name it.
if ! usable "$venv/bin/python" || [ "$(cat "$venv/checkout" 2>/dev/null)" != "$here" ]; then
    python=$(find_python)
    say "making $venv with $("$python" --version) ($python)"
    make_environment "$python"
    printf '%s\n' "$here" >"$venv/checkout"
fi
say "installing turnbuckle[$extras] with the versions of constraints.txt"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --root-user-action=ignore \
    --constraint constraints.txt --editable ".[$extras]" >&2
