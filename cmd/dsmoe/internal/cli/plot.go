package cli

import (
	"errors"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"dsmoe/text/page"
)

// AddPlot adds --plot to a command, whose report is then drawn, too: as what says.
func (o *Output) AddPlot(cmd *cobra.Command, what string) {
	o.plot = &plot{}
	cmd.Flags().StringVar(&o.plot.path, PlotFlag, "", "draw it, too, in an SVG `file`: "+what)
	cmd.MarkFlagFilename(PlotFlag, "svg")
}

// PlotFlag is the name of --plot.
const PlotFlag = "plot"

// plot is a drawing that a command writes; none if its path is "".
type plot struct {
	path string
	file *OutFile
	of   string // what the command was given
}

// drawn is a report of a command with --plot.
type drawn interface {
	// Figure returns nil if there are no numbers to draw.
	Figure() page.Figure
}

// Drawing makes sure that the drawing of a command with --plot can be written before run does its work, and that
// nothing is left behind but a whole one.
func (o *Output) Drawing(run func(cmd *cobra.Command, args []string) error) func(cmd *cobra.Command, args []string) error {
	if o.plot == nil {
		return run
	}
	return func(cmd *cobra.Command, args []string) (err error) {
		if cmd.Flags().Changed(PlotFlag) {
			if o.plot.file, err = CreateFile(o.plot.path, InputsOf(cmd, args)...); err != nil {
				return err
			}
			defer o.plot.file.Discard()
		}
		o.plot.of = strings.Join(args, ", ")
		return run(cmd, args)
	}
}

// draw writes the drawing of a report, if it was asked for.
func (p *plot) draw(r Result) error {
	if p == nil || p.file == nil {
		return nil
	}
	f := r.(drawn).Figure()
	if f == nil {
		return Named(p.path, errors.New("not written: there are no numbers to draw"))
	}
	return p.file.Commit(func(w io.Writer) error { return page.WriteSVG(w, f, p.of) })
}
