#!/usr/bin/env bash
# Images of this machine's Docker Engine into a node's container runtime, without a registry:
#
#   scripts/load_images.sh kind|k3s|containerd [IMAGE...]
#
#   kind        into every node of the cluster KIND_CLUSTER (default: kind)
#   k3s         into the k3s of this machine, as root
#   containerd  into the containerd of this machine, as root, where the kubelet finds them (namespace k8s.io)
#
# Without IMAGE, a NAME:TAG: those of the Helm chart, turnbuckle-SERVICE:VERSION. compose/Dockerfile says how they are built.
# Printed are the lines that name them by digest below `images:` of a kustomize overlay: the node has them under it, too.
set -euo pipefail
shopt -s inherit_errexit
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly root
mapfile -t services < <("$root/scripts/list_images.sh")
readonly services

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

# Each node's ctr, a command a line.
node_ctrs() {
    local node
    case $target in
        kind) for node in $(kind get nodes --name "$cluster"); do echo "docker exec $node ctr -n k8s.io"; done ;;
        k3s) echo "k3s ctr -n k8s.io" ;;
        containerd) echo "ctr -n k8s.io" ;;
    esac
}

# NAME:TAG as a container runtime stores it.
reference() {
    case $1 in
        */*) case ${1%%/*} in *.* | *:* | localhost) echo "$1" ;; *) echo "docker.io/$1" ;; esac ;;
        *) echo "docker.io/library/$1" ;;
    esac
}

# Give an image its digest as a second name on one node, and print the digest.
name_by_digest() {
    local reference=$1 digest
    shift
    digest=$("$@" images ls "name==$reference" | awk 'NR == 2 { print $3 }')
    [[ $digest = sha256:* ]] || fail "$reference is not in the node's runtime after the import ($*)"
    "$@" images tag --force "$reference" "${reference%:*}@$digest" >/dev/null
    echo "$digest"
}

readonly cluster=${KIND_CLUSTER:-kind}
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
say "saving ${images[*]}"
docker save --output "$directory/images.tar" "${images[@]}"
case $target in
    kind) kind load image-archive "$directory/images.tar" --name "$cluster" ;;
    k3s) k3s ctr -n k8s.io images import "$directory/images.tar" ;;
    containerd) ctr -n k8s.io images import "$directory/images.tar" ;;
esac >&2
say "loaded ${#images[@]} images"

mapfile -t nodes < <(node_ctrs)
[ ${#nodes[@]} -gt 0 ] || fail "kind knows no node of the cluster $cluster"
for image in "${images[@]}"; do
    digests=()
    for node in "${nodes[@]}"; do
        read -ra command <<<"$node"
        digest=$(name_by_digest "$(reference "$image")" "${command[@]}")
        [[ " ${digests[*]} " = *" $digest "* ]] || digests+=("$digest")
    done
    [ ${#digests[@]} -eq 1 ] || fail "the nodes' runtimes differ, so $image has no common digest: ${digests[*]}"
    echo "  - {name: ${image%:*}, digest: \"${digests[0]}\"}"
done
say "the lines name them by digest: below \`images:\` of a kustomize overlay; helm: --set SERVICE.image.digest=sha256:... (cli: apps)"
