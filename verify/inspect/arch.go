package inspect

import (
	"fmt"
	"io"
	"math"
	"math/big"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/tensor"
)

// Arch is what a config implies, exactly and with no weight at hand.
type Arch struct {
	Path      string          `json:"path"`
	ModelType string          `json:"model_type"`
	Layers    *Layers         `json:"layers"`
	Modules   []ModuleCount   `json:"modules"`
	Total     ModuleCount     `json:"total"`
	Activated ActivatedCounts `json:"activated"`
	Weights   WeightBytes     `json:"weights"`
	Forward   ForwardFLOPs    `json:"flops_per_token"`
	Training  TrainingFLOPs   `json:"training_flops"`
	KVCache   KVCache         `json:"kv_cache"`
	Experts   *Experts        `json:"experts,omitempty"` // absent if the model is dense
	Choice    *Choice         `json:"choice,omitempty"`  // absent if the model is dense
	MTP       *ModuleCount    `json:"mtp,omitempty"`     // prediction layers, not part of the forward pass nor of Total
	Assumed   bool            `json:"dtype_assumed"`     // the config has no torch_dtype, so that it is taken for F32
}

// ModuleCount is one module over all layers.
type ModuleCount struct {
	Module        string `json:"module"`
	Tensors       int64  `json:"tensors"`
	Parameters    int64  `json:"parameters"`
	Activated     int64  `json:"activated"`       // parameters that one token uses
	FLOPsPerToken int64  `json:"flops_per_token"` // of its matrix products: 2 · activated matrix elements
}

// ActivatedCounts are the parameters that one token uses, by what is counted.
type ActivatedCounts struct {
	All                     int64 `json:"all"`
	WithoutEmbedding        int64 `json:"without_embedding"`
	WithoutEmbeddingAndHead int64 `json:"without_embedding_and_head"`
}

// WeightBytes is the size of all weights in one dtype.
type WeightBytes struct {
	DType tensor.DType `json:"dtype"` // torch_dtype
	Bytes int64        `json:"bytes"`
}

// ForwardFLOPs are the floating point operations of one token's forward pass, two
// per multiply-add: matrix products with the activated weights, router and head
// included, and the attention of the last of Positions tokens, 4 · Positions · heads ·
// head_dim a layer. Norms, softmax, activations and biases are not counted.
type ForwardFLOPs struct {
	Positions int   `json:"positions"`
	Matmul    int64 `json:"matmul"`
	Attention int64 `json:"attention"`
	Total     int64 `json:"total"`
}

// TrainingFLOPs are the floating point operations of training on one sequence, counted
// in two ways, both as three forward passes: one forward, two for the backward.
type TrainingFLOPs struct {
	Positions int     `json:"positions"`
	Exact     float64 `json:"exact"` // 3 · Positions · ForwardFLOPs.Total, rounded only beyond 2^53
	Paper     float64 `json:"paper"` // model.PaperModel.FLOPs, the convention of the DeepSeekMoE paper's tables
	// What the paper's convention takes the FFNs for, in standard FFNs of 8·d²: see
	// model.StandardFFNs. One that no layer has is 0.
	PaperExpert float64 `json:"paper_expert_ffns"`
	PaperDense  float64 `json:"paper_dense_ffns"`
}

// KVCache is the key-value cache of one sequence.
type KVCache struct {
	DType         tensor.DType `json:"dtype"` // torch_dtype
	BytesPerToken int64        `json:"bytes_per_token"`
	Positions     int          `json:"positions"`
	Bytes         int64        `json:"bytes"`
}

// Choice is how many ways a gate has to route a token.
type Choice struct {
	Combinations string  `json:"combinations"` // C(n_routed_experts, num_experts_per_tok), in digits: it can exceed 64 bits
	Log2         float64 `json:"log2"`
	Sparsity     float64 `json:"sparsity"` // num_experts_per_tok / n_routed_experts, the share of gates that are not zero
	// With a group-limited method a token chooses from TopKGroup of Groups groups, and
	// some of the combinations do not occur; 0 without groups.
	Groups    int `json:"groups,omitempty"`
	TopKGroup int `json:"topk_group,omitempty"`
}

// Describe works out what c implies. seq is the number of positions that attention
// and the KV cache are given for; 0 is max_position_embeddings.
func Describe(path string, c *config.Config, seq int) *Arch {
	if seq == 0 {
		seq = c.MaxPositionEmbeddings
	}
	counts := model.CountModules(c)
	total := counts.Sum()
	total.Module = "total"
	d := model.TorchDType(c)
	a := &Arch{Path: path, ModelType: c.ModelType, Layers: layersOf(c), Experts: expertsOf(c), Choice: choiceOf(c),
		Total: moduleCount(total), Assumed: c.TorchDType == ""}
	for _, x := range counts {
		a.Modules = append(a.Modules, moduleCount(x))
	}
	if mtp := moduleCount(model.CountMTP(c)); mtp.Tensors > 0 {
		a.MTP = &mtp
	}
	a.Activated = ActivatedCounts{total.Activated, counts.Sum(model.Embedding).Activated, counts.Sum(model.Embedding, model.Head).Activated}
	a.Weights = WeightBytes{d, total.Parameters * int64(d.Bits()) / 8}
	attention := 2 * model.AttentionMACs(c, seq)
	a.Forward = ForwardFLOPs{seq, 2 * total.MACs, attention, 2*total.MACs + attention}
	a.Training = trainingOf(c, a.Forward)
	a.KVCache = KVCache{d, model.KVBytes(c), seq, model.KVBytes(c) * int64(seq)}
	return a
}

func moduleCount(x model.Count) ModuleCount {
	return ModuleCount{string(x.Module), x.Tensors, x.Parameters, x.Activated, 2 * x.MACs}
}

func trainingOf(c *config.Config, forward ForwardFLOPs) TrainingFLOPs {
	t := TrainingFLOPs{Positions: forward.Positions, Exact: 3 * float64(forward.Positions) * float64(forward.Total),
		Paper: model.PaperModelOf(c, forward.Positions).FLOPs()}
	layers := layersOf(c)
	if layers.MoE > 0 {
		t.PaperExpert = model.StandardFFNs(c.MoEIntermediateSize, c.HiddenSize)
	}
	if layers.Dense > 0 {
		t.PaperDense = model.StandardFFNs(c.IntermediateSize, c.HiddenSize)
	}
	return t
}

func choiceOf(c *config.Config) *Choice {
	n := model.Combinations(c)
	if n == nil {
		return nil
	}
	choice := &Choice{Combinations: n.String(), Log2: log2(n), Sparsity: float64(c.NumExpertsPerTok) / float64(c.NRoutedExperts)}
	if c.NGroup > c.TopKGroup {
		choice.Groups, choice.TopKGroup = c.NGroup, c.TopKGroup
	}
	return choice
}

// log2 returns the logarithm of a number of any size.
func log2(n *big.Int) float64 {
	mantissa := new(big.Float)
	exp := new(big.Float).SetInt(n).MantExp(mantissa)
	m, _ := mantissa.Float64()
	return math.Log2(m) + float64(exp)
}

// WriteText writes the table of modules and a line per derived number.
func (a *Arch) WriteText(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "%s: %s, %s\n\n", plain(a.Path), a.ModelType, a.layers()); err != nil {
		return err
	}
	modules, facts := a.moduleTable(), a.factTable()
	if err := modules.write(w); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	return facts.write(w)
}

func (a *Arch) layers() string {
	return fmt.Sprintf("%d layers (%d dense, %d MoE)", a.Layers.Total, a.Layers.Dense, a.Layers.MoE)
}

func (a *Arch) moduleTable() *table {
	t := &table{align: "lrrrrr"}
	t.add("MODULE", "TENSORS", "PARAMETERS", "SHARE", "ACTIVATED", "FLOP A TOKEN")
	for _, x := range append(a.Modules, a.Total) {
		t.add(x.Module, grouped(x.Tensors), grouped(x.Parameters), percent(x.Parameters, a.Total.Parameters),
			grouped(x.Activated), grouped(x.FLOPsPerToken))
	}
	t.add("without embed_tokens", "", "", "", grouped(a.Activated.WithoutEmbedding), "")
	t.add("without embed_tokens, lm_head", "", "", "", grouped(a.Activated.WithoutEmbeddingAndHead), "")
	return t
}

func (a *Arch) factTable() *table {
	t := &table{align: "ll"}
	t.add("weights", fmt.Sprintf("%s in %s", iec(a.Weights.Bytes), a.dtype()))
	t.add("forward", fmt.Sprintf("%s a token, %s of it attention over %s positions",
		flop(a.Forward.Total), flop(a.Forward.Attention), grouped(a.Forward.Positions)))
	t.add("training", fmt.Sprintf("%s for a sequence of %s, 3 times forward", flop(a.Training.Exact), plural(a.Training.Positions, "token")))
	t.add("", fmt.Sprintf("%s as the paper counts: no router, FFN 8·d²%s", flop(a.Training.Paper), a.Training.idealised()))
	t.add("KV cache", fmt.Sprintf("%s bytes a token in %s, %s for %s positions",
		grouped(a.KVCache.BytesPerToken), a.KVCache.DType, iec(a.KVCache.Bytes), grouped(a.KVCache.Positions)))
	t.add("experts", a.Experts.String())
	if a.Choice != nil {
		t.add("routing", fmt.Sprintf("%d of %d gates are not zero (%.2f %%)", a.Experts.PerToken, a.Experts.Routed, 100*a.Choice.Sparsity))
		t.add("choices", fmt.Sprintf("C(%d,%d) = %s2^%.1f sets of experts in each MoE layer",
			a.Experts.Routed, a.Experts.PerToken, a.Choice.digits(), a.Choice.Log2))
		if a.Choice.Groups > 0 {
			t.add("", fmt.Sprintf("fewer of them occur: a token chooses from %d of %d groups", a.Choice.TopKGroup, a.Choice.Groups))
		}
	}
	if a.MTP != nil {
		t.add("MTP", fmt.Sprintf("%s parameters in %s for multi-token prediction, not part of the forward pass and not counted above",
			grouped(a.MTP.Parameters), plural(int(a.MTP.Tensors), "tensor")))
	}
	return t
}

// idealised returns ", an expert 1/4 of it, a dense layer 2".
func (t TrainingFLOPs) idealised() (text string) {
	if t.PaperExpert > 0 {
		text = ", an expert " + fraction(t.PaperExpert) + " of it"
	}
	if t.PaperDense > 0 {
		text += ", a dense layer " + fraction(t.PaperDense)
	}
	return text
}

// fraction returns a whole number as it is, and one below 1 as 1/n.
func fraction(n float64) string {
	if n < 1 {
		return fmt.Sprintf("1/%.0f", 1/n)
	}
	return fmt.Sprintf("%.0f", n)
}

func (a *Arch) dtype() string {
	if a.Assumed {
		return a.Weights.DType.String() + " (assumed: the config has no torch_dtype)"
	}
	return a.Weights.DType.String()
}

// maxDigits is the longest number of combinations that text spells out.
const maxDigits = 40

// digits returns "74,974,368 = ", or nothing if the number is too long to read.
func (c *Choice) digits() string {
	if len(c.Combinations) > maxDigits {
		return ""
	}
	return groupDigits(c.Combinations) + " = "
}
