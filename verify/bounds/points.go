package bounds

import (
	"cmp"
	"slices"
	"strings"

	"dsmoe/model"
	"dsmoe/model/tensor"
)

// Points says where an engine, or a reference, rounds to its 16-bit dtype T. An operation that Ways does not name
// rounds as HuggingFace's eager classes do.
type Points struct {
	Ways   map[string]string         // by the name of an operation, one of its WaysOf
	Layers map[int]map[string]string // the same of layers that round otherwise
	// Of returns the name of the operation that reads a weight, "" of other weights, and the weight's layer.
	Of func(w *model.Weight) (operation string, layer int)
	// Weights returns topk_weight of the rows of a routed expert whose up_proj is w.
	Weights func(w *model.Weight) []float32
	Factor  float64 // routed_scaling_factor
	// Reference has the ways of operations that the model's own classes do not round as HuggingFace's others do: a norm
	// that rounds once, which the model computes in float32, and logits that are widened after they were rounded.
	Reference map[string]string
}

// The names of operations that engines round in more than one way.
const (
	Norm         = "norm"           // the first layer's input_layernorm, and other norms that no sum comes before
	LatentNorm   = "latent-norm"    // q_a_layernorm and kv_a_layernorm
	QKNorm       = "qk-norm"        // q_norm and k_norm
	InputAddNorm = "input-add-norm" // the sum that ends a layer, and the next layer's input_layernorm
	PostAddNorm  = "post-add-norm"  // the sum after attention, and post_attention_layernorm
	FinalAddNorm = "final-add-norm" // the sum that ends the last layer, and model.norm

	SwiGLU       = "swiglu" // of a dense MLP
	SharedSwiGLU = "shared-swiglu"

	ExpertsGLU    = "experts.glu"
	ExpertsWeight = "experts.weight" // how an expert's output meets its weight w
	ExpertsW      = "experts.w"      // the dtype of w
	ExpertsSum    = "experts.sum"    // of a token's experts
	ExpertsFactor = "experts.factor" // where routed_scaling_factor s comes in
	ExpertsShared = "experts.shared" // the sum with the shared experts

	Ranks = "ranks" // tensor parallelism of o_proj and of down_proj, but of routed experts

	Router      = "router"       // the dtype of the router's logits
	Score       = "score"        // the dtype of scores that become topk_weight, or of that alone
	ChoiceScore = "choice-score" // the dtype of scores that choose experts

	RoPE            = "rope"
	RoPETables      = "tables"
	Scores          = "scores"
	Probs           = "probs"
	AbsorbedQuery   = "absorbed.q"
	AbsorbedContext = "absorbed.ctx"
)

// Ways of rounding that the arithmetic asks for. R stands for rounding to T.
const (
	InF32 = "f32"
	InT   = "t"

	weightsInT = "weights t" // scores in float32, topk_weight rounded to T

	twice  = "twice"  // w·R(n), or R(silu(gate))·up
	Once   = "once"   // w·n, or silu(gate)·up
	rstd16 = "rstd16" // w·R(x·R(1/rms))

	none = "none" // weights are not absorbed

	ofExponentials = "R(exp)" // exp(score - largest score), whose sum is of those that are not rounded

	unrounded = "unrounded" // gate and up are not rounded either

	ofRounded     = "w·R(down)"
	roundedOf     = "R(w·R(down))"
	roundedOfSum  = "R(w·acc)"
	ofSum         = "w·acc"
	beforeRounded = "R(h·w) before" // h, rounded, is multiplied before down_proj
	beforeOnce    = "R(silu·u·w) before"

	byExpert     = "t by expert"
	bySlot       = "t by slot"
	unknownOrder = "unknown order"

	inWeight     = "in w"
	afterRounded = "R(R(sum)·s)"
	alpha        = "alpha" // shared + R(sum)·s, rounded once
	oneSum       = "one sum"

	// Unknown is the way of an operation that rounds as no other way says: each rounding of one of the ways may happen or
	// not.
	Unknown = "unknown"
)

var (
	normWays = []string{twice, Once, rstd16}
	sumWays  = []string{"rounded, twice", "rounded, once", "unrounded, once", "unrounded, twice"}
	dtypes   = []string{InF32, InT}
)

// WaysOf returns the ways in which engines round an operation, HuggingFace's first; nil if no operation has the name.
func WaysOf(operation string) []string {
	switch operation {
	case Norm, LatentNorm, QKNorm:
		return normWays
	case InputAddNorm, PostAddNorm, FinalAddNorm:
		return sumWays
	case SwiGLU, SharedSwiGLU:
		return normWays[:2]
	case ExpertsGLU:
		return []string{twice, Once, unrounded}
	case ExpertsWeight:
		return []string{ofRounded, roundedOfSum, roundedOf, ofSum, beforeRounded, beforeOnce}
	case ExpertsSum:
		return []string{byExpert, InF32, bySlot, unknownOrder}
	case ExpertsFactor:
		return []string{inWeight, afterRounded, "R(sum·s)", alpha}
	case ExpertsShared:
		return []string{"apart", oneSum}
	case Ranks:
		return []string{"1", "2", "4", "8"}
	case Score:
		return []string{InF32, InT, weightsInT}
	case ExpertsW, Router, ChoiceScore:
		return dtypes
	case RoPE:
		return []string{"each", Once}
	case RoPETables:
		return []string{InT, InF32}
	case AbsorbedQuery, AbsorbedContext:
		return []string{none, InT, InF32}
	case Scores:
		return []string{"R,R", "R", InF32, "R,f32"}
	case Probs:
		return []string{"R", InF32, ofExponentials}
	}
	return nil
}

// Absorbs reports whether the weights of latent attention are multiplied into queries and contexts, or may be.
func (p *Points) Absorbs() bool { return !slices.Contains([]string{"", none}, p.Ways[AbsorbedQuery]) }

// ExpertsWays are the ways in which engines round experts: of ExpertsGLU, ExpertsWeight, ExpertsW and ExpertsSum,
// HuggingFace's eager ones first.
var ExpertsWays = [][]string{
	{twice, ofRounded, InF32, byExpert}, {twice, ofRounded, InF32, InF32}, {twice, roundedOfSum, InF32, InF32},
	{Once, roundedOfSum, InF32, InF32}, {Once, ofRounded, InF32, InF32}, {unrounded, ofSum, InF32, InF32},
	{Once, beforeOnce, InF32, InF32}, {twice, beforeRounded, InF32, InF32}, {twice, beforeRounded, InF32, byExpert},
	{twice, ofRounded, InT, InF32}, {twice, roundedOf, InF32, InF32}, {twice, ofSum, InF32, InF32},
}

// SharedWays are the ways in which engines add the routed sum and shared experts: of ExpertsFactor and ExpertsShared.
var SharedWays = [][]string{{inWeight, "apart"}, {afterRounded, "apart"}, {inWeight, oneSum}, {alpha, oneSum}}

// AttentionWays are the ways in which engines round attention: of RoPE, RoPETables, Scores, Probs, AbsorbedQuery and
// AbsorbedContext. Kernels that absorb weights round no scores.
var AttentionWays = func() (all [][]string) {
	for _, absorbed := range [][]string{{none, none}, {InT, InT}, {InT, InF32}, {InF32, InF32}} {
		for _, scores := range []string{"R,R", InF32, "R", "R,f32"} {
			for _, probs := range WaysOf(Probs) {
				for _, rope := range [][]string{{"each", InT}, {Once, InT}, {Once, InF32}, {"each", InF32}} {
					if absorbed[0] == none || scores == InF32 && probs != "R" {
						all = append(all, slices.Concat(rope, []string{scores, probs}, absorbed))
					}
				}
			}
		}
	}
	return all
}()

// way returns how an operation rounds.
func (a *Analysis) way(operation string) string {
	for _, ways := range []map[string]string{a.points.Layers[a.layer], a.points.Ways, a.points.Reference} {
		if way, ok := ways[operation]; ok {
			return way
		}
	}
	if ways := WaysOf(operation); ways != nil {
		return ways[0]
	}
	return ""
}

// operation returns the name of the operation that reads a weight. The operations that follow are of the weight's layer.
func (a *Analysis) operation(w *model.Weight) (operation string) {
	if a.points.Of == nil || w.Name == "" {
		return ""
	}
	operation, a.layer = a.points.Of(w)
	return operation
}

// read returns the input of a norm, and the norm's way. The input is x, settled, or the sum that x was before it was
// rounded. Where that sum, or the way, is not known, the variance of the input allows for the rounding of the sum.
func (a *Analysis) read(x *Value, operation string) (*Value, string) {
	reads, norm, _ := strings.Cut(a.way(operation), ", ")
	ofSum := operation == InputAddNorm || operation == PostAddNorm || operation == FinalAddNorm
	switch {
	case x.DType == tensor.F32 || !ofSum:
		return a.settle(x), reads
	case reads == "rounded":
		return a.settle(x), norm
	}
	sum := x.sum
	if sum == nil && x.roundLater {
		sum = x.unrounded()
	}
	if reads == unrounded && sum != nil {
		return sum, norm
	}
	if sum == nil {
		sum = x
	}
	return a.mayRound(sum, x.DType), cmp.Or(norm, Unknown)
}

// mayRound returns x unrounded. Its variance allows for a last rounding to d.
func (a *Analysis) mayRound(x *Value, d tensor.DType) *Value {
	p, y := PrecisionOf(d), a.result(tensor.F32, x.Shape...)
	x.DistributeShared()
	for i, v := range x.Values {
		y.Set(i, float64(v), x.Variance(i)+Sq(p.Ulp(float64(v))/Unit)/12)
	}
	y.roundLater = false
	return y.inherit(x)
}

// rounds returns the precision of a rounding point: p; f32 in ways that leave the rounding out; p with a rounding that
// may be left out if the way is not known.
func rounds(p *precision, way string, left ...string) *precision {
	switch {
	case p == f32 || slices.Contains(left, way):
		return f32
	case way == Unknown:
		return optional(p)
	}
	return p
}

// RoundTo rounds each element of x, which is F32, to T if the way of the operation is InT, or perhaps if it is not known.
func (a *Analysis) RoundTo(x *Value, operation string) { a.roundIf(x, operation, InT) }

// RoundWeights rounds topk_weight likewise.
func (a *Analysis) RoundWeights(x *Value) { a.roundIf(x, Score, weightsInT) }

func (a *Analysis) roundIf(x *Value, operation, way string) {
	t := a.t
	switch a.way(operation) {
	default:
		return
	case way:
	case Unknown:
		t = optional(t)
	}
	for i, y := range x.Values {
		y, v := t.point(float64(y), x.Variance(i))
		x.Set(i, y, v)
	}
}
