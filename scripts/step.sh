# step TITLE prints the title of a step of a gate, the seconds since the gate began, and the seconds of processor time that
# finished commands took. Sourced, with a directory in $work.
step() {
  times > "$work/times" # in this shell: a pipe's would count its own children
  printf '\n== %s (after %d s, %.0f s of processor time)\n' "$*" "$SECONDS" "$(awk -F'[ms ]' 'NR == 2 {print 60 * ($1 + $4) + $2 + $5}' "$work/times")"
}
