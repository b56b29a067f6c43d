package model

import (
	"fmt"
	"math"

	"dsmoe/model/tensor"
)

// Input is a batch of token sequences.
type Input struct {
	Batch         int   // sequences
	Seq           int   // tokens per sequence
	InputIDs      []int // [batch, seq]
	AttentionMask []int // [batch, seq], 0 for padding; nil without padding
}

// Check returns an error if the input does not fit a model whose vocabulary has vocab tokens.
func (in *Input) Check(vocab int) error {
	n := in.Batch * in.Seq
	if in.Batch < 1 || in.Seq < 1 || len(in.InputIDs) != n || in.AttentionMask != nil && len(in.AttentionMask) != n {
		return fmt.Errorf("input: %d ids and %d mask values for a batch of %d × %d",
			len(in.InputIDs), len(in.AttentionMask), in.Batch, in.Seq)
	}
	for i, id := range in.InputIDs {
		if id < 0 || id >= vocab {
			return fmt.Errorf("input_ids[%d, %d]: %d is not in the vocabulary of %d", i/in.Seq, i%in.Seq, id, vocab)
		}
	}
	return nil
}

// IsPadding reports whether token i of the batch is padding.
func (in *Input) IsPadding(i int) bool { return in.AttentionMask != nil && in.AttentionMask[i] == 0 }

// Mask is the causal mask with padding, mirroring _prepare_4d_causal_attention_mask:
// 0 where a query may look, Lowest elsewhere. A score plus Lowest is Lowest, whatever the
// score, so that a query with all its keys masked attends to all keys alike, later ones too.
//
// With a rate the keys are tokens, then entries of a compressor, each of which stands for rate tokens:
// a query sees an entry after the last of them. Padding hides no entry.
type Mask struct {
	Lowest float32 // the lowest finite value of the compute dtype
	In     *Input  // the tokens and their padding
	Window int     // tokens that a query sees, itself the last of them; 0 is all before it
	chosen []bool  // keys, or entries, that an indexer chose for each query, [batch, seq, keys]; nil is all

	rate          int // tokens of an entry; 0: all keys are tokens
	first, tokens int // the position of the first key; with a rate, the number of keys before the entries
}

// lowest holds the lowest finite values of the compute dtypes, torch.finfo(dtype).min.
var lowest = map[tensor.DType]float32{
	tensor.F32:  -math.MaxFloat32,
	tensor.F16:  -65504,
	tensor.BF16: -0x1.fep127,
}

// Masked reports whether the query at a position of a sequence may not look at a key. A nil mask hides none.
func (m *Mask) Masked(batch, query, key int) bool {
	switch {
	case m == nil:
		return false
	case m.rate == 0:
		return m.hidesToken(batch, query, m.first+key) || m.leftOut(batch, query, key)
	case key < m.tokens:
		return m.hidesToken(batch, query, m.first+key)
	}
	entry := key - m.tokens
	return (entry+1)*m.rate > query+1 || m.leftOut(batch, query, entry)
}

// Reach returns how many of so many keys queries up to position last may look at: all others are later.
func (m *Mask) Reach(last, keys int) int {
	if m == nil || m.rate != 0 {
		return keys
	}
	return max(0, min(keys, last+1-m.first))
}

// hidesToken reports whether a token is later than the query, or before its window, or padding.
func (m *Mask) hidesToken(batch, query, key int) bool {
	return key > query || m.Window > 0 && query-key >= m.Window ||
		m.In.AttentionMask != nil && m.In.AttentionMask[batch*m.In.Seq+key] == 0
}

// leftOut reports whether an indexer did not choose a key, or an entry.
func (m *Mask) leftOut(batch, query, key int) bool {
	return m.chosen != nil && !m.chosen[(batch*m.In.Seq+query)*m.choices()+key]
}

// choices returns the number of keys, or entries, that an indexer chooses from.
func (m *Mask) choices() int { return m.In.Seq / max(m.rate, 1) }

// add adds the mask to the scores of a query, one score per key position.
func (m *Mask) add(scores []float32, batch, query int) {
	for key := range scores {
		if m.Masked(batch, query, key) {
			scores[key] += m.Lowest
		}
	}
}

// of returns the mask that shows each query, of the keys that m shows, the k of idx [batch, seq, k].
func (m *Mask) of(idx []int, k int) *Mask {
	chosen := make([]bool, m.In.Batch*m.In.Seq*m.choices())
	for i, key := range idx {
		if key >= 0 {
			chosen[i/k*m.choices()+key] = true
		}
	}
	masked := *m
	masked.chosen = chosen
	return &masked
}
