package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"dsmoe/cmd/dsmoe/internal/cli"
	"dsmoe/config"
	"dsmoe/inspect"
	"dsmoe/inspect/experts"
	"dsmoe/model/weights"
	"dsmoe/text"
)

// expertsDocuments are the JSON documents of dsmoe inspect experts.
var expertsDocuments = cli.Documents{
	cli.DocumentOf[*experts.Report]("dsmoe.inspect.experts/1"),
	cli.DocumentOf[*experts.ErrorReport]("dsmoe.inspect.experts.against/1"),
}

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
		Args:        cli.Expect("CHECKPOINT"),
		Annotations: cli.Exits("no finding is an error (see --fail-on)", "there are errors"),
	}
	out, selection := cli.AddOutput(cmd, expertsDocuments, text.TSV), addSelection(cmd)
	fail := addFailOn(cmd)
	by := cli.ChoiceOf(string(inspect.ByExpert), string(inspect.ByExpert), string(inspect.ByLayer))
	cmd.Flags().Var(&by, "by", "a row for each expert, or a few for each layer")
	similarities := cmd.Flags().Bool("similarities", false, "with --json: the cosines of all pairs of experts, too")
	against := cmd.Flags().String("against", "", "only how far each expert is from that of the `original` checkpoint")
	out.Plot = cli.AddPlot(cmd, "likeness to the nearest by layer and expert; --against: relative errors")
	share := addShares(cmd, selection, "by", "fail-on", cli.PlotFlag)
	cmd.RunE = out.Plot.Around(func(cmd *cobra.Command, args []string) error {
		judgeAll := func(r *experts.Report) error {
			err := judge(cmd, out, fail, r, r.Findings)
			if form := out.Chosen(cmd); r.NotCompared != "" && form != cli.JSONForm && form != text.AsTable {
				fmt.Fprintln(cmd.ErrOrStderr(), "note: not compared:", r.NotCompared)
			}
			return err
		}
		if *share.merge {
			parts, err := mergeParts(expertsDocuments, args, partOfExperts, func(*experts.Report) string { return "" })
			if err != nil {
				return err
			}
			return judgeAll(experts.Merge(parts, inspect.Grouping(by.Value)))
		}
		if share.Given() && (*against != "" || *similarities) {
			return cli.Misuse(cmd, "--part does not go with --against and --similarities; select --layers")
		}
		if *against != "" && *similarities {
			return cli.Misuse(cmd, "--against does not go with --similarities")
		}
		reads := func(c *config.Config, w *weights.Weight) bool { return experts.Reads(*selection, c.IsMoE, w) }
		return share.inspect(cmd, args[0], reads, func(w inspect.Weights) error {
			if *against != "" {
				original, c, err := openWeights(*against, needOf(*selection, reads))
				if err != nil {
					return err
				}
				defer c.Close()
				return expertsAgainst(cmd, w, original, *selection, inspect.Grouping(by.Value), out, fail)
			}
			r, err := experts.Examine(cmd.Context(), w,
				experts.Options{Selection: *selection, Similarities: *similarities, By: inspect.Grouping(by.Value)})
			if err != nil {
				return fmt.Errorf("%s: %w", text.Quote(args[0]), err)
			}
			return judgeAll(r)
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
	out *cli.Output, fail *failOn) error {
	r, err := experts.Against(cmd.Context(), w, original, s)
	if err != nil {
		return fmt.Errorf("%s against %s: %w", text.Quote(w.Path), text.Quote(original.Path), err)
	}
	r.By = by
	return judge(cmd, out, fail, r, r.Findings)
}
