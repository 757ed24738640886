#!/usr/bin/env bash
# `make test-host`: scripts/run_host_tests.sh [PYTEST OPTIONS]. Every part runs, also if one before it fails.
#   VM_LOCK=FILE  another process runs the emulated machines and holds this lock (flock) until they have ended: they are
#                 left out here, and what needs the machine for itself starts when the lock is free
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly no_tests=5 # pytest's exit code where options such as -k leave none in one of the parts
failed=0

run_part() {
    local code=0
    .venv/bin/python -m pytest --durations 25 "$@" || code=$?
    [ "$code" -eq 0 ] || [ "$code" -eq "$no_tests" ] || failed=$code
}

run_part tests/unit tests/contract tests/integration -m host --numprocesses auto --dist loadfile "$@"
if [ -n "${VM_LOCK:-}" ]; then
    flock "$VM_LOCK" true
else
    run_part tests/lab -m vm "$@"
fi
# Soaks stand apart (`make soak`, `pytest tests/system/test_soak.py`): what random faults find is rare by nature.
run_part tests/kernel tests/lab tests/system tests/compose -m 'not vm' --ignore=tests/system/test_soak.py "$@"
exit "$failed"
