#!/usr/bin/env bash
# Verifies at the real widths of DeepSeekMoE-16B: synthesises the 1.28 B parameter
# slice (2.5 GB, in $TMPDIR) and verifies it against the pack that the reference
# made from the same weights.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
go build -o "$work/dsmoe" ./cmd/dsmoe
"$work/dsmoe" synth fixtures/v1-16b-slice/checkpoint/config.json "$work/checkpoint" --seed 7
"$work/dsmoe" verify "$work/checkpoint" fixtures/v1-16b-slice/golden-f32
