package cli

import (
	"cmp"
	"io"
	"time"

	"github.com/schollz/progressbar/v3"
)

// Bar is the progress of a command, with a bar for each phase. It draws nothing where nobody would see it.
type Bar struct {
	To      io.Writer
	Counts  bool // are counted, not bytes
	phase   string
	columns int // of the terminal
	drawn   *progressbar.ProgressBar
}

// What a line shows beside the phase needs so many columns at most, for counts of a thousand TiB and hundreds of hours.
// A line that is longer than the terminal is drawn on two, and stays there.
const (
	leastColumns = 15
	countColumns = 47 // with count and rate
	timeColumns  = 70 // with the times, too
)

// Set shows that n of so many are done in a phase, if the writer is a terminal.
func (b *Bar) Set(phase string, n, of int64) {
	if !IsTerminal(b.To) {
		return
	}
	columns := cmp.Or(columnsOf(b.To), 80) // some terminals do not know theirs
	if phase != b.phase || columns != b.columns {
		b.Remove()
		b.phase, b.columns, b.drawn = phase, columns, nil
		if room := columns - len(phase); room >= leastColumns {
			options := []progressbar.Option{
				progressbar.OptionSetWriter(b.To),
				progressbar.OptionSetDescription(phase),
				progressbar.OptionUseIECUnits(true),
				progressbar.OptionUseANSICodes(true), // which clear a line of any length
				progressbar.OptionThrottle(100 * time.Millisecond),
				progressbar.OptionFullWidth(),
				progressbar.OptionClearOnFinish(),
				progressbar.OptionSetPredictTime(room >= timeColumns),
				progressbar.OptionSetElapsedTime(room >= timeColumns),
			}
			if room >= countColumns { // without the count, a bar of terabytes is first drawn at 1 %
				options = append(options, progressbar.OptionShowCount(), progressbar.OptionShowBytes(!b.Counts))
			}
			b.drawn = progressbar.NewOptions64(of, options...)
		}
	}
	if b.drawn != nil {
		b.drawn.Set64(n)
	}
}

// Remove leaves an empty line where the bar was.
func (b *Bar) Remove() {
	if b.drawn != nil {
		b.drawn.Clear()
	}
}
