package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"dsmoe/cmd/dsmoe/internal/cli"
	"dsmoe/inspect"
	"dsmoe/inspect/stats"
	"dsmoe/text"
)

// statsDocuments is the JSON document of dsmoe inspect stats.
var statsDocuments = cli.Documents{cli.DocumentOf[*stats.Report]("dsmoe.inspect.stats/1")}

func newInspectStats() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "stats CHECKPOINT",
		Short: "Give statistics of the weights",
		Long: `Reads every selected weight and prints a row of statistics for each tensor, or with --by
for each expert (routed ones, and a layer's shared ones), layer or module.

dsmoe help statistics  the columns`,
		Example: `  dsmoe inspect stats --by expert --layers 1 --experts 0,5-9 fixtures/v1-base/checkpoint
  dsmoe inspect stats --by module --quantiles 0.5,0.99 -o md fixtures/v3-fp8/checkpoint`,
		Args:        cli.Expect("CHECKPOINT"),
		Annotations: cli.Exits("done", ""),
	}
	out, selection := cli.AddOutput(cmd, statsDocuments, text.TSV), addSelection(cmd)
	by := cli.ChoiceOf(string(inspect.ByTensor), string(inspect.ByTensor), string(inspect.ByExpert), string(inspect.ByLayer),
		string(inspect.ByModule))
	cmd.Flags().Var(&by, "by", "a row for each tensor, expert, layer or module")
	var shares []stats.Quantile
	show := func(q []stats.Quantile) string { return text.Some(q, len(q), ",") }
	cmd.Flags().Var(cli.ValueOf(&shares, "shares", stats.ParseQuantiles, show), "quantiles",
		"`shares` from 0 to 1 whose quantiles to give: 0.01,0.5,0.99")
	out.Plot = cli.AddPlot(cmd, "standard deviations by layer and expert (--by expert) or in bars; by tensor the largest "+
		"magnitudes by layer and kind")
	share := addShares(cmd, selection, cli.PlotFlag)
	cmd.RunE = out.Plot.Around(func(cmd *cobra.Command, args []string) error {
		if *share.merge {
			parts, err := mergeParts(statsDocuments, args, func(r *stats.Report) *inspect.Part { return r.Part },
				func(r *stats.Report) string { return string(r.By) })
			if err != nil {
				return err
			}
			return out.Print(cmd, stats.Merge(parts))
		}
		if share.Given() && by.Value == string(inspect.ByModule) {
			return cli.Misuse(cmd, "--by module is over all layers: not with --part")
		}
		return share.inspect(cmd, args[0], hasWeight(selection), func(w inspect.Weights) error {
			r, err := stats.Compute(cmd.Context(), w,
				stats.Options{Selection: *selection, By: inspect.Grouping(by.Value), Quantiles: shares})
			if err != nil {
				return fmt.Errorf("%s: %w", text.Quote(args[0]), err)
			}
			return out.Print(cmd, r)
		})
	})
	return cmd
}
