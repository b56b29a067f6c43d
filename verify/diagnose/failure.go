package diagnose

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// Failure is the first divergence of a local run, and what it takes to find its cause.
type Failure struct {
	Pack    *pack.Pack                 // golden pack of the run
	Model   *model.DeepseekForCausalLM // as it is
	Set     *weights.Set               // of the model's weights
	Source  weights.Source             // of the same
	In      *model.Input               // of the pack
	Options model.Options              // of the run
	Rounded bounds.Roundings           // weights that the reference had before they were rounded
	How     *pack.Arithmetic           // of an engine, as it is reproduced; nil of other references
	Forms   []string                   // dtypes that the weights behind the failed stage are stored in
	Checks  []report.Check             // of the run
	Layers  []int                      // of the decoder, that were run

	Layer      int               // -1 for the final norm and the head
	Name       string            // of the golden tensor
	Kind       string            // of the stage; of the routed sum if that shows in the layer's output alone
	Got        *model.Activation // compared rows of the stage [compared, width], with its DType
	Unrounded  []float32         // got before its last rounding
	Deviations []float64         // standard deviation of each element of got
	Input      *model.Activation // what the failed product multiplied, in got's rows; nil of other stages
	Rows       []int             // number in the stage of each row of got
	RowWeights []float64         // of each row of got: 1 / the number of rows alike
	Shape      []int             // of the stage
	Weights    []string          // that took part in got
	Beyond     []bool            // rows of got with elements beyond their limits

	BeyondColumns []bool    // the same of columns
	Want          []float32 // golden tensor, as got
	Idx           []int     // golden choice of experts of got's rows, if the routed sum failed and the pack has it
	Beside        []float32 // golden output of shared experts, if the routed sum shows in the sum with it; as got
	Scores        []float32 // that experts are chosen by, if their choice failed

	Strict bool // a stage whose bounds say nothing does not pass in a trial

	stored  tensor.DType // 16-bit dtype that the weights behind the failure may have been rounded to; Invalid for none
	wrong   *token       // of a failed routed sum; nil of other stages
	weights []float64    // see residualWeights

	// Rerun runs the layer or head of a trial from the golden's input, and returns of the watched stages that
	// it shows whether they pass. It ends where the failed stage fails again.
	Rerun func(ctx context.Context, x *Trial, watched []string) (passes map[string]bool, err error)
	// Sample reports whether the failed stage of a trial is within its limits in one row that is wrong; known is
	// false if one row does not tell.
	Sample func(ctx context.Context, x *Trial) (known, passes bool, err error)
}

// Predicts returns the depth of the failed prediction layer, below 0 for other layers.
func (f *Failure) Predicts() int { return f.Layer - len(f.Model.Model.Layers) }

// Seq returns how many tokens of a sequence the failed layer's input has.
func (f *Failure) Seq() int { return f.In.Seq - max(0, f.Predicts()) }

// OfRows reports whether each row of the failed stage depends on the same row of the layer's input alone, if the output
// of attention is known.
func (f *Failure) OfRows() bool {
	return f.Predicts() < 0 && slices.Contains(rowStages, f.Kind)
}

// isProduct reports whether the stage is a product with one weight, which may have a bias, and
// nothing else took part in it.
func (f *Failure) isProduct() bool {
	return f.Input != nil && len(f.Weights) > 0 && !slices.ContainsFunc(f.Weights, func(w string) bool {
		return w != f.module()+".weight" && w != f.module()+".bias"
	})
}

// module is the module of the failed stage's first weight.
func (f *Failure) module() string {
	return strings.TrimSuffix(strings.TrimSuffix(f.Weights[0], ".weight"), ".bias")
}

// notFiniteWeights looks for a NaN or an infinity among the weights of a stage that is not
// finite.
func (f *Failure) notFiniteWeights() ([]report.Cause, error) {
	if bounds.AllFinite(f.Got.Values) {
		return []report.Cause{}, nil
	}
	return f.findWeights(func(name string, w tensor.Tensor) *report.Cause {
		if i, v := FirstNotFinite(w); i >= 0 {
			return &report.Cause{ID: "weight-not-finite",
				Text: fmt.Sprintf("%s holds %s at %v", name, report.Number(v), report.Unflatten(i, w.Shape))}
		}
		return nil
	})
}

// overflows reports numbers that became too large, here or in the reference: no weight and no
// input of the stage is infinite.
func (f *Failure) overflows() (causes []report.Cause) {
	find := func(x []float32) int { return slices.IndexFunc(x, func(v float32) bool { return !tensor.IsFinite(v) }) }
	if i := find(f.Got.Values); i >= 0 {
		width := f.Got.Width()
		at := report.Unflatten(f.Rows[i/width]*width+i%width, f.Shape)
		causes = append(causes, report.Cause{ID: "overflow",
			Text: fmt.Sprintf("what is computed from finite weights and inputs exceeds %s: %s at %v", f.Pack.DType,
				report.Number(f.Got.Values[i]), at)})
	}
	masked := func(v float32) bool { return pack.Parse(f.Kind).OfIndexer() != "" && bounds.Hidden(v) }
	scores := slices.DeleteFunc(slices.Clone(f.Scores), masked)
	if i := find(scores); i >= 0 {
		causes = append(causes, report.Cause{ID: "overflow",
			Text: fmt.Sprintf("the scores that experts are chosen by are not finite, the first is %s: no choice can be compared",
				report.Number(scores[i]))})
	}
	if i := find(f.Want); i >= 0 {
		most := 0.0 // of the numbers computed here in the golden's places
		for i, want := range f.Want {
			if !tensor.IsFinite(want) && !(math.Abs(float64(f.Unrounded[i])) <= most) {
				most = math.Abs(float64(f.Unrounded[i]))
			}
		}
		id, words := "reference-not-finite", fmt.Sprintf(", where the numbers computed here are at most %s", text.Figure("%.2g", most))
		if f.Want[i] == f.Want[i] && !tensor.IsFinite(tensor.Rounded(float32(2*most), f.Got.DType)) {
			id, words = "reference-overflow", fmt.Sprintf(": the reference exceeded %s", f.Got.DType)
		}
		causes = append(causes, report.Cause{ID: id, Text: f.giver() + report.Number(f.Want[i]) + " " + f.failingRows() + words})
	}
	return causes
}

// noResult returns the cause that all failing rows of the golden hold only zeros, where the numbers computed here do not:
// nothing was computed or stored for these rows, or the reference's weights are zero.
func (f *Failure) noResult() []report.Cause {
	if len(f.Beyond) == 0 || !f.isFinite() {
		return nil
	}
	n, squares, zeros := f.Got.Width(), 0.0, 0
	for row, beyond := range f.Beyond {
		if !beyond {
			continue
		}
		if slices.ContainsFunc(f.Want[row*n:(row+1)*n], func(v float32) bool { return v != 0 }) {
			return nil
		}
		zeros++
		for _, v := range f.Unrounded[row*n : (row+1)*n] {
			squares += bounds.Sq(float64(v)) / float64(n)
		}
	}
	if zeros == 0 {
		return nil
	}
	words := "%sonly zeros %s, where the numbers computed here have an RMS of %s: nothing was computed or stored there, or " +
		"weights are zero"
	return []report.Cause{{ID: "reference-zeros", Text: fmt.Sprintf(words, f.giver(), f.failingRows(),
		text.Figure("%.2g", math.Sqrt(squares/float64(zeros))))}}
}

// giver begins a sentence of the failed stage's golden.
func (f *Failure) giver() string {
	if f.Pack.IsTrace() {
		return "the engine gave "
	}
	return "the golden holds "
}

// failingRows describes the rows of the failed stage that are beyond a limit, or not finite.
func (f *Failure) failingRows() string {
	return f.Checks[slices.IndexFunc(f.Checks, func(c report.Check) bool { return c.Tensor == f.Name })].Rows
}

// oddWeights looks for weights of zeros, pruned or not filled by a conversion, and for matrices that hold another
// weight's numbers.
func (f *Failure) oddWeights() ([]report.Cause, error) {
	alike := map[string][]*model.Weight{} // weights without scales, by their first bytes
	first := func(data []byte) string { return string(data[:min(len(data), 64)]) }
	if !f.Model.Config.TieWordEmbeddings && f.Predicts() < 0 { // prediction layers have embedding and head again
		for _, w := range f.loadedWeights() {
			if len(w.Shape) > 1 && w.Scales == nil {
				alike[first(w.Data)] = append(alike[first(w.Data)], w)
			}
		}
	}
	return f.findWeights(func(name string, w tensor.Tensor) *report.Cause {
		switch {
		case !slices.ContainsFunc(w.Data, func(b byte) bool { return b != 0 }):
			if len(w.Shape) > 1 || strings.HasSuffix(name, string(table.EScoreCorrectionBias)) {
				return &report.Cause{ID: "weight-zero", Text: name + " holds only zeros"}
			}
		case len(w.Shape) > 1:
			for _, other := range alike[first(w.Data)] {
				if other.Name != name && other.DType == w.DType && slices.Equal(other.Shape, w.Shape) &&
					bytes.Equal(other.Data, w.Data) {
					return &report.Cause{ID: "weight-copied", Text: name + " holds the numbers of " + other.Name}
				}
			}
		}
		return nil
	})
}

// findWeights goes through the weights of the stage, by name, each followed by its scales.
func (f *Failure) findWeights(cause func(name string, w tensor.Tensor) *report.Cause) ([]report.Cause, error) {
	found := []report.Cause{}
	for _, name := range f.Weights {
		stored := f.Set.Find(name)
		for _, w := range append([]*weights.Weight{stored}, stored.Sides()...) {
			if w.DType.Integer() { // zeros
				continue
			}
			x, err := w.View(f.Source)
			if err != nil {
				return nil, err
			}
			if c := cause(w.Name, x); c != nil {
				found = append(found, *c)
			}
		}
	}
	return found, nil
}

// FirstNotFinite returns the flat index and value of w's first NaN or infinity, -1 if all numbers are finite. It
// decodes a row at a time.
func FirstNotFinite(w tensor.Tensor) (int, float32) {
	var row []float32
	if len(w.Shape) == 0 { // a second scale
		w.Shape = []int{1}
	}
	for r := range w.Shape[0] {
		row, _ = w.Row(r).Float32s(row[:0]) // Load has checked the dtype
		if i := slices.IndexFunc(row, func(v float32) bool { return !tensor.IsFinite(v) }); i >= 0 {
			return r*len(row) + i, row[i]
		}
	}
	return -1, 0
}

// Trial is the model with a mistake undone: a copy of the parts that one may touch,
// so that the model itself stays as it is.
type Trial struct {
	failed  *Failure
	Model   model.DeepseekForCausalLM                 // a copy
	Config  config.Config                             // of Model
	layer   *model.DeepseekDecoderLayer               // nil outside the layers
	In      model.Input                               // tokens and mask
	Options model.Options                             // of the pass
	Around  func(bounds.Arithmetic) bounds.Arithmetic // puts an operation in another's place
	// Proves is what the failed stage must satisfy beside its limits; x has its rows from first on. It may be nil.
	Proves  func(x *bounds.Value, first int) bool
	Rounded bounds.Roundings // weights that the reference had before they were rounded
	How     *pack.Arithmetic // of an engine
	Own     []string         // stages in whose place the golden is not put
	Causal  bool             // what differs in a token depends on no later one
	Rows    []int            // row of the layer's input in the place of each token's; nil if it is its own
}

// NewTrial returns a trial in which nothing is undone yet.
func (f *Failure) NewTrial() *Trial {
	x := &Trial{failed: f, Model: *f.Model, Config: *f.Model.Config, In: *f.In, Options: f.Options, Rounded: f.Rounded, How: f.How}
	x.Around = func(a bounds.Arithmetic) bounds.Arithmetic { return a }
	x.Model.Config = &x.Config
	x.Model.Model.Layers, x.Model.Model.MTP = slices.Clone(f.Model.Model.Layers), slices.Clone(f.Model.Model.MTP)
	if f.Layer < 0 {
		return x
	}
	x.layer = x.Model.Layer(f.Layer)
	*x.layer = ownLayer(x.layer)
	return x
}

// Projections are the projections of the failed layer's attention, with the stages that they give.
func (x *Trial) Projections() map[*model.Linear]string {
	stages := map[*model.Linear]string{}
	if x.layer == nil {
		return stages
	}
	for _, role := range projections {
		if l := x.layer.Projection(role); l != nil {
			stages[l] = pack.StageOf(x.failed.Layer, pack.InAttention(role))
		}
	}
	return stages
}

// ownLayer is a copy of a layer that shares no module with it.
func ownLayer(d *model.DeepseekDecoderLayer) model.DeepseekDecoderLayer {
	c := *d
	c.MLP, c.MoE, c.SelfAttn, c.MLA = clone(d.MLP), clone(d.MoE), clone(d.SelfAttn), clone(d.MLA)
	c.Indexer, c.Windowed, c.AttnHC, c.FFNHC = clone(d.Indexer), clone(d.Windowed), clone(d.AttnHC), clone(d.FFNHC)
	if w := c.Windowed; w != nil {
		w.Compressor, w.Indexer = clone(w.Compressor), clone(w.Indexer)
	}
	if c.MoE != nil {
		c.MoE.Experts, c.MoE.SharedExperts = slices.Clone(c.MoE.Experts), clone(c.MoE.SharedExperts)
	}
	return c
}

func clone[T any](p *T) *T {
	if p == nil {
		return nil
	}
	c := *p
	return &c
}

// loadedWeights yields the weights that are in memory, each with its layer, -1 for the embedding and the head.
func (f *Failure) loadedWeights() iter.Seq2[int, *model.Weight] {
	return func(yield func(int, *model.Weight) bool) {
		for _, w := range []*model.Weight{&f.Model.Model.EmbedTokens, &f.Model.LMHead.Weight} {
			if w.Data != nil && !yield(-1, w) {
				return
			}
		}
		for _, l := range f.Layers {
			for _, w := range f.Model.LayerWeights(l) {
				if w.Data != nil && !yield(l, w) {
					return
				}
			}
		}
	}
}

// loaded returns the weight of a name if it is in memory, else nil.
func (f *Failure) loaded(name string) *model.Weight {
	for _, w := range f.loadedWeights() {
		if w.Name == name {
			return w
		}
	}
	return nil
}

// isFinite reports whether the golden and the failed stage are finite.
func (f *Failure) isFinite() bool { return bounds.AllFinite(f.Want) && bounds.AllFinite(f.Unrounded) }

// residual is how far element i of the golden is from ours.
func (f *Failure) residual(i int) float64 { return float64(f.Want[i]) - float64(f.Unrounded[i]) }

// beside is what element i of the golden has beside the routed sum.
func (f *Failure) beside(i int) float64 {
	if f.Beside == nil {
		return 0
	}
	return float64(f.Beside[i])
}

// goldenWidth is the last dimension of the failed stage's golden; 0 if the pack has no shape of it.
func (f *Failure) goldenWidth() int {
	shape := f.Pack.Manifest.Tensors[f.Name].Shape
	if len(shape) == 0 {
		return 0
	}
	return shape[len(shape)-1]
}

// distinctRows is the number of rows of the failed stage that are not alike.
func (f *Failure) distinctRows() (n float64) {
	for _, weight := range f.RowWeights {
		n += weight
	}
	return n
}

// indices are the numbers from 0 to n-1.
func indices(n int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = i
	}
	return list
}

// token is a wrong token of a failed routed sum: its input, its experts and their weights.
type token struct {
	row     int // of Got
	x       *model.Activation
	experts []int
	weights []float32
	outputs map[mlpData][]float32 // outputs of experts computed so far
}

// mlpData are the numbers of an MLP's weights: the addresses of their codes and of their scales.
type mlpData struct {
	codes  [3]*byte
	scales [3]*float32
}
