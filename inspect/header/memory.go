package header

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"dsmoe/config"
	"dsmoe/model/count"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/text"
)

// MemoryReport is the memory that a model takes.
type MemoryReport struct {
	Path      string         `json:"path"`          // of the config, as the user gave it
	ModelType string         `json:"model_type"`    // the family
	DType     tensor.DType   `json:"dtype"`         // torch_dtype: of cache and activations
	Assumed   bool           `json:"dtype_assumed"` // the config has no torch_dtype, so that it is taken for BF16
	Weights   weightBytes    `json:"weights"`       // of all modules but MTP
	Modules   []moduleMemory `json:"modules"`       // in the order of the table, MTP last if there is any
	Rows      []memory       `json:"rows"`          // for each context each batch
	// LeftOut says what is not counted because attention is not computed; absent where it is
	LeftOut string `json:"left_out,omitempty"`
}

// memory is what batch sequences of context tokens take, in bytes.
type memory struct {
	Context int   `json:"context"`           // tokens of a sequence
	Batch   int   `json:"batch"`             // sequences at once
	Weights int64 `json:"weights"`           // MemoryReport.Weights.Bytes
	KVCache int64 `json:"kv_cache,omitzero"` // count.CacheOf Context tokens · Batch; absent where attention is not computed
	Prefill int64 `json:"prefill"`           // activations of all tokens at once, or the logits of the last of each sequence
	Decode  int64 `json:"decode"`            // activations of one token of each sequence, or its logits
	Total   int64 `json:"total"`             // Weights + KVCache + Prefill

	Cache *count.Cache `json:"kv_cache_parts,omitempty"` // of KVCache; absent where it is all tokens'
}

// maxTokens is the largest Context · Batch.
const maxTokens = 1_000_000_000

// MemoryOf works out the memory of c with the weights w for each context with each batch. The error
// names every context and batch that is not 1 to maxTokens tokens, or takes more memory than 64 bits count.
func MemoryOf(path string, c *config.Config, w Weights, contexts, batches []int) (*MemoryReport, error) {
	w = w.or(c)
	r := &MemoryReport{Path: path, ModelType: c.ModelType, DType: table.TorchDType(c), Assumed: c.TorchDType == "",
		Weights: w.sum(), Modules: w.modules(c), Rows: []memory{}}
	if c.BlockOnly() {
		what := "its KV cache and activations are not counted"
		if w.From == fromConfig {
			what = "its weights, KV cache and activations are not counted"
		}
		r.LeftOut = leftOut(c, what)
	}
	var errs []error
	for _, context := range contexts {
		for _, batch := range batches {
			m, err := r.row(c, int64(context), int64(batch))
			if err != nil {
				errs = append(errs, fmt.Errorf("context %d with batch %d: %w", context, batch, err))
			}
			r.Rows = append(r.Rows, m)
		}
	}
	return r, errors.Join(errs...)
}

// row is the memory of batch sequences.
func (r *MemoryReport) row(c *config.Config, context, batch int64) (memory, error) {
	if context < 1 || batch < 1 || context > maxTokens/batch {
		return memory{}, fmt.Errorf("not 1 to %s tokens", text.Grouped(maxTokens))
	}
	tokens := context * batch
	token, logits := activations(c)
	most := 2*count.CacheOf(c, 1).Sum() +
		4*count.Indexers(c)*int64(c.Indexer.IndexHeadDim) // windows and entries, 4 bytes a value
	for _, n := range []int64{most, token, logits} {
		if n > math.MaxInt64/4/tokens {
			return memory{}, errors.New("more bytes than 64 bits can count")
		}
	}
	cache := count.CacheOf(c, context)
	if c.BlockOnly() {
		cache = count.Cache{}
	}
	m := memory{Context: int(context), Batch: int(batch), Weights: r.Weights.Bytes, KVCache: cache.Sum() * batch,
		Prefill: max(tokens*token, batch*logits), Decode: batch * max(token, logits)}
	if c.HasWindows() {
		m.Cache = &count.Cache{Window: cache.Window * batch, Entries: cache.Entries * batch, Indexer: cache.Indexer * batch}
	}
	m.Total = m.Weights + m.KVCache + m.Prefill
	return m, nil
}

// activations returns the bytes of activations that exist at once for each token that
// passes one layer, and for the logits, in F32, of one:
//
//	token     = (2·hidden_size + max(attention, indexer, dense, routed, shared)) · bytes of torch_dtype
//	attention = num_attention_heads · 2·(qk_head_dim + v_head_dim)
//	            windowed: 2·num_attention_heads·head_dim + head_dim + o_groups·o_lora_rank
//	indexer   = 2·index_n_heads·index_head_dim
//	dense     = 3·intermediate_size
//	routed    = num_experts_per_tok · (2·hidden_size + 3·moe_intermediate_size)
//	shared    = n_shared_experts · 3·moe_intermediate_size + hidden_size, or 3·shared_expert_intermediate_size + hidden_size
//	logits    = hidden_size · bytes of torch_dtype + 4·vocab_size
//
// 2·hidden_size is the residual stream and its norm; with hyper-connections it is
// (hc_mult + 1)·hidden_size. Attention holds queries, keys, values
// and what comes of them; an MLP gate, up and their product; routed experts also what goes
// into them and what comes out; shared ones the routed sum. An MLP without gate_proj holds up and its
// square: 2 in place of 3. Routed experts in a latent space take and give moe_latent_size in place of
// hidden_size, and one row of that for all of them. Scores are not stored, as in
// FlashAttention: the reference's eager attention takes 4 · batch · num_attention_heads ·
// context² more.
func activations(c *config.Config) (token, logits int64) {
	hidden, expert := int64(c.HiddenSize), int64(c.MoE.MoEIntermediateSize)
	widest := 2 * int64(c.Attention.NumAttentionHeads) * int64(c.QKHeadDim()+c.ValueHeadDim())
	if c.Windowed() { // one head of keys, which are the values
		widest = int64(2*c.Attention.NumAttentionHeads+1)*int64(c.ValueHeadDim()) +
			int64(c.Windows.OGroups)*int64(c.Windows.OLoraRank)
	}
	if c.BlockOnly() { // attention's are not known
		widest = 0
	}
	widest = max(widest, 2*int64(c.Indexer.IndexNHeads)*int64(c.Indexer.IndexHeadDim))
	layers, inside := layersOf(c), int64(3)
	if c.Rules().MoE.Activation == config.SquaredReLU {
		inside = 2
	}
	if layers.Dense > 0 {
		widest = max(widest, inside*int64(c.IntermediateSize))
	}
	if layers.MoE > 0 {
		shared := cmp.Or(int64(c.MoE.SharedIntermediateSize), int64(c.MoE.NSharedExperts)*expert)
		widest = max(widest, int64(c.MoE.LatentSize)+int64(c.MoE.NumExpertsPerTok)*(2*int64(c.ExpertWidth())+inside*expert),
			inside*shared+hidden)
	}
	size := table.TorchDType(c).Bytes(1)
	return (int64(max(c.HyperConnections.HCMult, 1)+1)*hidden + widest) * size, hidden*size + 4*int64(c.VocabSize)
}

// Sheet is a row per context and batch.
func (r *MemoryReport) Sheet() *text.Sheet {
	columns := []string{">context", ">batch", ">weights"}
	if r.LeftOut == "" {
		columns = append(columns, ">kv_cache")
	}
	if len(r.Rows) > 0 && r.Rows[0].Cache != nil {
		columns = append(columns, ">kv_window", ">kv_entries", ">kv_indexer")
	}
	s := text.NewSheet(append(columns, ">prefill", ">decode", ">total", "weights_dtypes", "compute_dtype")...)
	for _, m := range r.Rows {
		row := []any{m.Context, m.Batch, text.Size(m.Weights)}
		if r.LeftOut == "" {
			row = append(row, text.Size(m.KVCache))
		}
		if x := m.Cache; x != nil {
			row = append(row, text.Size(x.Window), text.Size(x.Entries), text.Size(x.Indexer))
		}
		s.Row(append(row, text.Size(m.Prefill), text.Size(m.Decode), text.Size(m.Total), r.Weights.names(","), r.DType)...)
	}
	return s
}

// WriteText writes the weights by module, then the sheet.
func (r *MemoryReport) WriteText(w io.Writer) error {
	var b strings.Builder
	modules := text.NewSheet("module", ">weights", ">share")
	for _, m := range r.Modules {
		share := text.Share(m.Bytes, r.Weights.Bytes)
		if m.Module == string(table.MTP) {
			share = text.Plain("not counted")
		}
		modules.Row(m.Module, text.Size(m.Bytes), share)
	}
	fmt.Fprintf(&b, "%s: %s, weights %s; cache and activations in %s%s\n\n", text.Word(r.Path), r.ModelType, r.Weights,
		r.DType, assumed(r.Assumed))
	modules.WriteAs(&b, text.AsTable)
	fmt.Fprintln(w, b.String())
	r.Sheet().WriteAs(w, text.AsTable)
	return r.WriteNotes(w)
}

// WriteNotes writes what is left out.
func (r *MemoryReport) WriteNotes(w io.Writer) (err error) {
	if r.LeftOut != "" {
		_, err = fmt.Fprintln(w, "left out: "+r.LeftOut)
	}
	return err
}
