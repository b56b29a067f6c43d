package cli

import (
	"errors"
	"io"

	"dsmoe/text/page"
)

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
