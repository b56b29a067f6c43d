package model_test

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/model"
)

// oracle computes the training loss, auxiliary losses included, in float64 and in the
// plainest way, written from the formulas and not from the model. The experts that
// tokens are routed to are given, so that the loss is smooth.
type oracle struct {
	c    *config.Config
	w    map[string][]float64
	ids  []int
	mask []int
	seq  int
	idx  map[int][]int // layer -> [tokens, k]
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

func (o *oracle) norm(name string, x []float64) []float64 {
	sum := 0.0
	for _, v := range x {
		sum += v * v
	}
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = o.w[name+".weight"][i] * v / math.Sqrt(sum/float64(len(x))+o.c.RMSNormEps)
	}
	return out
}

func (o *oracle) rotated(x []float64, pos int) []float64 {
	n := len(x)
	out := make([]float64, n)
	for i := range n / 2 {
		angle := float64(pos) / math.Pow(o.c.RopeTheta, float64(2*i)/float64(n))
		out[i] = x[i]*math.Cos(angle) - x[i+n/2]*math.Sin(angle)
		out[i+n/2] = x[i+n/2]*math.Cos(angle) + x[i]*math.Sin(angle)
	}
	return out
}

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

// attention returns the block's output for every token of one sequence.
func (o *oracle) attention(name string, x [][]float64, mask []int) [][]float64 {
	dim := o.c.HeadDim()
	var q, k, v [][]float64
	for _, row := range x {
		q = append(q, o.matrix(name+".q_proj", row))
		k = append(k, o.matrix(name+".k_proj", row))
		v = append(v, o.matrix(name+".v_proj", row))
	}
	var out [][]float64
	for t := range x {
		var context []float64
		for h := range o.c.NumAttentionHeads {
			g := h / (o.c.NumAttentionHeads / o.c.NumKeyValueHeads)
			query := o.rotated(q[t][h*dim:(h+1)*dim], t)
			var scores []float64
			var keys []int
			for s := range t + 1 {
				if mask[s] == 0 {
					continue
				}
				dot := 0.0
				for i, kv := range o.rotated(k[s][g*dim:(g+1)*dim], s) {
					dot += query[i] * kv
				}
				scores, keys = append(scores, dot/math.Sqrt(float64(dim))), append(keys, s)
			}
			head := make([]float64, dim)
			for i, p := range softmax64(scores) {
				for d := range dim {
					head[d] += p * v[keys[i]][g*dim+d]
				}
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

// moe returns one token's output and its scores.
func (o *oracle) moe(name string, x []float64, idx []int) (y, scores []float64) {
	scores = softmax64(o.matrix(name+".gate", x))
	total := 1.0
	if o.c.NormTopKProb {
		total = 1e-20
		for _, e := range idx {
			total += scores[e]
		}
	}
	y = o.mlp(name+".shared_experts", x)
	for _, e := range idx {
		y = add64(y, o.mlp(name+".experts."+strconv.Itoa(e), x), scores[e]/total)
	}
	return y, scores
}

func (o *oracle) loss() float64 {
	batch, h := len(o.ids)/o.seq, o.c.HiddenSize
	x := make([][]float64, len(o.ids))
	for t, id := range o.ids {
		x[t] = o.w["model.embed_tokens.weight"][id*h : (id+1)*h]
	}
	aux := 0.0
	for l := range o.c.NumHiddenLayers {
		name := "model.layers." + strconv.Itoa(l)
		for b := range batch {
			var normed [][]float64
			for t := range o.seq {
				normed = append(normed, o.norm(name+".input_layernorm", x[b*o.seq+t]))
			}
			for t, y := range o.attention(name+".self_attn", normed, o.mask[b*o.seq:(b+1)*o.seq]) {
				x[b*o.seq+t] = add64(x[b*o.seq+t], y, 1)
			}
		}
		scores := make([][]float64, len(x))
		for t := range x {
			in := o.norm(name+".post_attention_layernorm", x[t])
			var y []float64
			if k := o.c.NumExpertsPerTok; o.c.IsMoE(l) {
				y, scores[t] = o.moe(name+".mlp", in, o.idx[l][t*k:(t+1)*k])
			} else {
				y = o.mlp(name+".mlp", in)
			}
			x[t] = add64(x[t], y, 1)
		}
		if o.c.IsMoE(l) {
			aux += o.aux(scores, o.idx[l])
		}
	}
	return o.crossEntropy(x) + aux
}

// aux is MoEGate's auxiliary loss as its Python has it.
func (o *oracle) aux(scores [][]float64, idx []int) float64 {
	n, k := o.c.NRoutedExperts, o.c.NumExpertsPerTok
	tokens := len(scores)
	if o.c.SeqAux {
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
	return o.c.AuxLossAlpha * sum
}

func (o *oracle) crossEntropy(x [][]float64) float64 {
	sum, n := 0.0, 0
	for t := range x {
		if t%o.seq == o.seq-1 {
			continue
		}
		logits := o.matrix("lm_head", o.norm("model.norm", x[t]))
		sum -= math.Log(softmax64(logits)[o.ids[t+1]])
		n++
	}
	return sum / float64(n)
}

// listener keeps the routing and the gradients.
type listener struct {
	idx   map[int][]int
	grads map[string][]float32
	aux   float64
	loss  float64
}

func (l *listener) Stage(name string, a *model.Activation) error {
	switch {
	case strings.HasSuffix(name, ".grad"):
		l.grads[strings.TrimSuffix(name, ".grad")] = a.Values
	case strings.HasSuffix(name, "aux_loss"):
		l.aux += float64(a.Values[0])
	case name == "loss":
		l.loss = float64(a.Values[0])
	}
	return nil
}

func (l *listener) TopK(name string, choice *model.Choice[*model.Activation]) error {
	layer, _ := strconv.Atoi(strings.Split(name, ".")[2])
	l.idx[layer] = slices.Clone(choice.Idx)
	return nil
}

// train runs m in training mode, heard by l, and returns the error.
func (l *listener) train(m *model.DeepseekForCausalLM, in *model.Input, wants func(weight string) bool) error {
	tape := model.NewTape(model.NewPlain(model.Options{}), wants)
	defer tape.Close(nil)
	_, err := model.Train(context.Background(), &model.Network[*model.Activation]{Model: m, Input: in, Arithmetic: tape, Trace: l}, tape)
	return err
}

// TestGradientsByFiniteDifferences compares every weight's gradient with central
// differences of the oracle's loss, in float64.
func TestGradientsByFiniteDifferences(t *testing.T) {
	for name, fields := range map[string]string{
		"sequence form":     `"aux_loss_alpha":0.3,`,
		"batch form, norm":  `"aux_loss_alpha":0.3,"seq_aux":false,"norm_topk_prob":true,`,
		"no auxiliary loss": `"aux_loss_alpha":0.0,`,
		"biases":            `"attention_bias":true,"aux_loss_alpha":0.1,`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkGradients(t, parse(t, strings.Replace(tinyConfig, "{", "{"+fields, 1)))
		})
	}
}

func checkGradients(t *testing.T, c *config.Config) {
	const seq = 5
	o := &oracle{c: c, seq: seq, w: map[string][]float64{},
		ids:  []int{1, 7, 3, 3, 10, 0, 5, 2, 9, 4},
		mask: []int{1, 1, 1, 1, 1, 1, 1, 1, 0, 0}}
	src := synthetic(t, c)
	for name, w := range src {
		values, err := w.Float32s(nil)
		require.NoError(t, err)
		for _, v := range values {
			o.w[name] = append(o.w[name], float64(v))
		}
	}
	m, err := model.Load(c, src)
	require.NoError(t, err)
	heard := &listener{idx: map[int][]int{}, grads: map[string][]float32{}}
	in := &model.Input{Batch: 2, Seq: seq, InputIDs: o.ids, AttentionMask: o.mask}
	require.NoError(t, heard.train(m, in, func(string) bool { return true }))
	o.idx = heard.idx
	require.InDelta(t, o.loss(), heard.loss+heard.aux, 1e-6)
	require.Len(t, heard.grads, len(o.w))
	r := rand.New(rand.NewPCG(1, 1))
	for name, grad := range heard.grads {
		scale := 0.0
		for _, g := range grad {
			scale = max(scale, math.Abs(float64(g)))
		}
		for range 12 {
			i := r.IntN(len(grad))
			require.InDelta(t, o.slope(name, i), float64(grad[i]), 2e-6*scale+1e-10, "%s[%d]", name, i)
		}
	}
}

// slope is the derivative of the loss by one weight: a central difference of fourth
// order.
func (o *oracle) slope(name string, i int) float64 {
	const h = 1e-3
	was := o.w[name][i]
	at := func(d float64) float64 {
		o.w[name][i] = was + d
		return o.loss()
	}
	s := (8*(at(h)-at(-h)) - (at(2*h) - at(-2*h))) / (12 * h)
	o.w[name][i] = was
	return s
}

// TestOnlyWantedGradients: the others are neither shown nor computed.
func TestOnlyWantedGradients(t *testing.T) {
	c := parse(t, tinyConfig)
	m, err := model.Load(c, synthetic(t, c))
	require.NoError(t, err)
	heard := &listener{idx: map[int][]int{}, grads: map[string][]float32{}}
	in := &model.Input{Batch: 1, Seq: 3, InputIDs: []int{1, 2, 3}}
	want := "model.layers.1.mlp.gate.weight"
	require.NoError(t, heard.train(m, in, func(name string) bool { return name == want }))
	require.Len(t, heard.grads, 1)
	require.Contains(t, heard.grads, want)
	err = heard.train(m, &model.Input{Batch: 1, Seq: 1, InputIDs: []int{1}}, func(string) bool { return false })
	require.ErrorContains(t, err, "no next token")
}

// TestTrainingAndEvaluationAgree: the routed sum is the same but for the order of its
// terms.
func TestTrainingAndEvaluationAgree(t *testing.T) {
	c := parse(t, tinyConfig)
	m, err := model.Load(c, synthetic(t, c))
	require.NoError(t, err)
	in := &model.Input{Batch: 1, Seq: 5, InputIDs: []int{1, 2, 3, 4, 5}}
	eval, err := m.Forward(context.Background(), in, model.Options{})
	require.NoError(t, err)
	train, err := m.Forward(context.Background(), in, model.Options{Training: true})
	require.NoError(t, err)
	require.InDeltaSlice(t, eval.Values, train.Values, 1e-5)
}
