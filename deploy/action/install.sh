#!/usr/bin/env bash
# Puts dsmoe on the PATH of a GitHub job. An action called by the tag of a release (v1.2.3) fetches that
# release's archive and checks its hash; any other reference, and a tag without an archive for this machine,
# builds the action's own sources with Go.
set -euo pipefail
source=${GITHUB_ACTION_PATH//\\//}
source=${source%/deploy/install} # the action that only installs lies there
bin=$RUNNER_TEMP/dsmoe-bin
mkdir -p "$bin"

# fetch unpacks the archive of the action's tag; status 1 if there is none.
fetch() {
  local place=${source##*/_actions/} # OWNER/REPOSITORY/REF
  [[ $place =~ ^[^/]+/[^/]+/v[0-9]+\.[0-9]+\.[0-9]+[^/]*$ ]] || return 1
  local tag=${place##*/} machine
  machine=$(tr '[:upper:]' '[:lower:]' <<< "${RUNNER_OS}_$RUNNER_ARCH" | sed 's/^macos/darwin/; s/x64$/amd64/')
  local archive=dsmoe_${tag#v}_$machine.tar.gz
  local release=$GITHUB_SERVER_URL/${place%/*}/releases/download/$tag
  cd "$bin"
  curl -fsSL --fail-early --retry 3 -O "$release/$archive" -O "$release/checksums.txt" || return 1
  if ! grep "  $archive\$" checksums.txt | shasum -a 256 -c - || ! tar -xzf "$archive"; then
    echo "::error title=dsmoe::$archive is not the file whose hash checksums.txt of $tag holds"
    exit 1
  fi
}

build() {
  echo "no release archive for this reference and machine: building dsmoe from $source"
  cd "$source"
  go build -trimpath -o "$bin/" ./cmd/dsmoe
}

fetch || build
echo "$bin" >> "$GITHUB_PATH"
"$bin/dsmoe" version
