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
	"dsmoe/model/tensor"
	"dsmoe/text"
)

// FitReport lists the types of GGUF files with which a model fits into a memory.
type FitReport struct {
	Path      string       `json:"path"`       // of the config, as the user gave it
	ModelType string       `json:"model_type"` // the family
	DType     tensor.DType `json:"dtype"`      // torch_dtype: of cache and activations
	Memory    int64        `json:"memory"`     // bytes that weights, cache and activations may take
	Context   int          `json:"context"`    // tokens of a sequence that a type must leave room for
	Batch     int          `json:"batch"`      // sequences at once
	Fits      []fit        `json:"fits"`       // types that fit, with the longest context; most bytes of weights first
	TooLarge  []fit        `json:"too_large"`  // types that do not, with Context tokens
}

// fit is what a model takes with one type of weights, in bytes.
type fit struct {
	Type    string `json:"type"`     // convert --type
	Context int    `json:"context"`  // tokens of a sequence
	Weights int64  `json:"weights"`  // of the GGUF file, prediction layers left out
	KVCache int64  `json:"kv_cache"` // as MemoryReport has it
	Prefill int64  `json:"prefill"`  // as MemoryReport has it
	Total   int64  `json:"total"`    // Weights + KVCache + Prefill
}

// FitOf works out for each type of weights, which types yields with the bytes of the weights, whether the model c fits
// into so many bytes of memory with batch sequences of context tokens, and then the longest context that fits, up to
// max_position_embeddings. 0 is a context of 4,096 tokens, or max_position_embeddings if that is less.
func FitOf(path string, c *config.Config, types map[string]Weights, memory int64, context, batch int) (*FitReport, error) {
	context = cmp.Or(context, min(4096, c.RoPE.MaxPositionEmbeddings))
	r := &FitReport{Path: path, ModelType: c.ModelType, DType: table.TorchDType(c), Memory: memory, Context: context, Batch: batch,
		Fits: []fit{}, TooLarge: []fit{}}
	for name, w := range types {
		m := &MemoryReport{Weights: w.sum()}
		take := func(context int) (fit, error) {
			row, err := m.row(c, int64(context), int64(batch))
			return fit{name, context, row.Weights, row.KVCache, row.Prefill, row.Total}, err
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
	return r, nil
}

// Passes reports whether a type fits.
func (r *FitReport) Passes(inspect.Level) bool { return len(r.Fits) > 0 }

// Sheet is a row for each type that fits.
func (r *FitReport) Sheet() *text.Sheet {
	s := text.NewSheet("type", ">context", ">weights", ">kv_cache", ">prefill", ">total")
	for _, f := range r.Fits {
		s.Row(f.Type, f.Context, text.Size(f.Weights), text.Size(f.KVCache), text.Size(f.Prefill), text.Size(f.Total))
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
		fmt.Fprintln(w, "\ncontext is the longest that fits, up to max_position_embeddings; cache and activations are in "+r.DType.String())
	}
	return r.WriteNotes(w)
}

// WriteNotes writes the types that do not fit.
func (r *FitReport) WriteNotes(w io.Writer) error {
	if len(r.TooLarge) == 0 {
		return nil
	}
	var list []string
	for _, f := range r.TooLarge {
		list = append(list, f.Type+" ("+text.Bytes(f.Total)+")")
	}
	_, err := fmt.Fprintln(w, "too large: "+strings.Join(list, ", "))
	return err
}
