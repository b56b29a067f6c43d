package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"dsmoe/cmd/dsmoe/internal/cli"
	"dsmoe/config"
	"dsmoe/inspect"
	"dsmoe/inspect/header"
	"dsmoe/model/weights"
	"dsmoe/text"
)

// treeDocuments is the JSON document of dsmoe inspect tree.
var treeDocuments = cli.Documents{cli.DocumentOf[*header.TreeReport]("dsmoe.inspect.tree/1")}

func newInspectTree() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tree CHECKPOINT",
		Short: "Show the modules of a checkpoint as a tree",
		Long: `Shows the modules that the names of the tensors make, each with its tensors, parameters,
their share of all, bytes, dtypes and shape. Layers and experts that are alike share a
line: layers.{1..27} stands for 27 layers, and its numbers are those of all of them
together. FP8 scales are tensors, but no parameters. Only headers are read; the config
is not needed.`,
		Example: `  dsmoe inspect tree --depth 2 -o md fixtures/v3/checkpoint-fused
  dsmoe inspect tree --layers 1 --json fixtures/v3-fp8/checkpoint`,
		Args:        cli.Expect("CHECKPOINT"),
		Annotations: cli.Exits("all tensors are in the tree", "some files cannot be read, or disagree with the index"),
	}
	out, selection := cli.AddOutput(cmd, treeDocuments, text.TSV), addSelection(cmd)
	depth := 0
	cli.NumberFlag(cmd.Flags(), &depth, "depth", "", "show so many `levels` only; --json has all of them")
	out.Plot = cli.AddPlot(cmd, "bars of parameters of what is at the ends of the tree")
	cmd.RunE = out.Plot.Around(func(cmd *cobra.Command, args []string) error {
		l, err := listing(args[0], *selection)
		if err != nil {
			return err
		}
		return judgeFiles(cmd, out, l.Tree(depth), l.Broken)
	})
	return cmd
}

// listing lists the selected tensors of the checkpoint at path.
func listing(path string, s inspect.Selection) (*header.Listing, error) {
	need := func(_ *config.Config, all weights.Headers) (map[string]bool, error) {
		if s.All() {
			return nil, nil
		}
		names := map[string]bool{}
		for info := range all.Tensors() {
			names[info.Name] = s.Has(info.Name)
		}
		return names, nil
	}
	c, err := scanPart(path, need)
	if err != nil {
		return nil, err
	}
	l, err := header.List(c).Select(s)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", text.Quote(path), err)
	}
	return l, nil
}
