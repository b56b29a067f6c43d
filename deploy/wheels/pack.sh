#!/usr/bin/env bash
# pack.sh BINARY OS ARCHITECTURE VERSION SECONDS DIRECTORY packs a dsmoe, built for a system as Go names it, into a wheel
# in DIRECTORY. PyPA's wheel packs it: python3 -m pip install wheel==0.48.0; PYTHON names another python3. SECONDS, since
# 1970, is the time of all files in it, so that the same binary gives the same bytes. A static binary runs on any Linux.
set -euo pipefail
umask 022
here=$(cd "$(dirname "$0")" && pwd)
binary=$1 system=$2-$3 version=$4 into=$6
export SOURCE_DATE_EPOCH=$5
case $system in
  linux-amd64) tags='manylinux_2_17_x86_64 musllinux_1_1_x86_64' ;;
  linux-arm64) tags='manylinux_2_17_aarch64 musllinux_1_1_aarch64' ;;
  darwin-amd64) tags=macosx_12_0_x86_64 ;; # the oldest that Go 1.26 supports
  darwin-arm64) tags=macosx_12_0_arm64 ;;
  windows-amd64) tags=win_amd64 ;;
  windows-arm64) tags=win_arm64 ;;
  *) echo "pack.sh: $system: no such platform of wheels" >&2; exit 2 ;;
esac
version=$(sed -E 's/[-.]?(alpha|beta|rc)[-.]?/\1/; s/alpha/a/; s/beta/b/; s/-.*//' <<< "$version") # as PEP 440 writes it
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
info=$work/dsmoe-$version.dist-info
mkdir -p "$work/dsmoe" "$info" "$into"
install -m 644 "$here"/dsmoe/*.py "$work/dsmoe"
install -m 755 "$binary" "$work/dsmoe/$(basename "$binary")"
{
  printf '%s\n' 'Metadata-Version: 2.1' 'Name: dsmoe' "Version: $version" \
    'Summary: Convert DeepSeekMoE checkpoints, and prove that the result is right' 'Requires-Python: >=3.8' \
    'Description-Content-Type: text/markdown' ''
  cat "$here/../../README.md"
} > "$info/METADATA"
{
  printf '%s\n' 'Wheel-Version: 1.0' 'Generator: deploy/wheels/pack.sh' 'Root-Is-Purelib: false'
  # shellcheck disable=SC2086 # several words, several tags
  printf 'Tag: py3-none-%s\n' $tags
} > "$info/WHEEL"
printf '%s\n' '[console_scripts]' 'dsmoe = dsmoe.__main__:main' > "$info/entry_points.txt"
"${PYTHON:-python3}" -m wheel pack --dest-dir "$into" "$work" > /dev/null
