package cli

import (
	"io"
	"time"

	"github.com/schollz/progressbar/v3"
)

// Bar is the progress of a command, with a bar for each phase. It draws nothing where nobody would see it.
type Bar struct {
	To     io.Writer
	Counts bool // are counted, not bytes
	phase  string
	drawn  *progressbar.ProgressBar
}

// Set shows that n of so many are done in a phase, if the writer is a terminal.
func (b *Bar) Set(phase string, n, of int64) {
	if phase != b.phase {
		b.Remove()
		b.phase, b.drawn = phase, nil
		if IsTerminal(b.To) {
			b.drawn = progressbar.NewOptions64(of,
				progressbar.OptionSetWriter(b.To),
				progressbar.OptionSetDescription(phase),
				progressbar.OptionShowBytes(!b.Counts),
				progressbar.OptionShowCount(), // without it, a bar of terabytes is first drawn at 1 %
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

// Remove leaves an empty line where the bar was.
func (b *Bar) Remove() {
	if b.drawn != nil {
		b.drawn.Clear()
	}
}
