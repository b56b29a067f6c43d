#!/usr/bin/env bash
# Submits a conversion in N parts to Slurm; see usage.
set -euo pipefail
usage='usage: submit.sh [OPTION OF SBATCH]… N[%M] SRC DST [FLAG OF DSMOE CONVERT]…

Submits dsmoe convert SRC DST as an array of N tasks, at most M of them at a time, and a finish job that joins the
parts after all tasks have succeeded; prints the ids of both. If a task fails, Slurm cancels the finish job when the
other tasks have ended: submit the same command again. Parts that are done end at once, the others go on.

Options of sbatch are one word each, such as --partition=long --time=4:00:00 --mem=8G --cpus-per-task=16; the
variables SBATCH_* count too, and job.sh beside this script has the defaults. --mem has to exceed --max-memory.
The jobs run in the current directory, on which relative paths depend. DSMOE names the binary (default: dsmoe).

  submit.sh --partition=long 64%16 deepseek-v3 /shared/v3-bf16 --type bf16'

options=()
while [[ ${1:-} == -* ]]; do
  [[ $1 != -h && $1 != --help ]] || { echo "$usage"; exit 0; }
  options+=("$1")
  shift
done
if [[ $# -lt 3 || ! $1 =~ ^[1-9][0-9]*(%[1-9][0-9]*)?$ ]]; then
  echo "$usage" >&2
  exit 2
fi
n=${1%%%*}
array=1-$1
shift
job=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/job.sh

# The plan is worked out here first: a wrong argument is refused before anything is submitted.
plan=$("${DSMOE:-dsmoe}" convert --dry-run "$@") || { echo "$plan" >&2; exit 2; }

parts=$(sbatch --job-name=dsmoe ${options[@]+"${options[@]}"} --parsable --array="$array" "$job" --part auto "$@")
echo "parts   ${parts%%;*} ($n tasks)"
finish=$(sbatch --job-name=dsmoe-finish ${options[@]+"${options[@]}"} --parsable --dependency="afterok:${parts%%;*}" \
  --kill-on-invalid-dep=yes "$job" --finish "$@")
echo "finish  ${finish%%;*}"
