package model

import (
	"dsmoe/config"
	"dsmoe/model/tensor"
)

// Arithmetic carries out the operations of the network on values of its own type V. The
// network is written once, over these operations. Plain computes them in float32; Tape
// computes the same and remembers what the gradients need. Other packages can write more
// arithmetics, from nothing or by embedding one of these two and overriding operations.
//
// A value is a tensor with a shape and a dtype. An operation does not change its
// operands. As in PyTorch its result has the dtype of its first operand, and is rounded
// to that dtype once, unless the operation names more rounding points of the reference.
// Formulas hold between rounding points: "exact" ones are one correctly rounded float32
// operation per element, and need no second rounding in F32. "Data movement" computes
// nothing. Weights are cast to the compute dtype first, as model.to(dtype) does.
//
// An arithmetic may delay the last rounding of a result until an operation takes the
// result as its operand: a Trace then sees the values before that rounding.
//
// An arithmetic serves one pass of one network, one operation at a time.
type Arithmetic[V any] interface {
	// Scope returns f(x). Afterwards only the result is used, neither x nor other values that
	// f made, so that an arithmetic can take memory back.
	Scope(x V, f func(x V) V) V

	// Embed looks token ids up in w [vocab, hidden]: [tokens, hidden] in the compute dtype.
	Embed(w *Weight, ids []int) V
	// Linear is y = x·weightᵀ + bias, mirroring torch.nn.functional.linear.
	Linear(x V, l *Linear) V
	// RMSNorm normalises each row: y = weight · n, exact, with
	// n = x / sqrt(mean(x²) + eps) a rounding point.
	RMSNorm(x V, weight *Weight, eps float64) V
	// Add is a + b, exact.
	Add(a, b V) V
	// SwiGLU is silu(gate) · up, exact, with silu(g) = g / (1 + e^-g) a rounding point.
	SwiGLU(gate, up V) V
	// SiLU is x·s, exact, with s = 1 / (1 + e^-(alpha·x)); with an alpha other than 1 alpha·x and s are rounding points.
	SiLU(x V, alpha float32) V
	// Multiply is a·(b + shift), exact, with the sum a rounding point. a and b may be the same value.
	Multiply(a, b V, shift float32) V
	// Softmax is e^(x - max) / Σ e^(x - max) of each row, in float32 or better. The network
	// applies it to scores of attention and to logits of a gate.
	Softmax(x V) V
	// Float32 is x in dtype F32, mirroring x.type(torch.float32). Exact.
	Float32(x V) V
	// Cast is x in dtype d, mirroring x.to(d): a rounding point.
	Cast(x V, d tensor.DType) V
	// Clamp is min(max(x, low), high), exact, with limits in x's dtype.
	Clamp(x V, low, high float32) V
	// UnitNorm normalises each row without a weight: y = x · f, exact, with
	// f = 1 / sqrt(mean(x²) + eps) a rounding point, in float32 before it is cast.
	UnitNorm(x V, eps float64) V

	// Reshape is x in another shape with the same number of elements. Data movement.
	Reshape(x V, shape ...int) V
	// Move carries out a Move: the result's values are values of the operands, which have
	// one dtype. Data movement.
	Move(m *Move, operands ...V) V

	attentionArithmetic[V] // operations of attention
	indexerArithmetic[V]   // operations of an indexer
	routingArithmetic[V]   // operations of a mixture of experts
	streamArithmetic[V]    // operations of hyper-connections
}

// attentionArithmetic is the part of Arithmetic that only attention uses. Heads have an
// axis there: q is [batch, heads, seq, qk_head_dim], k [batch, groups, seq, qk_head_dim],
// and heads/groups consecutive heads share a group's keys and values (repeat_kv).
type attentionArithmetic[V any] interface {
	// Tables are RoPE's cos and sin, [positions, r.Half] each, in r.DType.
	Tables(r *Rotary) (cos, sin V)
	// RoPE rotates the last columns of each row, or the first, by its position, with the rows of cos and
	// sin, [positions, r.Half]: see Rotary.
	RoPE(x, cos, sin V, r *Rotary) V
	// Scores are the scaled and masked scores of the queries first … first+n-1, [batch,
	// heads, n, seq]: s = q·kᵀ, a rounding point; s·scale or s/scale, exact, a rounding
	// point; plus the mask.
	Scores(q, k V, first, n int, s *Scoring) V
	// Context is probs·v of each head, [batch, heads, n, v_head_dim]. vT is v transposed,
	// [batch, groups, v_head_dim, seq].
	Context(probs, vT V) V
	// SinkSoftmax is Softmax in float32 of each row of scores [batch, heads, n, keys] with one more
	// score behind it, sinks[head], whose probability is left out: the others are rounded to the
	// dtype of scores.
	SinkSoftmax(scores V, sinks *Weight) V
	// Pool makes an entry of each window of tokens: see Pooling. kv and gate are [batch, seq, width]
	// with the columns of all series; ape [rate, width] is added to gate in float32, not cast before.
	//
	//	y[n, c] = Σ_slots p·kv,  p = softmax over the slots of gate + ape, in float32
	//
	// p, each product and the sum are rounding points. The result is [batch, entries, g.Width].
	Pool(kv, gate V, ape *Weight, g *Pooling) V
}

// streamArithmetic is the part of Arithmetic that only hyper-connections use: the residual
// is not one row per token, but hc streams, x [batch, seq, hc, hidden_size]. What weighs
// streams is float32.
type streamArithmetic[V any] interface {
	// StreamGate is times · sigmoid(a(z)) + plus, in float32.
	StreamGate(z V, a *Affine, times, plus float32) V
	// Sinkhorn makes of the rows of z [batch, seq, hc·hc] matrices that are nearly doubly
	// stochastic, C [batch, seq, hc, hc], in float32 or better:
	//
	//	C = softmax of each row of a(z) + eps;  C /= sums of its columns + eps
	//	iters-1 times:  C /= sums of its rows + eps;  C /= sums of its columns + eps
	Sinkhorn(z V, a *Affine, iters int, eps float32) V
	// Collapse is y[t] = Σ_j pre[t, j]·x[t, j], [batch, seq, hidden_size]: products and the sum
	// in float32, then a rounding point.
	Collapse(pre, x V) V
	// Expand carries streams past a module whose output is y [batch, seq, hidden_size]:
	//
	//	z[t, k] = post[t, k]·y[t] + Σ_j comb[t, j, k]·x[t, j]
	//
	// post and comb are cast to x's dtype first; the product and the sum over j are rounding
	// points, and the sum of both is exact.
	Expand(x, y, post, comb V) V
}

// Affine is the function z·Scale[Part] + Base[From:] of rows of z, product and sum in float32.
type Affine struct {
	Scale, Base *Weight
	Part, From  int // the element of Scale; the first element of Base
}

// indexerArithmetic is the part of Arithmetic that only an indexer uses. No gradient passes it: the
// choice of keys has none.
type indexerArithmetic[V any] interface {
	// LayerNorm normalises each row in float32: weight · (x - mean) / sqrt(var + eps) + bias, with
	// var = mean((x - mean)²).
	LayerNorm(x V, n *LayerNorm, eps float64) V
	// ReLU is max(x, 0), exact.
	ReLU(x V) V
	// IndexScores is the sum of the heads' scores s [batch, heads, n, seq], in float32, each times the
	// weight of its head, for the queries first … first+n-1: y[b, i, u] = Σ_h weights[b, first+i, h]
	// · s[b, h, i, u], a product of heads terms, plus the mask, exact. It is [batch, 1, n, seq]. The
	// mask may be nil.
	IndexScores(weights, s V, first int, mask *Mask) V
	// MaskKeys sets the scores [batch, seq, keys] of the keys that the mask hides to -inf.
	MaskKeys(scores V, mask *Mask) V
}

// Scoring holds the scale and the mask of the scores of attention.
type Scoring struct {
	By      float32 // the scale
	Divides bool    // scores are divided by By, not multiplied
	Mask    *Mask   // added to the scores; may be nil
}

// routingArithmetic is the part of Arithmetic that only a mixture of experts uses.
type routingArithmetic[V any] interface {
	// Sigmoid is 1 / (1 + e^-x).
	Sigmoid(x V) V
	// SoftCap is limit·tanh(x/limit), with x/limit and tanh rounding points.
	SoftCap(x V, limit float32) V
	// SqrtSoftplus is sqrt(s), exact, with s = log(1 + e^x) a rounding point.
	SqrtSoftplus(x V) V
	// TableExperts returns the experts that table [vocab, k] lists for each token id, [tokens, k]:
	// scores [tokens, n_routed_experts] do not choose them, but weigh them.
	TableExperts(scores V, table *Weight, ids []int) []int
	// AddBias adds a bias per column in float32, exact. The bias is cast to the compute dtype
	// unless the reference keeps it in float32. The result serves only the choice of experts.
	AddBias(scores V, bias *Weight) V
	// GroupWorth is the worth of each of the equal groups of experts, [tokens, groups]: the
	// sum of the best largest scores in the group, in float32; exact with best 1.
	GroupWorth(scores V, groups, best int) V
	// MaskGroups sets the scores of all groups that are not chosen, [tokens, n], to masked.
	MaskGroups(scores V, groups int, chosen []int, masked float32) V
	// TopK are the columns of the k largest values of each row, [tokens, k], largest
	// first, the lower column first among equals: see the function TopK.
	TopK(scores V, k int) []int
	// Normalise divides each row by its sum, as d changes it. The sum is a rounding point, and so
	// is the addition of d; the division is exact.
	Normalise(w V, d Divisor) V
	// Scale is x · factor, exact.
	Scale(x V, factor float32) V
	// Combine is the weighted sum of the experts' outputs, [tokens, hidden_size], in the
	// dtype of parts: y[t] = Σ_i weight[t, i] · expert_i(x[t]). weight is [tokens, k]. The
	// order sets the rounding points:
	//
	//	ByExpert  each product, and after it each partial sum, in the order of
	//	          ascending experts; both exact
	//	ByChoice  each product to weight's dtype, exact; their sum, once
	Combine(weight V, parts []Part[V], order config.RoutedSum) V
	// AuxLoss is a gate's auxiliary loss for a batch of sequences of equal length, a
	// tensor of one element. With k choices of n experts per token, T tokens per sequence:
	//
	//	ce[b, e] = count of e among sequence b's choices / (T·k/n)
	//	aux_loss = alpha · mean_b Σ_e ce[b, e] · mean_t scores[b, t, e]
	AuxLoss(scores V, idx []int, sequences int, alpha float64) V
}

// Divisor is sum + Eps of a sum, or Least, unless that is 0, if it is more: see config.TopKDivisor.
type Divisor struct{ Eps, Least float32 }

// Of returns the divisor, without rounding it to a dtype.
func (d Divisor) Of(sum float32) float32 {
	if sum += d.Eps; d.Least > 0 {
		return max(sum, d.Least)
	}
	return sum
}

// Part is the output of one expert for the tokens that chose it.
type Part[V any] struct {
	Expert int // number of the expert
	// Slots are the positions in topk_idx [tokens, k] that hold Expert, ascending.
	Slots []int
	Out   V // [len(Slots), hidden_size], row i for the token Slots[i]/k
}

// Pooling says how a compressor makes entries of tokens, one of each full window of Rate tokens. The
// tokens behind the last full window have no entry.
//
// With Overlap a token has two series of Width columns: the second is for the entry of its own
// window, the first for the entry of the next window.
type Pooling struct {
	Rate    int  // tokens of a window
	Width   int  // columns of an entry
	Overlap bool // entries see the window before, too
}

// Slot is a place whose value takes part in an entry.
type Slot struct {
	Token  int // position in the sequence
	Column int // first column of the series
	Row    int // row of the position bias: the token's position in its window
}

// Entries returns the number of entries of seq tokens.
func (g *Pooling) Entries(seq int) int { return seq / g.Rate }

// Slots returns the slots of entry n, in the reference's order.
func (g *Pooling) Slots(n int) (slots []Slot) {
	column := 0
	if g.Overlap {
		column = g.Width
		for i := range min(n, 1) * g.Rate {
			slots = append(slots, Slot{Token: (n-1)*g.Rate + i, Row: i})
		}
	}
	for i := range g.Rate {
		slots = append(slots, Slot{Token: n*g.Rate + i, Column: column, Row: i})
	}
	return slots
}
