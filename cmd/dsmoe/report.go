package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"dsmoe/cmd/dsmoe/internal/cli"
	"dsmoe/convert/checkpoint"
	"dsmoe/inspect"
	"dsmoe/inspect/header"
	"dsmoe/inspect/report"
	"dsmoe/inspect/routing"
	"dsmoe/text"
	"dsmoe/text/problem"
	"dsmoe/verify/pack"
)

func reportInspection() *inspection {
	f := &reportFlags{}
	return &inspection{
		use:   "report {CHECKPOINT|CONFIG}",
		short: "Look into everything at once, and draw it on a page",
		long: `Runs inspect audit --values, experts, router --coupling, and stats of all other
weights, and prints their findings. --html also writes a page with the findings
and the numbers as drawings: one file that needs no network and no script. With
a golden pack or tokens the page has their routing; experts that these tokens do
not reach are no finding. With --against BASE it says what a fine-tune changed:
how far each weight is from the base's, and the rank of the difference, r for a
merged LoRA of rank r (dsmoe help statistics). For CONFIG, a config.json alone,
the page has the parameters.

Every weight is read four times, those of experts five times; for the routers
gate_proj once more, and up_proj where they fit it. Memory: that of inspect
experts and of two matrices of 1024 × 1024 for each processor, 32·N² bytes for a
layer of N experts, and with tokens that of inspect routing. With --layers or
--experts only those weights are read; routers have all their rows.

dsmoe help findings  the kinds of findings`,
		example: `  dsmoe demo
  dsmoe inspect report dsmoe-demo/checkpoint --html report.html
  dsmoe inspect report dsmoe-demo/checkpoint --golden dsmoe-demo/golden --json`,
		documents: cli.Documents{cli.DocumentOf[*report.Report]("dsmoe.inspect.report/1")},
		expects:   "CHECKPOINT or CONFIG",
		failOn:    true,
		flags: func(q *query) {
			flags := q.Flags()
			q.files.Flag(q.Command, htmlFlag, "html", "write a page, too, into a `file`")
			addSelection(flags, &f.selection)
			flags.StringVar(&f.against, "against", "",
				"the `base` checkpoint: what was changed, by how much, and the ranks of the changes")
			flags.StringVar(&f.golden, "golden", "", "a golden `pack` whose routing is shown")
			flags.StringVar(&f.tokens, "tokens", "", "show the routing of the token ids of a `file`, by a forward pass")
			flags.Var(batchFlag(&f.random), "random", "random tokens for a forward pass: `BxT`, such as 2x17")
			cli.NumberFlag(flags, &f.seed, "seed", "", "seed of --random")
			cli.InGroup(flags, cli.Tokens, "golden", "tokens", "random", "seed")
		},
		run: func(q *query) (cli.Result, error) {
			if err := f.check(q.Command, q.path); err != nil {
				return nil, err
			}
			r, err := f.report(q.Command, q.path)
			if err == nil {
				err = q.files.Write(htmlFlag, r.Page(time.Now()).WriteHTML)
			}
			return r, err
		},
	}
}

// reportFlags are the flags of the command.
type reportFlags struct {
	routingFlags
	golden, against string
	selection       inspect.Selection
}

// check refuses what can be refused before anything is read.
func (f *reportFlags) check(cmd *cobra.Command, path string) error {
	given := 0
	for _, name := range []string{"golden", "tokens", "random"} {
		if cmd.Flags().Changed(name) {
			given++
		}
	}
	switch {
	case given > 1:
		return cli.Misuse(cmd, "--golden, --tokens and --random: one of them")
	case cmd.Flags().Changed("seed") && f.random == tokenBatch{}:
		return cli.Misuse(cmd, "--seed is that of --random")
	case configPath(path) == path && (given > 0 || !f.selection.All() || f.against != ""):
		if _, _, err := configOf(cmd.Context(), path); err != nil {
			return err
		}
		return cli.Misuse(cmd, "a config alone has no weights to select, to compare or to route tokens with")
	case f.golden != "":
		return pack.Look(f.golden)
	case f.tokens != "":
		_, err := pack.ReadTokens(f.tokens)
		return err
	}
	return nil
}

// report makes the report on a checkpoint, or on a config alone.
func (f *reportFlags) report(cmd *cobra.Command, path string) (*report.Report, error) {
	if configPath(path) == path {
		c, _, err := configOf(cmd.Context(), path)
		if err != nil {
			return nil, err
		}
		return report.OfConfig(header.Describe(path, c, header.Weights{}, 0)), nil
	}
	src, err := openerOf(cmd.Context()).Examine(path)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	noteAdapter(cmd.ErrOrStderr(), src)
	b := cli.Bar{To: cmd.ErrOrStderr()}
	defer b.Remove()
	in := report.Input{Selection: f.selection, Progress: b.Set}
	if in.Checkpoint, in.Values, err = valuesOf(src); err != nil {
		return nil, err
	}
	if c := in.Checkpoint.Config; c != nil && c.Computable() != nil {
		return nil, problem.In(src.Path, problem.Of(src.ConfigFile(), c.Computable())...)
	}
	if in.Weights, err = usableWeights(src); err != nil {
		in.Unusable = err
	} else if in.Stored, err = storedWeights(src); err != nil {
		return nil, err
	}
	if f.against != "" {
		base, opened, err := openWeights(cmd.Context(), f.against, nil)
		if err != nil {
			return nil, err
		}
		defer opened.Close()
		in.Base = &base
	}
	if f.golden != "" || f.tokens != "" || f.random != (tokenBatch{}) {
		in.Route = func(o routing.Options) (*routing.Report, error) {
			b.Remove()
			f.layers, f.experts = o.Layers, o.Experts
			if f.golden != "" {
				f.config = path
				return f.routingFlags.golden(cmd.Context(), f.golden)
			}
			return f.forward(cmd, path, f.options())
		}
	}
	defer collectSoon()()
	r, err := report.Make(cmd.Context(), in)
	if err != nil {
		return nil, cli.Named(path, err)
	}
	return r, nil
}

// usableWeights returns the weights of a checkpoint in which headers, index and config agree.
func usableWeights(src *checkpoint.Checkpoint) (*inspect.Weights, error) {
	if n := len(src.Inventory.Problems); n > 0 {
		return nil, fmt.Errorf("%s with the files or the config", text.Plural(n, "problem"))
	}
	list, err := orderedWeights(src)
	if err != nil {
		return nil, err
	}
	return &inspect.Weights{Path: src.Inventory.Path, Config: src.Config, List: list, Reader: src}, nil
}
