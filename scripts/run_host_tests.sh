#!/usr/bin/env bash
# `make test-host`: scripts/run_host_tests.sh [PYTEST OPTIONS]. Every part runs, also if one before it fails.
#   VM_LOCK=FILE  another process runs the emulated machines and holds this lock (flock) until they have ended: they are
#                 left out here
# Two lanes run side by side, and the emulated machines (one busy processor) beside what mostly waits in both: the Docker
# Engine, and tests with the mark `patient`. What has bounds that need a processor begins when the machines have ended;
# what asserts a time (mark `alone`) comes last, one after another, with nothing beside it. Output comes part by part.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly no_tests=5 # pytest's exit code where options such as -k leave none in one of the parts
readonly folders=(tests/kernel tests/lab tests/system tests/compose)
readonly others=(tests/unit tests/contract tests/integration) # where a few tests are `host` by a mark of their own
# Soaks stand apart (`make soak`, `pytest tests/system/test_soak.py`): what random faults find is rare by nature.
readonly without=--ignore=tests/system/test_soak.py
logs=$(mktemp -d)
readonly logs machines_over=$logs/machines-over
declare -A pids=()
end() {
    local pid
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
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

# start_lane NAME COMMAND...: beside what follows
start_lane() {
    local name=$1
    shift
    "$@" >"$logs/$name" 2>&1 &
    pids[$name]=$!
}

# ended NAME: waits for a lane, and prints what it has printed
ended() {
    wait "${pids[$1]}" || echo "$?" >"$logs/failed-$1"
    unset "pids[$1]"
    cat "$logs/$1"
}

machines() {
    if [ -n "${VM_LOCK:-}" ]; then
        flock "$VM_LOCK" true
    else
        run_part machines tests/lab -m vm "$@"
    fi
}

containers() {
    run_part docker "${folders[@]}" "${others[@]}" $without -m 'docker and not netns and not vm and not alone' "$@"
    until [ -e "$machines_over" ]; do sleep 1; done
    run_part groups "${folders[@]}" $without -m 'not patient and not netns and not docker and not vm and not alone' "$@"
}

start_lane machines machines "$@"
start_lane containers containers "$@"
run_part units "${others[@]}" -m 'host and not docker and not alone' --numprocesses auto --dist loadfile "$@"
run_part patient "${folders[@]}" $without -m 'patient and not netns and not docker and not vm and not alone' "$@"
ended machines
touch "$machines_over"
run_part namespaces "${folders[@]}" $without -m 'netns and not vm and not alone' "$@"
ended containers
run_part alone "${folders[@]}" "${others[@]}" $without -m 'alone and host and not vm' "$@"

failed=0
for file in "$logs"/failed-*; do
    [ -e "$file" ] || continue
    failed=$(cat "$file")
    echo "test-host: ${file##*/failed-} has failed ($failed)" >&2
done
exit "$failed"
