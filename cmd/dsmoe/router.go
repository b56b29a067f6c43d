package main

import (
	"dsmoe/cmd/dsmoe/internal/cli"
	"dsmoe/config"
	"dsmoe/inspect"
	"dsmoe/inspect/router"
	"dsmoe/model/weights"
	"dsmoe/text"
)

func routerInspection() *inspection {
	var coupling *bool
	return &inspection{
		use:   "router CHECKPOINT",
		short: "Look into the routers: norms, likeness, bounds, what is odd",
		long: `Reads the routers, mlp.gate.weight [experts, hidden], and prints for each
expert's row its norm, the row most like it, and the logits that it allows: some
experts are proven to be chosen never, or always. --coupling also compares the
rows with the experts' gate_proj, to find rows and experts that a conversion
numbered apart.

dsmoe help routers   the measures and memory
dsmoe help findings  the kinds of findings`,
		example: `  dsmoe demo
  dsmoe inspect router --by layer --coupling dsmoe-demo/checkpoint
  dsmoe inspect router --layers 1 --json dsmoe-demo/checkpoint`,
		documents: cli.Documents{cli.DocumentOf[*router.Report]("dsmoe.inspect.router/1")},
		pipe:      text.TSV,
		selects:   true,
		by:        []inspect.Grouping{inspect.ByExpert, inspect.ByLayer},
		byUsage:   "a row for each expert, or for each layer",
		plot:      "norms of the rows by layer and expert",
		failOn:    true,
		flags: func(q *query) {
			q.Flags().MarkHidden("experts") // it is refused
			coupling = q.Flags().Bool("coupling", false, "hold the rows against gate_proj of the experts, too, which are read")
		},
		run: func(q *query) (cli.Result, error) {
			o := router.Options{Selection: q.selection, Coupling: *coupling, By: q.by}
			reads := func(c *config.Config, w *weights.Weight) bool { return o.Reads(c.IsMoE, w) }
			return q.examine(reads, func(w inspect.Weights) (cli.Result, error) { return router.Examine(q.Context(), w, o) })
		},
	}
}
