// Package cli is what all commands share: flags, the forms of output, errors and exit statuses, progress, parts, and
// files that are written beside stdout. It knows no command.
//
// The rules of terminal output:
//
//   - stdout carries the result and nothing else. With --json that is one JSON
//     document, indented by two spaces.
//   - stderr carries errors, one line each, "dsmoe: thing: coordinate: cause", and
//     below it a line "hint: …" where one helps. Nothing prints a stack trace or the
//     usage that was not asked for. With --json, the error is the document on stdout too.
//   - What a terminal would act on, in a path, a name or a value, is shown escaped.
//   - Progress goes to stderr, and only if that is a terminal. It is gone when the
//     command ends.
//   - Verdicts and levels of findings are coloured on a terminal: --color, NO_COLOR.
//   - A table leaves out its last columns where the terminal has no room: --wide.
//   - The exit status is the answer; see run in main.go.
package cli
