package header

import (
	"fmt"
	"io"
	"math"
	"math/big"

	"dsmoe/config"
	"dsmoe/model/count"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/text"
)

// Arch is what a config implies, exactly and with no weight at hand.
type Arch struct {
	Path      string          `json:"path"`            // of the config, as the user gave it
	ModelType string          `json:"model_type"`      // the family
	Layers    *layers         `json:"layers"`          // the decoder's
	Modules   []moduleTotal   `json:"modules"`         // in the order of the table of weights
	Total     moduleTotal     `json:"total"`           // of Modules; its Module is "total"
	Activated activatedCounts `json:"activated"`       // of all modules
	Weights   weightBytes     `json:"weights"`         // of all modules but MTP
	Forward   forwardFLOPs    `json:"flops_per_token"` // compute of one token
	// Training and KVCache are of one sequence, compute and memory; absent where attention is not computed
	Training *trainingFLOPs `json:"training_flops,omitempty"`
	KVCache  *kvCache       `json:"kv_cache,omitempty"`
	// LeftOut says what is not counted because attention is not computed; absent where it is
	LeftOut  string       `json:"left_out,omitempty"`
	Windowed *windowed    `json:"windowed,omitempty"` // absent without a window of attention
	Indexers *indexers    `json:"indexers,omitempty"` // absent if each token attends to all before it
	Experts  *experts     `json:"experts,omitempty"`  // absent if the model is dense
	Choice   *choice      `json:"choice,omitempty"`   // absent if the model is dense
	MTP      *moduleTotal `json:"mtp,omitempty"`      // prediction layers, not part of the forward pass nor of Total
	Assumed  bool         `json:"dtype_assumed"`      // the config has no torch_dtype, so that it is taken for BF16
}

// moduleTotal is one module over all layers.
type moduleTotal struct {
	Module        string `json:"module"`          // a table.Module, such as "mlp.experts"
	Tensors       int64  `json:"tensors"`         // number of weights
	Parameters    int64  `json:"parameters"`      // elements of the weights
	Activated     int64  `json:"activated"`       // parameters that one token uses
	FLOPsPerToken int64  `json:"flops_per_token"` // of its matrix products: 2 · activated matrix elements
}

// activatedCounts are the parameters that one token uses, by what is counted.
type activatedCounts struct {
	All                     int64 `json:"all"`                        // of all modules
	WithoutEmbedding        int64 `json:"without_embedding"`          // without embed_tokens
	WithoutEmbeddingAndHead int64 `json:"without_embedding_and_head"` // without embed_tokens and lm_head
}

// forwardFLOPs are the floating point operations of one token's forward pass, two
// per multiply-add: matrix products with the activated weights, router and head
// included, and attention. Norms, softmax, activations and biases are not counted.
type forwardFLOPs struct {
	Positions int   `json:"positions,omitzero"` // tokens of the sequence whose last token it is; absent with Attention
	Matmul    int64 `json:"matmul"`             // of the products with weights
	Attention int64 `json:"attention,omitzero"` // 2 · count.AttentionMACs over Positions; absent where it is not computed
	Total     int64 `json:"total"`              // Matmul + Attention
}

// trainingFLOPs are the floating point operations of training on one sequence, counted
// in two ways, both as three forward passes: one forward, two for the backward.
type trainingFLOPs struct {
	Positions int     `json:"positions"` // tokens of the sequence
	Exact     float64 `json:"exact"`     // 3 · Positions · forwardFLOPs.Total, rounded only beyond 2^53
	Paper     float64 `json:"paper"`     // count.PaperModel.FLOPs, the convention of the DeepSeekMoE paper's tables
	// PaperExpert is what the paper's convention takes an expert for, in standard FFNs
	// of 8·d²: see count.StandardFFNs. It is 0 if no layer has experts.
	PaperExpert float64 `json:"paper_expert_ffns"`
	// PaperDense is the same for a dense layer's MLP. It is 0 if no layer is dense.
	PaperDense float64 `json:"paper_dense_ffns"`
}

// kvCache is the key-value cache of one sequence.
type kvCache struct {
	DType         tensor.DType `json:"dtype"`           // torch_dtype
	BytesPerToken int64        `json:"bytes_per_token"` // count.KVBytes
	Positions     int          `json:"positions"`       // tokens of the sequence
	Bytes         int64        `json:"bytes"`           // count.CacheOf Positions

	Parts *count.Cache `json:"parts,omitempty"` // of Bytes; absent without a window of attention
}

// windowed is what layers attend to beside a window of the latest tokens, and what else DeepSeek-V4 has.
type windowed struct {
	Window     int `json:"window"`        // sliding_window, in tokens
	Sliding    int `json:"sliding"`       // layers that attend to the window alone
	Full       int `json:"full,omitzero"` // layers that attend to all tokens
	Sparse     int `json:"sparse"`        // layers with entries of which an indexer chooses
	SparseRate int `json:"sparse_rate"`   // tokens that an entry of these stands for
	Heavy      int `json:"heavy"`         // layers that attend to all entries
	HeavyRate  int `json:"heavy_rate"`    // tokens that an entry of these stands for
	Hashes     int `json:"hashes"`        // layers that choose experts by the token
	Streams    int `json:"streams"`       // hc_mult: residual streams
}

func windowedOf(c *config.Config) *windowed {
	if !c.HasWindows() {
		return nil
	}
	w := &windowed{Window: c.Windows.SlidingWindow, SparseRate: c.Windows.CompressRateCSA,
		HeavyRate: c.Windows.CompressRateHCA, Streams: c.HyperConnections.HCMult}
	for l := range c.NumHiddenLayers {
		switch {
		case c.Overlaps(l):
			w.Sparse++
		case c.CompressRate(l) > 0:
			w.Heavy++
		case c.Window(l) > 0:
			w.Sliding++
		default:
			w.Full++
		}
		if c.Hashes(l) {
			w.Hashes++
		}
	}
	return w
}

// indexers are what chooses the keys that each token attends to.
type indexers struct {
	Keys   int   `json:"keys"`   // index_topk: keys, or entries, of a token, in each layer
	Layers int64 `json:"layers"` // layers with an indexer of their own; the others share the choice of one before

	chosen string // "keys" or "entries"
}

// choice is how many ways a gate has to route a token.
type choice struct {
	// C(n_routed_experts, num_experts_per_tok), in digits: may exceed 64 bits. Experts without weights are counted
	Combinations string  `json:"combinations"`
	Log2         float64 `json:"log2"`     // of Combinations
	Sparsity     float64 `json:"sparsity"` // num_experts_per_tok / n_routed_experts, the share of nonzero gates
	// Groups is n_group with a group-limited method, by which a token chooses from
	// TopKGroup of the groups, so that some of the combinations do not occur; 0 without
	// groups.
	Groups    int `json:"groups,omitempty"`
	TopKGroup int `json:"topk_group,omitempty"` // topk_group; 0 without groups

	gates int // experts that a gate chooses from, those without weights among them
}

// Describe works out what c implies, with the weights w. seq is the number of positions that attention
// and the KV cache are given for; 0 is max_position_embeddings.
func Describe(path string, c *config.Config, w Weights, seq int) *Arch {
	if seq == 0 {
		seq = c.RoPE.MaxPositionEmbeddings
	}
	counts := count.Modules(c)
	total := counts.Sum()
	total.Module = "total"
	d := table.TorchDType(c)
	a := &Arch{Path: path, ModelType: c.ModelType, Layers: layersOf(c), Experts: expertsOf(c),
		Total: moduleCount(total), Assumed: c.TorchDType == ""}
	if n := count.Combinations(c); n != nil {
		a.Choice = &choice{Combinations: n.String(), Log2: log2(n), gates: c.Choices(),
			Sparsity: float64(c.MoE.NumExpertsPerTok) / float64(c.Choices())}
		if c.LimitsGroups() && c.Router.NGroup > c.Router.TopKGroup {
			a.Choice.Groups, a.Choice.TopKGroup = c.Router.NGroup, c.Router.TopKGroup
		}
	}
	if c.HasIndexer() {
		a.Indexers = &indexers{c.Indexer.IndexTopK, count.Indexers(c), "keys"}
		if c.Windowed() {
			a.Indexers.chosen = "entries"
		}
	}
	for _, x := range counts {
		a.Modules = append(a.Modules, moduleCount(x))
	}
	if mtp := moduleCount(count.MTP(c)); mtp.Tensors > 0 {
		a.MTP = &mtp
	}
	a.Activated = activatedCounts{total.Activated, counts.Sum(table.Embedding).Activated,
		counts.Sum(table.Embedding, table.Head).Activated}
	a.Weights = w.or(c).sum()
	if c.BlockOnly() {
		a.Forward = forwardFLOPs{Matmul: 2 * total.MACs, Total: 2 * total.MACs}
		a.LeftOut = leftOut(c, "its parameters, FLOPs and KV cache are not counted")
		if c.MoE.ZeroExperts > 0 {
			a.LeftOut += "; a token that chooses experts without weights uses fewer parameters"
		}
		return a
	}
	attention := 2 * count.AttentionMACs(c, seq)
	a.Forward = forwardFLOPs{seq, 2 * total.MACs, attention, 2*total.MACs + attention}
	a.Training = &trainingFLOPs{Positions: seq, Exact: 3 * float64(seq) * float64(a.Forward.Total),
		Paper: count.PaperModelOf(c, seq).FLOPs()}
	if a.Layers.MoE > 0 {
		a.Training.PaperExpert = count.StandardFFNs(c.MoE.MoEIntermediateSize, c.HiddenSize)
	}
	if a.Layers.Dense > 0 {
		a.Training.PaperDense = count.StandardFFNs(c.IntermediateSize, c.HiddenSize)
	}
	cache := count.CacheOf(c, int64(seq))
	a.KVCache = &kvCache{DType: d, BytesPerToken: count.KVBytes(c), Positions: seq, Bytes: cache.Sum()}
	if a.Windowed = windowedOf(c); a.Windowed != nil {
		a.KVCache.Parts = &cache
	}
	return a
}

// leftOut says of a model whose attention is not computed what is not counted.
func leftOut(c *config.Config, what string) string {
	return fmt.Sprintf("attention is not computed for %s: %s", c.ModelType, what)
}

func moduleCount(x count.Total) moduleTotal {
	return moduleTotal{string(x.Module), x.Tensors, x.Parameters, x.Activated, 2 * x.MACs}
}

// log2 returns the logarithm of a number of any size.
func log2(n *big.Int) float64 {
	mantissa := new(big.Float)
	exp := new(big.Float).SetInt(n).MantExp(mantissa)
	m, _ := mantissa.Float64()
	return math.Log2(m) + float64(exp)
}

// Sheet is a row per module, the total last.
func (a *Arch) Sheet() *text.Sheet {
	s := text.NewSheet("module", ">tensors", ">parameters", ">activated", ">flops_per_token")
	for _, x := range append(a.Modules, a.Total) {
		s.Row(x.Module, x.Tensors, x.Parameters, x.Activated, x.FLOPsPerToken)
	}
	return s
}

// WriteText writes the table of modules and a line per derived number.
func (a *Arch) WriteText(w io.Writer) error {
	fmt.Fprintf(w, "%s: %s, %d layers (%s)\n\n", text.Word(a.Path), a.ModelType, a.Layers.Total, a.Layers.kinds())
	t := text.Table{Align: "lrrrrr"}
	t.Add("MODULE", "TENSORS", "PARAMETERS", "SHARE", "ACTIVATED", "FLOP A TOKEN")
	for _, x := range append(a.Modules, a.Total) {
		t.Add(x.Module, text.Grouped(x.Tensors), text.Grouped(x.Parameters), text.Percent(x.Parameters, a.Total.Parameters),
			text.Grouped(x.Activated), text.Grouped(x.FLOPsPerToken))
	}
	t.Add("without embed_tokens", "", "", "", text.Grouped(a.Activated.WithoutEmbedding), "")
	t.Add("without embed_tokens, lm_head", "", "", "", text.Grouped(a.Activated.WithoutEmbeddingAndHead), "")
	t.WriteText(w)
	fmt.Fprintln(w)
	return a.facts().WriteText(w)
}

// facts are the lines of derived numbers.
func (a *Arch) facts() *text.Table {
	t := &text.Table{Align: "ll"}
	add := func(name, format string, args ...any) { t.Add(name, fmt.Sprintf(format, args...)) }
	add("weights", "%s %s", text.Bytes(a.Weights.Bytes), a.Weights)
	if a.LeftOut == "" {
		a.ofAttention(add)
	} else {
		add("forward", "%s a token, without attention", text.FLOP(float64(a.Forward.Total)))
		add("left out", "%s", a.LeftOut)
	}
	add("experts", "%s", a.Experts)
	if w := a.Windowed; w != nil && w.Hashes > 0 {
		add("", "%s of them chosen by a table of tokens", text.Plural(w.Hashes, "layer"))
	}
	if c := a.Choice; c != nil {
		add("routing", "%d of %d gates are not zero (%.2f %%)", a.Experts.PerToken, c.gates, 100*c.Sparsity)
		add("choices", "C(%d,%d) = %s2^%.1f sets of experts in each MoE layer", c.gates, a.Experts.PerToken,
			digits(c.Combinations), c.Log2)
		if c.Groups > 0 {
			add("", "fewer of them occur: a token chooses from %d of %d groups", c.TopKGroup, c.Groups)
		}
	}
	if a.MTP != nil {
		add("MTP", "%s parameters in %s for multi-token prediction, not part of the forward pass and not counted above",
			text.Grouped(a.MTP.Parameters), text.Plural(a.MTP.Tensors, "tensor"))
	}
	return t
}

// ofAttention adds the lines of what attention is part of.
func (a *Arch) ofAttention(add func(name, format string, args ...any)) {
	add("forward", "%s a token, %s of it attention over %s positions", text.FLOP(float64(a.Forward.Total)),
		text.FLOP(float64(a.Forward.Attention)), text.Grouped(a.Forward.Positions))
	add("training", "%s for a sequence of %s, 3 times forward", text.FLOP(a.Training.Exact),
		text.Plural(a.Training.Positions, "token"))
	sizes := ""
	if a.Training.PaperExpert > 0 {
		sizes = ", an expert " + fraction(a.Training.PaperExpert) + " of it"
	}
	if a.Training.PaperDense > 0 {
		sizes += ", a dense layer " + fraction(a.Training.PaperDense)
	}
	add("", "%s as the paper counts: no router, FFN 8·d²%s", text.FLOP(a.Training.Paper), sizes)
	k := a.KVCache
	add("KV cache", "%s bytes a token in %s, %s for %s positions%s", text.Grouped(k.BytesPerToken), k.DType,
		text.Bytes(k.Bytes), text.Grouped(k.Positions), assumed(a.Assumed))
	if x := k.Parts; x != nil {
		add("", "%s of windows, %s of entries, %s of indexers' keys", text.Bytes(x.Window), text.Bytes(x.Entries),
			text.Bytes(x.Indexer))
	}
	if w := a.Windowed; w != nil && w.SparseRate == 0 {
		add("attention", "the last %s in %s, all in %d", text.Plural(w.Window, "token"), text.Plural(w.Sliding, "layer"),
			w.Full)
	} else if w != nil {
		add("attention", "the last %s; entries of %s in %s, of %s in %d; %d without entries",
			text.Plural(w.Window, "token"), text.Plural(w.SparseRate, "token"), text.Plural(w.Sparse, "layer"),
			text.Grouped(w.HeavyRate), w.Heavy, w.Sliding)
	}
	if w := a.Windowed; w != nil && w.Streams > 0 {
		add("streams", "%d residual streams, mixed before and after attention and experts", w.Streams)
	}
	if x := a.Indexers; x != nil {
		add("indexers", "%d, each token attends to the %s %s that one chooses", x.Layers, text.Grouped(x.Keys), x.chosen)
	}
}

// fraction returns a whole number as it is, and one below 1 as 1/n.
func fraction(n float64) string {
	if n < 1 {
		return fmt.Sprintf("1/%.0f", 1/n)
	}
	return fmt.Sprintf("%.0f", n)
}

// maxDigits is the longest number of combinations that text spells out.
const maxDigits = 40

// digits returns "74,974,368 = ", or nothing if the number is too long to read.
func digits(combinations string) string {
	if len(combinations) > maxDigits {
		return ""
	}
	return text.GroupDigits(combinations) + " = "
}
