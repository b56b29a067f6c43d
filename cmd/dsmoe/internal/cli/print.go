package cli

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"dsmoe/text"
)

// Result is what a command has found out. It is JSON as it stands.
type Result interface {
	// WriteText writes it for a reader, into memory: no write fails.
	WriteText(w io.Writer) error
}

// Print writes r to stdout, as text or with --json as JSON. Foreign words are quoted where they
// stand in a text; whatever should have slipped through is escaped here.
func (d Documents) Print(cmd *cobra.Command, r Result) error {
	return d.printAs(cmd, r, givenJSON(cmd))
}

// printAs writes r to stdout, as text or as JSON.
func (d Documents) printAs(cmd *cobra.Command, r Result, asJSON bool) error {
	w := bufio.NewWriter(cmd.OutOrStdout())
	if asJSON {
		if err := d.write(w, r); err != nil {
			return err
		}
		return w.Flush()
	}
	var b strings.Builder
	coloured, columns, screen := isColoured(cmd), columnsOf(cmd.OutOrStdout()), text.Screen{Writer: &b}
	if wide := cmd.Flags().Lookup(WideFlag); wide != nil {
		if wide.Value.String() == "true" {
			columns = 0
		}
		screen.Columns = columns // of tables
	}
	if err := r.WriteText(screen); err != nil {
		return err
	}
	for line := range strings.Lines(b.String()) {
		for i, line := range text.Wrap(text.Line(strings.TrimSuffix(line, "\n")), columns) {
			if m := colours.FindStringSubmatchIndex(line); coloured && i == 0 && m != nil {
				word := line[m[4]:m[5]]
				line = line[:m[4]] + "\x1b[" + codes[word] + "m" + word + "\x1b[0m" + line[m[5]:]
			}
			fmt.Fprintln(w, line)
		}
	}
	return w.Flush()
}

// JSONFlag adds --json to a command.
func JSONFlag(cmd *cobra.Command) {
	cmd.Flags().Bool("json", false, "print one JSON document")
	InGroup(cmd.Flags(), Reporting, "json")
}

// givenJSON reports whether --json is given.
func givenJSON(cmd *cobra.Command) bool { return cmd.Flags().Lookup("json").Value.String() == "true" }

// Expect demands exactly the named arguments. A first argument that is near to the name of
// a command below this one, and is no file, was meant for that. DST cannot be stdout.
func Expect(names ...string) cobra.PositionalArgs {
	wanted := strings.Join(names, " and ")
	if wanted == "" {
		wanted = "no argument"
	}
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 && nearCommands(cmd, args[0]) != "" {
			if _, err := os.Lstat(args[0]); err != nil {
				return Misuse(cmd, UnknownCommand(cmd, args[0]))
			}
		}
		if len(args) != len(names) {
			return Misuse(cmd, fmt.Sprintf("want %s, but %d given", wanted, len(args)))
		}
		if i := slices.Index(names, "DST"); i >= 0 && args[i] == "-" {
			return Misuse(cmd, "DST is -: a checkpoint cannot go to stdout; ./- is a directory of this name")
		}
		return nil
	}
}
