#!/usr/bin/env bash
# Makes a release of the working tree, v1.2.3 in a repository of its own, without publishing it; and shows that its
# binary names the tag and the commit, that a build in another directory and without the build cache gives the same
# bytes, that the action installs the archive, that pip installs the wheel, which is packed to the same bytes again, and
# that the pages are built as a site without a dead link.
# Without goreleaser, which is built from the module proxy if it is not installed, the binary is built by hand and there
# are no archives, wheels and pages; without syft there is no SBOM.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export GIT_AUTHOR_NAME=release GIT_AUTHOR_EMAIL=release@localhost GIT_AUTHOR_DATE=2000-01-01T00:00:00Z
export GIT_COMMITTER_NAME=$GIT_AUTHOR_NAME GIT_COMMITTER_EMAIL=$GIT_AUTHOR_EMAIL GIT_COMMITTER_DATE=$GIT_AUTHOR_DATE
export CGO_ENABLED=0

checkout() { # DIRECTORY
  mkdir -p "$1"
  tar -c --exclude=./.git --exclude=./out --exclude='./fixtures/*/*' . | tar -x -C "$1"
  git -C "$1" init -q
  git -C "$1" remote add origin https://github.com/OWNER/dsmoe
  git -C "$1" add .
  git -C "$1" commit -qm release
  git -C "$1" tag v1.2.3
}

build() { # FLAG…
  go build -trimpath -buildvcs=true -ldflags='-s -w' "$@" ./cmd/dsmoe
}

checkout "$work/a"
checkout "$work/elsewhere/b"
goreleaser=$(command -v goreleaser || true)
if [ -z "$goreleaser" ]; then
  goreleaser=$(scripts/tool.sh github.com/goreleaser/goreleaser/v2@v2.15.0 || true)
fi
cd "$work/a"
machine=$(go env GOHOSTOS)_$(go env GOHOSTARCH)
if [ -n "$goreleaser" ]; then
  python3 -m venv "$work/venv"
  export PYTHON=$work/venv/bin/python
  "$PYTHON" -m pip install -q wheel==0.48.0
  skip=publish,announce
  command -v syft > /dev/null || skip+=,sbom
  "$goreleaser" check
  "$goreleaser" release --clean --skip="$skip"
  cp out/dist/dsmoe_"$machine"_*/dsmoe "$work/dsmoe"
else
  echo "goreleaser could not be installed: no archives and packages are made"
  build -o "$work/dsmoe"
fi
version=$("$work/dsmoe" version | head -1)
echo "$version"
[[ $version == "dsmoe v1.2.3, revision $(git rev-parse HEAD), "* ]]

cd "$work/elsewhere/b"
build -a -o "$work/again"
cmp "$work/dsmoe" "$work/again"
echo "built twice, the same bytes: $(sha256sum < "$work/again" | cut -c 1-64)"

if [ -n "$goreleaser" ]; then
  cd "$work/a/out/dist"
  cp ../wheels/*.whl ../docs/*.tar.gz . # a release has all files in one place
  sha256sum -c checksums.txt
  tar -xzf dsmoe-docs.tar.gz -C "$work" dsmoe-docs/index.html dsmoe-docs/search.json
  tar -xzf "dsmoe_1.2.3_$machine.tar.gz" -C "$work" README.md CHANGELOG.md man/dsmoe.1 completions/dsmoe.bash
  mkdir -p "$work/OWNER/dsmoe/releases/download" "$work/_actions/OWNER/dsmoe/v1.2.3"
  ln -s "$PWD" "$work/OWNER/dsmoe/releases/download/v1.2.3"
  GITHUB_SERVER_URL=file://$work GITHUB_ACTION_PATH=$work/_actions/OWNER/dsmoe/v1.2.3 GITHUB_PATH=$work/path \
    RUNNER_TEMP=$work RUNNER_OS=${machine%_*} RUNNER_ARCH=${machine#*_} "$work/a/deploy/action/install.sh"
  cmp "$work/dsmoe" "$work/dsmoe-bin/dsmoe"

  cd "$work/a"
  [ "$(ls out/wheels | wc -l)" -eq 6 ]
  "$PYTHON" -m pip install -q --no-index --find-links out/wheels dsmoe
  cmp "$work/dsmoe" "$work"/venv/lib/python*/site-packages/dsmoe/dsmoe
  [ "$("$work/venv/bin/dsmoe" version | head -1)" = "$version" ]
  [ "$("$PYTHON" -m dsmoe version | head -1)" = "$version" ]
  cp "$work/again" "$work/elsewhere/dsmoe"
  deploy/wheels/pack.sh "$work/elsewhere/dsmoe" "${machine%_*}" "${machine#*_}" 1.2.3 "$(git log -1 --format=%ct)" "$work/wheels"
  cmp "$work"/wheels/*.whl "out/wheels/$(ls "$work/wheels")"
  echo "pip installed $(ls "$work/wheels"), and it was packed twice, the same bytes"
fi
