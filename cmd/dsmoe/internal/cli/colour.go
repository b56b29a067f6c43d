package cli

import (
	"io"
	"os"
	"regexp"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// The words of --color.
const (
	ColourFlag   = "color"
	colourAuto   = "auto" // on a terminal or with FORCE_COLOR, unless NO_COLOR is set or TERM is dumb
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

// isColoured reports whether the result of cmd is printed in colours.
func isColoured(cmd *cobra.Command) bool {
	switch f := cmd.Flags().Lookup(ColourFlag); {
	case f != nil && f.Value.String() == colourAlways:
		return true
	case f != nil && f.Value.String() == colourNever, os.Getenv("NO_COLOR") != "", os.Getenv("TERM") == "dumb":
		return false
	}
	force := os.Getenv("FORCE_COLOR")
	return force != "" && force != "0" || columnsOf(cmd.OutOrStdout()) > 0
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
