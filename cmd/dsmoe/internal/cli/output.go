package cli

// How the inspections print what they have found out: -o, and what they share beside it.

import (
	"errors"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"dsmoe/text"
	"dsmoe/text/page"
)

// sheeted is a report whose numbers are a sheet.
type sheeted interface {
	Result
	// Sheet returns the rows that WriteText prints.
	Sheet() *text.Sheet
}

// Output is the flags that say how a report is printed.
type Output struct {
	form      text.Form // as given; "" without -o
	documents Documents
	pipe      text.Form // the form where stdout is no terminal; "" without -o
	files     *Files    // with --plot, if the command has it; else nil
}

// AddOutput adds --json to a command and, unless pipe is "", -o: in the form pipe its reports go into a pipe.
func AddOutput(cmd *cobra.Command, d Documents, pipe text.Form) *Output {
	o := &Output{documents: d, pipe: pipe}
	if JSONFlag(cmd); pipe == "" {
		return o
	}
	form := WordFlag(&o.form, text.AsTable, text.TSV, text.CSV, jsonForm, text.Markdown)
	usage := "print in a `form`: table, tsv, csv, json or md"
	if pipe == text.TSV {
		usage += " (default table on a terminal, else tsv)"
	} else {
		usage += " (default table)"
	}
	cmd.Flags().VarP(form, outputFlag, "o", usage)
	InGroup(cmd.Flags(), Reporting, outputFlag)
	AddWide(cmd)
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if givenJSON(cmd) && o.form != "" && o.form != jsonForm {
			return Misuse(cmd, "--json and -o "+string(o.form)+": one of them")
		}
		return nil
	}
	return o
}

// PlotFlag is the name of --plot.
const PlotFlag = "plot"

// AddPlot adds --plot to a command and to the files that it writes. Its report is then drawn, too: as what says.
func (o *Output) AddPlot(cmd *cobra.Command, files *Files, what string) {
	o.files = files
	o.files.Flag(cmd, PlotFlag, "svg", "draw it, too, in an SVG `file`: "+what)
}

// drawn is a report of a command with --plot.
type drawn interface {
	// Figure returns nil if there are no numbers to draw.
	Figure() page.Figure
}

// Print draws a report, and prints it.
func (o *Output) Print(cmd *cobra.Command, r Result) error {
	if o.files != nil {
		err := o.files.Write(PlotFlag, func(w io.Writer) error {
			if f := r.(drawn).Figure(); f != nil {
				return page.WriteSVG(w, f, strings.Join(cmd.Flags().Args(), ", "))
			}
			return errors.New("not written: there are no numbers to draw")
		})
		if err != nil {
			return err
		}
	}
	if o.IsSheet(cmd) {
		return r.(sheeted).Sheet().WriteAs(cmd.OutOrStdout(), o.chosen(cmd))
	}
	return o.documents.printAs(cmd, r, o.chosen(cmd) == jsonForm)
}

// IsSheet reports whether Print prints the sheet of a report alone.
func (o *Output) IsSheet(cmd *cobra.Command) bool {
	form := o.chosen(cmd)
	return form != jsonForm && form != text.AsTable
}

// chosen returns the form in which Print prints.
func (o *Output) chosen(cmd *cobra.Command) text.Form {
	switch {
	case givenJSON(cmd):
		return jsonForm
	case o.form != "":
		return o.form
	case o.pipe == "" || IsTerminal(cmd.OutOrStdout()):
		return text.AsTable
	}
	return o.pipe
}
