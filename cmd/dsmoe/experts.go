package main

import (
	"fmt"

	"dsmoe/cmd/dsmoe/internal/cli"
	"dsmoe/config"
	"dsmoe/inspect"
	"dsmoe/inspect/experts"
	"dsmoe/model/weights"
	"dsmoe/text"
)

func expertsInspection() *inspection {
	var similarities *bool
	var against *string
	return &inspection{
		use:   "experts CHECKPOINT",
		short: "Look into the experts: norms, ranks, likeness, what is odd",
		long: `Reads the selected experts and prints for each its norm, its rank, the experts
most like it in weights and in function, and what is odd about it: duplicates,
zeros, outliers. With --against ORIGINAL it prints how far each expert is from
the original's instead. DeepSeekMoE-16B takes about 7 minutes of one core,
DeepSeek-V3 one to four hours.

dsmoe help experts   the measures, memory and time
dsmoe help findings  the kinds of findings`,
		example: `  dsmoe demo
  dsmoe inspect experts --by layer -o md dsmoe-demo/checkpoint
  dsmoe convert dsmoe-demo/checkpoint f16 --type f16
  dsmoe inspect experts f16 --against dsmoe-demo/checkpoint`,
		documents: cli.Documents{
			cli.DocumentOf[*experts.Report]("dsmoe.inspect.experts/1"),
			cli.DocumentOf[*experts.ErrorReport]("dsmoe.inspect.experts.against/1"),
		},
		pipe:    text.TSV,
		selects: true,
		by:      []inspect.Grouping{inspect.ByExpert, inspect.ByLayer},
		byUsage: "a row for each expert, or a few for each layer",
		plot:    "likeness to the nearest by layer and expert; --against: relative errors",
		failOn:  true,
		flags: func(q *query) {
			similarities = q.Flags().Bool("similarities", false, "with --json: the cosines of all pairs of experts, too")
			against = q.Flags().String("against", "", "only how far each expert is from that of the `original` checkpoint")
		},
		run: func(q *query) (cli.Result, error) {
			if *against != "" && *similarities {
				return nil, cli.Misuse(q.Command, "--against does not go with --similarities")
			}
			var reads reading = func(c *config.Config, w *weights.Weight) bool { return experts.Reads(q.selection, c.IsMoE, w) }
			if *against != "" {
				return q.read(reads, func(w inspect.Weights) (cli.Result, error) {
					original, c, err := openWeights(q.Context(), *against, reads.need(q.selection))
					if err != nil {
						return nil, err
					}
					defer c.Close()
					r, err := experts.Against(q.Context(), w, original, experts.Options{Selection: q.selection, By: q.by})
					if err != nil {
						return nil, fmt.Errorf("%s against %s: %w", text.Quote(w.Path), text.Quote(original.Path), err)
					}
					return r, nil
				})
			}
			return q.examine(reads, func(w inspect.Weights) (cli.Result, error) {
				defer collectSoon()()
				return experts.Examine(q.Context(), w,
					experts.Options{Selection: q.selection, Similarities: *similarities, By: q.by})
			})
		},
	}
}
