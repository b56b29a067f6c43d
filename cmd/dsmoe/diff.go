package main

import (
	"context"
	"io"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"dsmoe/cmd/dsmoe/internal/cli"
	"dsmoe/config"
	"dsmoe/convert/checkpoint"
	"dsmoe/convert/plan"
	"dsmoe/inspect/diff"
	"dsmoe/model"
	"dsmoe/model/weights"
	"dsmoe/text/problem"
)

// diffDocuments are the JSON documents of dsmoe diff.
var diffDocuments = cli.Documents{
	cli.DocumentOf[*diff.Report]("dsmoe.diff/1"),
	cli.DocumentOf[*diff.PrunedReport]("dsmoe.diff.pruned/1"),
}

func newDiff() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "diff A B",
		Short: "Compare two checkpoints tensor by tensor",
		Long: `Compares two checkpoints, whatever their shards, formats, dtypes and layouts of
experts.

Of the configs, all that decides what the model computes counts, after defaults
and aliases. torch_dtype, quantization_config and the like are shown, and are no
difference.

A tensor is equal; or close: each value of one side is that of the other rounded
to its dtype, as a cast leaves it; or it differs. FP8 weights count with their
scales. Weights that differ, of one name but for the numbers of layer and
expert, share a line about the worst of them, and the worst lines come first. A
line has the relative RMS, the largest difference and its place, the largest
number of steps between two values of the dtype (ulp), the cosine, and the
number of elements that are not finite on one side only. Weights that were only
cast share a line for each pair of dtypes, in which the experts of a layer count
as one module; --json lists every tensor. If the experts of a layer, the rows of
its router, or gate_proj and up_proj only changed places, a line says so. With
--exact, close tensors and other dtypes are differences too. With --include only
weights that a glob matches are compared, by HuggingFace's per-expert names, and
the configs.

Of two adapters of peft, directories with adapter_config.json, the tensors and
the configs are compared, and what the product of each module is multiplied
with. An adapter is not compared with a checkpoint: merge it first.

With --keep-experts or --prune, as convert made B of A, both run on the same
tokens, A with the logits and scores of all other experts at -inf. Every stage
must be equal bit for bit. Experts that no token chose are named; a B with
rounded weights is refused.`,
		Example: `  dsmoe demo
  dsmoe convert dsmoe-demo/checkpoint fused --experts fused
  dsmoe diff --exact dsmoe-demo/checkpoint fused
  dsmoe diff dsmoe-demo/checkpoint fused --include 'model.layers.2.self_attn.*'`,
		Args:        cli.Expect("A", "B"),
		Annotations: cli.Exits("the same weights, and configs of the same meaning", "they differ"),
	}
	cli.JSONFlag(cmd)
	var o diff.Options
	cmd.Flags().BoolVar(&o.Exact, "exact", false, "take another dtype, and values that are only close, for a difference")
	cmd.Flags().StringArrayVar(&o.Include, "include", nil, "compare only tensors that a `glob` matches; may be repeated")
	var prune pruneFlags
	prune.add(cmd)
	in := routingFlags{random: tokenBatch{4, 32}}
	flags := cmd.Flags()
	flags.StringVar(&in.tokens, "tokens", "", "run on the token ids of a `file`")
	flags.Var(batchFlag(&in.random), "random", "random tokens to run on: `BxT`, such as 2x17")
	cli.NumberFlag(flags, &in.seed, "seed", "", "seed of --random")
	cli.InGroup(flags, cli.Tokens, "tokens", "random", "seed")
	cli.InGroup(flags, cli.Selection, "include", "keep-experts", "prune")
	cmd.MarkFlagsMutuallyExclusive("tokens", "random")
	cmd.MarkFlagsMutuallyExclusive("tokens", "seed")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch pruned := flags.Changed("keep-experts") || flags.Changed("prune"); {
		case pruned && (flags.Changed("exact") || flags.Changed("include")):
			return cli.Misuse(cmd, "--exact and --include compare weights: not with --keep-experts or --prune")
		case pruned:
			kept, err := prune.read(cmd)
			if err != nil {
				return err
			}
			r, err := comparePruned(cmd.Context(), args[0], args[1], kept, &in, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return cli.Answer(diffDocuments.Print(cmd, r), r.First == nil)
		case flags.Changed("tokens") || flags.Changed("random") || flags.Changed("seed"):
			return cli.Misuse(cmd, "--tokens, --random and --seed are for --keep-experts or --prune")
		}
		r, err := compareWeights(cmd.Context(), args[0], args[1], o, cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		return cli.Answer(diffDocuments.Print(cmd, r), r.Same())
	}
	return cmd
}

// compareWeights opens both sides and compares them.
func compareWeights(ctx context.Context, a, b string, o diff.Options, stderr io.Writer) (*diff.Report, error) {
	left, err := openSide(ctx, a, o)
	if err != nil && checkpoint.IsAdapterAlone(a) && checkpoint.IsAdapterAlone(b) {
		return compareAdapters(ctx, a, b, o, stderr)
	}
	if err != nil {
		return nil, err
	}
	defer left.Close()
	right, err := openSide(ctx, b, o)
	if err != nil {
		return nil, err
	}
	defer right.Close()
	noteAdapter(stderr, left)
	noteAdapter(stderr, right)
	x, err := sideOf(left)
	if err != nil {
		return nil, err
	}
	y, err := sideOf(right)
	if err != nil {
		return nil, err
	}
	r, err := compareSides(ctx, x, y, o, stderr)
	if err != nil {
		return nil, err
	}
	r.A, r.B = left.Path, right.Path
	return r, nil
}

// compareSides compares two open sides.
func compareSides(ctx context.Context, a, b diff.Side, o diff.Options, stderr io.Writer) (*diff.Report, error) {
	progress := cli.Bar{To: stderr}
	defer progress.Remove()
	o.Progress = func(done, total int64) { progress.Set("comparing", done, total) }
	return diff.Compare(ctx, a, b, o)
}

// compareAdapters opens two adapters and compares them.
func compareAdapters(ctx context.Context, a, b string, o diff.Options, stderr io.Writer) (*diff.Report, error) {
	left, err := checkpoint.OpenAdapter(a)
	if err != nil {
		return nil, err
	}
	defer left.Close()
	right, err := checkpoint.OpenAdapter(b)
	if err != nil {
		return nil, err
	}
	defer right.Close()
	r, err := compareSides(ctx, diff.Side{Weights: left.Weights(), Reader: left},
		diff.Side{Weights: right.Weights(), Reader: right}, o, stderr)
	if err != nil {
		return nil, err
	}
	r.A, r.B, r.Adapters = left.Path, right.Path, true
	r.AddConfig(left.Differences(right))
	return r, nil
}

// openSide opens a checkpoint as far as the comparison reads it.
func openSide(ctx context.Context, path string, o diff.Options) (*checkpoint.Checkpoint, error) {
	var need checkpoint.Need
	if len(o.Include) > 0 {
		need = func(c *config.Config, all weights.Headers) (map[string]bool, error) {
			if c == nil {
				return nil, nil
			}
			return weights.Holders(c, all, func(w *weights.Weight) bool { return o.Selects(c, w) }), nil
		}
	}
	c, err := openerOf(ctx).OpenPart(path, need)
	if err == nil && c.Config.Computable() != nil {
		c.Close()
		return nil, problem.In(c.Path, problem.Of(c.ConfigFile(), c.Config.Computable())...)
	}
	return c, err
}

// comparePruned runs the larger model at path a and the smaller at path b.
func comparePruned(ctx context.Context, a, b string, prune plan.Prune, tokens *routingFlags,
	stderr io.Writer) (*diff.PrunedReport, error) {
	large, err := openerOf(ctx).Open(a)
	if err != nil {
		return nil, err
	}
	defer large.Close()
	small, err := openerOf(ctx).Open(b)
	if err != nil {
		return nil, err
	}
	defer small.Close()
	noteAdapter(stderr, large)
	noteAdapter(stderr, small)
	x, err := runnable(large, large.Config.Reference)
	if err != nil {
		return nil, err
	}
	y, err := runnable(small, large.Config.Reference)
	if err != nil {
		return nil, err
	}
	kept := prune.Kept(large.Config)
	maps.DeleteFunc(kept, func(l int, _ []int) bool { return l >= len(y.Model.Model.Layers)+y.Model.PredictionLayers() })
	var problems []problem.Problem
	for _, cause := range prune.Check(large.Config, slices.Sorted(maps.Keys(kept))) {
		problems = append(problems, problem.Problem{Cause: cause})
	}
	if problems != nil {
		return nil, problem.In(large.Path, problems...)
	}
	in, err := tokens.input(min(large.Config.VocabSize, small.Config.VocabSize))
	if err != nil {
		return nil, err
	}
	progress := cli.Bar{To: stderr, Counts: true}
	defer progress.Remove()
	r, err := diff.Pruned(ctx, x, y, kept, in, func(done, total int) {
		progress.Set("running", int64(done), int64(total))
	})
	if err != nil {
		return nil, cli.Named(b, err)
	}
	r.A, r.B = large.Path, small.Path
	return r, nil
}

// runnable loads a model that follows the rules of a reference.
func runnable(c *checkpoint.Checkpoint, reference config.Reference) (r diff.Runnable, err error) {
	r.Pages, r.Reader = c, c
	rules, err := c.Config.As(reference)
	if err == nil {
		r.Model, err = model.Load(rules, c)
	}
	if err != nil {
		return r, cli.Named(c.Path, err)
	}
	r.Weights, err = orderedWeights(c)
	return r, err
}

// sideOf is a checkpoint seen per expert, in the order of the model.
func sideOf(c *checkpoint.Checkpoint) (diff.Side, error) {
	list, err := orderedWeights(c)
	return diff.Side{Weights: list, Reader: c, Config: c.Config}, err
}
