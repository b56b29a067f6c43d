#!/usr/bin/env bash
# The one gate: everything that must hold before a change lands. Run from anywhere;
# needs Go, the module proxy and, for the race detector, a C compiler. FUZZTIME sets how long each fuzz
# target runs (default 10s). With --ci it leaves out the tests, which .ci/run has run, a conversion in 1,000
# parts, and coverage of the fuzz tests.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
FUZZTIME=${FUZZTIME:-10s}
. scripts/step.sh

step format
unformatted=$(gofmt -l .)
if [ -n "$unformatted" ]; then
  echo "not formatted: $unformatted"
  exit 1
fi

step modules
go mod tidy -diff
go mod verify

step vet
go vet ./...
GOARCH=arm64 go vet ./model/internal/kernel # what has files of its own there
go vet -tags purego ./model/internal/kernel

step "types on other systems"
(cd scripts/typecheck && go vet . && go build -o "$work/typecheck" .)
"$work/typecheck" linux/arm64 linux/386 windows/amd64 darwin/arm64

step staticcheck
go tool -modfile=scripts/tools.mod staticcheck ./...

step "workflows and the action"
awk -v to="$work/workflow-" '/^```yaml$/ { file = to (++n) ".yml"; next } /^```$/ { file = "" } file != "" { print > file }' docs/ci.md
mapfile -t documented < <(grep -l '^on:' "$work"/workflow-*.yml)
go tool -modfile=scripts/tools.mod actionlint .github/workflows/*.yml "${documented[@]}"

step fixtures
scripts/fixtures.sh --check

step "generated assembly"
scripts/kernels.sh --check

if [ "${1-}" != --ci ]; then
  step "tests with the race detector"
  GOMAXPROCS=$(nproc) go test -race -vet=off -timeout 30m ./... # scripts run dsmoe with as many threads
fi

# Tests whose names end in _every try a selection without the flag: here they run with it, without the race detector,
# which tries all other tests but one, for want of address space. With --ci a conversion in 1,000 parts is left to nightly.sh.
step "tests that try everything"
mapfile -t selecting < <(grep -rl --include='*_test.go' '^func Test.*_every(' . | xargs -n1 dirname | sort -u)
skipped='^$'
if [ "${1-}" = --ci ]; then
  skipped='^TestManyParts_every$'
  go test -vet=off ./convert/internal/engine -run "$skipped" # in fewer parts
fi
go test -vet=off -timeout 30m "${selecting[@]}" -run '_every$|^TestLimitedAddressSpace$' -skip "$skipped" -every

step "tests in portable Go" # of what kernels compute for; bits.sh compares whole reports, nightly.sh runs all
go test -vet=off -tags purego -timeout 30m ./model ./verify/bounds
go test -vet=off -tags purego -timeout 30m ./model/internal/kernel ./model/tensor -every

step "the same bits from every kernel"
scripts/bits.sh

step "the table of mistakes"
go run ./scripts/mistakes -check MISTAKES.md

# Inputs are hardly made smaller: that may take longer than the whole run. go test may fail
# when the time is over while an input is run, and says only that the deadline was
# exceeded; a fault that it found is written to a file, and said.
# With --ci inputs are changed without regard to what they cover: to compile everything again for that takes longer than
# such a short run is worth.
step "fuzz, $FUZZTIME each"
instrumented=(-fuzz .)
if [ "${1-}" = --ci ]; then instrumented=(); fi
fuzz() { # BINARY PACKAGE TARGET
  local out
  if ! out=$(cd "$2" && "$1" -test.run '^$' -test.fuzz "^$3\$" -test.fuzztime "$FUZZTIME" -test.fuzzminimizetime 10x \
    -test.fuzzcachedir "$(go env GOCACHE)/fuzz/dsmoe/$2" 2>&1); then
    if ! grep -q 'context deadline exceeded' <<< "$out" || grep -q 'Failing input' <<< "$out"; then
      echo "$2 $3: $out"
      return 1
    fi
  fi
  echo "$2 $3: $(tail -2 <<< "$out" | head -1)"
}
grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sort -u | while read -r package; do
  binary=$work/$(tr / _ <<< "$package").test
  go test -c "${instrumented[@]}" -o "$binary" "$package"
  sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' "$package"/*_test.go | while read -r target; do
    fuzz "$binary" "$package" "$target"
  done
done

step "all checks passed"
