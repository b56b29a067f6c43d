#!/usr/bin/env bash
# release_files.sh DIRECTORY writes what an installation holds beside the binary: man/ and completions/.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$1
rm -rf "$out"
mkdir -p "$out/completions"
CGO_ENABLED=0 go build -trimpath -o "$out/dsmoe" ./cmd/dsmoe
"$out/dsmoe" man "$out/man"
for shell in bash zsh fish; do
  "$out/dsmoe" completion "$shell" > "$out/completions/dsmoe.$shell"
done
rm "$out/dsmoe"
