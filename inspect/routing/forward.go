package routing

// Routing by our own forward pass.

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"dsmoe/model"
	"dsmoe/model/table"
	"dsmoe/text"
)

// Forward is a model and the tokens whose routing OfForward counts.
type Forward struct {
	Path     string                     // of the checkpoint, as the user gave it
	Model    *model.DeepseekForCausalLM // whose gates choose
	Input    *model.Input               // the tokens
	Pages    model.Pages                // memory that the weights are mapped into; may be nil
	Threads  int                        // 0 is one per processor; the numbers do not depend on it
	Progress func(done, total int)      // called with the tokens that passed a layer, first with 0; may be nil

	atOnce int // tokens; 0 is pieceTokens
}

// pieceTokens is how many tokens run at once: whole sequences with so many tokens together, or one longer sequence.
const pieceTokens = 1024

// OfForward runs the decoder, in float32 and float32 sums, as far as the last selected layer, one layer at a time: on
// all tokens, whose hidden states stay in memory, in pieces of whole sequences. A gate whose score is not a number is
// an error. Prediction layers are not run.
func OfForward(ctx context.Context, f Forward, o Options) (*Report, error) {
	c := f.Model.Config
	layers := c.MoELayers()
	if len(layers) == 0 {
		return nil, fmt.Errorf("%s: the model has no routed experts", text.Quote(f.Path))
	}
	if err := cmp.Or(f.Input.Check(c.VocabSize), o.check("the checkpoint", layers, c.MoE.NRoutedExperts)); err != nil {
		return nil, fmt.Errorf("%s: %w", text.Quote(f.Path), err)
	}
	r := newReport(f.Path, fromForward, o)
	r.Experts, r.PerToken, r.Reference = c.MoE.NRoutedExperts, c.MoE.NumExpertsPerTok, c.Reference
	if err := r.countTokens(f.Input); err != nil {
		return nil, err
	}
	if n := f.Model.PredictionLayers(); n > 0 && len(o.Layers) == 0 {
		var prediction []int
		for i := range n {
			prediction = append(prediction, c.NumHiddenLayers+i)
		}
		r.lack(prediction, "multi-token prediction layers are not run")
	}
	layers = slices.DeleteFunc(layers, func(l int) bool { return !o.Layers.Has(l) })
	n := layers[len(layers)-1] + 1 // layers to run
	run := &forward{Report: r, options: o, batch: f.Input.Batch, total: len(f.Input.InputIDs) * n, progress: f.Progress}
	run.passed(0)
	options := model.Options{Accumulate: model.Float32, Parallelism: f.Threads, Pages: f.Pages}
	plain := model.NewPlain(options)
	defer plain.Close(nil)
	var nets []*model.Network[*model.Activation]
	first := 0
	for _, piece := range pieces(f.Input, cmp.Or(f.atOnce, pieceTokens)) {
		nets = append(nets, &model.Network[*model.Activation]{Model: f.Model, Input: piece, Options: options,
			Arithmetic: plain, Trace: &pieceTrace{run, piece, first, nil}})
		first += len(piece.InputIDs)
	}
	if err := model.Decode(ctx, n, nets); err != nil {
		return r, err
	}
	run.finish()
	return r, nil
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

// forward is the state of one forward pass.
type forward struct {
	*Report
	options     Options
	batch       int         // sequences
	layer       *layerTally // of the layer that runs; nil before the first, and in one that is not selected
	done, total int
	progress    func(done, total int)
}

// tally returns the tally of a layer, nil if it is not selected, and finishes the layer before.
func (f *forward) tally(layer int) *layerTally {
	if !f.options.Layers.Has(layer) {
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
		f.Layers = append(f.Layers, f.layer.report(f.options))
		f.layer = nil
	}
}

// passed counts n tokens more that passed a layer.
func (f *forward) passed(n int) {
	if f.done += n; f.progress != nil {
		f.progress(f.done, f.total)
	}
}

// pieceTrace watches the gates of a piece.
type pieceTrace struct {
	run *forward
	in  *model.Input
	at  int   // place of its first token in the batch
	ids []int // of the layer that runs
}

// TopK implements model.Trace.
func (t *pieceTrace) TopK(name string, choice *model.Choice[*model.Activation]) error {
	if !strings.HasSuffix(name, gateIDs) { // an indexer's choice is of keys, also in layers without experts
		return nil
	}
	tally := t.run.tally(table.PlaceOf(nil, name).Layer)
	if tally == nil {
		return nil
	}
	if t.run.options.Blocks && tally.blocks == nil {
		tally.blocks = newBlocks(t.run.batch, t.in.Seq, tally.experts)
	}
	tally.byTable = choice.Table != nil
	tally.scored = !tally.byTable
	t.ids = slices.Clone(choice.Idx)
	return t.rows(tally, name, func(row int, ids []int) error {
		if err := tally.choose(ids); err != nil {
			return err
		}
		if tally.blocks != nil {
			tally.blocks.add(t.at+row, ids)
		}
		if tally.byTable {
			return nil
		}
		return tally.score(ids, choice.Scores.Row(row))
	})
}

// Stage implements model.Trace.
func (t *pieceTrace) Stage(name string, x *model.Activation) error {
	layer := table.PlaceOf(nil, name).Layer
	switch {
	case strings.HasSuffix(name, gateWeights):
		if tally := t.run.tally(layer); tally != nil {
			return t.rows(tally, stageName(layer, ""), func(row int, ids []int) error {
				if err := tally.weigh(ids, x.Row(row)); err != nil || t.run.options.Choices == nil {
					return err
				}
				return t.run.options.Choices(Choice{Layer: layer, Sequence: (t.at + row) / t.in.Seq, Position: row % t.in.Seq,
					Token: t.in.InputIDs[row], Experts: ids, Weights: x.Row(row)})
			})
		}
	case name == stageName(layer, "output"):
		t.run.passed(len(t.in.InputIDs))
	}
	return nil
}

// rows calls f for each token but padding, with its experts. Errors name the stage.
func (t *pieceTrace) rows(tally *layerTally, name string, f func(row int, ids []int) error) error {
	for row := range len(t.ids) / tally.k {
		if t.in.IsPadding(row) {
			continue
		}
		if err := f(row, t.ids[row*tally.k:(row+1)*tally.k]); err != nil {
			return fmt.Errorf("%s: %s: token %d of a sequence: %w", text.Quote(t.run.Path), strings.TrimSuffix(name, "."),
				row%t.in.Seq, err)
		}
	}
	return nil
}
