#!/usr/bin/env bash
# The services' images, turnbuckle-SERVICE:VERSION, in this machine's Docker Engine, on a registry's Debian:
#
#   scripts/make_images.sh [SERVICE...]     those of scripts/list_images.sh by default
#
# BASE, BUILD_BASE, TORCH_INDEX: as in compose/Dockerfile. Without a registry: scripts/make_images_offline.sh, which gives them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

services=("$@")
[ $# -gt 0 ] || mapfile -t services < <(scripts/list_images.sh)
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
settings=()
for name in BASE BUILD_BASE TORCH_INDEX; do
    [ -z "${!name:-}" ] || settings+=(--build-arg "$name=${!name}")
done
for service in "${services[@]}"; do
    docker build --file compose/Dockerfile --build-arg SERVICE="$service" "${settings[@]}" --tag "turnbuckle-$service:$version" .
done
