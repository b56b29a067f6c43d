package diff

// A model with some of another's routed experts, and what it computes beside that other model without the rest.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"math"
	"slices"
	"strings"

	"dsmoe/model"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text"
)

// Runnable is a model to be run.
type Runnable struct {
	Model   *model.DeepseekForCausalLM
	Weights []*weights.Weight // of the checkpoint
	Pages   model.Pages       // memory that the weights are mapped into; may be nil
	Reader  weights.ReaderAt  // of the weights' bytes
}

// PrunedReport is how B computes against A, in which the logits and the scores of all experts but Kept are -inf. It is
// JSON as it stands.
type PrunedReport struct {
	A       string     `json:"a"`       // path of the larger model; the caller sets it
	B       string     `json:"b"`       // path of the smaller model
	Verdict string     `json:"verdict"` // "same" or "differs"
	Kept    table.Kept `json:"kept"`    // A's numbers of B's experts, by layer
	Tokens  int        `json:"tokens"`  // that both computed, padding included
	Layers  int        `json:"layers"`  // of the decoder that were run, in A without those behind
	// Alone says that of these layers the MLPs alone were run, since attention is not computed: each on the embeddings of
	// the tokens, divided by their RMS. All other weights were compared: Weights of them are equal
	Alone   bool `json:"mlps_alone,omitempty"`
	Weights int  `json:"weights,omitempty"`
	// Predictions is the number of multi-token prediction layers that were run
	Predictions int `json:"prediction_layers"`
	// Tables counts the layers whose table of experts names only Kept in A, others standing in for the rest: see
	// model.MoEGate.StandIns
	Tables int `json:"tables_with_stand_ins,omitempty"`
	Left   int `json:"prediction_layers_left"` // B's others, which were not compared
	// Stages counts the outputs of modules, scores and choices of experts that are equal bit for bit
	Stages int   `json:"stages"`
	Values int64 `json:"values"` // of these stages
	// First is the first stage that differs, in the order of computation, and the difference; nil if none does. Nothing
	// behind it was compared
	First *Divergence `json:"first_difference"`
	// Unchosen lists B's experts that no token chose, by layer: what they compute was not compared
	Unchosen map[int][]int `json:"unchosen_experts"`
}

// Divergence is a stage that differs.
type Divergence struct {
	Stage string `json:"stage"` // named as B's
	Cause string `json:"cause"` // what differs in it
}

// Pruned runs A and B on the same tokens, in float32, and compares all stages bit for bit up to the first difference.
// In A the experts that are not kept are never chosen, and only as many layers are run as B has. progress is called
// with the layers that were run.
func Pruned(ctx context.Context, a, b Runnable, kept table.Kept, in *model.Input,
	progress func(done, total int)) (*PrunedReport, error) {
	if err := checkExact(a, b, kept); err != nil {
		return nil, err
	}
	large, layers := *a.Model, len(b.Model.Model.Layers)
	r := &PrunedReport{Verdict: "same", Kept: kept, Tokens: len(in.InputIDs), Layers: layers, Unchosen: map[int][]int{}}
	if layers == len(large.Model.Layers) {
		r.Predictions = min(large.PredictionLayers(), b.Model.PredictionLayers())
	}
	r.Left = b.Model.PredictionLayers() - r.Predictions
	large.Model.Layers = large.Model.Layers[:min(layers, len(large.Model.Layers))]
	maps.DeleteFunc(kept, func(l int, _ []int) bool { return l >= len(large.Model.Layers)+r.Predictions })
	for l, experts := range kept {
		gate := &large.Layer(l).MoE.Gate
		if gate.Keep(experts, large.Config.MoE.NRoutedExperts); gate.TID2EID != nil {
			r.Tables++
		}
		for e := range experts {
			r.Unchosen[l] = append(r.Unchosen[l], e)
		}
	}
	if r.Alone = large.Config.BlockOnly(); r.Alone {
		if err := r.compareOthers(ctx, a, b); err != nil || r.First != nil {
			return r, err
		}
	}
	next, stop := iter.Pull2(stages(ctx, &large, a.Pages, in, r.Predictions))
	defer stop()
	done := 0
	for s, err := range stages(ctx, b.Model, b.Pages, in, r.Predictions) {
		if err == nil {
			err = r.compare(s, next)
		}
		if err != nil || r.First != nil {
			return r, err
		}
		if name := fmt.Sprintf("model.layers.%d.", done); s.name == name+"output" || r.Alone && s.name == name+"mlp.output" {
			done++
			progress(done, layers)
		}
	}
	return r, nil
}

// compareOthers compares the weights that no MLP has.
func (r *PrunedReport) compareOthers(ctx context.Context, a, b Runnable) error {
	others := func(s Runnable) Side {
		return Side{Reader: s.Reader, Weights: slices.DeleteFunc(slices.Clone(s.Weights), func(w *weights.Weight) bool {
			return w.Layer >= r.Layers || slices.Contains([]table.Module{table.DenseMLP, table.Router, table.RoutedExperts,
				table.SharedExperts}, w.OwnerPlace().Module())
		})}
	}
	all, err := Compare(ctx, others(a), others(b), Options{})
	if err != nil {
		return err
	}
	for _, f := range all.Findings {
		if f.Status != statusEqual {
			r.Verdict, r.First = "differs", &Divergence{f.Name, "the weight: " + string(f.Status)}
			return nil
		}
	}
	r.Weights = all.Compared
	return nil
}

// stage is what a pass shows its trace: numbers, or a choice.
type stage struct {
	name   string
	x      *model.Activation // nil for a choice
	choice []int
}

// stages runs a model and its prediction layers, and yields each stage, valid until the next. An error is the last.
func stages(ctx context.Context, m *model.DeepseekForCausalLM, pages model.Pages, in *model.Input,
	predictions int) iter.Seq2[stage, error] {
	return func(yield func(stage, error) bool) {
		o := model.Options{Accumulate: model.Float32, Pages: pages}
		plain := model.NewPlain(o)
		defer plain.Close(nil)
		net := model.Network[*model.Activation]{Model: m, Input: in, Options: o, Arithmetic: plain,
			Trace: yielding{m, func(s stage) bool { return yield(s, nil) }}}
		run := func() error {
			_, err := net.ForwardMTP(ctx, predictions)
			return err
		}
		if m.Config.BlockOnly() {
			run = func() error { return runAlone(ctx, &net) }
		}
		if err := run(); err != nil && !errors.Is(err, errEnough) {
			yield(stage{}, err)
		}
	}
}

// runAlone runs the MLP of each layer on the embeddings of the tokens, each divided by its RMS.
func runAlone(ctx context.Context, net *model.Network[*model.Activation]) error {
	x, err := net.Run(ctx, &model.Course[*model.Activation]{Embedding: true})
	if err != nil {
		return err
	}
	for t := range x.Rows() {
		row, squares := x.Row(t), 0.0
		for _, v := range row {
			squares += float64(float64(v) * float64(v))
		}
		rms := float32(math.Sqrt(squares / float64(len(row))))
		for i := range row {
			row[i] /= max(rms, math.SmallestNonzeroFloat32)
		}
	}
	for l := range net.Model.Model.Layers {
		if !net.Model.Config.HasMLP(l) {
			continue
		}
		if _, err := net.Layer(ctx, l, x); err != nil {
			return err
		}
	}
	return nil
}

// errEnough ends a pass whose further stages are not wanted.
var errEnough = errors.New("enough")

// yielding is a trace that hands each stage on; false ends the pass.
type yielding struct {
	model *model.DeepseekForCausalLM
	yield func(stage) bool
}

// Stage implements model.Trace.
func (y yielding) Stage(name string, x *model.Activation) error {
	return y.hand(stage{name: name, x: x})
}

// TopK implements model.Trace. The scores that a gate chooses by are a stage too, before the groups are masked, and so
// is all of a table of experts.
func (y yielding) TopK(name string, choice *model.Choice[*model.Activation]) error {
	gate, of := strings.CutSuffix(name, gateChoice)
	if scores := choice.Scores; of {
		if choice.Groups != nil {
			scores = choice.Groups.Scores
		}
		if err := y.hand(stage{name: gate + gateScores, x: scores}); err != nil {
			return err
		}
	}
	if choice.Table != nil {
		moe := &y.model.Layer(table.PlaceOf(nil, name).Layer).MoE.Gate
		tokens := make([]int, moe.TID2EID.Shape[0])
		for id := range tokens {
			tokens[id] = id
		}
		entries := (*model.Plain)(nil).TableExperts(nil, moe.TID2EID, tokens) // as the gate reads them, row by row
		for row := range slices.Chunk(entries, moe.TID2EID.Shape[1]) {
			moe.StandIns(row)
		}
		if err := y.hand(stage{name: gate + gateTable, choice: entries}); err != nil {
			return err
		}
	}
	return y.hand(stage{name: name, choice: choice.Idx})
}

func (y yielding) hand(s stage) error {
	if !y.yield(s) {
		return errEnough
	}
	return nil
}

// compare compares a stage of B with the next of A.
func (r *PrunedReport) compare(b stage, next func() (stage, error, bool)) error {
	a, err, more := next()
	if err != nil {
		return err
	}
	cause := ""
	switch {
	case !more:
		cause = "A has no such stage"
	case r.Kept.Smaller(a.name) != b.name:
		cause = "A computes " + a.name + " in its place"
	case b.x == nil:
		cause = difference(r.choice(a), b.choice, func(x, y int) bool { return x == y })
		if l := table.PlaceOf(nil, b.name).Layer; strings.HasSuffix(b.name, gateChoice) {
			r.Unchosen[l] = slices.DeleteFunc(r.Unchosen[l], func(e int) bool { return slices.Contains(b.choice, e) })
			if len(r.Unchosen[l]) == 0 {
				delete(r.Unchosen, l)
			}
		}
	default:
		cause = difference(r.numbers(a), b.x.Values, sameBits)
	}
	if b.x != nil && slices.ContainsFunc(b.x.Values, func(v float32) bool { return v != v }) && cause == "" {
		return fmt.Errorf("%s: both compute NaN, which hides what differs behind it", b.name)
	}
	if cause == "" {
		if r.Stages++; b.x == nil {
			r.Values += int64(len(b.choice))
		} else {
			r.Values += int64(len(b.x.Values))
		}
	} else {
		r.Verdict, r.First = "differs", &Divergence{b.name, cause}
	}
	return nil
}

// difference returns the first values that are not the same.
func difference[T any](a, b []T, same func(x, y T) bool) string {
	if len(a) != len(b) {
		return fmt.Sprintf("%s in A, %d in B", text.Plural(len(a), "value"), len(b))
	}
	for i := range a {
		if !same(a[i], b[i]) {
			return fmt.Sprintf("value %d of %d: %v in A, %v in B", i, len(a), a[i], b[i])
		}
	}
	return ""
}

// The ends of the names of gates' stages.
const (
	gateLogits = ".mlp.gate.logits"
	gateScores = ".mlp.gate.choice_scores"
	gateChoice = ".mlp.gate.topk_idx"
	gateTable  = ".mlp.gate.tid2eid"
)

// numbers returns the values of A's stage that B has: of a gate's logits and scores those of its experts.
func (r *PrunedReport) numbers(a stage) (values []float32) {
	experts, listed := r.Kept[table.PlaceOf(nil, a.name).Layer]
	if !listed || !strings.HasSuffix(a.name, gateLogits) && !strings.HasSuffix(a.name, gateScores) {
		return a.x.Values
	}
	for t := range a.x.Rows() {
		for _, e := range experts {
			values = append(values, a.x.Row(t)[e])
		}
	}
	return values
}

// choice returns a choice of A in B's numbers, with -1 for an expert that B does not have.
func (r *PrunedReport) choice(a stage) (experts []int) {
	if !strings.HasSuffix(a.name, gateChoice) && !strings.HasSuffix(a.name, gateTable) {
		return a.choice
	}
	for _, e := range a.choice {
		number, kept := r.Kept.Renumber(table.PlaceOf(nil, a.name).Layer, e)
		if !kept {
			number = -1
		}
		experts = append(experts, number)
	}
	return experts
}

// checkExact refuses a B that has another number of experts, or weights whose dtype may not hold A's values.
func checkExact(a, b Runnable, kept table.Kept) error {
	for _, l := range slices.Sorted(maps.Keys(kept)) {
		if n := b.Model.Config.MoE.NRoutedExperts; len(kept[l]) != n {
			return fmt.Errorf("n_routed_experts is %d, but layer %d is to keep %s", n, l, text.Plural(len(kept[l]), "expert"))
		}
	}
	byName := make(map[string]*weights.Weight, len(a.Weights))
	for _, w := range a.Weights {
		byName[w.Name] = w
	}
	for _, w := range b.Weights {
		from := byName[kept.Larger(w.Name)]
		if from == nil || w.Row == nil {
			continue
		}
		holds := w.DType == from.DType || w.DType == tensor.F32 && (from.DType == tensor.BF16 || from.DType == tensor.F16)
		if !holds {
			return fmt.Errorf("%s: is %s, of %s in A: what rounded weights compute is not equal to what A computes; "+
				"compare a model that was pruned without another --type", text.Quote(w.Name), w.DType, from.DType)
		}
	}
	return nil
}

// WriteText writes what was compared, and what was not.
func (r *PrunedReport) WriteText(w io.Writer) error {
	ran := fmt.Sprintf("%s of the decoder, the head", text.Plural(r.Layers, "layer"))
	if r.Alone {
		ran = fmt.Sprintf("the MLPs of %s alone, since attention is not computed, each on the embeddings divided by their RMS",
			text.Plural(r.Layers, "layer"))
	}
	if r.Predictions > 0 {
		ran += " and " + text.Plural(r.Predictions, "prediction layer")
	}
	equal := fmt.Sprintf("%s (%s) equal bit for bit", text.Plural(r.Stages, "stage"), text.Plural(r.Values, "number"))
	lines := []string{fmt.Sprintf("A computed with the logits and scores of all experts but those of B at -inf; "+
		"both on %s: %s", text.Plural(r.Tokens, "token"), ran)}
	if r.Tables > 0 {
		lines = append(lines, "tid2eid of "+text.Plural(r.Tables, "layer")+" of A: an entry of another expert is the next expert "+
			"of B, cyclically, that its row lacks; all rows compared")
	}
	if r.Alone && r.Weights > 0 {
		lines = append(lines, text.Plural(r.Weights, "weight")+" of no MLP compared: equal")
	}
	if r.First != nil {
		lines = append(lines, fmt.Sprintf("first difference: %s: %s; nothing behind it was compared", r.First.Stage,
			r.First.Cause), "differs: "+equal+" before it")
	} else {
		if r.Left > 0 {
			lines = append(lines, "not compared: "+text.Plural(r.Left, "prediction layer")+" of B")
		}
		for _, l := range slices.Sorted(maps.Keys(r.Unchosen)) {
			lines = append(lines, fmt.Sprintf("not compared: layer %d: experts %s of B: no token chose them", l,
				text.Ranges(r.Unchosen[l])))
		}
		lines = append(lines, "same: all "+equal)
	}
	_, err := io.WriteString(w, strings.Join(lines, "\n")+"\n")
	return err
}
