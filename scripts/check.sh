#!/usr/bin/env bash
# The one gate: everything that must hold before a change lands. Run from anywhere;
# needs Go, the module proxy and, for the race detector, a C compiler. FUZZTIME sets how long each fuzz
# target runs (default 10s). With --ci it leaves out the tests, which .ci/run has run.
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '\n== %s (after %d s)\n' "$*" "$SECONDS"; }

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
GOARCH=arm64 go vet ./...
go vet -tags purego ./...

step "builds for other systems"
GOARCH=386 go build ./...
GOOS=windows go build -trimpath ./...
GOOS=darwin GOARCH=arm64 go build -trimpath ./...

step staticcheck
go tool -modfile=scripts/tools.mod staticcheck ./...

step "workflows and the action"
go tool -modfile=scripts/tools.mod actionlint .github/workflows/*.yml

step fixtures
scripts/fixtures.sh --check

step "generated assembly"
scripts/kernels.sh --check

if [ "${1-}" != --ci ]; then
  step "tests with the race detector"
  GOMAXPROCS=$(nproc) go test -race -timeout 30m ./... # scripts run dsmoe with as many threads
fi

step "a crash at every call to the disk"
go test -run "AfterCrash|Crashes|TestOneFault|TestSameBytes" ./convert/internal/engine -every-crash

step "the memory of every plan"
go test -run TestMemory ./convert/plan -every-plan

step "every pack with both accumulators"
go test -run TestPacksPassStageByStage ./verify -every-accumulator

step "healthy models of every seed"
go test -run TestSaneModelsHaveNoFinding ./inspect/report -every-seed

step "tests in portable Go" # of what computes; bits.sh compares whole reports, nightly.sh runs all
go test -tags purego -timeout 30m ./model/... ./verify/bounds

step "the same bits from every kernel"
scripts/bits.sh

step "the table of mistakes"
go run ./scripts/mistakes -check MISTAKES.md

step "names that are near, and are not said"
go test -run TestNearMistakes ./scripts/mistakes -every-name


# Inputs are hardly made smaller: that may take longer than the whole run. go test may fail
# when the time is over while an input is run, and says only that the deadline was
# exceeded; a fault that it found is written to a file, and said.
step "fuzz, ${FUZZTIME:-10s} each"
fuzz() { # FILE TARGET
  local out
  echo "$1 $2"
  if ! out=$(go test -run '^$' -fuzz "^$2\$" -fuzztime "${FUZZTIME:-10s}" -fuzzminimizetime 10x "$(dirname "$1")" 2>&1); then
    if ! grep -q 'context deadline exceeded' <<< "$out" || grep -q 'Failing input' <<< "$out"; then
      echo "$out"
      return 1
    fi
  fi
  tail -1 <<< "$out"
}
grep -rl --include='*_test.go' '^func Fuzz' . | while read -r file; do
  sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' "$file" | while read -r target; do
    fuzz "$file" "$target"
  done
done

printf '\nall checks passed after %d s\n' "$SECONDS"
