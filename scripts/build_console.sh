#!/bin/sh
# Build the web console's page: services/console/ui into services/console/static, from the locked npm packages.
# Node and npm are needed here only; what is built is committed and shipped.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
source=$root/services/console/ui
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -R "$source/." "$work"
cd "$work"
npm ci --no-audit --no-fund
npm run --silent check
npm run --silent build -- --logLevel warn
rm -rf "$root/services/console/static"
cp -R dist "$root/services/console/static"
cd "$root"
python3 -m scripts.console_digest --write
