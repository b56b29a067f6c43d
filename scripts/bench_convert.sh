#!/usr/bin/env bash
# The speed of convert against `cp` and sync of the same bytes, in one alternating
# run: the 2.5 GB slice, ROUNDS times (default 5), each round cp, re-shard, cast, cp …
# Prints each median and its ratio to cp's (1 is as fast as cp, more is faster), and
# the peak memory under --max-memory 128MiB. Needs 8 GB of disk in $TMPDIR.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
go build -o "$work/dsmoe" ./cmd/dsmoe
"$work/dsmoe" synth fixtures/v1-16b-slice/checkpoint/config.json "$work/src" --seed 7 > /dev/null
timed() { # NAME COMMAND…: appends the seconds to $work/NAME
  local name=$1 start
  shift
  sync
  start=$(date +%s%N)
  "$@" > /dev/null
  sync
  echo $(( ($(date +%s%N) - start) / 1000000 )) >> "$work/$name"
  rm -rf "$work/out"
}
dsmoe() { "$work/dsmoe" convert "$work/src" "$work/out" "$@"; }
cat "$work"/src/* > /dev/null # into the page cache, for all alike
timed warm cp -r "$work/src" "$work/out"
for _ in $(seq "${ROUNDS:-5}"); do
  timed cp cp -r "$work/src" "$work/out"
  timed reshard dsmoe --verify=false --max-shard-size 500MB
  timed cp cp -r "$work/src" "$work/out"
  timed cast dsmoe --verify=false --type f16 --allow-overflow
  timed cp cp -r "$work/src" "$work/out"
  timed fuse dsmoe --verify=false --experts fused
  timed verified dsmoe --max-shard-size 500MB
done
median() { sort -n "$work/$1" | awk '{a[NR] = $1} END {print a[int((NR + 1) / 2)]}'; }
base=$(median cp)
for name in cp reshard cast fuse verified; do
  awk -v n=$name -v t="$(median $name)" -v b="$base" 'BEGIN {printf "%-9s %6.2f s  %.2f × cp\n", n, t / 1000, b / t}'
done
peak=$( { /usr/bin/time -f %M "$work/dsmoe" convert "$work/src" "$work/out" --max-memory 128MiB > /dev/null; } 2>&1 )
echo "peak      $((peak / 1024)) MiB with --max-memory 128MiB"
