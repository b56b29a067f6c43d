#!/usr/bin/env bash
# Records a pack by every path of golden.py that its help and the docs name, in an environment for each reference,
# verifies it, and checks golden.py's rules. Needs Go, Python 3.10 to 3.12 (GOLDEN_PYTHON, default python3), 15 GB in
# $TMPDIR for the environments, or
# GOLDEN_VENVS, a directory to keep them in, and DSMOE_REFERENCE, a directory with the published modeling_deepseek.py and
# configuration_deepseek.py of the first DeepSeekMoE.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${DSMOE_REFERENCE:?names no directory with modeling_deepseek.py: see scripts/golden_check.sh}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
venvs=${GOLDEN_VENVS:-$work}
go build -o "$work/dsmoe" ./cmd/dsmoe
status=0
for reference in native native-next v1; do
  venv=$venvs/$reference
  if [ ! -e "$venv" ]; then
    "${GOLDEN_PYTHON:-python3}" -m venv "$venv"
    "$venv/bin/pip" install --quiet -r "scripts/requirements-$reference.txt"
  fi
  code=()
  if [ "$reference" = v1 ]; then
    code=(--code "$DSMOE_REFERENCE")
  fi
  echo "== $reference"
  if [ "$reference" != v1 ]; then
    "$venv/bin/python" scripts/golden_check.py fixtures --rules || status=1
  fi
  "$venv/bin/python" scripts/golden_check.py fixtures --paths --dsmoe "$work/dsmoe" "${code[@]}" || status=1
done
exit "$status"
