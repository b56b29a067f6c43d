package cli

// How the inspections print what they have found out: -o, and what they share beside it.

import (
	"io"
	"slices"

	"github.com/spf13/cobra"

	"dsmoe/text"
)

// Sheeted is a report whose numbers are a sheet.
type Sheeted interface {
	Result
	// Sheet returns the rows that WriteText prints.
	Sheet() *text.Sheet
}

// Output is the flags that say how a report is printed.
type Output struct {
	form      Choice
	documents Documents
	pipe      text.Form // the form where stdout is no terminal
	Plot      *Plot     // of the command; nil if it has none
}

// AddOutput adds -o and --json to a command, whose reports go into a pipe in a form.
func AddOutput(cmd *cobra.Command, d Documents, pipe text.Form) *Output {
	o := &Output{documents: d, pipe: pipe}
	JSONFlag(cmd)
	o.form.words = []string{string(text.AsTable), string(text.TSV), string(text.CSV), JSONForm, string(text.Markdown)}
	usage := "print in a `form`: table, tsv, csv, json or md"
	if pipe == text.TSV {
		usage += " (default table on a terminal, else tsv)"
	} else {
		usage += " (default table)"
	}
	cmd.Flags().VarP(&o.form, OutputFlag, "o", usage)
	cmd.Flags().Bool(WideFlag, false, "all columns of a table, wider than the terminal")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if givenJSON(cmd) && !slices.Contains([]string{"", JSONForm}, o.form.Value) {
			return Misuse(cmd, "--json and -o "+o.form.Value+": one of them")
		}
		return nil
	}
	return o
}

// Print draws a report, and prints it.
func (o *Output) Print(cmd *cobra.Command, r Sheeted) error {
	if err := o.Plot.Draw(r); err != nil {
		return err
	}
	form := o.Chosen(cmd)
	if form == JSONForm || form == text.AsTable {
		return o.documents.printAs(cmd, r, form == JSONForm)
	}
	return r.Sheet().WriteAs(cmd.OutOrStdout(), form)
}

// Chosen returns the form in which print prints.
func (o *Output) Chosen(cmd *cobra.Command) text.Form {
	switch {
	case givenJSON(cmd):
		return JSONForm
	case o.form.Value != "":
		return text.Form(o.form.Value)
	case IsTerminal(cmd.OutOrStdout()):
		return text.AsTable
	}
	return o.pipe
}

// PrintBeside prints a report with findings. If only its sheet is printed, write writes them to stderr.
func (o *Output) PrintBeside(cmd *cobra.Command, r Sheeted, findings int, write func(io.Writer) error) error {
	err := o.Print(cmd, r)
	if form := o.Chosen(cmd); err == nil && findings > 0 && form != JSONForm && form != text.AsTable {
		err = write(cmd.ErrOrStderr())
	}
	return err
}
