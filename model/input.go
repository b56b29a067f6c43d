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

// from returns the tokens of each sequence from position first on, without a padding mask.
func (in *Input) from(first int) *Input {
	later := &Input{Batch: in.Batch, Seq: in.Seq - first}
	for b := range in.Batch {
		later.InputIDs = append(later.InputIDs, in.InputIDs[b*in.Seq+first:(b+1)*in.Seq]...)
	}
	return later
}

// Mask is the causal mask with padding, mirroring _prepare_4d_causal_attention_mask:
// 0 where a query may look, Lowest elsewhere. A score plus Lowest is Lowest, whatever the
// score, so that a query with all its keys masked attends to all keys alike, later ones too.
type Mask struct {
	Lowest float32 // the lowest finite value of the compute dtype
	In     *Input  // the tokens and their padding
	chosen []bool  // keys that an indexer chose for each query, [batch, seq, seq]; nil is all
}

// lowest holds the lowest finite values of the compute dtypes, torch.finfo(dtype).min.
var lowest = map[tensor.DType]float32{
	tensor.F32:  -math.MaxFloat32,
	tensor.F16:  -65504,
	tensor.BF16: -0x1.fep127,
}

// Masked reports whether the query at a position of a sequence may not look at a key.
func (m *Mask) Masked(batch, query, key int) bool {
	return key > query || m.In.AttentionMask != nil && m.In.AttentionMask[batch*m.In.Seq+key] == 0 ||
		m.chosen != nil && !m.chosen[(batch*m.In.Seq+query)*m.In.Seq+key]
}

// add adds the mask to the scores of a query, one score per key position.
func (m *Mask) add(scores []float32, batch, query int) {
	for key := range scores {
		if m.Masked(batch, query, key) {
			scores[key] += m.Lowest
		}
	}
}
