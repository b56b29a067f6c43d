package verify

import (
	"fmt"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/tensor"
)

// mistake is one known way to get a conversion or a config wrong: its name, the
// stages at which it can be the first divergence, and how to undo it in a trial.
// undo returns what to tell the user, "" if the mistake cannot be there.
type mistake struct {
	id    string
	kinds []string
	undo  func(x *trial) (string, error)
}

// mistakes are tried in this order; what can be seen without guessing comes first.
func mistakes() []mistake {
	norms := []string{"input_layernorm.output", "post_attention_layernorm.output", "model.norm.output"}
	mlps := []string{"mlp.output", "mlp.experts.output", "mlp.shared_experts.output"}
	list := []mistake{
		{"group-mask", []string{"mlp.gate.topk_idx"}, undoGroups},
		{"norm-topk", []string{"mlp.gate.topk_weight"}, undoNormTopK},
		{"reference", []string{"mlp.gate.topk_weight", "mlp.experts.output"}, undoReference},
		{"routed-scale", []string{"mlp.gate.topk_weight"}, undoScale},
		{"bias-leak", []string{"mlp.gate.topk_weight"}, undoBiasLeak},
		{"aux-loss-form", []string{"mlp.gate.aux_loss"}, undoSeqAux},
		{"aux-loss-counts", []string{"mlp.gate.aux_loss"}, undoCounts},
		{"aux-loss-alpha", []string{"mlp.gate.aux_loss"}, undoAlpha},
		{"gate-up-swapped", mlps, undoGateUp},
		{"expert-order", []string{"mlp.experts.output"}, undoLexicographic},
		{"experts-swapped", []string{"mlp.experts.output"}, undoSwappedExperts},
		{"router-rows", []string{"mlp.gate.logits"}, undoRouterRows},
		{"rotary-dtype", []string{"self_attn.o_proj.input"}, undoRotaryDType},
		{"rope-layout", []string{"self_attn.o_proj.input"}, undoLayout},
		{"rope-scaling", []string{"self_attn.o_proj.input"}, undoRopeScaling},
		{"padding-mask", []string{"self_attn.o_proj.input"}, undoPaddingMask},
	}
	for _, mscale := range []float64{1, 0.707, 0} {
		list = append(list, mistake{"yarn-mscale", []string{"self_attn.o_proj.input"}, undoMScale(mscale)})
	}
	for _, proj := range []string{"q_proj", "k_proj", "v_proj", "o_proj"} {
		list = append(list, mistake{"transposed", []string{"self_attn." + proj + ".output"}, undoTransposed(proj)})
	}
	for _, proj := range []string{"q_proj", "k_proj", "q_b_proj", "kv_a_proj_with_mqa"} {
		list = append(list, mistake{"rope-permutation", []string{"self_attn." + proj + ".output"}, undoPermuted(proj)})
	}
	for _, eps := range []float64{1e-5, 1e-6, 1e-8, 1e-12} {
		list = append(list, mistake{"norm-eps", norms, undoEps(eps)})
	}
	for _, theta := range []float64{1e4, 1e5, 5e5, 1e6} {
		list = append(list, mistake{"rope-theta", []string{"self_attn.o_proj.input"}, undoTheta(theta)})
	}
	return list
}

func undoNormTopK(x *trial) (string, error) {
	x.config.NormTopKProb = !x.config.NormTopKProb
	return fmt.Sprintf("the reference ran with norm_topk_prob %v, here it is %v", x.config.NormTopKProb, !x.config.NormTopKProb), nil
}

func undoGroups(x *trial) (string, error) {
	if x.config.TopKMethod != "group_limited_greedy" && x.config.TopKMethod != "noaux_tc" {
		return "", nil
	}
	was := x.config.NGroup
	x.config.NGroup, x.config.TopKGroup = 1, 1
	return fmt.Sprintf("the reference chose among all experts, here there are %d groups", was), nil
}

func undoReference(x *trial) (string, error) {
	was := x.config.Reference
	x.config.Reference = config.Remote
	if was == config.Remote {
		x.config.Reference = config.Native
	}
	return fmt.Sprintf("the pack follows the rules of the %s reference: verify with --reference %[1]s", x.config.Reference), nil
}

// undoScale takes routed_scaling_factor from the golden: the ratio of all weights.
func undoScale(x *trial) (string, error) {
	was := x.config.RoutedScalingFactor
	scale := round3(was * float64(x.want[0]) / float64(x.got.Values[0]))
	x.config.RoutedScalingFactor = scale
	if _, applied := x.config.TopKWeights(); applied != scale {
		return "", nil
	}
	return fmt.Sprintf("the reference ran with routed_scaling_factor %g, here it is %g", scale, was), nil
}

// undoBiasLeak takes the weights from what the experts are chosen by.
func undoBiasLeak(x *trial) (string, error) {
	if x.config.ScoringFunc != "sigmoid" {
		return "", nil
	}
	x.options.BiasLeak = true
	return "e_score_correction_bias, which is for the choice of experts only, is in their weights", nil
}

func undoLayout(x *trial) (string, error) {
	x.config.RopeInterleave = !x.config.RopeInterleave
	layouts := map[bool]string{true: "interleaved pairs", false: "halves"}
	return fmt.Sprintf("the reference rotates %s, here it is %s", layouts[x.config.RopeInterleave], layouts[!x.config.RopeInterleave]), nil
}

func undoMScale(mscale float64) func(x *trial) (string, error) {
	return func(x *trial) (string, error) {
		was := x.config.RopeScaling
		if was == nil || was.Type != "yarn" || was.MScaleAllDim == mscale {
			return "", nil
		}
		scaling := *was
		scaling.MScale, scaling.MScaleAllDim = mscale, mscale
		x.config.RopeScaling = &scaling
		return fmt.Sprintf("the reference ran with mscale_all_dim %g, here it is %g", mscale, was.MScaleAllDim), nil
	}
}

// round3 rounds to three digits, as somebody would have written a number.
func round3(v float64) float64 {
	written, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 3, 64), 64)
	if err != nil {
		return v
	}
	return written
}

func undoSeqAux(x *trial) (string, error) {
	x.config.SeqAux = !x.config.SeqAux
	return fmt.Sprintf("the reference ran with seq_aux %v, here it is %v", x.config.SeqAux, !x.config.SeqAux), nil
}

// undoCounts leaves the division of the experts' counts by their fair share out.
func undoCounts(x *trial) (string, error) {
	tokens := x.in.Seq
	if !x.config.SeqAux {
		tokens *= x.in.Batch
	}
	x.config.AuxLossAlpha *= float64(tokens*x.config.NumExpertsPerTok) / float64(x.config.NRoutedExperts)
	return "the reference did not divide the experts' counts by seq_len·num_experts_per_tok/n_routed_experts", nil
}

// undoAlpha takes aux_loss_alpha from the golden, if that gives a number that
// somebody would have written: three digits.
func undoAlpha(x *trial) (string, error) {
	was := x.config.AuxLossAlpha
	written := round3(was * float64(x.want[0]) / float64(x.got.Values[0]))
	if !(written > 0) {
		return "", nil
	}
	x.config.AuxLossAlpha = written
	return fmt.Sprintf("the reference ran with aux_loss_alpha %g, here it is %g", written, was), nil
}

func undoEps(eps float64) func(x *trial) (string, error) {
	return func(x *trial) (string, error) {
		was := x.config.RMSNormEps
		x.config.RMSNormEps = eps
		if was == eps {
			return "", nil
		}
		return fmt.Sprintf("the reference ran with rms_norm_eps %g, here it is %g", eps, was), nil
	}
}

func undoTheta(theta float64) func(x *trial) (string, error) {
	return func(x *trial) (string, error) {
		was := x.config.RopeTheta
		x.config.RopeTheta = theta
		if was == theta {
			return "", nil
		}
		return fmt.Sprintf("the reference ran with rope_theta %g, here it is %g", theta, was), nil
	}
}

func undoRopeScaling(x *trial) (string, error) {
	if x.config.RopeScaling == nil {
		return "", nil
	}
	x.config.RopeScaling = (*config.RopeScaling)(nil)
	return "the reference ran without the rope_scaling of config.json", nil
}

func undoPaddingMask(x *trial) (string, error) {
	if x.in.AttentionMask == nil {
		return "", nil
	}
	x.in.AttentionMask = nil
	return "the reference ran without the attention_mask of the pack", nil
}

func undoRotaryDType(x *trial) (string, error) {
	if x.pack.DType == tensor.F32 {
		return "", nil
	}
	to, flag := tensor.F32, "float32"
	if x.options.RotaryDType == tensor.F32 {
		to, flag = x.pack.DType, "compute"
	}
	x.options.RotaryDType = to
	return fmt.Sprintf("the reference kept RoPE's inv_freq in %s: verify with --rotary-dtype %s", to, flag), nil
}

// undoGateUp exchanges gate_proj and up_proj of every MLP of the layer.
func undoGateUp(x *trial) (string, error) {
	swap := func(m *model.DeepseekMLP) {
		if m != nil {
			m.GateProj, m.UpProj = m.UpProj, m.GateProj
		}
	}
	swap(x.layer.MLP)
	if x.layer.MoE != nil {
		swap(x.layer.MoE.SharedExperts)
		for e := range x.layer.MoE.Experts {
			swap(&x.layer.MoE.Experts[e])
		}
	}
	return "gate_proj and up_proj are exchanged", nil
}

// undoLexicographic puts experts that were numbered in the order "0", "1", "10", …
// back into the order of their numbers.
func undoLexicographic(x *trial) (string, error) {
	experts := x.layer.MoE.Experts
	names := make([]string, len(experts))
	for e := range names {
		names[e] = strconv.Itoa(e)
	}
	sort.Strings(names)
	sorted := make([]model.DeepseekMLP, len(experts))
	for at, name := range names {
		e, _ := strconv.Atoi(name)
		sorted[e] = experts[at]
	}
	if slices.IsSortedFunc(names, func(a, b string) int { return len(a) - len(b) }) {
		return "", nil // no expert 10
	}
	copy(experts, sorted)
	return "the experts are in the order of their names as text: 0, 1, 10, 11, …, 2, …", nil
}

// undoSwappedExperts looks for two experts exchanged with each other: exactly the
// tokens routed to either of them are wrong.
func undoSwappedExperts(x *trial) (string, error) {
	suspects, err := x.suspects()
	if err != nil {
		return "", err
	}
	const few = 8 // pairs to try grow with the square
	if len(suspects) > few {
		return "", nil
	}
	for i, a := range suspects {
		for _, b := range suspects[i+1:] {
			y := x.trial()
			experts := y.layer.MoE.Experts
			experts[a], experts[b] = experts[b], experts[a]
			passes, err := x.run(y)
			if err != nil {
				return "", err
			}
			if passes {
				copy(x.layer.MoE.Experts, experts)
				return fmt.Sprintf("experts %d and %d are exchanged", a, b), nil
			}
		}
	}
	return "", nil
}

// suspects are the experts all of whose tokens are wrong.
func (x *trial) suspects() ([]int, error) {
	routing := fmt.Sprintf("model.layers.%d.mlp.gate.topk_idx", x.failure.layer)
	if !x.pack.Has(routing) {
		return nil, nil
	}
	idx, err := x.pack.Ints(routing)
	if err != nil {
		return nil, err
	}
	k := len(idx) / x.got.Rows()
	cleared, seen := map[int]bool{}, map[int]bool{}
	for i, e := range idx {
		seen[e] = true
		if !x.wrong(i / k) {
			cleared[e] = true
		}
	}
	var suspects []int
	for e := range x.layer.MoE.Experts {
		if seen[e] && !cleared[e] {
			suspects = append(suspects, e)
		}
	}
	return suspects, nil
}

// wrong says whether row of the failed stage is beyond its limits.
func (f *failure) wrong(row int) bool {
	w := f.got.Width()
	m := Compare(f.got.Row(row), f.want[row*w:(row+1)*w], w, f.got.DType)
	return !m.Finite || m.RelRMS > limitsFor(f.name, f.layer, f.got.DType, f.o).RowRMS
}

// undoRouterRows looks for the expert whose logits each of the gate's rows gives.
func undoRouterRows(x *trial) (string, error) {
	n := x.got.Width()
	order := make([]int, n) // golden column -> ours
	for e := range order {
		if order[e] = x.column(e); order[e] < 0 {
			return "", nil
		}
	}
	w := &x.layer.MoE.Gate.Weight
	rows := make([]byte, 0, len(w.Data))
	for _, from := range order {
		rows = append(rows, w.Row(from).Data...)
	}
	w.Data = rows
	return "the router's rows are in another order than the experts: " + rowOrder(order), nil
}

// column returns which column of got is nearest to golden column e, -1 if none is
// near.
func (f *failure) column(e int) int {
	n := f.got.Width()
	best, at := math.Inf(1), -1
	for c := range n {
		sum, scale := 0.0, 0.0
		for r := range f.got.Rows() {
			want := float64(f.want[r*n+e])
			diff := float64(f.got.Values[r*n+c]) - want
			sum += float64(diff * diff)
			scale += float64(want * want)
		}
		if sum < best && sum <= 1e-4*scale {
			best, at = sum, c
		}
	}
	return at
}

func rowOrder(order []int) string {
	var moved []string
	for e, from := range order {
		if e != from {
			moved = append(moved, fmt.Sprintf("expert %d is row %d", e, from))
		}
	}
	if n := len(moved); n > 4 {
		moved = append(moved[:4], fmt.Sprintf("and %d more", n-4))
	}
	return strings.Join(moved, ", ")
}

// linear finds a projection of the layer's attention.
func (x *trial) linear(proj string) *model.Linear {
	if a := x.layer.MLA; a != nil {
		return map[string]*model.Linear{"q_proj": &a.QProj, "q_b_proj": &a.QBProj, "kv_a_proj_with_mqa": &a.KVAProjWithMQA, "o_proj": &a.OProj}[proj]
	}
	a := x.layer.SelfAttn
	return map[string]*model.Linear{"q_proj": &a.QProj, "k_proj": &a.KProj, "v_proj": &a.VProj, "o_proj": &a.OProj}[proj]
}

func undoTransposed(proj string) func(x *trial) (string, error) {
	return func(x *trial) (string, error) {
		w := &x.linear(proj).Weight
		if w.Shape[0] != w.Shape[1] || w.Scales != nil {
			return "", nil
		}
		n, size := w.Shape[0], w.DType.Bits()/8
		t := make([]byte, len(w.Data))
		for r := range n {
			for c := range n {
				copy(t[(c*n+r)*size:(c*n+r+1)*size], w.Data[(r*n+c)*size:])
			}
		}
		w.Data = t
		return proj + ".weight is transposed", nil
	}
}

// undoPermuted reorders the rows of each head from interleaved pairs (2i, 2i+1), as
// GGUF and Meta's code rotate them, to halves (i, i + head_dim/2), or back.
func undoPermuted(proj string) func(x *trial) (string, error) {
	return func(x *trial) (string, error) {
		width := x.config.QKHeadDim()
		if proj == "kv_a_proj_with_mqa" {
			width = x.config.KVLoraRank + x.config.QKRopeHeadDim
		}
		if x.linear(proj).Weight.Scales != nil {
			return "", nil // rows would leave their blocks
		}
		for _, toHalves := range []bool{true, false} {
			y := x.trial()
			permuteRows(&y.linear(proj).Weight, width, x.config.HeadDim(), toHalves)
			permuteRows(&y.linear(proj).Bias, width, x.config.HeadDim(), toHalves)
			passes, err := x.run(y)
			if err != nil {
				return "", err
			}
			if passes {
				*x.linear(proj) = *y.linear(proj)
				return fmt.Sprintf("the rows of %s are permuted for the other RoPE layout (interleaved pairs against halves)", proj), nil
			}
		}
		return "", nil
	}
}

// permuteRows reorders the last rotated rows of every head of width rows.
func permuteRows(w *model.Weight, width, rotated int, toHalves bool) {
	if w.Name == "" {
		return
	}
	rows, half := make([]byte, 0, len(w.Data)), rotated/2
	for r := range w.Shape[0] {
		first := r/width*width + width - rotated
		from := r
		switch i := r - first; {
		case i < 0:
		case toHalves:
			from = first + i%half*2 + i/half
		default:
			from = first + i/2 + i%2*half
		}
		rows = append(rows, w.Row(from).Data...)
	}
	w.Data = rows
}
