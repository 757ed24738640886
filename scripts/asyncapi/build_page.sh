#!/bin/sh
# Build docs/asyncapi.html anew from docs/asyncapi-page and the locked npm packages. Needs node and npm, and Turnbuckle's
# .venv for its Python. A changed asyncapi.json alone needs none of it: `make docs` puts that into the page that is there.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -R "$root/docs/asyncapi-page/." "$work"
cd "$work"
npm ci --ignore-scripts
npm run --silent validate -- "$root/docs/asyncapi.json"
npm run --silent build -- --logLevel warn
cd "$root"
"${PYTHON:-.venv/bin/python}" -m scripts.asyncapi.page "$work/dist"
