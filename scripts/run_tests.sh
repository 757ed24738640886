#!/usr/bin/env bash
# Every test but those of emulated machines: scripts/run_tests.sh [PYTEST OPTIONS]. Used by `make test`.
# What neither times a container nor needs the machine for itself runs on all cores; control groups, labs and whole
# systems one after the other on a quiet machine. Both parts run, also if the first one fails.
#   QUIET_LOCK=FILE  the second part waits until nobody holds a lock (flock) on it any more
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly no_tests=5 # pytest's exit code where options such as -k leave none in one of the parts
failed=0

run_part() {
    local code=0
    .venv/bin/python -m pytest -m 'not vm' "$@" || code=$?
    [ "$code" -eq 0 ] || [ "$code" -eq "$no_tests" ] || failed=$code
}

run_part tests/unit tests/contract tests/integration --numprocesses auto --dist loadfile "$@"
[ -z "${QUIET_LOCK:-}" ] || flock "$QUIET_LOCK" true
# Soaks stand apart (`make soak`, `pytest tests/system/test_soak.py`): what random faults find is rare by nature.
run_part tests/kernel tests/lab tests/system --ignore=tests/system/test_soak.py "$@"
exit "$failed"
