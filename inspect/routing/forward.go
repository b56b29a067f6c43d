package routing

// Routing by our own forward pass.

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/table"
	"dsmoe/text"
)

// Forward is a model and the tokens whose routing is asked for.
type Forward struct {
	Path     string                     // of the checkpoint, as it was given
	Model    *model.DeepseekForCausalLM // whose gates choose
	Input    *model.Input               // the tokens
	Pages    model.Pages                // what the weights are mapped into; may be nil
	Threads  int                        // 0 is one per processor; the numbers do not depend on it
	Progress func(done, total int)      // told of tokens that passed a layer, at first of none; nil is nobody

	atOnce int // tokens; 0 is pieceTokens
}

// pieceTokens is how many tokens run at once: whole sequences of so many together, or one.
const pieceTokens = 1024

// OfForward runs the decoder, in float32 and float32 sums, as far as the last selected layer,
// one layer at a time: on all tokens, whose hidden states stay in memory, in pieces of whole
// sequences. A gate whose score is not a number is an error. Prediction layers are not run.
func OfForward(ctx context.Context, f Forward, o Options) (*Report, error) {
	c := f.Model.Config
	layers := Layers(c)
	if len(layers) == 0 {
		return nil, fmt.Errorf("%s: the model has no routed experts", text.Quote(f.Path))
	}
	if err := cmp.Or(f.Input.Check(c.VocabSize), o.check("the checkpoint", layers, c.NRoutedExperts)); err != nil {
		return nil, fmt.Errorf("%s: %w", text.Quote(f.Path), err)
	}
	r := newReport(f.Path, FromForward, o)
	r.Experts, r.PerToken, r.Reference = c.NRoutedExperts, c.NumExpertsPerTok, c.Reference
	r.counted(f.Input)
	if err := r.hasTokens(); err != nil {
		return nil, err
	}
	if n := f.Model.PredictionLayers(); n > 0 && len(o.Layers) == 0 {
		r.lack(upTo(c.NumHiddenLayers, n), "multi-token prediction layers are not run")
	}
	layers = slices.DeleteFunc(layers, func(l int) bool { return !o.Layers.Has(l) })
	return r, f.run(ctx, r, o, layers[len(layers)-1]+1)
}

// run runs the first layers and puts what their gates choose into r.
func (f *Forward) run(ctx context.Context, r *Report, o Options, layers int) error {
	run := &forward{Report: r, o: o, total: len(f.Input.InputIDs) * layers, progress: f.Progress}
	run.passed(0)
	options := model.Options{Accumulate: model.Float32, Parallelism: f.Threads, Pages: f.Pages}
	plain := model.NewPlain(options)
	defer plain.Close(nil)
	var nets []*model.Network[*model.Activation]
	for _, piece := range pieces(f.Input, cmp.Or(f.atOnce, pieceTokens)) {
		nets = append(nets, &model.Network[*model.Activation]{Model: f.Model, Input: piece, Options: options, Arithmetic: plain, Trace: &pieceTrace{run, piece, nil}})
	}
	if err := model.Decode(ctx, layers, nets); err != nil {
		return err
	}
	run.finish()
	return nil
}

// Layers returns the decoder layers with routed experts.
func Layers(c *config.Config) (layers []int) {
	for l := range c.NumHiddenLayers {
		if c.IsMoE(l) {
			layers = append(layers, l)
		}
	}
	return layers
}

// upTo returns n numbers from first on.
func upTo(first, n int) (numbers []int) {
	for i := range n {
		numbers = append(numbers, first+i)
	}
	return numbers
}

// counted notes how many tokens an input has.
func (r *Report) counted(in *model.Input) {
	r.Sequences = in.Batch
	for _, m := range in.AttentionMask {
		r.Padding += 1 - m
	}
	r.Tokens = len(in.InputIDs) - r.Padding
}

// hasTokens refuses an input of padding alone.
func (r *Report) hasTokens() error {
	if r.Tokens == 0 {
		return fmt.Errorf("%s: the input has no token but padding", text.Quote(r.Path))
	}
	return nil
}

// pieces cuts an input into pieces of whole sequences, of at most so many tokens if it can.
func pieces(in *model.Input, tokens int) (all []*model.Input) {
	step := max(tokens/in.Seq, 1)
	for first := 0; first < in.Batch; first += step {
		n := min(step, in.Batch-first)
		from, to := first*in.Seq, (first+n)*in.Seq
		piece := &model.Input{Batch: n, Seq: in.Seq, InputIDs: in.InputIDs[from:to]}
		if in.AttentionMask != nil {
			piece.AttentionMask = in.AttentionMask[from:to]
		}
		all = append(all, piece)
	}
	return all
}

// forward is the routing of a pass while it runs.
type forward struct {
	*Report
	o           Options
	layer       *layerTally // of the layer that runs; nil before the first, and in one that is not selected
	done, total int
	progress    func(done, total int)
}

// at returns the tally of a layer, nil if it is not selected, and finishes that before.
func (f *forward) at(layer int) *layerTally {
	if !f.o.Layers.Has(layer) {
		return nil
	}
	if f.layer == nil || f.layer.layer != layer {
		f.finish()
		f.layer = newTally(layer, f.Experts, f.PerToken, true, true)
	}
	return f.layer
}

// finish puts the numbers of the last layer into the report.
func (f *forward) finish() {
	if f.layer != nil {
		f.Layers = append(f.Layers, f.layer.report(f.o))
		f.layer = nil
	}
}

// passed tells of n tokens more that passed a layer.
func (f *forward) passed(n int) {
	if f.done += n; f.progress != nil {
		f.progress(f.done, f.total)
	}
}

// pieceTrace watches the gates of a piece.
type pieceTrace struct {
	run *forward
	in  *model.Input
	ids []int // of the layer that runs
}

// TopK implements model.Trace.
func (t *pieceTrace) TopK(name string, choice *model.Choice[*model.Activation]) error {
	tally := t.run.at(table.PlaceOf(nil, name).Layer)
	if tally == nil {
		return nil
	}
	t.ids = slices.Clone(choice.Idx)
	for row := range choice.Scores.Rows() {
		if t.in.IsPadding(row) {
			continue
		}
		ids := t.ids[row*tally.k : (row+1)*tally.k]
		err := tally.choose(ids)
		if err == nil {
			err = tally.score(ids, choice.Scores.Row(row))
		}
		if err != nil {
			return fmt.Errorf("%s: %s: token %d of a sequence: %w", text.Quote(t.run.Path), name, row%t.in.Seq, err)
		}
	}
	return nil
}

// Stage implements model.Trace.
func (t *pieceTrace) Stage(name string, x *model.Activation) error {
	layer := table.PlaceOf(nil, name).Layer
	switch {
	case strings.HasSuffix(name, gateWeights):
		if tally := t.run.at(layer); tally != nil {
			return t.weigh(tally, x)
		}
	case layer >= 0 && strings.Count(name, ".") == 3 && strings.HasSuffix(name, ".output"): // model.layers.N.output
		t.run.passed(len(t.in.InputIDs))
	}
	return nil
}

func (t *pieceTrace) weigh(tally *layerTally, x *model.Activation) error {
	for row := range x.Rows() {
		if t.in.IsPadding(row) {
			continue
		}
		ids, weights := t.ids[row*tally.k:(row+1)*tally.k], x.Row(row)
		if err := tally.weigh(ids, func(i int) float64 { return float64(weights[i]) }); err != nil {
			return fmt.Errorf("%s: model.layers.%d: token %d of a sequence: %w", text.Quote(t.run.Path), tally.layer, row%t.in.Seq, err)
		}
	}
	return nil
}
