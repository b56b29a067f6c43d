package main

import (
	"io"
	"os"

	"github.com/spf13/cobra"

	"dsmoe/cmd/dsmoe/internal/cli"
	"dsmoe/convert/plan"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// pruneFlags are the flags that say which routed experts are kept.
type pruneFlags struct {
	experts text.Spans // of every layer
	file    string     // lists the experts of each layer
}

// add adds the flags to a command.
func (f *pruneFlags) add(cmd *cobra.Command) {
	cmd.Flags().Var(cli.SpansFlag(&f.experts, "experts"), "keep-experts",
		"keep only these routed `experts` of each layer: 0-15")
	cmd.Flags().StringVar(&f.file, "prune", "",
		"keep only the experts in a `file`: {\"1\": [0, 3], \"2\": [1, 2]}, lists by layer, equally long")
	cmd.MarkFlagsMutuallyExclusive("keep-experts", "prune")
}

// maxPruneBytes is the size of a file for --prune, more than lists of all experts of any config take.
const maxPruneBytes = 16 << 20

// read reads the file.
func (f *pruneFlags) read(cmd *cobra.Command) (p plan.Prune, err error) {
	if p.All = f.experts; !cmd.Flags().Changed("prune") {
		return p, nil
	}
	file, err := os.Open(f.file)
	if err != nil {
		return p, problem.System(f.file, "", err)
	}
	defer file.Close()
	if p.Layers, err = plan.ReadPrune(io.LimitReader(file, maxPruneBytes)); err != nil {
		err = cli.Named(f.file, err)
	}
	return p, err
}
