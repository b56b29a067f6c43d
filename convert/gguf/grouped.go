package gguf

// Models with plain attention whose heads have a width of their own: the keys of llama.cpp's architectures for
// them, and what these cannot say. Glm4MoeModel, Dots1Model, HYV3Model, MiniMaxM2Model, ExaoneMoEModel and Ernie4_5MoeModel of
// conversion.

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"dsmoe/config"
)

// Keys of these architectures that are no field of config.json, or more than one.
const (
	feedForward   = "feed_forward_length"
	sharedFF      = "expert_shared_feed_forward_length"
	moeStep       = "interleave_moe_layer_step"
	window        = "attention.sliding_window"
	windowPattern = "attention.sliding_window_pattern" // which layers have a window
)

// grouped is what an architecture of models with plain attention and head_dim demands.
type grouped struct {
	keys         []string // beside groupedRows: of the model's own keys
	leads        bool     // layers with experts follow layers without any; otherwise the tensors say which has experts
	untied       bool     // the head is a tensor of its own
	equal        bool     // keys have as many heads as queries
	biased       bool     // q_proj, k_proj and v_proj may have biases
	shares       bool     // one shared expert, no more and no less
	normed       bool     // queries and keys are normed
	sparse       bool     // no layer is dense: feed_forward_length is that of experts
	normalises   bool     // weights of experts are always normalised: norm_topk_prob has no key
	saysUnscaled bool     // a key says that RoPE is not scaled
	// rotary is the field that says which part of a head RoPE rotates, as a share of it or in channels; "" where it rotates all.
	rotary string
	// read takes what else the keys and tensors of blocks say; nil if that is nothing.
	read func(r *keyReader, layers int, has func(name string) bool)
}

// groupedRows are the keys of all these models; those without a field are only written.
var groupedRows = slices.Concat(rows, []row{
	{headCountKV, u32, "num_key_value_heads", func(c *config.Config) any { return uint32(c.Attention.NumKeyValueHeads) }},
	{keyLength, u32, "", func(c *config.Config) any { return uint32(c.QKHeadDim()) }},
	{valueLength, u32, "", func(c *config.Config) any { return uint32(c.ValueHeadDim()) }},
	{vocabSize, u32, "", func(c *config.Config) any { return uint32(c.VocabSize) }},
})

// groupedOwn are the keys that some of these models have.
var groupedOwn = []row{
	{ropeDims, u32, "", func(c *config.Config) any { return uint32(c.HeadDim()) }},
	{gatingFunc, u32, "", func(c *config.Config) any { return gatings[c.Router.ScoringFunc] }},
	{sharedCount, u32, "n_shared_experts", func(c *config.Config) any { return uint32(c.MoE.NSharedExperts) }},
	{sharedFF, u32, "", func(c *config.Config) any {
		return unlessZero(c.MoE.NSharedExperts *
			c.MoE.MoEIntermediateSize)
	}},
	{denseCount, u32, "", func(c *config.Config) any {
		return uint32(firstLayers(func(l int) bool { return l < c.NumHiddenLayers && !c.IsMoE(l) }))
	}},
	{moeStep, u32, "", func(*config.Config) any { return uint32(1) }},
	{weightsScale, f32, "routed_scaling_factor",
		func(c *config.Config) any { return float32(c.Router.RoutedScalingFactor) }},
	{weightsNorm, boolean, "", func(c *config.Config) any { return c.Router.NormTopKProb }},
	{window, u32, "sliding_window", func(c *config.Config) any { return uint32(c.Windows.SlidingWindow) }},
	{windowPattern, array, "", func(c *config.Config) any {
		list := make([]bool, c.NumHiddenLayers)
		for l := range list {
			list[l] = c.Window(l) > 0
		}
		return list
	}},
}

// grouped writes the keys of these models.
func (w *keyWriter) grouped(c *config.Config, a *architecture) {
	w.of(blockCount, uint32(c.NumHiddenLayers+c.NumNextNPredictLayers))
	for _, row := range a.rows {
		v := row.value(c)
		if row.key == feedForward && c.IntermediateSize == 0 { // no layer has it
			var stated struct {
				Width int `json:"intermediate_size"`
			}
			json.Unmarshal(c.JSON(), &stated) // the config was parsed
			v = uint32(cmp.Or(stated.Width, c.MoE.MoEIntermediateSize))
		}
		if v != nil {
			w.of(row.key, v)
		}
	}
	w.groups(c)
	switch s := c.RoPE.RopeScaling; {
	case s != nil:
		w.yarn(s)
	case a.grouped.saysUnscaled:
		w.of(scalingType, "none")
	}
	if c.NumNextNPredictLayers > 0 {
		w.of(nextnLayers, uint32(c.NumNextNPredictLayers))
	}
}

// unsayable gives refuse the reasons why llama.cpp would not load a model, or compute something else.
func (g *grouped) unsayable(c *config.Config, arch string, refuse func(is bool, reason string, args ...any)) {
	refuse(c.Attention.AttentionBias && !(g.biased && c.Rules().Attention.OutputUnbiased),
		"%s is true: llama.cpp's %s has no such biases", c.Key("attention_bias"), arch)
	refuse(c.TieWordEmbeddings && g.untied, "tie_word_embeddings is true: llama.cpp's %s demands a head", arch)
	refuse(g.equal && c.Attention.NumKeyValueHeads != c.Attention.NumAttentionHeads,
		"num_key_value_heads is %d of %d heads: llama.cpp's %s has as many", c.Attention.NumKeyValueHeads,
		c.Attention.NumAttentionHeads, arch)
	refuse(g.shares && c.MoE.NSharedExperts != 1, "%s is %d: llama.cpp's %s has one shared expert",
		c.Key("n_shared_experts"), c.MoE.NSharedExperts, arch)
	refuse(g.normed && !c.Attention.UseQKNorm, "use_qk_norm is false: llama.cpp's %s norms queries and keys", arch)
	normalise, _ := c.TopKWeights()
	refuse(g.normalises && !normalise, "norm_topk_prob is false: weights of experts are always normalised with %s", arch)
	for l := 1; l < c.NumHiddenLayers && g.leads; l++ {
		if c.IsMoE(l-1) && !c.IsMoE(l) {
			refuse(true, "layer %d is dense, and a layer before it is not: to llama.cpp's %s all behind the first dense layers "+
				"have experts", l, arch)
			break
		}
	}
	refuse(limited(c) && c.Router.NGroup >= c.MoE.NRoutedExperts,
		"n_group is %d of %d experts: llama.cpp demands fewer groups than experts", c.Router.NGroup, c.MoE.NRoutedExperts)
	refuse(c.Router.MoENormMin > leastSum, "moe_norm_min is %v: llama.cpp divides by %v at least", c.Router.MoENormMin,
		leastSum)
	if s := c.RoPE.RopeScaling; s != nil {
		refuse(s.MScale != 0 || s.MScaleAllDim != 0,
			"rope_scaling has mscale %v and mscale_all_dim %v: llama.cpp's %s has none", s.MScale, s.MScaleAllDim, arch)
	}
}

// leastSum is what llama.cpp divides the weights of chosen experts by at least: the least normal number of F16.
const leastSum = 0x1p-14

// grouped takes the keys of these models that rows do not have.
func (r *keyReader) grouped(g *grouped, has func(name string) bool) {
	blocks, predicting := r.need(blockCount), 0
	if n, ok := r.natural(nextnLayers); ok && n > 0 {
		if predicting = n; !r.model.predicts {
			r.fail(r.arch+"."+nextnLayers, "%d: this reads no prediction layers of %s", n, r.arch)
		}
	}
	if predicting > blocks {
		r.fail(r.arch+"."+nextnLayers, "%d of %d blocks", predicting, blocks)
	}
	r.putInt("num_hidden_layers", blocks-predicting)
	if r.model.predicts {
		r.putInt("num_nextn_predict_layers", predicting)
	}
	width, ok := r.natural(keyLength)
	if !ok { // each head's share
		heads, _ := r.natural("attention.head_count")
		hidden, _ := r.natural("embedding_length")
		width = hidden / max(heads, 1)
	}
	if n, ok := r.natural(valueLength); ok && n != width {
		r.fail(r.arch+"."+valueLength, "%d, but the other keys make it %d", n, width)
	}
	r.putInt("head_dim", width)
	switch dims, said := r.natural(ropeDims); {
	case !said:
	case g.rotary == "" && dims != width:
		r.fail(r.arch+"."+ropeDims, "%d, but heads have %d", dims, width)
	case g.rotary == "rotary_dim":
		r.putInt(g.rotary, dims)
	case g.rotary != "":
		share := float64(dims) / float64(max(width, 1))
		for int(share*float64(width)) < dims && share < 1 { // the class cuts the product
			share = math.Nextafter(share, 1)
		}
		r.put(g.rotary, strconv.FormatFloat(share, 'g', -1, 64))
	}
	norm, full, present := r.find(weightsNorm)
	_, is := norm.(bool)
	switch {
	case present && !is:
		r.fail(full, "%v is not a boolean", norm)
	case g.normalises && present && norm != true:
		r.fail(full, "%v, but this architecture normalises the weights of experts", norm)
	case !g.normalises:
		r.put("norm_topk_prob", strconv.FormatBool(norm == true))
	}
	if g.read != nil {
		g.read(r, min(max(blocks-predicting, 0), maxList), has)
	}
}

func readGlm4MoE(r *keyReader, _ int, has func(name string) bool) {
	r.put("attention_bias", strconv.FormatBool(has("blk.0.attn_q.bias")))
	r.put("use_qk_norm", strconv.FormatBool(has("blk.0.attn_q_norm.weight")))
	r.leading("first_k_dense_replace")
	r.groups()
}

func readDots1(r *keyReader, _ int, _ func(name string) bool) {
	r.leading("first_k_dense_replace")
	r.put("sliding_window", "null")
	r.groups()
}

// readExaoneMoE takes which layers have a window: without a list every fourth has none.
func readExaoneMoE(r *keyReader, layers int, _ func(name string) bool) {
	r.leading("first_k_dense_replace")
	v, ok := r.values[r.arch+"."+windowPattern]
	types := make([]string, layers)
	for l := range types {
		windowed := (l+1)%4 != 0
		if ok && l < len(v.many) {
			windowed = v.many[l] == true
		}
		if types[l] = `"full_attention"`; windowed {
			types[l] = `"sliding_attention"`
		}
	}
	if ok && (v.kind != array || v.of != boolean || len(v.many) < len(types)) {
		r.fail(r.arch+"."+windowPattern, "is not a list of booleans, one per layer")
	}
	r.put("layer_types", "["+strings.Join(types, ",")+"]")
	r.groups()
}

func readBailing2(r *keyReader, _ int, _ func(name string) bool) {
	r.leading("first_k_dense_replace")
	r.groups()
}

func readErnie45MoE(r *keyReader, _ int, _ func(name string) bool) {
	r.leading("moe_layer_start_index")
	if step, ok := r.natural(moeStep); ok {
		r.putInt("moe_layer_interval", step)
	}
}

// leading takes the number of first layers without experts.
func (r *keyReader) leading(field string) {
	n, _ := r.natural(denseCount)
	r.putInt(field, n)
}

// sparse takes from the tensors which layers have experts, and how many experts all tokens share.
func (r *keyReader) sparse(layers int, has func(name string) bool) {
	types := make([]string, layers)
	for l := range types {
		if types[l] = `"dense"`; has(fmt.Sprintf("blk.%d.ffn_gate_inp.weight", l)) {
			types[l] = `"sparse"`
		}
	}
	r.put("mlp_layer_types", "["+strings.Join(types, ",")+"]")
	width, _ := r.natural("expert_feed_forward_length")
	shared, ok := r.natural(sharedFF)
	if ok && (width == 0 || shared%width != 0) {
		r.fail(r.arch+"."+sharedFF, "%d is not a multiple of expert_feed_forward_length %d", shared, width)
	} else if ok {
		r.putInt("n_shared_experts", shared/width)
	}
}
