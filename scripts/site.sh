#!/usr/bin/env bash
# site.sh DIRECTORY builds the pages as a static site that searches, in DIRECTORY/dsmoe-docs, and packs it, the same bytes
# for one commit, as DIRECTORY/dsmoe-docs.tar.gz. A dead link, and a page that site.yml does not name, fail. Needs Python
# and its index; DIRECTORY is replaced.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q -r scripts/requirements-docs.txt
mkdir "$work/pages"
git ls-files '*.md' docs | tar -c -T - | tar -x -C "$work/pages"
cp scripts/site.yml "$work/mkdocs.yml"
"$work/venv/bin/zensical" build --strict -f "$work/mkdocs.yml"
rm -rf "$out"
mkdir -p "$out"
mv "$work/dsmoe-docs" "$out"
date=@$(git log -1 --format=%ct)
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="$date" -C "$out" -c dsmoe-docs | gzip -n > "$out/dsmoe-docs.tar.gz"
