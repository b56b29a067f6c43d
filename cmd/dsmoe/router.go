package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"dsmoe/cmd/dsmoe/internal/cli"
	"dsmoe/config"
	"dsmoe/inspect"
	"dsmoe/inspect/router"
	"dsmoe/model/weights"
	"dsmoe/text"
)

// routerDocuments is the JSON document of dsmoe inspect router.
var routerDocuments = cli.Documents{cli.DocumentOf[*router.Report]("dsmoe.inspect.router/1")}

func newInspectRouter() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "router CHECKPOINT",
		Short: "Look into the routers: norms, likeness, bounds, what is odd",
		Long: `Reads the routers, mlp.gate.weight [experts, hidden], and prints for each expert's row
its norm, the row most like it, and the logits that it allows: some experts are proven
to be chosen never, or always. --coupling also compares the rows with the experts'
gate_proj, to find rows and experts that a conversion numbered apart.

dsmoe help routers   the measures and memory
dsmoe help findings  the kinds of findings`,
		Example: `  dsmoe inspect router --by layer --coupling fixtures/v3/checkpoint
  dsmoe inspect router --layers 1 --json fixtures/v3-fp8/checkpoint`,
		Args:        cli.Expect("CHECKPOINT"),
		Annotations: cli.Exits("no finding is an error (see --fail-on)", "there are errors"),
	}
	out, selection := cli.AddOutput(cmd, routerDocuments, text.TSV), addSelection(cmd)
	fail := addFailOn(cmd)
	cmd.Flags().MarkHidden("experts") // it is refused
	by := cli.ChoiceOf(string(inspect.ByExpert), string(inspect.ByExpert), string(inspect.ByLayer))
	cmd.Flags().Var(&by, "by", "a row for each expert, or for each layer")
	coupling := cmd.Flags().Bool("coupling", false, "hold the rows against gate_proj of the experts, too, which are read")
	out.Plot = cli.AddPlot(cmd, "norms of the rows by layer and expert")
	cmd.RunE = out.Plot.Around(func(cmd *cobra.Command, args []string) error {
		o := router.Options{Selection: *selection, Coupling: *coupling, By: inspect.Grouping(by.Value)}
		need := needOf(*selection, func(c *config.Config, w *weights.Weight) bool { return o.Reads(c.IsMoE, w) })
		return readWeights(cmd, args[0], need, func(w inspect.Weights) error {
			r, err := router.Examine(cmd.Context(), w, o)
			if err != nil {
				return fmt.Errorf("%s: %w", text.Quote(args[0]), err)
			}
			return judge(cmd, out, fail, r, r.Findings)
		})
	})
	return cmd
}
