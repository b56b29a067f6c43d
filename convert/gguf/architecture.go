package gguf

// Which models the files of llama.cpp hold, and under which architecture. A model_type without an architecture is
// refused by name, and so is one whose network has a part that its architecture does not have.

import (
	"fmt"
	"slices"
	"strings"

	"dsmoe/config"
)

// architecture is what llama.cpp has under a value of general.architecture.
type architecture struct {
	name    string
	parts   []string // of networks, beside what all have
	scoring []string // the scoring functions of gates
	rows    []row    // the keys that equal a field of config.json
	grouped *grouped // of models with plain attention and head_dim; nil for others
}

// architectures are those that this program reads and writes.
var architectures = []architecture{
	{deepseek, nil, []string{softmax}, rows, nil},
	{deepseek2, []string{latent}, []string{softmax, sigmoid}, slices.Concat(rows, latentRows), nil},
	{deepseek32, []string{latent, indexers}, []string{softmax, sigmoid}, slices.Concat(rows, latentRows), nil},
	{glmDSA, []string{latent, indexers}, []string{softmax, sigmoid}, slices.Concat(rows, latentRows), nil},
	{deepseek4, []string{windows, indexers, streams, tokenTable}, []string{sqrtSoftplus}, windowedRows, nil},
	ofGrouped(glm4MoE, nil, sigmoid, grouped{leads: true, biased: true, rotary: "partial_rotary_factor", read: readGlm4MoE,
		keys: []string{ropeDims, gatingFunc, sharedCount, denseCount, weightsScale, weightsNorm}}),
	ofGrouped(dots1, nil, sigmoid, grouped{leads: true, untied: true, equal: true, read: readDots1,
		keys: []string{gatingFunc, sharedCount, denseCount, weightsScale, weightsNorm}}),
	ofGrouped(hyV3, nil, sigmoid, grouped{normalises: true, read: (*keyReader).sparse,
		keys: []string{gatingFunc, sharedFF, weightsScale, weightsNorm}}),
	ofGrouped(minimaxM2, nil, sigmoid, grouped{leads: true, untied: true, rotary: "rotary_dim", sparse: true, normalises: true,
		keys: []string{ropeDims, gatingFunc}}),
	ofGrouped(exaoneMoE, []string{sliding}, sigmoid, grouped{leads: true, untied: true, saysUnscaled: true, read: readExaoneMoE,
		keys: []string{gatingFunc, sharedCount, sharedFF, denseCount, weightsScale, weightsNorm, window, windowPattern}}),
	ofGrouped(ernie45MoE, nil, softmax, grouped{leads: true, normalises: true, read: readErnie45MoE,
		keys: []string{sharedCount, sharedFF, denseCount, moeStep}}),
	ofGrouped(bailing2, nil, sigmoid, grouped{leads: true, untied: true, shares: true, normed: true, normalises: true,
		rotary: "partial_rotary_factor", read: readBailing2,
		keys: []string{ropeDims, gatingFunc, sharedCount, sharedFF, denseCount, weightsScale, weightsNorm}}),
}

// ofGrouped returns an architecture of models with plain attention and head_dim.
func ofGrouped(name string, parts []string, scoring string, g grouped) architecture {
	rows := slices.Concat(groupedRows, only(groupedOwn, g.keys...))
	if g.sparse {
		rows[slices.IndexFunc(rows, func(r row) bool { return r.key == feedForward })].field = ""
	}
	return architecture{name, parts, []string{scoring}, rows, &g}
}

// architectureNamed returns the architecture of that name; nil for a name of none.
func architectureNamed(name string) *architecture {
	i := slices.IndexFunc(architectures, func(a architecture) bool { return a.name == name })
	if i < 0 {
		return nil
	}
	return &architectures[i]
}

// unheld says why no file of llama.cpp holds a model of c; "" if one does.
func unheld(c *config.Config) string {
	m := modelOf(c)
	if m.cause == "" {
		var lacking []string
		hashes := slices.ContainsFunc(c.MoELayers(), c.Hashes)
		for part, is := range map[string]bool{latent: c.LatentAttention(), indexers: c.HasIndexer(), windows: c.Windowed(),
			sliding: c.HasWindows() && !c.Windowed(), streams: c.HyperConnections.HCMult > 0, tokenTable: hashes,
			normBehind: c.Rules().MoE.NormsExperts} {
			if is && !slices.Contains(architectureNamed(m.arch).parts, part) {
				lacking = append(lacking, part)
			}
		}
		if lacking == nil {
			return ""
		}
		slices.Sort(lacking)
		m.cause = fmt.Sprintf("llama.cpp's %s has no %s", m.arch, strings.Join(lacking, ", no "))
	}
	return fmt.Sprintf("config.json: model_type is %s: %s", c.ModelType, m.cause)
}

// The limits of llama.cpp: LLAMA_MAX_LAYERS, LLAMA_MAX_EXPERTS.
const (
	mostLayers  = 512
	mostExperts = 1024
)

// unsayable lists why llama.cpp would compute something else, or not load a file, whatever
// the keys.
func unsayable(c *config.Config) (reasons []string) {
	if reason := unheld(c); reason != "" {
		return []string{reason}
	}
	arch := modelOf(c).arch
	refuse := func(is bool, reason string, args ...any) {
		if is {
			reasons = append(reasons, fmt.Sprintf("config.json: "+reason, args...))
		}
	}
	refuse(c.NumHiddenLayers+c.NumNextNPredictLayers > mostLayers, "%d layers: llama.cpp takes %d at most",
		c.NumHiddenLayers+c.NumNextNPredictLayers, mostLayers)
	refuse(c.MoE.NRoutedExperts > mostExperts, "%s is %d: llama.cpp takes %d at most", c.Key("n_routed_experts"),
		c.MoE.NRoutedExperts, mostExperts)
	if a := architectureNamed(arch); a.grouped != nil {
		a.grouped.unsayable(c, arch, refuse)
		return reasons
	}
	refuse(c.Attention.AttentionBias, "attention_bias is true: llama.cpp's %s has no bias of o_proj", arch)
	mixed := c.MoELayers() != nil
	for l := range c.NumHiddenLayers {
		if c.IsMoE(l) != (l >= c.Layers.FirstKDenseReplace && mixed) {
			refuse(true, "moe_layer_freq is %d: layer %d is dense, and to llama.cpp all from first_k_dense_replace %d on "+
				"have experts", c.Layers.MoELayerFreq, l, c.Layers.FirstKDenseReplace)
			break
		}
	}
	refuse(mixed && !slices.Contains(architectureNamed(arch).scoring, c.Router.ScoringFunc),
		"scoring_func is %s: llama.cpp's %s has no such gate", c.Router.ScoringFunc, arch)
	refuse(mixed && c.MoE.NSharedExperts == 0, "n_shared_experts is null: llama.cpp's %s demands shared experts", arch)
	if arch == deepseek4 {
		unsayableWindowed(c, refuse)
		return reasons
	}
	if arch == deepseek {
		normalise, _ := c.TopKWeights()
		refuse(mixed && normalise,
			"norm_topk_prob is true: llama.cpp's %s never normalises the weights of the chosen experts", arch)
		refuse(c.RoPE.RopeScaling != nil && c.RoPE.RopeScaling.Type != "linear",
			"rope_scaling is %s: llama.cpp has linear scaling, and YaRN", c.RoPE.RopeScaling)
		return reasons
	}
	refuse(!c.RoPE.RopeInterleave, "rope_interleave is false: llama.cpp's %s rotates interleaved pairs", arch)
	refuse(arch == deepseek2 && c.Attention.QLoraRank > 0 && isLite(c.NumHiddenLayers, c.VocabSize),
		"%d layers with a q_lora_rank: llama.cpp takes a model of so many layers for DeepSeek-V2-Lite, which has none",
		c.NumHiddenLayers)
	refuse(mixed && limited(c) && c.Router.NGroup >= c.MoE.NRoutedExperts,
		"n_group is %d of %d experts: llama.cpp demands fewer groups than experts", c.Router.NGroup, c.MoE.NRoutedExperts)
	if s := c.RoPE.RopeScaling; s != nil {
		refuse(s.MScale != s.MScaleAllDim || s.MScaleAllDim == 0,
			"rope_scaling has mscale %v and mscale_all_dim %v: llama.cpp takes them to be equal, and not 0",
			s.MScale, s.MScaleAllDim)
	}
	return reasons
}

// unsayableWindowed gives refuse the reasons why llama.cpp would not load a DeepSeek-V4, or compute something else.
func unsayableWindowed(c *config.Config, refuse func(is bool, reason string, args ...any)) {
	refuse(c.HyperConnections.HCMult != 4, "hc_mult is %d: llama.cpp's deepseek4 has 4 streams", c.HyperConnections.HCMult)
	for l := range c.NumHiddenLayers {
		rate, known := c.CompressRate(l), 128
		if c.Overlaps(l) {
			known = 4
		}
		if rate != 0 && rate != known {
			refuse(true, "layer %d compresses %d tokens to a key: llama.cpp's deepseek4 has 4 in sparse layers, "+
				"128 in others", l, rate)
			break
		}
	}
	for l := firstLayers(c.Hashes); l < c.NumHiddenLayers; l++ {
		refuse(c.Hashes(l), "layer %d chooses experts by the token, and a layer before it does not: llama.cpp has "+
			"a number of first layers", l)
	}
	refuse(c.TieWordEmbeddings, "tie_word_embeddings is true: llama.cpp's deepseek4 demands a head")
	refuse(c.NumNextNPredictLayers > 0, "prediction layers are not written: llama.cpp has DeepSeek-V4's in a file of "+
		"their own; leave out --mtp")
}
