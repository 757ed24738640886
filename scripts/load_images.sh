#!/usr/bin/env bash
# Images of this machine's Docker Engine into a node's container runtime, without a registry:
#
#   scripts/load_images.sh kind|k3s|containerd [IMAGE...]
#
#   kind        into every node of the cluster KIND_CLUSTER (default: kind)
#   k3s         into the k3s of this machine, as root
#   containerd  into the containerd of this machine, as root, where the kubelet finds them (namespace k8s.io)
#
# Without IMAGE: those of the Helm chart, turnbuckle-SERVICE:VERSION. compose/Dockerfile says how they are built.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly root
readonly services=(agent reconciler allocator collector advisor kubeoperator cli)

say() { printf 'load images: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

target=${1:-}
case $target in
    kind | k3s) program=$target ;;
    containerd) program=ctr ;;
    *) fail "usage: scripts/load_images.sh kind|k3s|containerd [IMAGE...]" ;;
esac
shift
for needed in docker "$program"; do
    command -v "$needed" >/dev/null || fail "needs the command $needed"
done

images=("$@")
if [ $# -eq 0 ]; then
    version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$root/pyproject.toml")
    for service in "${services[@]}"; do images+=("turnbuckle-$service:$version"); done
fi
missing=()
for image in "${images[@]}"; do
    docker image inspect "$image" >/dev/null 2>&1 || missing+=("$image")
done
[ ${#missing[@]} -eq 0 ] || fail "not in the Docker Engine, nothing was loaded: ${missing[*]}"

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
say "saving ${images[*]}"
docker save --output "$directory/images.tar" "${images[@]}"
case $target in
    kind) kind load image-archive "$directory/images.tar" --name "${KIND_CLUSTER:-kind}" ;;
    k3s) k3s ctr -n k8s.io images import "$directory/images.tar" ;;
    containerd) ctr -n k8s.io images import "$directory/images.tar" ;;
esac
say "loaded ${#images[@]} images"
