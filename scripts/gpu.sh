#!/usr/bin/env bash
# Records references on a GPU and verifies them on the CPU: fixtures in float32, with TF32 off and on, BF16 and F16, with eager
# and sdpa attention and grouped experts, at 24 to 2,048 tokens, and one layer of DeepSeek-V3's widths with 16 experts. Prints a
# verdict for each; packs that do not pass stay in OUT with their reports. Exit status 1 if a pack FAILs.
#   scripts/gpu.sh OUT        OUT is new; takes 10 GB there
# Needs Go, a GPU with 8 GB, and Python (GPU_PYTHON, default python3) with scripts/requirements-native.txt. GPU_DEVICE=cpu tries the
# script itself without a GPU, GPU_MODELS="v3 v2-lite" takes these fixtures alone.
set -euo pipefail
out=${1:?scripts/gpu.sh OUT: a new directory}
mkdir "$out"
out=$(cd "$out" && pwd)
cd "$(dirname "$0")/.."
device=${GPU_DEVICE:-cuda} python=${GPU_PYTHON:-python3}
models=${GPU_MODELS:-v3 v3-trained v2-lite glm4-moe minimax-m2 v32 v4 wide}
go build -o "$out/dsmoe" ./cmd/dsmoe

# One MoE layer of DeepSeek-V3 behind a dense one.
widths() {
  sed -E 's/"(vocab_size)": [0-9]+/"\1": 4096/; s/"(num_hidden_layers)": [0-9]+/"\1": 2/; s/"(first_k_dense_replace)": [0-9]+/"\1": 1/
    s/"(n_routed_experts)": [0-9]+/"\1": 16/; s/"(num_nextn_predict_layers)": [0-9]+/"\1": 0/' fixtures/configs/deepseek-v3.json
}
case " $models " in *" wide "*)
  widths > "$out/config.json"
  "$out/dsmoe" synth "$out/config.json" "$out/wide" --seed 7 > "$out/wide.txt"
  ;;
esac

status=0
# try MODEL TF32 FLAG...: one pack and its verdict.
try() {
  local model=$1 tf32=$2 checkpoint=fixtures/$1/checkpoint pack=$out/$1 code=0
  shift 2
  if [ "$model" = wide ]; then
    checkpoint=$out/wide
    set -- "$@" --layers 1
  fi
  pack="$pack tf32=$tf32 $*"
  pack=${pack// --/ } pack=${pack// /_}
  if ! TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=$tf32 "$out/dsmoe" golden "$checkpoint" "$pack" --device "$device" --python "$python" "$@" \
    > "$pack.txt" 2>&1; then
    printf '%s: not recorded: %s\n' "$(basename "$pack")" "$(tail -n 1 "$pack.txt")"
    return
  fi
  "$out/dsmoe" verify "$checkpoint" "$pack" > "$pack.txt" 2>&1 || code=$?
  printf '%s: %s\n' "$(basename "$pack")" "$(sed -n 's/^verdict  *//p' "$pack.txt")"
  case $code in
    0) rm -r "$pack" ;;
    1) status=1 ;;
  esac
}

for model in $models; do
  for tokens in 1x24 2x64 1x2048; do
    for dtype in float32 bfloat16; do
      try "$model" 0 --random $tokens --dtype $dtype
    done
  done
  try "$model" 1 --random 1x24
  try "$model" 1 --random 1x24 --dtype bfloat16
  case $model in
    v32 | v4) continue ;; # golden.py records neither F16 nor sdpa of these
  esac
  try "$model" 0 --random 1x24 --dtype float16
  for dtype in float32 bfloat16 float16; do
    try "$model" 0 --random 2x64 --dtype $dtype --attn sdpa
  done
  for dtype in float32 bfloat16; do
    try "$model" 0 --random 2x64 --dtype $dtype --experts grouped_mm
  done
done
exit "$status"
