package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"dsmoe/convert"
	"dsmoe/verify/diff"
)

func newDiff() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "diff A B",
		Short: "Compare two checkpoints tensor by tensor",
		Long: `Compares the weights of two checkpoints, whatever their shards, formats, dtypes and
layouts of experts. Every tensor is equal; or close: each value of one side is that
of the other rounded to its dtype, as a cast leaves it; or it differs, and then the
line gives the relative RMS, the largest difference and its place, the largest number
of steps between two values of the dtype (ulp), and the cosine. FP8 weights count with
their scales. Experts that differ alike are folded into one line, with the worst.

Equal and close tensors are the same; with --exact, another dtype is a difference too.
The configs are not compared.`,
		Example: `  dsmoe diff model converted
  dsmoe diff base finetuned --json
  dsmoe diff --exact checkpoint checkpoint-fused`,
		Args:        expect("A", "B"),
		Annotations: exits("the weights are the same", "the weights differ"),
	}
	asJSON := jsonFlag(cmd)
	var o diff.Options
	cmd.Flags().BoolVar(&o.Exact, "exact", false, "take another dtype, and values that are only close, for a difference")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		r, err := compareWeights(cmd.Context(), args[0], args[1], o, cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		return answer(printReport(cmd, r, *asJSON), r.Same())
	}
	return cmd
}

// compareWeights opens both sides and compares them.
func compareWeights(ctx context.Context, a, b string, o diff.Options, stderr io.Writer) (*diff.Report, error) {
	left, err := openView(a)
	if err != nil {
		return nil, err
	}
	defer left.close()
	right, err := openView(b)
	if err != nil {
		return nil, err
	}
	defer right.close()
	total := int64(0)
	for info := range left.Tensors() {
		total += info.Bytes()
	}
	progress := newBar(stderr, "comparing", total, true)
	defer progress.remove()
	o.Progress = progress.add
	r, err := diff.Compare(ctx, left, right, o)
	if err != nil {
		return nil, err
	}
	r.A, r.B = a, b
	return r, nil
}

// openedView is a checkpoint seen per expert.
type openedView struct {
	*convert.View
	checkpoint *convert.Checkpoint
}

func openView(path string) (openedView, error) {
	c, err := convert.Open(path)
	if err != nil {
		return openedView{}, err
	}
	v, err := convert.NewView(c)
	if err != nil {
		c.Close()
		return openedView{}, err
	}
	return openedView{v, c}, nil
}

func (v openedView) close() {
	v.View.Close()
	v.checkpoint.Close()
}
