package main

import (
	"io"
	"slices"

	"github.com/spf13/cobra"

	"dsmoe/cmd/dsmoe/internal/cli"
	"dsmoe/inspect"
)

// judge prints a report with observations, and answers whether none of them fails.
func judge(cmd *cobra.Command, o *cli.Output, fail *failOn, r cli.Sheeted, found []inspect.Observation) error {
	err := o.PrintBeside(cmd, r, len(found), func(w io.Writer) error { return inspect.WriteObservations(w, found) })
	fails := func(f inspect.Observation) bool { return fail.counts(f.Level) }
	return cli.Answer(err, !slices.ContainsFunc(found, fails))
}

// judgeFiles prints a report on the tensors of files, and answers whether no file is broken.
func judgeFiles(cmd *cobra.Command, o *cli.Output, r cli.Sheeted, broken []inspect.Finding) error {
	err := o.PrintBeside(cmd, r, len(broken), func(w io.Writer) error {
		return inspect.WriteFindings(w, broken, inspect.MaxLines)
	})
	return cli.Answer(err, len(broken) == 0)
}

// failOn is a flag: the least grave level of findings with which a command exits with status 1.
type failOn struct{ cli.Choice }

// addFailOn adds --fail-on to a command.
func addFailOn(cmd *cobra.Command) *failOn {
	f := &failOn{cli.ChoiceOf(string(inspect.Error), string(inspect.Notice), string(inspect.Error), "none")}
	cmd.Flags().Var(f, "fail-on", "exit with 1 from this `level` of findings on: notice, error or none")
	return f
}

// counts reports whether a finding of a level fails.
func (f *failOn) counts(l inspect.Level) bool { return l.AtLeast(inspect.Level(f.Value)) }
