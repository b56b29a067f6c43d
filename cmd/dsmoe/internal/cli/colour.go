package cli

import (
	"io"
	"os"
	"regexp"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"dsmoe/text"
)

// The words of --color.
const (
	ColourFlag   = "color"
	colourAuto   = "auto" // on a terminal, unless NO_COLOR is set or TERM is dumb
	colourAlways = "always"
	colourNever  = "never"
)

// AddColour adds --color to a command and those below it.
func AddColour(cmd *cobra.Command) {
	colour := colourAuto
	cmd.PersistentFlags().Var(WordFlag(&colour, colourAuto, colourAlways, colourNever), ColourFlag,
		"colour of verdicts and levels: auto, always or never")
	InGroup(cmd.PersistentFlags(), Reporting, ColourFlag)
}

// colours are the words at the begin of a line that have a colour, behind what stands before
// them: verdicts, and the levels of findings.
var colours = regexp.MustCompile(`^(verdict +|  )(PASS|FAIL|INCONCLUSIVE|error|notice)\b`)

// codes are the colours: bold, and green, red or yellow.
var codes = map[string]string{"PASS": "1;32", "FAIL": "1;31", "error": "1;31", "INCONCLUSIVE": "1;33", "notice": "1;33"}

// paint colours the verdict or the level that a line begins with.
func paint(line string) string {
	m := colours.FindStringSubmatchIndex(line)
	if m == nil {
		return line
	}
	word := line[m[4]:m[5]]
	return line[:m[4]] + "\x1b[" + codes[word] + "m" + word + "\x1b[0m" + line[m[5]:]
}

// isColoured reports whether the result of cmd is printed in colours.
func isColoured(cmd *cobra.Command) bool {
	switch f := cmd.Flags().Lookup(ColourFlag); {
	case f != nil && f.Value.String() == colourAlways:
		return true
	case f != nil && f.Value.String() == colourNever, os.Getenv("NO_COLOR") != "", os.Getenv("TERM") == "dumb":
		return false
	}
	return columnsOf(cmd.OutOrStdout()) > 0
}

// IsTerminal reports whether w is a terminal.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// columnsOf returns how many columns w shows if it is a terminal, and otherwise 0.
func columnsOf(w io.Writer) int {
	if f, ok := w.(*os.File); ok {
		if columns, _, err := term.GetSize(int(f.Fd())); err == nil {
			return columns
		}
	}
	return 0
}

// WideFlag shows tables with all their columns, and lines whole.
const WideFlag = "wide"

// AddWide adds --wide to a command.
func AddWide(cmd *cobra.Command) {
	cmd.Flags().Bool(WideFlag, false, "all columns of a table, wider than the terminal")
	InGroup(cmd.Flags(), Reporting, WideFlag)
}

// roomOf returns how many columns lines of the result of cmd have; 0 is any number.
func roomOf(cmd *cobra.Command) int {
	if f := cmd.Flags().Lookup(WideFlag); f != nil && f.Value.String() == "true" {
		return 0
	}
	return columnsOf(cmd.OutOrStdout())
}

// screenOf returns w as the screen that the result of cmd is made for.
func screenOf(cmd *cobra.Command, w io.Writer) text.Screen {
	s := text.Screen{Writer: w}
	if cmd.Flags().Lookup(WideFlag) != nil {
		s.Columns = roomOf(cmd)
	}
	return s
}
