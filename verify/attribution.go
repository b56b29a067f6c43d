package verify

import (
	"maps"
	"slices"
	"weak"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
)

// attribution knows of values of any type which weights took part in each since the last checked stage.
type attribution[V any] struct {
	sets    map[weak.Pointer[V]]bounds.WeightSet
	unknown unknownRoundings
	read    []reading[V] // of the last operation, if it reads a number of config.json
}

// unknownRoundings are the operations of a pack's reference that round in a way that is not known.
type unknownRoundings struct {
	attention bool // scores, probabilities and contexts
	experts   bool // the routed sum
	fused     bool // all operations but products, whose roundings to 16 bits may have been left out
}

// reading is an operation that reads a number of config.json.
type reading[V any] struct {
	key   string
	y     *V                  // its result
	again func(by float64) *V // the result with the number multiplied
}

// The keys that operations read, see reading.
const (
	rmsNormEps      = "rms_norm_eps"
	hcEps           = "hc_eps"
	hcSinkhornIters = "hc_sinkhorn_iters"
)

// readings are those of the operation whose result is x.
func (a *attribution[V]) readings(x *V) []reading[V] {
	if len(a.read) == 0 || a.read[0].y != x {
		return nil
	}
	return a.read
}

// forget drops the operands that the readings of x hold.
func (a *attribution[V]) forget(x *V) {
	if a.readings(x) != nil {
		a.read = nil
	}
}

// Names in a weight set that are no weights: RoPE's tables, and an operation whose roundings are not known.
const (
	mainRotation       = "rotation"
	compressedRotation = "compressed rotation"
	unknownRounding    = "unknown rounding"
)

func newAttribution[V any]() *attribution[V] {
	return &attribution[V]{sets: map[weak.Pointer[V]]bounds.WeightSet{}}
}

// weights are the names of the weights that took part in x, sorted.
func (a *attribution[V]) weights(x *V) []string {
	names := slices.Sorted(maps.Keys(a.sets[weak.Make(x)]))
	return slices.DeleteFunc(names, func(name string) bool {
		return name == mainRotation || name == compressedRotation || name == unknownRounding
	})
}

// checked forgets the weights of x: they took part in a checked stage.
func (a *attribution[V]) checked(x *V) { delete(a.sets, weak.Make(x)) }

// inherit gives y, the result of an operation that rounds, the weights of x, and returns it.
func (a *attribution[V]) inherit(y, x *V) *V { return a.union(y, x) }

// union gives y, the result of an operation that rounds, the weights of all operands, and returns it.
func (a *attribution[V]) union(y *V, operands ...*V) *V {
	return a.mark(a.carry(y, operands...), a.unknown.fused)
}

// mark notes that y is rounded in a way that is not known, if that is so, and returns it.
func (a *attribution[V]) mark(y *V, unknown bool) *V {
	if !unknown {
		return y
	}
	return a.adding(y, &model.Weight{Name: unknownRounding})
}

// carry gives y the weights of all operands, and returns it.
func (a *attribution[V]) carry(y *V, operands ...*V) *V {
	if len(operands) == 1 {
		a.sets[weak.Make(y)] = a.sets[weak.Make(operands[0])]
		return y
	}
	set := bounds.WeightSet{}
	for _, x := range operands {
		maps.Copy(set, a.sets[weak.Make(x)])
	}
	a.sets[weak.Make(y)] = set
	return y
}

// adding gives y the weights added beside those that it has, and returns it.
func (a *attribution[V]) adding(y *V, added ...*model.Weight) *V {
	set := bounds.WeightSet{}
	maps.Copy(set, a.sets[weak.Make(y)])
	for _, w := range added {
		if w.Name != "" {
			set[w.Name] = struct{}{}
		}
	}
	a.sets[weak.Make(y)] = set
	return y
}

// attributed is an arithmetic around another one. It computes what that computes, and tells an attribution which
// weights took part.
type attributed[V any] struct {
	model.Arithmetic[*V]
	by      *attribution[V]
	in      *model.Input                 // the tokens: weights behind rows of padding alone take no part
	numbers func(x *V) *model.Activation // what x amounts to
}

// Embed gives its result the weight w.
func (a *attributed[V]) Embed(w *model.Weight, ids []int) *V {
	return a.by.adding(a.Arithmetic.Embed(w, ids), w)
}

// Linear gives its result the weights of x and of l.
func (a *attributed[V]) Linear(x *V, l *model.Linear) *V {
	return a.by.adding(a.by.carry(a.Arithmetic.Linear(x, l), x), &l.Weight, &l.Bias)
}

// RMSNorm gives its result the weights of x, and weight.
func (a *attributed[V]) RMSNorm(x *V, weight *model.Weight, eps float64) *V {
	y := a.by.adding(a.by.inherit(a.Arithmetic.RMSNorm(x, weight, eps), x), weight)
	a.by.read = []reading[V]{{rmsNormEps, y, func(by float64) *V { return a.Arithmetic.RMSNorm(x, weight, eps*by) }}}
	return y
}

// Add gives its result the weights of both operands.
func (a *attributed[V]) Add(x, y *V) *V { return a.by.union(a.Arithmetic.Add(x, y), x, y) }

// SiLU gives its result the weights of x.
func (a *attributed[V]) SiLU(x *V, alpha float32) *V {
	return a.by.inherit(a.Arithmetic.SiLU(x, alpha), x)
}

// Multiply gives its result the weights of both operands.
func (a *attributed[V]) Multiply(x, z *V, shift float32) *V {
	return a.by.union(a.Arithmetic.Multiply(x, z, shift), x, z)
}

// SwiGLU gives its result the weights of both operands.
func (a *attributed[V]) SwiGLU(gate, up *V) *V {
	return a.by.union(a.Arithmetic.SwiGLU(gate, up), gate, up)
}

// Softmax gives its result the weights of x.
func (a *attributed[V]) Softmax(x *V) *V { return a.by.inherit(a.Arithmetic.Softmax(x), x) }

// Float32 gives its result the weights of x.
func (a *attributed[V]) Float32(x *V) *V { return a.by.carry(a.Arithmetic.Float32(x), x) }

// Cast gives its result the weights of x.
func (a *attributed[V]) Cast(x *V, d tensor.DType) *V {
	y := a.by.inherit(a.Arithmetic.Cast(x, d), x)
	for i, r := range a.by.readings(x) {
		a.by.read[i] = reading[V]{r.key, y, func(by float64) *V { return a.Arithmetic.Cast(r.again(by), d) }}
	}
	return y
}

// Clamp gives its result the weights of x.
func (a *attributed[V]) Clamp(x *V, low, high float32) *V {
	return a.by.inherit(a.Arithmetic.Clamp(x, low, high), x)
}

// UnitNorm gives its result the weights of x.
func (a *attributed[V]) UnitNorm(x *V, eps float64) *V {
	return a.by.inherit(a.Arithmetic.UnitNorm(x, eps), x)
}

// Reshape gives its result the weights of x.
func (a *attributed[V]) Reshape(x *V, shape ...int) *V {
	return a.by.carry(a.Arithmetic.Reshape(x, shape...), x)
}

// Move gives its result the weights of all operands.
func (a *attributed[V]) Move(m *model.Move, operands ...*V) *V {
	return a.by.carry(a.Arithmetic.Move(m, operands...), operands...)
}

// rotation names the tables of r, as a weight.
func rotation(r *model.Rotary) *model.Weight {
	if r.Compressed {
		return &model.Weight{Name: compressedRotation}
	}
	return &model.Weight{Name: mainRotation}
}

// Tables gives its results the tables' name.
func (a *attributed[V]) Tables(r *model.Rotary) (cos, sin *V) {
	cos, sin = a.Arithmetic.Tables(r)
	return a.by.adding(cos, rotation(r)), a.by.adding(sin, rotation(r))
}

// RoPE gives its result the weights of x, and the name of the tables.
func (a *attributed[V]) RoPE(x, cos, sin *V, r *model.Rotary) *V {
	return a.by.adding(a.by.inherit(a.Arithmetic.RoPE(x, cos, sin, r), x), rotation(r))
}

// Scores gives its result the weights of queries and keys.
func (a *attributed[V]) Scores(q, k *V, first, n int, s *model.Scoring) *V {
	return a.by.mark(a.by.union(a.Arithmetic.Scores(q, k, first, n, s), q, k), a.by.unknown.attention)
}

// Context gives its result the weights of probabilities and values.
func (a *attributed[V]) Context(probs, vT *V) *V {
	return a.by.mark(a.by.union(a.Arithmetic.Context(probs, vT), probs, vT), a.by.unknown.attention)
}

// SinkSoftmax gives its result the weights of the scores, and the sinks.
func (a *attributed[V]) SinkSoftmax(scores *V, sinks *model.Weight) *V {
	return a.by.adding(a.by.inherit(a.Arithmetic.SinkSoftmax(scores, sinks), scores), sinks)
}

// Pool gives its result the weights of kv and gate, and the position bias.
func (a *attributed[V]) Pool(kv, gate *V, ape *model.Weight, g *model.Pooling) *V {
	return a.by.adding(a.by.union(a.Arithmetic.Pool(kv, gate, ape, g), kv, gate), ape)
}

// LayerNorm gives its result the weights of x, and the norm's.
func (a *attributed[V]) LayerNorm(x *V, n *model.LayerNorm, eps float64) *V {
	return a.by.adding(a.by.inherit(a.Arithmetic.LayerNorm(x, n, eps), x), &n.Weight, &n.Bias)
}

// ReLU gives its result the weights of x.
func (a *attributed[V]) ReLU(x *V) *V { return a.by.inherit(a.Arithmetic.ReLU(x), x) }

// IndexScores gives its result the weights of the heads' weights and scores.
func (a *attributed[V]) IndexScores(weights, s *V, first int, mask *model.Mask) *V {
	return a.by.union(a.Arithmetic.IndexScores(weights, s, first, mask), weights, s)
}

// MaskKeys gives its result the weights of the scores.
func (a *attributed[V]) MaskKeys(scores *V, mask *model.Mask) *V {
	return a.by.inherit(a.Arithmetic.MaskKeys(scores, mask), scores)
}

// SqrtSoftplus gives its result the weights of x.
func (a *attributed[V]) SqrtSoftplus(x *V) *V { return a.by.inherit(a.Arithmetic.SqrtSoftplus(x), x) }

// TableExperts gives the table to the scores: it decides which of them become the top-k weights.
func (a *attributed[V]) TableExperts(scores *V, table *model.Weight, ids []int) []int {
	a.by.adding(scores, table)
	return a.Arithmetic.TableExperts(scores, table, ids)
}

// SoftCap gives its result the weights of x.
func (a *attributed[V]) SoftCap(x *V, limit float32) *V {
	return a.by.inherit(a.Arithmetic.SoftCap(x, limit), x)
}

// Sigmoid gives its result the weights of x.
func (a *attributed[V]) Sigmoid(x *V) *V { return a.by.inherit(a.Arithmetic.Sigmoid(x), x) }

// AddBias gives the bias to the scores themselves: it decides which of them become the
// top-k weights. Its result serves the choice of experts only, and has no weights.
func (a *attributed[V]) AddBias(scores *V, bias *model.Weight) *V {
	a.by.adding(scores, bias)
	return a.Arithmetic.AddBias(scores, bias)
}

// Normalise gives its result the weights of w.
func (a *attributed[V]) Normalise(w *V, d model.Divisor) *V {
	return a.by.inherit(a.Arithmetic.Normalise(w, d), w)
}

// Scale gives its result the weights of x.
func (a *attributed[V]) Scale(x *V, factor float32) *V {
	return a.by.inherit(a.Arithmetic.Scale(x, factor), x)
}

// Combine gives its result the weights of weight and of the parts. It leaves out the
// experts that only padding chose, or whose outputs are weighted with next to nothing wherever
// they were chosen: their weights hardly show in the sum.
func (a *attributed[V]) Combine(weight *V, parts []model.Part[*V], order config.RoutedSum) *V {
	operands, numbers := []*V{weight}, a.numbers(weight)
	padded := pack.PaddedTokens(a.in, numbers.Rows())
	for _, p := range parts {
		if slices.ContainsFunc(p.Slots, func(slot int) bool { return contributes(numbers, padded, slot) }) {
			operands = append(operands, p.Out)
		}
	}
	return a.by.mark(a.by.union(a.Arithmetic.Combine(weight, parts, order), operands...), a.by.unknown.experts)
}

// contributes reports whether an expert's output shows in the routed sum of a token: the token, at
// this position of topk_idx, is not padding, and the expert's weight is more than a thousandth
// of the token's largest.
func contributes(weights *model.Activation, padded pack.Padding, slot int) bool {
	token := slot / weights.Width()
	return !padded.Has(token) && weights.Values[slot] > slices.Max(weights.Row(token))/1000
}

// StreamGate gives its result the weights of z, and the function's.
func (a *attributed[V]) StreamGate(z *V, f *model.Affine, times, plus float32) *V {
	y := a.by.adding(a.by.inherit(a.Arithmetic.StreamGate(z, f, times, plus), z), f.Scale, f.Base)
	if a.by.read = nil; plus != 0 {
		a.by.read = []reading[V]{{hcEps, y, func(by float64) *V { return a.Arithmetic.StreamGate(z, f, times, plus*float32(by)) }}}
	}
	return y
}

// Sinkhorn gives its result the weights of z, and the function's.
func (a *attributed[V]) Sinkhorn(z *V, f *model.Affine, iters int, eps float32) *V {
	y := a.by.adding(a.by.inherit(a.Arithmetic.Sinkhorn(z, f, iters, eps), z), f.Scale, f.Base)
	a.by.read = []reading[V]{
		{hcEps, y, func(by float64) *V { return a.Arithmetic.Sinkhorn(z, f, iters, eps*float32(by)) }},
		{hcSinkhornIters, y, func(by float64) *V {
			return a.Arithmetic.Sinkhorn(z, f, max(1, int(float64(iters)*by)), eps)
		}},
	}
	return y
}

// Collapse gives its result the weights of pre and of the streams.
func (a *attributed[V]) Collapse(pre, x *V) *V {
	return a.by.union(a.Arithmetic.Collapse(pre, x), pre, x)
}

// Expand gives its result the weights of the streams, of the module's output and of their mixing.
func (a *attributed[V]) Expand(x, y, post, comb *V) *V {
	return a.by.union(a.Arithmetic.Expand(x, y, post, comb), x, y, post, comb)
}

// AuxLoss gives its result the weights of the scores.
func (a *attributed[V]) AuxLoss(scores *V, idx []int, sequences int, alpha float64) *V {
	return a.by.inherit(a.Arithmetic.AuxLoss(scores, idx, sequences, alpha), scores)
}
