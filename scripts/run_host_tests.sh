#!/usr/bin/env bash
# `make test-host`: scripts/run_host_tests.sh [PYTEST OPTIONS]. Every part runs, also if one before it fails.
#   VM_LOCK=FILE  another process runs the emulated machines and holds this lock (flock) until they have ended: they are
#                 left out here, and what needs the machine for itself starts when the lock is free
# Parts that use different resources of the machine run side by side; their output comes part by part, in whole.
# Tests whose assertions are about time (mark `alone`) come last, one after another, with nothing beside them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly no_tests=5 # pytest's exit code where options such as -k leave none in one of the parts
readonly folders=(tests/kernel tests/lab tests/system tests/compose)
# Soaks stand apart (`make soak`, `pytest tests/system/test_soak.py`): what random faults find is rare by nature.
readonly without=--ignore=tests/system/test_soak.py
failed=0
logs=$(mktemp -d)
lane=
end() {
    [ -z "$lane" ] || kill "$lane" 2>/dev/null || true
    rm -rf "$logs"
}
trap end EXIT

# run_part NAME PYTEST-ARGUMENT...: in this shell; its exit code to a file
run_part() {
    local name=$1 code=0
    shift
    printf '\n== test-host: %s, after %s s\n' "$name" "$SECONDS"
    .venv/bin/python -m pytest -o cache_dir="$logs/cache-$name" --durations 25 "$@" || code=$?
    printf '== test-host: %s ends with %s, after %s s\n' "$name" "$code" "$SECONDS"
    [ "$code" -eq 0 ] || [ "$code" -eq "$no_tests" ] || echo "$code" >"$logs/failed-$name"
}

# Network namespaces with FRR in them, then the Docker Engine: neither needs many processors, both wait much.
beside() {
    run_part namespaces "${folders[@]}" $without -m 'netns and not docker and not vm and not alone' "$@"
    run_part docker "${folders[@]}" $without -m 'docker and not vm and not alone' "$@"
}

run_part units tests/unit tests/contract tests/integration -m host --numprocesses auto --dist loadfile "$@"
if [ -n "${VM_LOCK:-}" ]; then
    flock "$VM_LOCK" true
else
    run_part machines tests/lab -m vm "$@"
fi
beside "$@" >"$logs/beside" 2>&1 &
lane=$!
run_part groups "${folders[@]}" $without -m 'not netns and not docker and not vm and not alone' "$@"
wait "$lane" || failed=$?
lane=
cat "$logs/beside"
run_part alone "${folders[@]}" $without -m 'alone and not vm' "$@"

for file in "$logs"/failed-*; do
    [ -e "$file" ] || continue
    failed=$(cat "$file")
    echo "test-host: ${file##*/failed-} has failed ($failed)" >&2
done
exit "$failed"
