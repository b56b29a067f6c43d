#!/usr/bin/env bash
# What takes too long for the gate, or changes too seldom: docs/detection.md and its tables, every test in portable Go,
# benchmarks, another's object store, Kubernetes' own types and containers, a release that is not published, every path of
# golden.py, engines on the fixtures, models of 671 B and 1 T from a generating server, a conversion in 1,000 parts, and each
# fuzz target for FUZZTIME (default 5m). Needs what .ci/run needs, what golden_check.sh and engines.sh need, and GNU time. By
# hand alone: scripts/scale.sh whole and bf16, which convert 671 B parameters for an hour each.
set -euo pipefail
cd "$(dirname "$0")/.."
go run ./scripts/mistakes -detection -check docs
go test -tags purego -timeout 60m ./...
scripts/s3.sh
scripts/kubernetes.sh
scripts/release_check.sh
scripts/golden_check.sh
scripts/engines.sh
scripts/scale.sh
go test -run '^$' -bench . -benchtime 1x ./... > /dev/null # benchmarks run
FUZZTIME=${FUZZTIME:-5m} scripts/check.sh
