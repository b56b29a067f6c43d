#!/usr/bin/env bash
# rename_module.sh NEW/PATH renames the Go module: go.mod files, imports, and OWNER/dsmoe in documents, the action
# and the templates. Needs git and perl; look at the result with git diff, then run the tests.
set -euo pipefail
cd "$(dirname "$0")/.."
export NEW=${1:?usage: rename_module.sh NEW/PATH}
OLD=$(go list -m)
export OLD
for file in go.mod scripts/tools.mod scripts/kubernetes/go.mod model/internal/kernel/gen/go.mod; do
  name=$(sed -n 's/^module //p' "$file")
  go mod edit -module "$NEW${name#"$OLD"}" "$file"
done
git ls-files -z '*.go' | xargs -0 perl -pi -e 's|"\Q$ENV{OLD}\E/|"$ENV{NEW}/|g'
git ls-files -z '*.md' '*.yml' '*.yaml' | xargs -0 perl -pi -e \
  's|github\.com/OWNER/dsmoe|$ENV{NEW}|g; s|OWNER/dsmoe|$1| if $ENV{NEW} =~ m|^github\.com/(.+)|'
gofmt -w .
go build ./...
