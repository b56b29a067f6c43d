package main

import (
	"dsmoe/cmd/dsmoe/internal/cli"
	"dsmoe/inspect"
	"dsmoe/inspect/stats"
	"dsmoe/text"
)

func hashInspection() *inspection {
	return &inspection{
		use:   "hash CHECKPOINT",
		short: "Name the values of the weights by hashes",
		long: `Prints a BLAKE3 hash of each tensor's values, and of all together; with --by
module of each module; with --by model of the model alone. --json has all of
them. Sharding, file format, fused experts, and a dtype that holds the same
numbers do not change a hash.

dsmoe help hashes  what is hashed, byte by byte`,
		example: `  dsmoe demo
  dsmoe inspect hash --by model dsmoe-demo/checkpoint
  dsmoe inspect hash --by module --layers 1 dsmoe-demo/checkpoint`,
		documents: cli.Documents{cli.DocumentOf[*stats.HashReport]("dsmoe.inspect.hash/1")},
		pipe:      text.TSV,
		selects:   true,
		by:        []inspect.Grouping{inspect.ByTensor, inspect.ByModule, inspect.ByModel},
		byUsage:   "a row for each tensor or module, or for the model alone",
		run: func(q *query) (cli.Result, error) {
			if q.by == inspect.ByModel && !q.selection.All() {
				return nil, cli.Misuse(q.Command, "--by model is about all tensors: not with --layers, --experts or --match")
			}
			return q.examine(q.selected, func(w inspect.Weights) (cli.Result, error) {
				return stats.Hash(q.Context(), w, q.selection, q.by)
			})
		},
	}
}
