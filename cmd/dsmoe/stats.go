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
		Long: `Reads every selected weight and prints a row of numbers for each tensor (of fused
experts, for each expert's), or with --by for each expert (routed ones, and a layer's
shared ones), layer or module. FP8 weights count as numbers: code times scale in F32.

  elements    all of them; nan and infinite count those that are not finite, zeros 0 and
              -0, beyond_f16 the finite ones that F16 rounds to infinity (65520 or more)
  min, max    of the finite elements, as are all that follow; exact
  mean, std   Σx/n and √(Σ(x-mean)²/n), in float64
  q…          --quantiles: the smallest element x such that at least q·n of n elements
              are at most x; exact, nothing is interpolated
  absmax      the largest magnitude. A row is all elements with the same first index;
              median_row_absmax is the median of the rows' absmax (the lower of two),
              outlier_rows counts rows with more than 4 times that, and largest_row is
              the most extreme of those. --json lists up to 8 of them

All numbers are the same whatever the number of threads. Beside the headers and the rows,
memory is a few megabytes for each processor. Weights are read once, with --quantiles F32
and FP8 ones at most twice. Tensors of other dtypes, and FP8 weights without usable
scales, are listed as not counted.`,
		Example: `  dsmoe inspect stats fixtures/v1-base/checkpoint
  dsmoe inspect stats --by expert --layers 1 --experts 0,5-9 fixtures/v1-base/checkpoint
  dsmoe inspect stats --by module --quantiles 0.5,0.99 -o md fixtures/v3-fp8/checkpoint
  dsmoe inspect stats --match '*.gate.weight' --json fixtures/v3/checkpoint
  dsmoe inspect stats --by expert --plot std.svg fixtures/v3/checkpoint`,
		Args:        expect("CHECKPOINT"),
		Annotations: exits("done", ""),
	}
	out, selection := addOutput(cmd, text.TSV), addSelection(cmd)
	by := choice{value: string(inspect.ByTensor), words: []string{string(inspect.ByTensor), string(inspect.ByExpert), string(inspect.ByLayer), string(inspect.ByModule)}}
	cmd.Flags().Var(&by, "by", "a row for each tensor, expert, layer or module")
	var shares quantilesFlag
	cmd.Flags().Var(&shares, "quantiles", "`shares` from 0 to 1 whose quantiles to give: 0.01,0.5,0.99")
	out.plot = addPlot(cmd, "standard deviations by layer and expert (--by expert) or in bars; by tensor the largest magnitudes by layer and kind")
	cmd.RunE = out.plot.around(func(cmd *cobra.Command, args []string) error {
		return readWeights(cmd, args[0], func(w inspect.Weights) error {
			r, err := stats.Compute(cmd.Context(), w, stats.Options{Selection: *selection, By: inspect.Grouping(by.value), Quantiles: shares})
			if err != nil {
				return fmt.Errorf("%s: %w", text.Quote(args[0]), err)
			}
			return out.print(cmd, r)
		})
	})
	return cmd
}

// quantilesFlag is a flag: shares.
type quantilesFlag []stats.Quantile

// Set reads shares.
func (q *quantilesFlag) Set(list string) (err error) {
	*q, err = stats.ParseQuantiles(list)
	return err
}

// String returns what Set reads.
func (q *quantilesFlag) String() (list string) {
	for i, one := range *q {
		if i > 0 {
			list += ","
		}
		list += one.String()
	}
	return list
}

// Type names the flag's values in the help.
func (q *quantilesFlag) Type() string { return "shares" }
