package main

// The rules of terminal output:
//
//   - stdout carries the result and nothing else. With --json that is one JSON
//     document, indented by two spaces.
//   - stderr carries errors, one line each, "dsmoe: thing: coordinate: cause", and
//     below it a line "hint: …" where one helps. Nothing prints a stack trace or the
//     usage that was not asked for.
//   - Progress goes to stderr, and only if that is a terminal. It is gone when the
//     command ends.
//   - No colour is used, so NO_COLOR has nothing to switch off.
//   - The exit status is the answer; see the switch in main.go.

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"dsmoe/convert"
	"dsmoe/convert/checkpoint"
	"dsmoe/model"
	"dsmoe/text"
)

// report is what a command has found out. It is JSON as it stands.
type report interface {
	// WriteText writes it for a reader.
	WriteText(w io.Writer) error
}

// printReport writes r to stdout, as text or as JSON.
func printReport(cmd *cobra.Command, r report, asJSON bool) error {
	w := bufio.NewWriter(cmd.OutOrStdout())
	write := r.WriteText
	if asJSON {
		write = func(w io.Writer) error { return writeJSON(w, r) }
		if large, ok := r.(interface{ WriteJSON(io.Writer) error }); ok {
			write = large.WriteJSON
		}
	}
	if err := write(w); err != nil {
		return err
	}
	return w.Flush()
}

func writeJSON(w io.Writer, document any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(document)
}

// jsonFlag adds --json to a command.
func jsonFlag(cmd *cobra.Command) *bool {
	return cmd.Flags().Bool("json", false, "print one JSON document")
}

// printError writes the line that says why there is no answer, and the hint.
func printError(w io.Writer, err error) {
	lines := strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' })
	fmt.Fprintln(w, "dsmoe:", text.Line(strings.Join(lines, "; ")))
	if hint := hintOf(err); hint != "" {
		fmt.Fprintln(w, "hint:", text.Line(hint))
	}
}

// fileError is an error of the system about the file at path: "path: cause".
func fileError(path string, err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		err = p.Err
	}
	return fmt.Errorf("%s: %w", text.Quote(path), err)
}

// hintOf returns what the user can do about err, if anything is known.
func hintOf(err error) string {
	var usage *usageError
	var bad *checkpoint.Error
	var mismatch *model.MismatchError
	var overflow *convert.OverflowError
	switch {
	case errors.As(err, &overflow):
		return "--type bf16 and f32 keep them; --allow-overflow writes infinities, and goes on from what is done"
	case errors.As(err, &usage):
		return usage.hint
	case errors.As(err, &mismatch):
		return "dsmoe inspect audit CHECKPOINT lists every finding"
	case errors.As(err, &bad):
		for _, p := range bad.Problems {
			if p.Hint != "" {
				return p.Hint
			}
		}
	}
	return ""
}

// usageError is a command line that makes no sense.
type usageError struct{ cause, hint string }

// Error says what is wrong.
func (e *usageError) Error() string { return e.cause }

// misuse says what is wrong with a command line.
func misuse(cmd *cobra.Command, cause string) error {
	path := cmd.CommandPath()
	if _, sub, ok := strings.Cut(path, " "); ok {
		cause = sub + ": " + cause
	}
	return &usageError{cause, path + " --help shows how it is used"}
}

// expect demands exactly the named arguments.
func expect(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != len(names) {
			return misuse(cmd, fmt.Sprintf("want %s, but %d given", strings.Join(names, " and "), len(args)))
		}
		return nil
	}
}

// exitStatus is the annotation of a command that explains its exit statuses.
const exitStatus = "exit status"

// exitStatusTemplate ends the help of every command.
const exitStatusTemplate = `
EXIT STATUS
{{with index .Annotations "` + exitStatus + `"}}{{.}}{{else}}  0    done{{end}}
  2    could not tell: bad input, a missing file, a wrong flag or argument
  130  interrupted
`

// exits documents the exit statuses 0 and, where it is not empty, 1.
func exits(yes, no string) map[string]string {
	statuses := "  0    " + yes
	if no != "" {
		statuses += "\n  1    " + no
	}
	return map[string]string{exitStatus: statuses}
}

// bar is the progress of a command. It draws nothing where nobody would see it.
type bar struct{ drawn *progressbar.ProgressBar }

// newBar shows progress towards total, a number of bytes or else of things, if w is a
// terminal.
func newBar(w io.Writer, what string, total int64, inBytes bool) bar {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return bar{}
	}
	return bar{progressbar.NewOptions64(total,
		progressbar.OptionSetWriter(f),
		progressbar.OptionSetDescription(what),
		progressbar.OptionShowBytes(inBytes),
		progressbar.OptionUseIECUnits(true),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionFullWidth(),
		progressbar.OptionClearOnFinish())}
}

// add advances the bar by n.
func (b bar) add(n int64) {
	if b.drawn != nil {
		b.drawn.Add64(n)
	}
}

// remove leaves an empty line where the bar was.
func (b bar) remove() {
	if b.drawn != nil {
		b.drawn.Clear()
	}
}
