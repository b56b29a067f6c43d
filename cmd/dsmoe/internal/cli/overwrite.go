package cli

import (
	"errors"
	"strconv"

	"github.com/spf13/cobra"
)

// Overwriting says whether a finished output is replaced, and whether one with files that changed
// since is.
type Overwriting struct{ Finished, Changed bool }

// String returns what parseOverwriting reads.
func (o Overwriting) String() string {
	if o.Changed {
		return "changed"
	}
	return strconv.FormatBool(o.Finished)
}

// parseOverwriting reads true, which the flag alone stands for, changed, or false.
func parseOverwriting(word string) (Overwriting, error) {
	if word == "changed" {
		return Overwriting{true, true}, nil
	}
	finished, err := strconv.ParseBool(word)
	if err != nil {
		err = errors.New("not changed")
	}
	return Overwriting{finished, false}, err
}

// OverwriteFlag adds --overwrite to a command.
func OverwriteFlag(cmd *cobra.Command, to *Overwriting) {
	cmd.Flags().Var(Value[Overwriting]{to, "bool", parseOverwriting, Overwriting.String, []string{"changed"}}, "overwrite",
		"replace DST if it is a finished output of dsmoe; --overwrite=changed also if its files changed since")
	cmd.Flags().Lookup("overwrite").NoOptDefVal = "true"
}
