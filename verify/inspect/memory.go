package inspect

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/count"
	"dsmoe/model/tensor"
	"dsmoe/text"
)

// MemoryReport is the memory that a model takes, from its config alone.
type MemoryReport struct {
	Path      string         `json:"path"`          // of the config, as it was given
	ModelType string         `json:"model_type"`    // the family
	DType     tensor.DType   `json:"dtype"`         // torch_dtype: of weights that are not FP8, cache and activations
	Assumed   bool           `json:"dtype_assumed"` // the config has no torch_dtype, so that it is taken for F32
	Weights   int64          `json:"weights"`       // bytes of all modules but MTP
	Modules   []ModuleMemory `json:"modules"`       // in the order of the table, MTP last if there is any
	Rows      []Memory       `json:"rows"`          // for each context each batch
}

// ModuleMemory is the weights of one module over all layers.
type ModuleMemory struct {
	Module string `json:"module"` // a model.Module
	Bytes  int64  `json:"bytes"`  // FP8 with a quantization_config: a byte an element, and 4 for each block's scale
}

// Memory is what batch sequences of context tokens take, in bytes.
type Memory struct {
	Context int   `json:"context"`  // tokens of a sequence
	Batch   int   `json:"batch"`    // sequences at once
	Weights int64 `json:"weights"`  // MemoryReport.Weights
	KVCache int64 `json:"kv_cache"` // count.KVBytes · Context · Batch
	Prefill int64 `json:"prefill"`  // ActivationBytes of Context · Batch tokens: all at once
	Decode  int64 `json:"decode"`   // ActivationBytes of Batch tokens: one of each sequence
	Total   int64 `json:"total"`    // Weights + KVCache + Prefill
}

// MaxTokens is the largest Context · Batch: bytes then fit 64 bits for any config.
const MaxTokens = 100_000_000

// MemoryOf works out the memory of c for each context with each batch, all of them above 0
// and with products of at most MaxTokens.
func MemoryOf(path string, c *config.Config, contexts, batches []int) *MemoryReport {
	r := &MemoryReport{Path: path, ModelType: c.ModelType, DType: model.TorchDType(c), Assumed: c.TorchDType == "", Rows: []Memory{}}
	r.Modules = moduleMemory(c)
	for _, m := range r.Modules {
		if m.Module != string(model.MTP) {
			r.Weights += m.Bytes
		}
	}
	for _, context := range contexts {
		for _, batch := range batches {
			tokens := int64(context) * int64(batch)
			m := Memory{Context: context, Batch: batch, Weights: r.Weights, KVCache: count.KVBytes(c) * tokens,
				Prefill: ActivationBytes(c, tokens, int64(batch)), Decode: ActivationBytes(c, int64(batch), int64(batch))}
			m.Total = m.Weights + m.KVCache + m.Prefill
			r.Rows = append(r.Rows, m)
		}
	}
	return r
}

// moduleMemory adds up the weights that c implies.
func moduleMemory(c *config.Config) []ModuleMemory {
	sums := []ModuleMemory{}
	add := func(module model.Module, s model.Slot) {
		i := slices.IndexFunc(sums, func(m ModuleMemory) bool { return m.Module == string(module) })
		if i < 0 {
			i = len(sums)
			sums = append(sums, ModuleMemory{Module: string(module)})
		}
		sums[i].Bytes += slotBytes(c, s)
	}
	for s := range model.FamilyOf(c).Slots(c) {
		add(s.Param.Module, s)
	}
	for s := range model.FamilyOf(c).MTPSlots(c) {
		add(model.MTP, s)
	}
	return sums
}

// slotBytes is the size of a weight in torch_dtype, or in FP8 with its scales in F32.
func slotBytes(c *config.Config, s model.Slot) int64 {
	if !s.FP8(c) {
		return s.Info(model.TorchDType(c)).Bytes()
	}
	rows, cols := tensor.Blocks{Rows: s.Shape[0], Cols: s.Shape[1], BlockRows: c.FP8Block[0], BlockCols: c.FP8Block[1]}.Grid()
	return s.Info(tensor.F8E4M3).Bytes() + 4*int64(rows)*int64(cols)
}

// ActivationBytes returns the largest number of bytes of activations that exist at once
// while tokens pass one layer, or while the logits of the last tokens, one of each of
// batch sequences, are computed in F32:
//
//	max(tokens · (2·hidden_size + max(attention, dense, routed, shared)) · bytes of torch_dtype,
//	    batch · (hidden_size · bytes of torch_dtype + 4·vocab_size))
//	attention = num_attention_heads · 2·(qk_head_dim + v_head_dim)
//	dense     = 3·intermediate_size
//	routed    = num_experts_per_tok · (2·hidden_size + 3·moe_intermediate_size)
//	shared    = n_shared_experts · 3·moe_intermediate_size + hidden_size
//
// 2·hidden_size is the residual stream and its norm. Attention holds queries, keys, values
// and what comes of them; an MLP gate, up and their product; routed experts also what goes into them and
// what comes out; shared ones the routed sum. Scores are not stored, as FlashAttention does not: the
// reference's eager attention takes 4 · batch · num_attention_heads · context² more.
func ActivationBytes(c *config.Config, tokens, batch int64) int64 {
	attention := c.NumAttentionHeads * 2 * (c.QKHeadDim() + c.ValueHeadDim())
	dense, routed, shared := 0, 0, 0
	if l := layersOf(c); l.Dense > 0 {
		dense = 3 * c.IntermediateSize
	}
	if l := layersOf(c); l.MoE > 0 {
		routed = c.NumExpertsPerTok * (2*c.HiddenSize + 3*c.MoEIntermediateSize)
		shared = c.NSharedExperts*3*c.MoEIntermediateSize + c.HiddenSize
	}
	size := int64(model.TorchDType(c).Bits()) / 8
	layer := tokens * int64(2*c.HiddenSize+max(attention, dense, routed, shared)) * size
	return max(layer, batch*(int64(c.HiddenSize)*size+4*int64(c.VocabSize)))
}

// Sheet is a row per context and batch.
func (r *MemoryReport) Sheet() *text.Sheet {
	s := text.NewSheet(">context", ">batch", ">weights", ">kv_cache", ">prefill", ">decode", ">total")
	for _, m := range r.Rows {
		s.Add(text.Whole(m.Context), text.Whole(m.Batch), text.Size(m.Weights), text.Size(m.KVCache), text.Size(m.Prefill), text.Size(m.Decode), text.Size(m.Total))
	}
	return s
}

// WriteText writes the weights by module, then the sheet.
func (r *MemoryReport) WriteText(w io.Writer) error {
	var b strings.Builder
	modules := text.NewSheet("module", ">weights", ">share")
	for _, m := range r.Modules {
		share := text.Share(m.Bytes, r.Weights)
		if m.Module == string(model.MTP) {
			share = text.Plain("not counted")
		}
		modules.Add(text.Plain(m.Module), text.Size(m.Bytes), share)
	}
	assumed := ""
	if r.Assumed {
		assumed = " (assumed: the config has no torch_dtype)"
	}
	fmt.Fprintf(&b, "%s: %s, cache and activations in %s%s\n\n", text.Word(r.Path), r.ModelType, r.DType, assumed)
	modules.WriteAs(&b, text.AsTable)
	fmt.Fprintln(&b)
	r.Sheet().WriteAs(&b, text.AsTable)
	_, err := io.WriteString(w, b.String())
	return err
}
