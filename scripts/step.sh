# step TITLE prints the title of a step of a gate, how long the gate has run, and the processor time of the commands that
# ended. Sourced, with a directory in $work.
step() {
  times > "$work/times" # not in a pipe, whose shell has no children
  awk -F'[ms ]' -v title="$*" -v after="$SECONDS" \
    'NR == 2 {printf "\n== %s (after %d s, %d s of processor time)\n", title, after, 60 * ($1 + $4) + $2 + $5}' "$work/times"
}
