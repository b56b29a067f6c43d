#!/usr/bin/env bash
# Verifies every fixture in several ways of computing: all kernels that this
# processor has, one core, and portable Go must print the same JSON, byte for byte.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
go build -o "$work/dsmoe" ./cmd/dsmoe
go build -tags purego -o "$work/purego" ./cmd/dsmoe

# report NAME COMMAND… writes all reports, each with its exit status, to one file.
report() {
  local out="$work/$1.json" golden status
  shift
  for golden in fixtures/*/golden-*; do
    compgen -G "$(dirname "$golden")/checkpoint/*.safetensors" > /dev/null || continue
    for sums in f64 f32; do
      status=0
      "$@" verify --json --accumulate "$sums" "$(dirname "$golden")/checkpoint" "$golden" > "$out.report" || status=$?
      grep -v '"duration_s":' "$out.report" || true
      echo "$golden $sums exit $status"
    done
  done > "$out" 2>&1
}

ways=() # one beside the other: a report hardly fills two cores
report default "$work/dsmoe" & ways+=($!)
report one-core env GOMAXPROCS=1 "$work/dsmoe" & ways+=($!)
report purego "$work/purego" & ways+=($!)
report no-bf16 env GODEBUG=cpu.avx512bf16=off "$work/dsmoe" & ways+=($!)
report no-avx512 env GODEBUG=cpu.avx512f=off "$work/dsmoe" & ways+=($!)
report no-avx env GODEBUG=cpu.avx512f=off,cpu.avx2=off "$work/dsmoe" & ways+=($!)
for way in "${ways[@]}"; do wait "$way"; done
sed -i '/^GODEBUG: unknown cpu feature/d' "$work/no-bf16.json" # the runtime reads GODEBUG, too
grep -q '"verdict":"pass"' <(tr -d ' ' < "$work/default.json")
for way in one-core purego no-bf16 no-avx512 no-avx; do
  cmp "$work/default.json" "$work/$way.json"
done
echo "$(grep -c ' exit ' "$work/default.json") reports have the same bytes in 6 ways of computing"
