#!/usr/bin/env bash
# Measures dsmoe on generated models of 160 GB to 1 TB, served by a hub and a store on this machine, and fails where a
# command takes more memory, requests or bytes than it may: docs/scale.md. Takes 20 minutes on two quiet cores, and 2 GB in
# $TMPDIR. By name alone: `scripts/scale.sh parts` converts a layer of DeepSeek-V3 in 16 parts (14 GB of disk), `whole` all of it
# to Q8_0, `bf16` all of it to BF16 (an hour each, 5 GB).
# Needs Linux, Go and GNU time.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
go build -o "$work" ./cmd/dsmoe ./scripts/scale
"$work/scale" "$work/dsmoe" "$@"
