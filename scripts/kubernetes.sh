#!/usr/bin/env bash
# Decodes the manifests of deploy/kubernetes with the types of k8s.io/api, and runs the containers as the Jobs would: see
# scripts/kubernetes, a module of its own. Needs Go, the module proxy, and root, to enter the image's root.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
hub=
trap '[ -z "$hub" ] || kill "$hub"; rm -rf "$work"' EXIT
chmod 755 "$work"
mkdir -p "$work/root/data" "$work/hub/org"
cp -r fixtures/v3-fp8/checkpoint "$work/root/data/model"
cp -r fixtures/v3-fp8/checkpoint "$work/hub/org/model"
CGO_ENABLED=0 go build -o "$work/root/dsmoe" ./cmd/dsmoe
go build -o "$work/serve" ./scripts/hub
"$work/serve" "$work/hub" > "$work/endpoint" &
hub=$!
until [ -s "$work/endpoint" ]; do
  kill -0 $hub
  sleep 0.1
done
cd scripts/kubernetes
go vet .
HF_ENDPOINT=$(cat "$work/endpoint") go run . ../../deploy/kubernetes "$work/root"
