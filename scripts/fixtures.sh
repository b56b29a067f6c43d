#!/usr/bin/env bash
# Hashes every fixture. With --check, compares with fixtures/SHA256SUMS: a file that
# changed, is missing or is not listed fails. Without, rewrites the list.
set -euo pipefail
cd "$(dirname "$0")/../fixtures"

hashes() { find . -type f ! -name SHA256SUMS ! -name README.md | LC_ALL=C sort | xargs -d '\n' sha256sum; }

if [ "${1:-}" = --check ]; then
  diff <(hashes) SHA256SUMS && echo "$(wc -l < SHA256SUMS) fixtures match their hashes"
else
  hashes > SHA256SUMS
fi
