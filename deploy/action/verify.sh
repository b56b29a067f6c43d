#!/usr/bin/env bash
# Runs dsmoe verify in a GitHub job. CHECKPOINT, GOLDEN and FLAGS (split at white space) are the action's
# inputs; $RUNNER_TEMP/dsmoe-report receives report.txt, report.xml (JUnit) and report.html. The report is
# also printed and put into the job's summary; a verdict that is not a pass becomes an annotation, and so do
# a config.json that differs from the pack's and accepted causes. The exit status is that of dsmoe.
set -euo pipefail
reports=$RUNNER_TEMP/dsmoe-report
rm -rf "$reports"
mkdir -p "$reports"
read -rd '' -a flags <<< "$FLAGS" || true
status=0
dsmoe verify ${flags[@]+"${flags[@]}"} --json=false --color never --junit "$reports/report.xml" \
  --html "$reports/report.html" -- "$CHECKPOINT" "$GOLDEN" > "$reports/report.txt" 2> "$reports/errors.txt" || status=$?
if [[ $status == 0 ]] && ! grep -q '^verdict  *PASS' "$reports/report.txt"; then
  status=2 # such as with --help
fi
case $status in
  0) verdict=pass ;;
  1) verdict=fail ;;
  *) verdict=inconclusive ;;
esac

# What a pack or a checkpoint says is text, never a command of the runner.
token=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
echo "::stop-commands::$token"
cat "$reports/report.txt" "$reports/errors.txt"
echo "::$token::"

# The divergence with its causes, the reasons of an inconclusive run, and errors: what the annotation says.
if [[ $verdict != pass ]]; then
  why=$(awk '/^[^ ]|^$/ {wanted = /^(pack|DIVERGES|cause|or|hint|verdict|accepted|this trace|against) /} wanted' "$reports/report.txt"
    cat "$reports/errors.txt")
  why=${why:-dsmoe left no verdict, status $status}
  why=${why//'%'/%25}
  why=${why//$'\r'/%0D}
  echo "::error title=dsmoe verify: $verdict::${why//$'\n'/%0A}"
elif other=$(grep -E '^verdict .*(; config\.json | but for .*, accepted)' "$reports/report.txt"); then
  echo "::warning title=dsmoe verify: pass::${other//'%'/%25}"
fi

{
  printf '### dsmoe verify: %s\n\n' "$verdict"
  sed 's/^/    /' "$reports/report.txt" "$reports/errors.txt" # indented, so that nothing in it is Markdown
} >> "$GITHUB_STEP_SUMMARY"
{
  echo "verdict=$verdict"
  echo "first-divergence=$(sed -n 's/^DIVERGES *\([^ ]*\).*/\1/p; s/^against .*: FAIL at \([^ ;]*\).*/\1/p' "$reports/report.txt" | head -1)"
  echo "report=$reports"
} >> "$GITHUB_OUTPUT"
exit "$status"
