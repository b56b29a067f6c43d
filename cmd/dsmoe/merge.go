package main

// --merge: reports of parts, which earlier runs printed as JSON, read and joined into one.

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"dsmoe/cmd/dsmoe/internal/cli"
)

// addMerge adds --merge to a command. Then its arguments are REPORTs, and all other flags that are not among these,
// which say how to print, are refused.
func addMerge(cmd *cobra.Command, printing ...string) *bool {
	merge := cmd.Flags().Bool("merge", false, "join the JSON of earlier runs: dsmoe ... --merge REPORT...")
	expected := cmd.Args
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if !*merge {
			return expected(cmd, args)
		}
		var err error
		cmd.Flags().Visit(func(f *pflag.Flag) {
			if !slices.Contains(append(printing, "merge", "json", cli.ColourFlag, cli.OutputFlag, cli.WideFlag), f.Name) {
				err = cli.Misuse(cmd, fmt.Sprintf("--%s does not go with --merge, which joins reports as they are", f.Name))
			}
		})
		if err == nil && len(args) == 0 {
			err = cli.Misuse(cmd, "want at least one REPORT, but 0 given")
		}
		return err
	}
	return merge
}
