package model_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/config/configtest"
	"dsmoe/model"
	"dsmoe/model/count"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
)

// tinyLatentConfig is a DeepSeek-V3 with everything that it has: low-rank queries, groups,
// a correction bias, YaRN.
const tinyLatentConfig = `{"model_type":"deepseek_v3","vocab_size":11,"hidden_size":8,"intermediate_size":12,
"moe_intermediate_size":4,"num_hidden_layers":2,"num_attention_heads":2,"num_key_value_heads":2,
"n_shared_experts":1,"n_routed_experts":8,"num_experts_per_tok":2,"first_k_dense_replace":1,"n_group":4,"topk_group":2,
"q_lora_rank":6,"kv_lora_rank":6,"qk_nope_head_dim":4,"qk_rope_head_dim":2,"v_head_dim":3,
"rope_parameters":{"rope_type":"yarn","rope_theta":10000.0,"factor":4.0,"original_max_position_embeddings":4,"mscale":1,"mscale_all_dim":1}}`

// tinyIndexedConfig is a GLM-5 whose second layer shares the choice of the first one's indexer.
const tinyIndexedConfig = `{"model_type":"glm_moe_dsa","vocab_size":11,"hidden_size":8,"intermediate_size":12,
"moe_intermediate_size":4,"num_hidden_layers":3,"num_attention_heads":2,"num_key_value_heads":2,
"n_shared_experts":1,"n_routed_experts":8,"num_experts_per_tok":2,"first_k_dense_replace":1,"n_group":1,"topk_group":1,
"q_lora_rank":6,"kv_lora_rank":6,"qk_nope_head_dim":4,"qk_rope_head_dim":4,"v_head_dim":3,
"index_topk":5,"index_head_dim":6,"index_n_heads":3,"indexer_types":["full","shared","full"]}`

// shape is the value of an arithmetic that computes nothing.
type shape []int

// sized returns s with another last dimension.
func (s shape) sized(width int) shape { return append(slices.Clone(s[:len(s)-1]), width) }

// shapes is an arithmetic whose values are shapes. It counts the multiplications with
// weights. Of any scores it takes the first as the largest.
type shapes struct{ macs int }

func (a *shapes) Scope(x shape, f func(shape) shape) shape { return f(x) }

func (a *shapes) Embed(w *model.Weight, ids []int) shape { return shape{len(ids), w.Shape[1]} }

func (a *shapes) Linear(x shape, l *model.Linear) shape {
	y := x.sized(l.Weight.Shape[0])
	product := 1
	for _, n := range y {
		product *= n
	}
	a.macs += product * l.Weight.Shape[1]
	return y
}

func (a *shapes) RMSNorm(x shape, _ *model.Weight, _ float64) shape { return x }
func (a *shapes) Add(x, _ shape) shape                              { return x }
func (a *shapes) SwiGLU(gate, _ shape) shape                        { return gate }
func (a *shapes) SiLU(x shape, _ float32) shape                     { return x }
func (a *shapes) Multiply(x, _ shape, _ float32) shape              { return x }
func (a *shapes) Softmax(x shape) shape                             { return x }
func (a *shapes) Float32(x shape) shape                             { return x }
func (a *shapes) Cast(x shape, _ tensor.DType) shape                { return x }
func (a *shapes) Clamp(x shape, _, _ float32) shape                 { return x }
func (a *shapes) UnitNorm(x shape, _ float64) shape                 { return x }
func (a *shapes) Reshape(_ shape, dims ...int) shape                { return dims }
func (a *shapes) Move(m *model.Move, _ ...shape) shape              { return m.Shape }
func (a *shapes) RoPE(x, _, _ shape, _ *model.Rotary) shape         { return x }

func (a *shapes) Tables(r *model.Rotary) (cos, sin shape) {
	table := shape{len(r.Cos) / r.Half, r.Half}
	return table, table
}

func (a *shapes) Scores(q, k shape, _, n int, _ *model.Scoring) shape {
	return shape{q[0], q[1], n, k[2]}
}
func (a *shapes) Context(probs, vT shape) shape { return probs.sized(vT[2]) }

func (a *shapes) SinkSoftmax(scores shape, _ *model.Weight) shape { return scores }

func (a *shapes) Pool(kv, _ shape, _ *model.Weight, g *model.Pooling) shape {
	return shape{kv[0], g.Entries(kv[1]), g.Width}
}

func (a *shapes) StreamGate(z shape, _ *model.Affine, _, _ float32) shape { return z }

func (a *shapes) Sinkhorn(z shape, g *model.Affine, _ int, _ float32) shape {
	hc := int(math.Sqrt(float64(z[2])))
	return shape{z[0], z[1], hc, hc}
}

func (a *shapes) Collapse(_, x shape) shape     { return shape{x[0], x[1], x[3]} }
func (a *shapes) Expand(x, _, _, _ shape) shape { return x }

func (a *shapes) MaskKeys(scores shape, _ *model.Mask) shape { return scores }
func (a *shapes) SqrtSoftplus(x shape) shape                 { return x }

func (a *shapes) TableExperts(_ shape, table *model.Weight, ids []int) []int {
	return make([]int, len(ids)*table.Shape[1])
}

func (a *shapes) LayerNorm(x shape, _ *model.LayerNorm, _ float64) shape { return x }
func (a *shapes) ReLU(x shape) shape                                     { return x }

func (a *shapes) IndexScores(_, s shape, _ int, _ *model.Mask) shape {
	return shape{s[0], 1, s[2], s[3]}
}

func (a *shapes) Sigmoid(x shape) shape                    { return x }
func (a *shapes) SoftCap(x shape, _ float32) shape         { return x }
func (a *shapes) AddBias(x shape, _ *model.Weight) shape   { return x }
func (a *shapes) GroupWorth(x shape, groups, _ int) shape  { return x.sized(groups) }
func (a *shapes) Normalise(w shape, _ model.Divisor) shape { return w }
func (a *shapes) Scale(x shape, _ float32) shape           { return x }
func (a *shapes) AuxLoss(shape, []int, int, float64) shape { return shape{1} }

func (a *shapes) MaskGroups(x shape, _ int, _ []int, _ float32) shape { return x }

func (a *shapes) TopK(x shape, k int) (idx []int) {
	for range x[0] {
		for e := range k {
			idx = append(idx, e)
		}
	}
	return idx
}

func (a *shapes) Combine(weight shape, parts []model.Part[shape], _ config.RoutedSum) shape {
	return shape{weight[0], parts[0].Out[1]}
}

// stages is a trace that lists what it sees, and fails at the stage named last.
type stages[V any] struct {
	names []string
	dims  [][]int
	of    func(V) []int
	last  string
}

// outsideExperts lists the stages seen and their shapes, without single experts: the choice of
// experts depends on the numbers.
func (s *stages[V]) outsideExperts() (list []string) {
	for i, name := range s.names {
		if table.PlaceOf(nil, name).Expert < 0 {
			list = append(list, fmt.Sprint(name, s.dims[i]))
		}
	}
	return list
}

var errEnough = errors.New("enough")

func (s *stages[V]) Stage(name string, x V) error {
	s.names, s.dims = append(s.names, name), append(s.dims, s.of(x))
	return s.enough(name)
}

func (s *stages[V]) TopK(name string, choice *model.Choice[V]) error {
	s.names, s.dims = append(s.names, name), append(s.dims, s.of(choice.Scores))
	return s.enough(name)
}

func (s *stages[V]) enough(name string) error {
	if name == s.last {
		return errEnough
	}
	return nil
}

// loaded is a model of synthetic weights.
func loaded(t *testing.T, text string) *model.DeepseekForCausalLM {
	t.Helper()
	c := configtest.Parse(t, text)
	m, err := model.Load(c, synthetic(t, c))
	require.NoError(t, err)
	return m
}

func tracePlain(m *model.DeepseekForCausalLM, in *model.Input, o model.Options, last string) (*stages[*model.Activation], error) {
	plain := model.NewPlain(o)
	defer plain.Close(nil)
	seen := &stages[*model.Activation]{of: func(a *model.Activation) []int { return a.Shape }, last: last}
	net := &model.Network[*model.Activation]{Model: m, Input: in, Options: o, Arithmetic: plain, Trace: seen}
	_, err := net.Forward(context.Background())
	return seen, err
}

// TestNetworkOverShapes runs the network over an arithmetic whose values are shapes: stages and
// shapes equal those of Plain, and the number of products equals the table's count.
func TestNetworkOverShapes(t *testing.T) {
	const tokens = 70 // more than a block of queries
	in := &model.Input{Batch: 2, Seq: tokens, InputIDs: make([]int, 2*tokens)}
	for name, m := range map[string]*model.DeepseekForCausalLM{"plain attention": loaded(t, tinyConfig),
		"latent attention": loaded(t, tinyLatentConfig), "indexers": loaded(t, tinyIndexedConfig),
		"streams, entries": fixture(t, "v4/checkpoint")} {
		t.Run(name, func(t *testing.T) {
			counted := &shapes{}
			seen := &stages[shape]{of: func(s shape) []int { return s }}
			o := model.Options{Training: m.Config.HyperConnections.HCMult == 0, AttnWeights: true}
			net := &model.Network[shape]{Model: m, Input: in, Options: o, Arithmetic: counted, Trace: seen}
			logits, err := net.Forward(context.Background())
			require.NoError(t, err)
			require.Equal(t, shape{2, tokens, m.Config.VocabSize}, logits)
			require.EqualValues(t, count.Modules(m.Config).Sum().MACs*2*tokens, counted.macs)

			plain, err := tracePlain(m, in, o, "")
			require.NoError(t, err)
			require.Equal(t, plain.outsideExperts(), seen.outsideExperts())
			require.Contains(t, seen.names, "model.layers.1.mlp.experts.0.down_proj.input")
			require.Equal(t, []int{2, m.Config.Attention.NumAttentionHeads, tokens, tokens}, seen.dims[slices.Index(seen.names,
				"model.layers.0.self_attn.attn_weights")])
		})
	}
}

// TestTraceStopsThePass at the stage whose call fails, and the pass returns its error.
func TestTraceStopsThePass(t *testing.T) {
	m := loaded(t, tinyConfig)
	in := &model.Input{Batch: 1, Seq: 3, InputIDs: []int{1, 2, 3}}
	all, err := tracePlain(m, in, model.Options{}, "")
	require.NoError(t, err)
	for i, last := range all.names {
		seen, err := tracePlain(m, in, model.Options{}, last)
		require.ErrorIs(t, err, errEnough, last)
		require.Equal(t, all.names[:i+1], seen.names)
	}
}

// doubled is an arithmetic around another one that changes one operation.
type doubled struct {
	model.Arithmetic[*model.Activation]
	plain *model.Plain
}

func (d doubled) Embed(w *model.Weight, ids []int) *model.Activation {
	return d.plain.Scale(d.plain.Embed(w, ids), 2)
}

// TestAnOperationInAnothersPlace: an arithmetic around Plain decides what the pass goes
// on with.
func TestAnOperationInAnothersPlace(t *testing.T) {
	m := loaded(t, tinyConfig)
	in := &model.Input{Batch: 1, Seq: 3, InputIDs: []int{1, 2, 3}}
	embedding := func(wrap func(*model.Plain) model.Arithmetic[*model.Activation]) []float32 {
		var values []float32
		plain := model.NewPlain(model.Options{})
		defer plain.Close(nil)
		trace := &stages[*model.Activation]{last: "model.embed_tokens.output", of: func(a *model.Activation) []int {
			values = slices.Clone(a.Values)
			return a.Shape
		}}
		net := &model.Network[*model.Activation]{Model: m, Input: in, Arithmetic: wrap(plain), Trace: trace}
		_, err := net.Forward(context.Background())
		require.ErrorIs(t, err, errEnough)
		return values
	}
	once := embedding(func(p *model.Plain) model.Arithmetic[*model.Activation] { return p })
	twice := embedding(func(p *model.Plain) model.Arithmetic[*model.Activation] { return doubled{p, p} })
	for i, v := range once {
		require.Equal(t, 2*v, twice[i])
	}
}

// pages counts the bytes that are fetched and let go.
type pages struct{ needed, dropped map[*byte]int }

func (p *pages) WillNeed(data []byte) { p.needed[&data[0]]++ }
func (p *pages) DontNeed(data []byte) { p.dropped[&data[0]]++ }

// TestPagesOfEveryWeight: every weight of a layer is let go after it, biases among them,
// and fetched before it from the second layer on; of the experts, those chosen.
func TestPagesOfEveryWeight(t *testing.T) {
	m := loaded(t, strings.Replace(tinyConfig, "{", `{"attention_bias":true,`, 1))
	p := &pages{map[*byte]int{}, map[*byte]int{}}
	in := &model.Input{Batch: 1, Seq: 1, InputIDs: []int{1}}
	_, err := m.Forward(context.Background(), in, model.Options{Pages: p})
	require.NoError(t, err)
	fetched := 0
	for s := range table.FamilyOf(m.Config).Slots(m.Config) {
		if s.Layer == 1 && s.Expert < 0 {
			fetched++
		}
	}
	require.Len(t, p.needed, fetched+2*3, "two experts were chosen")
	dropped := 0
	for s := range table.FamilyOf(m.Config).Slots(m.Config) {
		if s.Layer >= 0 {
			dropped++
		}
	}
	require.Len(t, p.dropped, dropped)
	require.Contains(t, p.needed, &m.Model.Layers[1].SelfAttn.QProj.Bias.Data[0])
}
