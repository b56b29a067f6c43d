package header

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"sort"
	"strings"

	"dsmoe/config"
	"dsmoe/inspect"
	"dsmoe/model/table"
	"dsmoe/text"
)

// FitReport lists the types of GGUF files with which a model fits into a memory.
type FitReport struct {
	Path      string `json:"path"`       // of the config, as the user gave it
	ModelType string `json:"model_type"` // the family
	Memory    int64  `json:"memory"`     // bytes that weights, cache and activations may take
	Context   int    `json:"context"`    // tokens of a sequence that a type must leave room for
	Batch     int    `json:"batch"`      // sequences at once
	Fits      []fit  `json:"fits"`       // types that fit, with the longest context; most bytes of weights first
	TooLarge  []fit  `json:"too_large"`  // types that do not, with Context tokens
	Take      string `json:"take"`       // the type with most bits of Fits, of bf16, q8_0 and types with a _k; empty if none of them fits
}

// fit is what a model takes with one type of weights, in bytes.
type fit struct {
	Type    string `json:"type"`     // convert --type
	Context int    `json:"context"`  // tokens of a sequence
	Weights int64  `json:"weights"`  // of the GGUF file, prediction layers left out
	KVCache int64  `json:"kv_cache"` // llama.cpp's, in F16
	Compute int64  `json:"compute"`  // llama.cpp's buffer of activations, estimated
	Total   int64  `json:"total"`    // Weights + KVCache + Compute
}

// FitOf works out for each type of weights, which types yields with the bytes of the weights, whether the model c fits
// into so many bytes of memory with batch sequences of context tokens, and then the longest context that fits, up to
// max_position_embeddings. 0 is a context of 4,096 tokens, or max_position_embeddings if that is less.
func FitOf(path string, c *config.Config, types map[string]Weights, memory int64, context, batch int) (*FitReport, error) {
	context = cmp.Or(context, min(4096, c.RoPE.MaxPositionEmbeddings))
	r := &FitReport{Path: path, ModelType: c.ModelType, Memory: memory, Context: context, Batch: batch,
		Fits: []fit{}, TooLarge: []fit{}}
	for name, w := range types {
		m := &MemoryReport{Weights: w.sum()}
		take := func(context int) (fit, error) {
			row, err := m.row(c, int64(context+255)/256*256, int64(batch))
			x := fit{name, context, row.Weights, row.KVCache / table.TorchDType(c).Bytes(1) * 2, compute(c, row), 0}
			x.Total = x.Weights + x.KVCache + x.Compute
			return x, err
		}
		least, err := take(context)
		if err != nil {
			return nil, fmt.Errorf("context %d with batch %d: %w", context, batch, err)
		}
		if least.Total > memory {
			r.TooLarge = append(r.TooLarge, least)
			continue
		}
		more := sort.Search(max(c.RoPE.MaxPositionEmbeddings-context, 0), func(i int) bool {
			next, err := take(context + i + 1)
			return err != nil || next.Total > memory
		})
		longest, err := take(context + more)
		if err != nil {
			return nil, err
		}
		r.Fits = append(r.Fits, longest)
	}
	for _, list := range [][]fit{r.Fits, r.TooLarge} {
		slices.SortFunc(list, func(a, b fit) int {
			return cmp.Or(cmp.Compare(b.Weights, a.Weights), cmp.Compare(a.Type, b.Type))
		})
	}
	for _, f := range r.Fits {
		if r.Take == "" && (strings.Contains(f.Type, "_k") || f.Type == "q8_0" || f.Type == "bf16") {
			r.Take = f.Type
		}
	}
	return r, nil
}

// compute estimates llama.cpp's buffer of activations, which it uses for 512 tokens at a time, in F32:
//
//	512 · (vocab_size + (hc_mult + 1)·hidden_size + widest) · 4 + 512 · tokens · 2
//	widest = the larger of num_experts_per_tok · (hidden_size + moe_intermediate_size) and 2·intermediate_size of dense layers
//
// vocab_size are the logits, and the last product is the mask of attention in F16, with indexers three times as large. The
// buffer is not a sum of these, because tensors take each other's places; with 4,096 and 32,768 tokens llama.cpp 0c1e57098
// reserves 72 to 99 % of this for ten published models, and up to a fifth more for fixtures of some 100 channels.
func compute(c *config.Config, m memory) int64 {
	hidden, tokens := int64(c.HiddenSize), int64(m.Context)*int64(m.Batch)
	widest, mask, layers := int64(0), int64(2), layersOf(c)
	if layers.MoE > 0 {
		widest = int64(c.MoE.NumExpertsPerTok) * (hidden + int64(c.MoE.MoEIntermediateSize))
	}
	if layers.Dense > 0 {
		widest = max(widest, 2*int64(c.IntermediateSize))
	}
	if c.HasIndexer() {
		mask = 6
	}
	n := min(512, tokens)
	return n*(int64(c.VocabSize)+int64(max(c.HyperConnections.HCMult, 1)+1)*hidden+widest)*4 + n*tokens*mask
}

// Passes reports whether a type fits.
func (r *FitReport) Passes(inspect.Level) bool { return len(r.Fits) > 0 }

// Sheet is a row for each type that fits.
func (r *FitReport) Sheet() *text.Sheet {
	s := text.NewSheet("type", ">context", ">weights", ">kv_cache", ">compute", ">total")
	for _, f := range r.Fits {
		s.Row(f.Type, f.Context, text.Size(f.Weights), text.Size(f.KVCache), text.Size(f.Compute), text.Size(f.Total))
	}
	return s
}

// WriteText writes the sheet, and the types that do not fit.
func (r *FitReport) WriteText(w io.Writer) error {
	n := len(r.Fits)
	fmt.Fprintf(w, "%s: %s: %d of %d types of GGUF files fit into %s of memory with a context of %s, batch %d\n", text.Word(r.Path),
		r.ModelType, n, n+len(r.TooLarge), text.Bytes(r.Memory), text.Grouped(r.Context), r.Batch)
	if n > 0 {
		fmt.Fprintln(w)
		r.Sheet().WriteAs(w, text.AsTable)
		fmt.Fprintln(w, "\ncontext is the longest that fits, up to max_position_embeddings; cache and compute buffer are those of llama.cpp")
	}
	return r.WriteNotes(w)
}

// WriteNotes writes the types that do not fit, and the one to take.
func (r *FitReport) WriteNotes(w io.Writer) error {
	var lines, list []string
	for _, f := range r.TooLarge {
		list = append(list, f.Type+" ("+text.Bytes(f.Total)+")")
	}
	if list != nil {
		lines = append(lines, "too large: "+strings.Join(list, ", ")+"\n")
	}
	if r.Take != "" {
		lines = append(lines, "take "+r.Take+": it has the most bits of bf16, q8_0 and the types with a _k that fit\n")
	}
	_, err := io.WriteString(w, strings.Join(lines, ""))
	return err
}
