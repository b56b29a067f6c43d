#!/usr/bin/env bash
# Hashes every fixture. With --check, compares with fixtures/SHA256SUMS: a file that
# changed, is missing or is not listed fails, and so do more than 100 MB: every clone has them.
# Without, rewrites the list.
set -euo pipefail
cd "$(dirname "$0")/../fixtures"

hashes() { find . -type f ! -name SHA256SUMS ! -name README.md | LC_ALL=C sort | xargs -d '\n' sha256sum; }

if [ "${1:-}" = --check ]; then
  diff <(hashes) SHA256SUMS && echo "$(wc -l < SHA256SUMS) fixtures match their hashes"
  bytes=$(find . -type f -printf '%s\n' | awk '{ sum += $1 } END { print sum }')
  [ "$bytes" -le 100000000 ] || { echo "fixtures have $bytes bytes, more than 100 MB: see README.md" >&2; exit 1; }
else
  hashes > SHA256SUMS
fi
