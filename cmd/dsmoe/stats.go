package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"dsmoe/inspect"
	"dsmoe/inspect/stats"
	"dsmoe/text"
)

func newInspectStats() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "stats CHECKPOINT",
		Short: "Give statistics of the weights",
		Long: `Reads every selected weight and prints a row of statistics for each tensor, or with --by
for each expert (routed ones, and a layer's shared ones), layer or module.

dsmoe help statistics  the columns`,
		Example: `  dsmoe inspect stats --by expert --layers 1 --experts 0,5-9 fixtures/v1-base/checkpoint
  dsmoe inspect stats --by module --quantiles 0.5,0.99 -o md fixtures/v3-fp8/checkpoint`,
		Args:        expect("CHECKPOINT"),
		Annotations: exits("done", ""),
	}
	out, selection := addOutput(cmd, text.TSV), addSelection(cmd)
	by := choice{value: string(inspect.ByTensor),
		words: []string{string(inspect.ByTensor), string(inspect.ByExpert), string(inspect.ByLayer),
			string(inspect.ByModule)}}
	cmd.Flags().Var(&by, "by", "a row for each tensor, expert, layer or module")
	var shares []stats.Quantile
	show := func(q []stats.Quantile) string { return text.Some(q, len(q), ",") }
	cmd.Flags().Var(value[[]stats.Quantile]{&shares, "shares", stats.ParseQuantiles, show, nil}, "quantiles",
		"`shares` from 0 to 1 whose quantiles to give: 0.01,0.5,0.99")
	out.plot = addPlot(cmd, "standard deviations by layer and expert (--by expert) or in bars; by tensor the largest "+
		"magnitudes by layer and kind")
	share := addShares(cmd, selection, plotFlag)
	cmd.RunE = out.plot.around(func(cmd *cobra.Command, args []string) error {
		if *share.merge {
			parts, err := mergeParts(args, func(r *stats.Report) *inspect.Part { return r.Part },
				func(r *stats.Report) string { return string(r.By) })
			if err != nil {
				return err
			}
			return out.print(cmd, stats.Merge(parts))
		}
		if share.given() && by.value == string(inspect.ByModule) {
			return misuse(cmd, "--by module is over all layers: not with --part")
		}
		return share.inspect(cmd, args[0], hasWeight(selection), func(w inspect.Weights) error {
			r, err := stats.Compute(cmd.Context(), w,
				stats.Options{Selection: *selection, By: inspect.Grouping(by.value), Quantiles: shares})
			if err != nil {
				return fmt.Errorf("%s: %w", text.Quote(args[0]), err)
			}
			return out.print(cmd, r)
		})
	})
	return cmd
}
