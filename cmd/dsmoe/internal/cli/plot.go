package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"dsmoe/text"
	"dsmoe/text/page"
)

// AddPlot adds --plot to a command, whose report is then drawn, too: as what says.
func AddPlot(cmd *cobra.Command, what string) *Plot {
	p := &Plot{}
	cmd.Flags().StringVar(&p.path, PlotFlag, "", "draw it, too, in an SVG `file`: "+what)
	cmd.MarkFlagFilename(PlotFlag, "svg")
	return p
}

// PlotFlag is the name of --plot.
const PlotFlag = "plot"

// Plot is a drawing that a command writes; none if its path is "".
type Plot struct {
	path string
	file *OutFile
	of   string // what the command was given
}

// drawn is a report of a command with --plot.
type drawn interface {
	// Figure returns nil if there are no numbers to draw.
	Figure() page.Figure
}

// Around makes sure that the drawing can be written before a command does its work, and that
// nothing is left behind but a whole one.
func (p *Plot) Around(run func(cmd *cobra.Command, args []string) error) func(cmd *cobra.Command, args []string) error {
	return func(cmd *cobra.Command, args []string) (err error) {
		if cmd.Flags().Changed(PlotFlag) {
			if p.file, err = CreateFile(p.path, InputsOf(cmd, args)...); err != nil {
				return err
			}
			defer p.file.Discard()
		}
		p.of = strings.Join(args, ", ")
		return run(cmd, args)
	}
}

// Draw writes the drawing of a report, if it was asked for.
func (p *Plot) Draw(r Result) error {
	if p == nil || p.file == nil {
		return nil
	}
	f := r.(drawn).Figure()
	if f == nil {
		return fmt.Errorf("%s: %w", text.Quote(p.path), errors.New("not written: there are no numbers to draw"))
	}
	return p.file.Commit(func(w io.Writer) error { return page.WriteSVG(w, f, p.of) })
}
