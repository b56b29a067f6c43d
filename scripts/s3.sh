#!/usr/bin/env bash
# Compares what dsmoe reads of an object store, versitygw on a temporary directory, and writes to it, with what it
# does on the disk, with 30 % of the requests failing or breaking off, and kills. Needs Go and the module proxy.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
gateway=$(scripts/tool.sh github.com/versity/versitygw/cmd/versitygw@v1.8.0)
go build -o "$work/dsmoe" ./cmd/dsmoe
go run ./scripts/s3 "$gateway" "$work/dsmoe"
