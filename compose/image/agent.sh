#!/bin/sh
# Start the agent with the host's view of control groups, and under the host's name, as far as that is allowed: where the
# container shares the host's process ids, process 1 is the host's. On cgroup v1 Docker gives that view by itself.
set -eu
namespaces=
for namespace in --cgroup --uts; do
    if nsenter --target 1 "$namespace" true 2>/dev/null; then namespaces="$namespaces $namespace"; fi
done
# shellcheck disable=SC2086 # two words
[ -z "$namespaces" ] || exec nsenter --target 1 $namespaces -- turnbuckle run agent "$@"
exec turnbuckle run agent "$@"
