#!/usr/bin/env bash
# Bundle the page of `dop report`: tools/report/src and its libraries into src/doppler/report/assets.
# Needs Node 20; the result is committed, so that nothing else does.
set -euo pipefail
cd "$(dirname "$0")/report"
assets=../../src/doppler/report/assets
npm ci --no-audit --no-fund --silent
digest=$(cat src/*.js src/*.css package-lock.json | sha256sum | cut -d' ' -f1)
node_modules/.bin/esbuild src/main.js --bundle --minify --format=iife --target=es2022 \
  --charset=utf8 --legal-comments=none --banner:js="/* sources sha256:$digest */" \
  --outfile=$assets/report.js --metafile=node_modules/bundle.json --log-level=warning
node_modules/.bin/esbuild src/report.css --minify --outfile=$assets/report.css --log-level=warning
node licences.js >"$assets/THIRD_PARTY.md"
