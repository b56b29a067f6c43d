#!/usr/bin/env bash
# Prints the path of a program of the module proxy, PACKAGE@VERSION, and builds it if the user's cache lacks it.
set -euo pipefail
into=${XDG_CACHE_HOME:-$HOME/.cache}/dsmoe-tools/${1##*@}
program=${1%@*}
program=${program%/v[0-9]}
program=$into/${program##*/}
[ -x "$program" ] || GOBIN=$into go install "$1" >&2
echo "$program"
