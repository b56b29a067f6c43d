package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"dsmoe/cmd/dsmoe/internal/cli"
	"dsmoe/inspect/header"
	"dsmoe/model/count"
	"dsmoe/text"
)

func archInspection() *inspection {
	seq := 0
	compare := &compareFlags{n: 16, k: 2, m: 4, shared: 1}
	return &inspection{
		use:   "arch {CONFIG|CHECKPOINT | --compare LAYERS [CONFIG]}",
		short: "Work out parameters, compute and memory from the config",
		long: `Works out, from config.json and without rounding: the bytes of the weights,
those of the files if there are any; parameters in total and used by one token,
by module; floating point operations of a token's forward pass and of training;
the KV cache; and the number of sets of experts that a gate can choose. With
--compare it prints the comparison of MoE layers of the DeepSeekMoE paper.

dsmoe help memory  the formulas`,
		example: `  dsmoe demo
  dsmoe inspect arch --seq 32768 dsmoe-demo/checkpoint
  dsmoe inspect arch --compare top2,fine,shared -N 16 -K 2 -m 4 --shared 1`,
		documents: cli.Documents{
			cli.DocumentOf[*header.Arch]("dsmoe.inspect.arch/1"),
			cli.DocumentOf[*header.Comparison]("dsmoe.inspect.arch.compare/1"),
		},
		args: compare.args,
		pipe: text.AsTable,
		plot: "bars of parameters, and of those that a token uses; --compare: of the choices",
		flags: func(q *query) {
			flags, f := q.Flags(), compare
			cli.NumberFlag(flags, &seq, "seq", "",
				"so many `positions` of attention and KV cache, tokens of training (default max_position_embeddings)")
			flags.StringVar(&f.layers, "compare", "",
				"compare these `layers` instead: any of top2,fine,shared, in the order to print")
			q.RegisterFlagCompletionFunc("compare", cli.CompleteList(header.Top2, header.Fine, header.Shared))
			cli.NumberFlag(flags, &f.n, "experts", "N", "experts of the conventional layer")
			cli.NumberFlag(flags, &f.k, "active", "K", "experts of it that a token uses")
			cli.NumberFlag(flags, &f.m, splitFlag, "m", "parts that each expert is split into; never more than a config's active "+
				"experts")
			cli.NumberFlag(flags, &f.shared, "shared", "", "experts isolated as shared, of those after the split")
			cli.NumberFlag(flags, &f.hidden, "hidden", "", "hidden_size d, for absolute costs; with --intermediate")
			cli.NumberFlag(flags, &f.intermediate, "intermediate", "", "width d_ff of a conventional expert")
			q.ValidArgsFunction = cli.CompleteArguments("arch CONFIG")
		},
		run: func(q *query) (cli.Result, error) {
			switch {
			case q.Flags().Changed("compare"):
				return compare.report(q)
			case seq < 0 || seq > maxSeq:
				return nil, cli.Misuse(q.Command, "--seq is not in 1..100000000")
			}
			src, imagined, err := checkpointOrConfig(q.Context(), q.path)
			if err != nil {
				return nil, err
			}
			defer src.Close()
			if seq > 0 && src.Config.BlockOnly() {
				return nil, cli.Misuse(q.Command, "--seq: "+src.Config.Attends().Error())
			}
			w, err := weightsOf(src, imagined, cli.WeightType{})
			if err != nil {
				return nil, err
			}
			return header.Describe(src.Path, src.Config, w, seq), nil
		},
	}
}

// maxSeq keeps the totals of any config within 64 bits.
const maxSeq = 100_000_000

// compareFlags are the flags of --compare. The defaults are the paper's example.
type compareFlags struct {
	layers                                string
	n, k, m, shared, hidden, intermediate int
}

// splitFlag is the flag of m, the only one of the layer that a config leaves open.
const splitFlag = "split"

// layerFlags are the others; a config takes their place.
func layerFlags() []string { return []string{"experts", "active", "shared", "hidden", "intermediate"} }

// args demands a config, which --compare can do without.
func (f *compareFlags) args(cmd *cobra.Command, given []string) error {
	wanted := cmd.Flags().Changed("compare")
	if wanted && len(given) == 0 {
		return nil
	}
	if err := cli.Expect("CONFIG or CHECKPOINT")(cmd, given); err != nil {
		return err
	}
	if wanted {
		return refuse(cmd, layerFlags(), "the config says that already")
	}
	return refuse(cmd, append(layerFlags(), splitFlag), "for --compare only")
}

// refuse names those of the flags that were given.
func refuse(cmd *cobra.Command, flags []string, why string) error {
	var given []string
	for _, name := range flags {
		if cmd.Flags().Changed(name) {
			given = append(given, "--"+name)
		}
	}
	if given == nil {
		return nil
	}
	return cli.Misuse(cmd, strings.Join(given, ", ")+": "+why)
}

// report compares the layers. All that is wrong with the flags is one error.
func (f *compareFlags) report(q *query) (cli.Result, error) {
	names, err := header.ParseLayers(f.layers)
	if err != nil {
		err = fmt.Errorf("--compare: %w", err)
	}
	if q.Flags().Changed("seq") {
		err = errors.Join(err, errors.New("--seq: no part of --compare"))
	}
	s, wrong := count.Segment(f.n, f.k, f.m, f.shared, f.hidden, f.intermediate)
	if q.path == "" || f.m < 1 {
		err = errors.Join(err, wrong)
	}
	if err != nil {
		return nil, cli.Misuse(q.Command, err.Error())
	}
	if q.path == "" {
		return header.Compare("", s, names), nil
	}
	c, _, err := configOf(q.Context(), q.path)
	if err != nil {
		return nil, err
	}
	m := f.m
	if !q.Flags().Changed(splitFlag) {
		m = 0 // the config's own
	}
	if s, err = count.SegmentationOf(c, m); err != nil {
		return nil, cli.Named(q.path, err)
	}
	return header.Compare(q.path, s, names), nil
}
