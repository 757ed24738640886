#!/usr/bin/env bash
# The services with an image, turnbuckle-SERVICE, a line each: those of the kustomize base.
set -euo pipefail
sed -n 's/^  - {name: turnbuckle-\([a-z]*\), newTag: .*}$/\1/p' "$(dirname "${BASH_SOURCE[0]}")/../compose/kubernetes/base/kustomization.yaml"
