package main

import (
	"dsmoe/cmd/dsmoe/internal/cli"
	"dsmoe/config"
	"dsmoe/inspect/header"
	"dsmoe/model/weights"
	"dsmoe/text"
)

func treeInspection() *inspection {
	depth := 0
	return &inspection{
		use:   "tree CHECKPOINT",
		short: "Show the modules of a checkpoint as a tree",
		long: `Shows the modules that the names of the tensors make, each with its tensors,
parameters, their share of all, bytes, dtypes and shape. Layers and experts that
are alike share a line: layers.{1..27} stands for 27 layers, and its numbers are
those of all of them together. FP8 scales are tensors, but no parameters. Only
headers are read; the config is not needed.`,
		example: `  dsmoe demo
  dsmoe inspect tree --depth 2 -o md dsmoe-demo/checkpoint
  dsmoe inspect tree --layers 1 --json dsmoe-demo/checkpoint`,
		yes:       "all tensors are in the tree",
		no:        "some files cannot be read, or disagree with the index",
		documents: cli.Documents{cli.DocumentOf[*header.TreeReport]("dsmoe.inspect.tree/1")},
		pipe:      text.TSV,
		selects:   true,
		plot:      "bars of parameters of what is at the ends of the tree",
		flags: func(q *query) {
			cli.NumberFlag(q.Flags(), &depth, "depth", "", "show so many `levels` only; --json has all of them")
		},
		run: func(q *query) (cli.Result, error) {
			l, err := listing(q)
			if err != nil {
				return nil, err
			}
			return l.Tree(depth), nil
		},
	}
}

// listing lists the selected tensors.
func listing(q *query) (*header.Listing, error) {
	need := func(_ *config.Config, all weights.Headers) (map[string]bool, error) {
		if q.selection.All() {
			return nil, nil
		}
		names := map[string]bool{}
		for info := range all.Tensors() {
			names[info.Name] = q.selection.Has(info.Name)
		}
		return names, nil
	}
	c, err := scan(q.Context(), q.path, need)
	if err != nil {
		return nil, err
	}
	l, err := header.List(c).Select(q.selection)
	return l, cli.Named(q.path, err)
}
