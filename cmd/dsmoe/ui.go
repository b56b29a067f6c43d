package main

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
//   - The exit status is the answer; see the switch in main.go.

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"dsmoe/convert/checkpoint"
	"dsmoe/text"
)

// result is what a command has found out. It is JSON as it stands.
type result interface {
	// WriteText writes it for a reader.
	WriteText(w io.Writer) error
}

// printReport writes r to stdout, as text or as JSON. Foreign words are quoted where they
// stand in a text; whatever should have slipped through is escaped here.
func printReport(cmd *cobra.Command, r result, asJSON bool) error {
	w := bufio.NewWriter(cmd.OutOrStdout())
	if asJSON {
		if err := writeDocument(w, r); err != nil {
			return err
		}
		return w.Flush()
	}
	var b strings.Builder
	if err := r.WriteText(screenOf(cmd, &b)); err != nil {
		return err
	}
	coloured := isColoured(cmd)
	for line := range strings.Lines(b.String()) {
		if line = text.Line(strings.TrimSuffix(line, "\n")); coloured {
			line = paint(line)
		}
		fmt.Fprintln(w, line)
	}
	return w.Flush()
}

// jsonFlag adds --json to a command.
func jsonFlag(cmd *cobra.Command) *bool {
	return cmd.Flags().Bool("json", false, "print one JSON document")
}

// expect demands exactly the named arguments. A first argument that is near to the name of
// a command below this one, and is no file, was meant for that. DST cannot be stdout.
func expect(names ...string) cobra.PositionalArgs {
	wanted := strings.Join(names, " and ")
	if wanted == "" {
		wanted = "no argument"
	}
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 && nearCommands(cmd, args[0]) != "" {
			if _, err := os.Lstat(args[0]); err != nil {
				return misuse(cmd, unknownCommand(cmd, args[0]))
			}
		}
		if len(args) != len(names) {
			return misuse(cmd, fmt.Sprintf("want %s, but %d given", wanted, len(args)))
		}
		if i := slices.Index(names, "DST"); i >= 0 && args[i] == "-" {
			return misuse(cmd, "DST is -: a checkpoint cannot go to stdout; ./- is a directory of this name")
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

// noteAdapter writes the note of an adapter beside a checkpoint, for reports without notes of its files.
func noteAdapter(stderr io.Writer, c *checkpoint.Checkpoint) {
	for _, n := range c.Inventory.Notes {
		if checkpoint.IsAdapter(n.File) {
			fmt.Fprintf(stderr, "note: %s: %s\n", text.Quote(c.Path), text.Line(n.String()))
		}
	}
}

// bar is the progress of a command, in phases of which each has a bar of its own. It draws nothing where nobody
// would see it.
type bar struct {
	w      io.Writer
	things bool // are counted, not bytes
	phase  string
	drawn  *progressbar.ProgressBar
}

// isTerminal reports whether w is a terminal.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// set shows that n of so many are done in a phase, if the writer is a terminal.
func (b *bar) set(phase string, n, of int64) {
	if phase != b.phase {
		b.remove()
		b.phase, b.drawn = phase, nil
		if isTerminal(b.w) {
			b.drawn = progressbar.NewOptions64(of,
				progressbar.OptionSetWriter(b.w),
				progressbar.OptionSetDescription(phase),
				progressbar.OptionShowBytes(!b.things),
				progressbar.OptionUseIECUnits(true),
				progressbar.OptionThrottle(100*time.Millisecond),
				progressbar.OptionFullWidth(),
				progressbar.OptionClearOnFinish())
		}
	}
	if b.drawn != nil {
		b.drawn.Set64(n)
	}
}

// remove leaves an empty line where the bar was.
func (b *bar) remove() {
	if b.drawn != nil {
		b.drawn.Clear()
	}
}
