package main

import (
	"dsmoe/cmd/dsmoe/internal/cli"
	"dsmoe/inspect"
	"dsmoe/inspect/stats"
	"dsmoe/text"
)

func statsInspection() *inspection {
	var quantiles []stats.Quantile
	return &inspection{
		use:   "stats CHECKPOINT",
		short: "Give statistics of the weights",
		long: `Reads every selected weight and prints a row of statistics for each tensor, or
with --by for each expert (routed ones, and a layer's shared ones), layer or
module.

dsmoe help statistics  the columns`,
		example: `  dsmoe demo
  dsmoe inspect stats --by expert --layers 1 dsmoe-demo/checkpoint
  dsmoe inspect stats --by module --quantiles 0.5 -o md dsmoe-demo/checkpoint`,
		documents: cli.Documents{cli.DocumentOf[*stats.Report]("dsmoe.inspect.stats/1")},
		pipe:      text.TSV,
		selects:   true,
		by:        []inspect.Grouping{inspect.ByTensor, inspect.ByExpert, inspect.ByLayer, inspect.ByModule},
		byUsage:   "a row for each tensor, expert, layer or module",
		plot: "standard deviations by layer and expert (--by expert) or in bars; by tensor the largest " +
			"magnitudes by layer and kind",
		flags: func(q *query) {
			show := func(q []stats.Quantile) string { return text.Some(q, len(q), ",") }
			q.Flags().Var(cli.ValueOf(&quantiles, "shares", stats.ParseQuantiles, show), "quantiles",
				"give the quantiles of `shares` from 0 to 1: 0.01,0.5,0.99")
		},
		run: func(q *query) (cli.Result, error) {
			return q.examine(q.selected, func(w inspect.Weights) (cli.Result, error) {
				return stats.Compute(q.Context(), w,
					stats.Options{Selection: q.selection, By: q.by, Quantiles: quantiles})
			})
		},
	}
}
