package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"dsmoe/config"
	"dsmoe/inspect"
	"dsmoe/inspect/experts"
	"dsmoe/model/weights"
	"dsmoe/text"
)

func newInspectExperts() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "experts CHECKPOINT",
		Short: "Look into the experts: norms, ranks, likeness, what is odd",
		Long: `Reads the selected experts and prints for each its norm, its rank, the experts most like
it in weights and in function, and what is odd about it: duplicates, zeros, outliers.
With --against ORIGINAL it prints how far each expert is from the original's instead.
DeepSeekMoE-16B takes about 7 minutes of one core, DeepSeek-V3 about 7 hours.

dsmoe help experts   the measures, memory and time
dsmoe help findings  the kinds of findings`,
		Example: `  dsmoe inspect experts --by layer -o md fixtures/v3-fp8/checkpoint
  dsmoe inspect experts fixtures/v3/checkpoint-fused --against fixtures/v3/checkpoint`,
		Args:        expect("CHECKPOINT"),
		Annotations: exits("no finding is an error (see --fail-on)", "there are errors"),
	}
	out, selection := addOutput(cmd, text.TSV), addSelection(cmd)
	out.fail = addFailOn(cmd)
	by := choice{value: string(inspect.ByExpert), words: []string{string(inspect.ByExpert), string(inspect.ByLayer)}}
	cmd.Flags().Var(&by, "by", "a row for each expert, or a few for each layer")
	similarities := cmd.Flags().Bool("similarities", false, "with --json: the cosines of all pairs of experts, too")
	against := cmd.Flags().String("against", "", "only how far each expert is from that of the `original` checkpoint")
	out.plot = addPlot(cmd, "likeness to the nearest by layer and expert; --against: relative errors")
	share := addShares(cmd, selection, "by", "fail-on", plotFlag)
	cmd.RunE = out.plot.around(func(cmd *cobra.Command, args []string) error {
		judge := func(r *experts.Report) error {
			err := out.judge(cmd, r, r.Findings)
			if form := out.chosen(cmd); r.NotCompared != "" && form != jsonForm && form != text.AsTable {
				fmt.Fprintln(cmd.ErrOrStderr(), "note: not compared:", r.NotCompared)
			}
			return err
		}
		if *share.merge {
			parts, err := mergeParts(args, partOfExperts, func(*experts.Report) string { return "" })
			if err != nil {
				return err
			}
			return judge(experts.Merge(parts, inspect.Grouping(by.value)))
		}
		if share.given() && (*against != "" || *similarities) {
			return misuse(cmd, "--part does not go with --against and --similarities; select --layers")
		}
		if *against != "" && *similarities {
			return misuse(cmd, "--against does not go with --similarities")
		}
		reads := func(c *config.Config, w *weights.Weight) bool { return experts.Reads(*selection, c.IsMoE, w) }
		return share.inspect(cmd, args[0], reads, func(w inspect.Weights) error {
			if *against != "" {
				original, c, err := openWeights(*against, needOf(*selection, reads))
				if err != nil {
					return err
				}
				defer c.Close()
				return expertsAgainst(cmd, w, original, *selection, inspect.Grouping(by.value), out)
			}
			r, err := experts.Examine(cmd.Context(), w,
				experts.Options{Selection: *selection, Similarities: *similarities, By: inspect.Grouping(by.value)})
			if err != nil {
				return fmt.Errorf("%s: %w", text.Quote(args[0]), err)
			}
			return judge(r)
		})
	})
	return cmd
}

// partOfExperts returns the part that a report is about.
func partOfExperts(r *experts.Report) *inspect.Part {
	if r.Part == nil {
		return nil
	}
	return &r.Part.Part
}

// expertsAgainst compares experts with their originals.
func expertsAgainst(cmd *cobra.Command, w, original inspect.Weights, s inspect.Selection, by inspect.Grouping,
	out *output) error {
	r, err := experts.Against(cmd.Context(), w, original, s)
	if err != nil {
		return fmt.Errorf("%s against %s: %w", text.Quote(w.Path), text.Quote(original.Path), err)
	}
	r.By = by
	return out.judge(cmd, r, r.Findings)
}
