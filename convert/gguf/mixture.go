package gguf

// The mixtures of types that llama.cpp quantises to: llama_tensor_get_type of
// src/llama-quant.cpp, without an importance matrix.

import (
	"dsmoe/config"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
)

// mixtures are the words for the mixtures, with the type of most tensors.
var mixtures = []struct {
	word  string
	dtype tensor.DType
	more  bool // some tensors of some layers get Q6_K: the _M mixtures of Q4_K and Q5_K
}{
	{"q8_0", tensor.Q8_0, false},
	{"q4_0", tensor.Q4_0, false},
	{"q4_1", tensor.Q4_1, false},
	{"q5_0", tensor.Q5_0, false},
	{"q5_1", tensor.Q5_1, false},
	{"q2_k", tensor.Q2_K, false},
	{"q3_k_s", tensor.Q3_K, false},
	{"q3_k_m", tensor.Q3_K, false},
	{"q3_k_l", tensor.Q3_K, false},
	{"q4_k_s", tensor.Q4_K, false},
	{"q4_k_m", tensor.Q4_K, true},
	{"q5_k_s", tensor.Q5_K, false},
	{"q5_k_m", tensor.Q5_K, true},
	{"q6_k", tensor.Q6_K, false},
	{"iq4_nl", tensor.IQ4_NL, false},
	{"iq4_xs", tensor.IQ4_XS, false},
}

// mixer chooses the types of a model's tensors, in the order of their layers.
type mixer struct {
	word   string
	most   tensor.DType
	more   bool
	blocks int  // layers, prediction layers included
	values int  // attn_v tensors
	value  int  // attn_v tensors seen so far
	shared int  // query heads that share a key and value head
	eight  bool // experts: llama.cpp gives such models more
	tied   bool
}

// newMixer makes the mixer of a word; nil if that is the word of no mixture.
func newMixer(word string, c *config.Config) *mixer {
	for _, m := range mixtures {
		if m.word == word {
			x := &mixer{word: word, most: m.dtype, more: m.more, blocks: c.NumHiddenLayers + c.NumNextNPredictLayers,
				eight: c.MoE.NRoutedExperts == 8, tied: c.TieWordEmbeddings}
			if !c.LatentAttention() {
				x.values, x.shared = c.NumHiddenLayers, c.Attention.NumAttentionHeads/max(c.Attention.NumKeyValueHeads, 1)
			}
			return x
		}
	}
	return nil
}

// hasMore is use_more_bits: the first and last eighth of n, and every third between.
func hasMore(i, n int) bool { return i < n/8 || i >= 7*n/8 || (i-n/8)%3 == 2 }

// dtype returns the type of the next tensor that is quantised: of a weight with that place, in rows of so many elements.
func (m *mixer) dtype(p table.Place, row int) tensor.DType {
	d, uneven := m.most, m.most == tensor.IQ4_NL || m.most == tensor.IQ4_XS
	switch role := p.Role(); {
	case role == table.LMHead, m.tied && p.Module() == table.Embedding:
		if elements, _ := d.Block(); row%elements != 0 {
			d = tensor.Q8_0
		} else if d != tensor.Q8_0 {
			d = tensor.Q6_K
		}
	case role == table.VProj:
		switch {
		case m.eight:
			d = tensor.Q8_0
		case m.more && hasMore(m.value, m.values):
			d = tensor.Q6_K
		case m.word == "q2_k" && m.shared >= 4, m.word == "q3_k_m" && m.value >= 2:
			d = tensor.Q4_K
		case m.word == "q2_k":
			d = tensor.Q3_K
		case m.word == "q3_k_m", m.word == "q3_k_l", m.word == "q4_k_s" && m.value < 4, uneven && m.shared >= 4:
			d = tensor.Q5_K
		}
		m.value++
	case (role == table.KProj || role == table.WK) && m.eight:
		d = tensor.Q8_0
	case role == table.OProj && m.eight:
		switch m.word {
		case "q2_k", "q3_k_s", "q3_k_m", "q4_k_s", "q4_k_m", "iq4_nl", "iq4_xs":
			d = tensor.Q5_K
		}
	case role == table.OProj:
		switch m.word {
		case "q2_k":
			d = tensor.Q3_K
		case "q3_k_m":
			d = tensor.Q4_K
		case "q3_k_l":
			d = tensor.Q5_K
		}
	case role == table.DownProj:
		switch l := p.Layer; {
		case m.more && hasMore(l, m.blocks):
			d = tensor.Q6_K
		case m.word == "q3_k_m" && l < m.blocks/16, m.word == "q3_k_l", (m.word == "q4_k_s" || uneven) && l < m.blocks/8:
			d = tensor.Q5_K
		case m.word == "q3_k_m":
			d = tensor.Q4_K
		case m.word == "q2_k":
			d = tensor.Q3_K
		}
	}
	return fitting(d, row)
}

// fitting is tensor_type_fallback: what rows are quantised to that are not whole blocks.
func fitting(d tensor.DType, row int) tensor.DType {
	whole := func() bool { elements, _ := d.Block(); return row%elements == 0 }
	if whole() {
		return d
	}
	switch d {
	case tensor.Q2_K, tensor.Q3_K:
		d = tensor.Q4_0
	case tensor.IQ4_XS:
		d = tensor.IQ4_NL
	case tensor.Q4_K:
		d = tensor.Q5_0
	case tensor.Q5_K:
		d = tensor.Q5_1
	case tensor.Q6_K:
		d = tensor.Q8_0
	}
	if !whole() {
		return tensor.F16
	}
	return d
}
