package model_test

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/model"
)

// oracle computes logits and the training loss, auxiliary losses included, in float64 and
// in the plainest way, written from the formulas and not from the model. The experts that
// tokens are routed to are given, so that the loss is smooth.
type oracle struct {
	c    *config.Config
	w    map[string][]float64
	ids  []int
	mask []int
	seq  int
	idx  map[int][]int // layer -> [tokens, k]
	t    *testing.T    // not nil: the oracle's own choice of experts must be idx
}

// ask returns an oracle for two sequences of five tokens, the second of them padded
// behind, over the weights of src.
func ask(t *testing.T, c *config.Config, src memory) *oracle {
	o := &oracle{c: c, seq: 5, w: map[string][]float64{},
		ids:  []int{1, 7, 3, 3, 10, 0, 5, 2, 9, 4},
		mask: []int{1, 1, 1, 1, 1, 1, 1, 1, 0, 0}}
	for name, w := range src {
		values, err := w.Float32s(nil)
		require.NoError(t, err)
		for _, v := range values {
			o.w[name] = append(o.w[name], float64(v))
		}
	}
	return o
}

func (o *oracle) input() *model.Input {
	return &model.Input{Batch: len(o.ids) / o.seq, Seq: o.seq, InputIDs: o.ids, AttentionMask: o.mask}
}

func (o *oracle) matrix(name string, x []float64) []float64 {
	w := o.w[name+".weight"]
	out := make([]float64, len(w)/len(x))
	for r := range out {
		for k, v := range x {
			out[r] += w[r*len(x)+k] * v
		}
		if b := o.w[name+".bias"]; b != nil {
			out[r] += b[r]
		}
	}
	return out
}

// norm is RMSNorm. The norms inside latent attention have an eps of their own.
func (o *oracle) norm(name string, x []float64) []float64 {
	eps := o.c.RMSNormEps
	if strings.Contains(name, "_a_layernorm") {
		eps = 1e-6
	}
	sum := 0.0
	for _, v := range x {
		sum += v * v
	}
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = o.w[name+".weight"][i] * v / math.Sqrt(sum/float64(len(x))+eps)
	}
	return out
}

// rotated is x rotated by its position: pairs of halves, or interleaved ones.
func (o *oracle) rotated(x []float64, pos int) []float64 {
	out := slices.Clone(x)
	for i := range len(x) / 2 {
		a, b := i, i+len(x)/2
		if o.c.RoPE.RopeInterleave {
			a, b = 2*i, 2*i+1
		}
		angle, factor := o.angle(i, len(x), pos)
		cos, sin := factor*math.Cos(angle), factor*math.Sin(angle)
		out[a], out[b] = x[a]*cos-x[b]*sin, x[b]*cos+x[a]*sin
	}
	return out
}

// angle returns the angle of the i-th pair of n values, and the factor of its cosine and sine.
func (o *oracle) angle(i, n, position int) (angle, factor float64) {
	pos, theta, exponent := float64(position), o.c.RoPE.RopeTheta, float64(2*i)/float64(n)
	scaling := o.c.RoPE.RopeScaling
	if scaling == nil {
		return pos * math.Pow(theta, -exponent), 1
	}
	switch s := *scaling; s.Type {
	case "linear":
		return pos / s.Factor * math.Pow(theta, -exponent), 1
	case "dynamic":
		if trained := float64(o.c.RoPE.MaxPositionEmbeddings); float64(o.seq) > trained {
			theta *= math.Pow(s.Factor*float64(o.seq)/trained-(s.Factor-1), float64(n)/float64(n-2))
		}
		return pos * math.Pow(theta, -exponent), 1
	default: // yarn
		turns := func(beta float64) float64 { // the pair that turns beta times over the original length
			return float64(n) * math.Log(float64(s.OriginalMaxPositionEmbeddings)/(beta*2*math.Pi)) / (2 * math.Log(theta))
		}
		low, high := max(math.Floor(turns(s.BetaFast)), 0), min(math.Ceil(turns(s.BetaSlow)), float64(n-1))
		slow := min(max((float64(i)-low)/(high-low), 0), 1)
		frequency := math.Pow(theta, -exponent) * (slow/s.Factor + 1 - slow)
		if s.MScale == 0 || s.MScaleAllDim == 0 {
			return pos * frequency, o.mscale(1)
		}
		return pos * frequency, o.mscale(s.MScale) / o.mscale(s.MScaleAllDim)
	}
}

// mscale is yarn_get_mscale.
func (o *oracle) mscale(m float64) float64 { return 0.1*m*math.Log(o.c.RoPE.RopeScaling.Factor) + 1 }

func softmax64(x []float64) []float64 {
	out, top, sum := make([]float64, len(x)), slices.Max(x), 0.0
	for i, v := range x {
		out[i] = math.Exp(v - top)
		sum += out[i]
	}
	for i := range out {
		out[i] /= sum
	}
	return out
}

// heads are the query, key and value of each head, for every token of one sequence.
type heads struct{ q, k, v [][][]float64 } // [head][token][width]

// whole projects to heads that are side by side, and may share keys and values.
func (o *oracle) whole(name string, x [][]float64) (h heads) {
	dim := o.c.HeadDim()
	for i := range o.c.Attention.NumAttentionHeads {
		var q, k, v [][]float64
		g := i / (o.c.Attention.NumAttentionHeads / o.c.Attention.NumKeyValueHeads)
		for t, row := range x {
			q = append(q, o.rotated(o.matrix(name+".q_proj", row)[i*dim:(i+1)*dim], t))
			k = append(k, o.rotated(o.matrix(name+".k_proj", row)[g*dim:(g+1)*dim], t))
			v = append(v, o.matrix(name+".v_proj", row)[g*dim:(g+1)*dim])
		}
		h.q, h.k, h.v = append(h.q, q), append(h.k, k), append(h.v, v)
	}
	return h
}

// latent projects to heads by way of compressed rows.
func (o *oracle) latent(name string, x [][]float64) (h heads) {
	nope, width, rank := o.c.Attention.QKNopeHeadDim, o.c.QKHeadDim(), o.c.Attention.KVLoraRank
	for i := range o.c.Attention.NumAttentionHeads {
		var q, k, v [][]float64
		for t, row := range x {
			query := row
			if o.c.Attention.QLoraRank > 0 {
				query = o.matrix(name+".q_b_proj", o.norm(name+".q_a_layernorm", o.matrix(name+".q_a_proj", row)))
			} else {
				query = o.matrix(name+".q_proj", row)
			}
			query = query[i*width : (i+1)*width]
			low := o.matrix(name+".kv_a_proj_with_mqa", row)
			kv := o.matrix(name+".kv_b_proj", o.norm(name+".kv_a_layernorm", low[:rank]))[i*(nope+o.c.Attention.VHeadDim):]
			q = append(q, slices.Concat(query[:nope], o.rotated(query[nope:], t)))
			k = append(k, slices.Concat(kv[:nope], o.rotated(low[rank:], t)))
			v = append(v, kv[nope:nope+o.c.Attention.VHeadDim])
		}
		h.q, h.k, h.v = append(h.q, q), append(h.k, k), append(h.v, v)
	}
	return h
}

// attention returns the block's output for every token of one sequence.
func (o *oracle) attention(name string, x [][]float64, mask []int) [][]float64 {
	project, scale := o.whole, 1/math.Sqrt(float64(o.c.QKHeadDim()))
	if o.w[name+".kv_b_proj.weight"] != nil {
		project = o.latent
	}
	if s := o.c.RoPE.RopeScaling; s != nil && s.Type == "yarn" {
		scale *= o.mscale(s.MScaleAllDim) * o.mscale(s.MScaleAllDim)
	}
	h := project(name, x)
	var out [][]float64
	for t := range x {
		var context []float64
		for i := range h.q {
			var scores []float64
			var values [][]float64
			for s := range t + 1 {
				if mask[s] == 0 {
					continue
				}
				dot := 0.0
				for c, key := range h.k[i][s] {
					dot += h.q[i][t][c] * key
				}
				scores, values = append(scores, dot*scale), append(values, h.v[i][s])
			}
			head := make([]float64, len(h.v[i][t]))
			for s, p := range softmax64(scores) {
				head = add64(head, values[s], p)
			}
			context = append(context, head...)
		}
		out = append(out, o.matrix(name+".o_proj", context))
	}
	return out
}

func (o *oracle) mlp(name string, x []float64) []float64 {
	gate, up := o.matrix(name+".gate_proj", x), o.matrix(name+".up_proj", x)
	for i, g := range gate {
		gate[i] = g / (1 + math.Exp(-g)) * up[i]
	}
	return o.matrix(name+".down_proj", gate)
}

func add64(a, b []float64, scale float64) []float64 {
	out := slices.Clone(a)
	for i, v := range b {
		out[i] += scale * v
	}
	return out
}

// scores returns the scores of a token's experts.
func (o *oracle) scores(name string, x []float64) []float64 {
	logits := o.matrix(name+".gate", x)
	if o.c.Router.ScoringFunc == "softmax" {
		return softmax64(logits)
	}
	for e, l := range logits {
		logits[e] = 1 / (1 + math.Exp(-l))
	}
	return logits
}

// choice are the experts that a token's scores lead to, ascending.
func (o *oracle) choice(name string, scores []float64) []int {
	scores = slices.Clone(scores)
	for e, b := range o.w[name+".gate.e_score_correction_bias"] {
		scores[e] += b
	}
	best := func(n int, worth func(i int) float64, k int) []int {
		list := make([]int, n)
		for i := range list {
			list[i] = i
		}
		slices.SortStableFunc(list, func(a, b int) int { return cmp.Compare(worth(b), worth(a)) })
		return list[:k]
	}
	allowed, size := []int{0}, len(scores)
	if o.c.LimitsGroups() {
		size = len(scores) / o.c.Router.NGroup
		allowed = best(o.c.Router.NGroup, func(g int) float64 {
			group := slices.Sorted(slices.Values(scores[g*size : (g+1)*size]))
			if o.c.Router.TopKMethod == "noaux_tc" {
				return group[size-1] + group[size-2]
			}
			return group[size-1]
		}, o.c.Router.TopKGroup)
	}
	chosen := best(len(scores), func(e int) float64 {
		if !slices.Contains(allowed, e/size) {
			return math.Inf(-1)
		}
		return scores[e]
	}, o.c.MoE.NumExpertsPerTok)
	slices.Sort(chosen)
	return chosen
}

// moe returns one token's output and its scores.
func (o *oracle) moe(name string, x []float64, idx []int) (y, scores []float64) {
	scores = o.scores(name, x)
	normalise, scale := o.c.TopKWeights()
	total := 1.0
	if normalise {
		total = 1e-20
		for _, e := range idx {
			total += scores[e]
		}
	}
	y = o.mlp(name+".shared_experts", x)
	for _, e := range idx {
		y = add64(y, o.mlp(name+".experts."+strconv.Itoa(e), x), scores[e]/total*scale)
	}
	return y, scores
}

// hidden returns what the last layer gives, and the auxiliary losses of all layers.
func (o *oracle) hidden() (x [][]float64, aux float64) {
	for _, id := range o.ids {
		x = append(x, o.embedded("model.", id))
	}
	for l := range o.c.NumHiddenLayers {
		if scores := o.layer(l, x, o.seq, o.mask); o.c.IsMoE(l) {
			aux += o.aux(scores, o.idx[l])
		}
	}
	return x, aux
}

func (o *oracle) embedded(module string, id int) []float64 {
	return o.w[module+"embed_tokens.weight"][id*o.c.HiddenSize : (id+1)*o.c.HiddenSize]
}

// layer runs layer l on sequences of seq tokens, in place, and returns the scores of its experts.
func (o *oracle) layer(l int, x [][]float64, seq int, mask []int) (scores [][]float64) {
	name := "model.layers." + strconv.Itoa(l)
	for first := 0; first < len(x); first += seq {
		var normed [][]float64
		for _, row := range x[first : first+seq] {
			normed = append(normed, o.norm(name+".input_layernorm", row))
		}
		for t, y := range o.attention(name+".self_attn", normed, mask[first:first+seq]) {
			x[first+t] = add64(x[first+t], y, 1)
		}
	}
	scores = make([][]float64, len(x))
	for t := range x {
		in := o.norm(name+".post_attention_layernorm", x[t])
		var y []float64
		if k := o.c.MoE.NumExpertsPerTok; o.c.IsMoE(l) {
			y, scores[t] = o.moe(name+".mlp", in, o.idx[l][t*k:(t+1)*k])
		} else {
			y = o.mlp(name+".mlp", in)
		}
		x[t] = add64(x[t], y, 1)
	}
	if o.c.IsMoE(l) {
		o.seen(l, scores)
	}
	return scores
}

// predicted returns the logits of every prediction layer, sequence by sequence, given hidden's
// result: depth k has seq-1-k rows per sequence.
func (o *oracle) predicted(x [][]float64) (logits [][][]float64) {
	var h [][]float64
	for _, row := range x {
		h = append(h, o.norm("model.norm", row))
	}
	for k := range o.c.NumNextNPredictLayers {
		l, seq := o.c.NumHiddenLayers+k, o.seq-k
		name := "model.layers." + strconv.Itoa(l) + "."
		var next, predicted [][]float64
		for row := range h {
			if b, t := row/seq, row%seq; t < seq-1 {
				e := o.norm(name+"enorm", o.embedded(name, o.ids[b*o.seq+t+1+k]))
				next = append(next, o.matrix(name+"eh_proj", slices.Concat(e, o.norm(name+"hnorm", h[row]))))
			}
		}
		o.layer(l, next, seq-1, slices.Repeat([]int{1}, len(next)))
		for t := range next {
			next[t] = o.norm(name+"shared_head.norm", next[t])
			predicted = append(predicted, o.matrix(name+"shared_head.head", next[t]))
		}
		h, logits = next, append(logits, predicted)
	}
	return logits
}

// seen compares the experts that are given with the oracle's own choice, if it has a test.
func (o *oracle) seen(l int, scores [][]float64) {
	if o.t == nil {
		return
	}
	for t, s := range scores {
		k := o.c.MoE.NumExpertsPerTok
		given := slices.Sorted(slices.Values(o.idx[l][t*k : (t+1)*k]))
		require.Equal(o.t, o.choice("model.layers."+strconv.Itoa(l)+".mlp", s), given, "layer %d, token %d", l, t)
	}
}

func (o *oracle) logits(x []float64) []float64 { return o.matrix("lm_head", o.norm("model.norm", x)) }

func (o *oracle) loss() float64 {
	x, aux := o.hidden()
	return o.crossEntropy(x) + aux
}

// aux is MoEGate's auxiliary loss as its Python has it.
func (o *oracle) aux(scores [][]float64, idx []int) float64 {
	n, k := o.c.MoE.NRoutedExperts, o.c.MoE.NumExpertsPerTok
	tokens := len(scores)
	if o.c.Router.SeqAux {
		tokens = o.seq
	}
	sum, groups := 0.0, len(scores)/tokens
	for g := range groups {
		for e := range n {
			count, mean := 0.0, 0.0
			for t := g * tokens; t < (g+1)*tokens; t++ {
				mean += scores[t][e] / float64(tokens)
				if slices.Contains(idx[t*k:(t+1)*k], e) {
					count++
				}
			}
			sum += count / (float64(tokens*k) / float64(n)) * mean / float64(groups)
		}
	}
	return o.c.Router.AuxLossAlpha * sum
}

func (o *oracle) crossEntropy(x [][]float64) float64 {
	sum, n := 0.0, 0
	for t := range x {
		if t%o.seq == o.seq-1 {
			continue
		}
		logits := o.logits(x[t])
		sum -= math.Log(softmax64(logits)[o.ids[t+1]])
		n++
	}
	return sum / float64(n)
}
