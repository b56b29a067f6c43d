#!/usr/bin/env bash
# Verifies at the real widths of DeepSeekMoE-16B: synthesises the 1.28 B parameter
# slice (2.5 GB, in $TMPDIR) and one dense layer in BF16 (0.2 GB), and verifies them
# against the packs that the reference made from the same weights.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
go build -o "$work/dsmoe" ./cmd/dsmoe
"$work/dsmoe" synth fixtures/v1-16b-slice/checkpoint/config.json "$work/checkpoint" --seed 7
"$work/dsmoe" verify "$work/checkpoint" fixtures/v1-16b-slice/golden-f32
"$work/dsmoe" synth fixtures/v1-bf16-wide/checkpoint/config.json "$work/wide" --seed 71
"$work/dsmoe" verify "$work/wide" fixtures/v1-bf16-wide/golden-bf16
