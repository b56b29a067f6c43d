#!/usr/bin/env bash
# What a conversion leaves behind when the disk or the process fails: all kinds of faults, or
# those named as arguments. Needs Python, strace for inject and order, and for full the right
# to mount (root, or unprivileged user namespaces). Prints a line per kind of fault and fails
# at the first that is not held:
#
#   kill    kill -9 at KILLS random moments (default 100) of a conversion, of one into a
#           directory that is there, and of a synthesis; the same command then ends with
#           identical hashes, and DST holds no checkpoint unless --check passes
#   inject  ENOSPC, EIO and EDQUOT at the first POINTS calls of each kind (default 6);
#           exit status 2, path and cause named, nothing under the final name, and the
#           same command then ends with identical hashes
#   full    a tmpfs too small for the output, at ten sizes
#   order   every file is synced before the rename, the directories after it
set -euo pipefail
cd "$(dirname "$0")/.."
kinds=("$@")
[ $# -gt 0 ] || kinds=(kill inject full order)
for kind in "${kinds[@]}"; do
  case $kind in kill | inject | full | order) ;; *) echo "usage: faults.sh [kill|inject|full|order ...]" >&2; exit 2 ;; esac
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
go build -o "$work/dsmoe" ./cmd/dsmoe
dsmoe=$work/dsmoe
die() { echo "FAILED: $*" >&2; exit 1; }
hashes() { (cd "$1" && find . -type f | LC_ALL=C sort | xargs -d '\n' sha256sum); }

src=fixtures/v3-fp8/checkpoint
options="--experts fused --allow-fp8-fused --max-shard-size 300KB"

complete() { [ -e "$1/model.safetensors.index.json" ]; }

kills() { # NAME BEFORE COMMAND…: kills COMMAND… DST, made ready by BEFORE DST, again and again
  local name=$1 before=$2 start took killed=0 seen=0
  shift 2
  start=$(date +%s%N)
  "$@" "$work/reference" > /dev/null
  took=$(( ($(date +%s%N) - start) / 1000 ))
  hashes "$work/reference" > "$work/want"
  rm -rf "$work/reference"
  $before "$work/dst"
  for i in $(seq 1 "${KILLS:-100}"); do
    "$@" "$work/dst" > /dev/null 2>&1 &
    pid=$!
    sleep "$(printf '%d.%06d' 0 $(( (RANDOM * 32768 + RANDOM) % (took + took / 10 < 999999 ? took + took / 10 : 999999) )))"
    kill -9 $pid 2> /dev/null && killed=$((killed + 1))
    wait $pid 2> /dev/null || true
    if complete "$work/dst"; then
      seen=$((seen + 1))
      "$dsmoe" convert --check "$work/dst" > /dev/null || die "$name, kill $i: $work/dst is there but fails --check"
    fi
    # Every third time, the next run is killed too: progress over several crashes.
    [ $((i % 3)) = 0 ] && continue
    "$@" "$work/dst" > /dev/null || die "$name, kill $i: the same command fails"
    hashes "$work/dst" | cmp - "$work/want" || die "$name, kill $i: other bytes"
    rm -rf "$work/dst"
    [ -z "$(find "$work" -maxdepth 1 -name '.dst*')" ] || die "$name, kill $i: something is left behind"
    $before "$work/dst"
  done
  rm -rf "$work/dst" "$work"/.dst*
  echo "kill: $name: $killed of ${KILLS:-100} runs killed within $((took / 1000)) ms, $seen after the end; same bytes every time"
}

# kill: a conversion that takes long enough to be hit everywhere.
kill_at_random() {
  python3 - "$work/config.json" << 'PY'
import json, sys
c = json.load(open("fixtures/v3/checkpoint/config.json"))
c.update(hidden_size=512, intermediate_size=2048, moe_intermediate_size=512, vocab_size=20000, num_hidden_layers=6, n_routed_experts=16)
json.dump(c, open(sys.argv[1], "w"))
PY
  "$dsmoe" synth "$work/config.json" "$work/src" --seed 1 > /dev/null
  kills convert true "$dsmoe" convert --type f32 --experts fused --max-shard-size 50MB "$work/src"
  kills 'convert into a directory' mkdir "$dsmoe" convert --type f32 --experts fused --max-shard-size 50MB "$work/src"
  kills synth true "$dsmoe" synth --seed 1 --max-shard-size 30MB "$work/config.json"
}

# inject: a small conversion, every call in turn.
inject() {
  "$dsmoe" convert "$src" "$work/small" $options > /dev/null
  hashes "$work/small" > "$work/want"
  points=0
  for call in openat fallocate ftruncate pwrite64 write fsync renameat,rename,renameat2 mkdirat,mkdir unlinkat,unlink close; do
    for error in ENOSPC EIO EDQUOT; do
      for n in $(seq 1 "${POINTS:-6}"); do
        rm -rf "$work/run" && mkdir "$work/run"
        status=0
        paths="-P $work/run -P $work/run/.dst.journal -P $work/run/.dst.partial -P $work/run/dst"
        for f in "$work"/small/*; do paths="$paths -P $work/run/.dst.partial/$(basename "$f")"; done
        strace -f -qq -o "$work/trace" $paths -e trace=$call -e inject=$call:error=$error:when=$n \
          "$dsmoe" convert "$src" "$work/run/dst" $options > "$work/out" 2> "$work/err" || status=$?
        grep -q INJECTED "$work/trace" || break
        points=$((points + 1))
        if [ -e "$work/run/dst" ]; then
          "$dsmoe" convert --check "$work/run/dst" > /dev/null || die "$call $error $n: $work/run/dst is there but fails --check"
        elif [ $status != 2 ]; then
          die "$call $error $n: exit status $status: $(cat "$work/err")"
        fi
        if [ $status = 2 ]; then
          case $error in ENOSPC) cause='no space left on device' ;; EIO) cause='input/output error' ;; EDQUOT) cause='disk quota exceeded' ;; esac
          grep -q "$cause" "$work/err" || die "$call $error $n: the cause is not named: $(cat "$work/err")"
          grep -q "$work/run/" "$work/err" || die "$call $error $n: the path is not named: $(cat "$work/err")"
        fi
        "$dsmoe" convert "$src" "$work/run/dst" $options > /dev/null 2> "$work/err" || die "$call $error $n: the same command fails then: $(cat "$work/err")"
        hashes "$work/run/dst" | cmp - "$work/want" || die "$call $error $n: other bytes"
      done
    done
  done
  echo "inject: $points points, nothing that looks complete, same bytes after all"
}

# full: a disk that is too small, found out at once or on the way.
full() {
  for kib in 100 200 300 500 700 900 1100 1300 1400 1450; do
    unshare -rm bash -c "
      mkdir -p '$work/disk' && mount -t tmpfs -o size=${kib}k none '$work/disk' && cd '$work/disk' || exit 77
      '$dsmoe' convert '$PWD/$src' dst $options > /dev/null 2> err
      status=\$?
      [ \$status = 2 ] || { echo \"exit status \$status\"; exit 1; }
      [ ! -e dst ] || { echo 'dst is there'; exit 1; }
      grep -Eq 'no space left|of disk, but only' err || { cat err; exit 1; }" || die "tmpfs of $kib KiB"
  done
  echo "full: ten sizes refused"
}

# order: restic's order of calls.
order() {
  rm -rf "$work/run" && mkdir "$work/run"
  strace -f -y -qq -e trace=fsync,rename,renameat,renameat2 -o "$work/trace" "$dsmoe" convert "$src" "$work/run/dst" $options > /dev/null
  python3 - "$work" << 'PY'
import os, re, sys
work = sys.argv[1]
events, begun = [], {}
for line in open(work + "/trace"):
    # A call during which another thread has an event, a signal too, takes two lines: it is done at the second.
    thread, call = line.split(None, 1)
    if "<unfinished ...>" in call:
        begun[thread] = call
        continue
    call = begun.pop(thread, "") + call if " resumed>" in call else call
    if "= 0" in call:
        events.append(call)
rename = next(i for i, l in enumerate(events) if "rename" in l)
synced = {m.group(1) for l in events[:rename] for m in [re.search(r"fsync\(\d+<([^>]*)>", l)] if m}
for name in os.listdir(work + "/run/dst"):
    assert work + "/run/.dst.partial/" + name in synced, name + " is not synced before the rename"
assert work + "/run/.dst.partial" in synced, "the directory is not synced before the rename"
last = [m.group(1) for l in events[:rename] for m in [re.search(r"fsync\(\d+<([^>]*)>", l)] if m]
assert last[-2].endswith("/model.safetensors.index.json"), "the index is not last but " + last[-2]
assert any("fsync" in l and work + "/run>" in l for l in events[rename:]), "the parent is not synced after the rename"
PY
  echo "order: files, directory, rename, parent"
}

for kind in "${kinds[@]}"; do
  if [ "$kind" = kill ]; then kill_at_random; else $kind; fi
done
