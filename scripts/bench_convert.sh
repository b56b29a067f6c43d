#!/usr/bin/env bash
# The speed of convert, with its proof, against `cp` and sync of the same bytes, in one alternating
# run: the 2.5 GB slice, the same in FP8, and three layers of V2-Lite to be fused, ROUNDS
# times (default 5), each round cp, re-shard, cp, cast, cp, …. Prints each median, its ratio to the median of its cp
# (1 is as fast as cp, more is faster; dequantising writes twice what it reads, and is
# held against cp of what it writes), the mean of its processor seconds, and the peak
# memory under --max-memory 128MiB. Lines with "unproven" are those of --verify=false.
# Needs 17 GB of disk in $TMPDIR, and Python. DSMOE names another binary to measure.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
binary=${DSMOE:-$work/dsmoe}
[ -n "${DSMOE:-}" ] || go build -o "$binary" ./cmd/dsmoe
"$binary" synth fixtures/v1-16b-slice/checkpoint/config.json "$work/src" --seed 7 > /dev/null
rm -f "$work/src/dsmoe.manifest.json"
python3 scripts/fp8.py "$work/src" "$work/fp8"
python3 - "$work/v2.json" << 'PY' # experts that can be read fused
import json, sys
c = json.load(open("fixtures/states/deepseek-v2-lite/config.json"))
c.update(num_hidden_layers=3)
json.dump(c, open(sys.argv[1], "w"))
PY
"$binary" synth "$work/v2.json" "$work/v2" --seed 7 > /dev/null
rm -f "$work/v2/dsmoe.manifest.json"
cat "$work"/src/* "$work"/fp8/* "$work"/v2/* > /dev/null # into the page cache, for all alike

timed() { # NAME COMMAND…: appends the milliseconds and the processor seconds to $work/NAME
  local name=$1 start cpu
  shift
  sync
  start=$(date +%s%N)
  cpu=$( { /usr/bin/time -f '%U %S' "$@" > /dev/null; } 2>&1 )
  sync
  echo $(( ($(date +%s%N) - start) / 1000000 )) $cpu >> "$work/$name"
  rm -rf "$work/out"
}
copy() { timed "${2:-cp}" cp -r "$work/${1:-src}" "$work/out"; } # SOURCE NAME
convert() { timed "$1" "$binary" convert "$work/$2" "$work/out" "${@:3}"; } # NAME SOURCE OPTION…
timed warm cp -r "$work/src" "$work/out"
for _ in $(seq "${ROUNDS:-5}"); do
  for verify in true false; do
    name=$([ $verify = true ] || echo unproven-)
    copy; convert ${name}reshard src --verify=$verify --max-shard-size 500MB
    copy; convert ${name}cast src --verify=$verify --type f16 --allow-overflow
    copy v2 cp2; convert ${name}fuse v2 --verify=$verify --experts fused
    copy; convert ${name}dequantise fp8 --verify=$verify --type bf16
  done
done
median() { sort -n "$work/$1" | awk '{a[NR] = $1} END {print a[int((NR + 1) / 2)]}'; }
for name in cp {,unproven-}{reshard,cast,fuse,dequantise}; do
  base=$(median $([[ $name = *fuse ]] && echo cp2 || echo cp))
  cpu=$(awk '{n += $2 + $3} END {print n / NR}' "$work/$name")
  awk -v n=$name -v t="$(median $name)" -v b="$base" -v c="$cpu" \
    'BEGIN {printf "%-20s %6.2f s  %.2f × cp  %5.2f CPU s\n", n, t / 1000, b / t, c}'
done
peak=$( { /usr/bin/time -f %M "$binary" convert "$work/src" "$work/out" --max-memory 128MiB > /dev/null; } 2>&1 )
echo "peak                 $((peak / 1024)) MiB with --max-memory 128MiB"
