package verify

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text"
)

// Stored tensors that contradict config.json, and what the model computes with in their place.

// findContradictions returns a line for each of them.
func (j *job) findContradictions() (lines []string, err error) {
	lines = []string{}
	head, embedding := j.weights.Find(table.HeadName), j.weights.Find(embeddingName)
	if c := j.model.Config; table.UsesStoredHead(c, j.weights.Has) && isRead(head) && isRead(embedding) {
		same, err := j.sameNumbers(head, embedding)
		if err != nil {
			return nil, err
		}
		if !same {
			lines = append(lines, "tie_word_embeddings is true, but lm_head.weight is stored, with other numbers than "+
				"model.embed_tokens.weight: transformers computes with the stored head, and so does this verification")
		}
	}
	frequencies, err := j.storedFrequencies()
	return append(lines, frequencies...), err
}

// isRead reports whether the weight is there, in a file whose header was read.
func isRead(w *weights.Weight) bool { return w != nil && !w.Unread() }

// sameNumbers reports whether two matrices hold the same numbers, in whatever dtypes.
func (j *job) sameNumbers(a, b *weights.Weight) (bool, error) {
	if a.DType == b.DType || a.Scaled() || b.Scaled() || !slices.Equal(a.Shape, b.Shape) {
		return j.sameBytes(a, b)
	}
	next, stop := iter.Pull2(j.rowsOf(b))
	defer stop()
	for x, err := range j.rowsOf(a) {
		if err != nil {
			return false, err
		}
		if y, err, _ := next(); err != nil || !slices.Equal(x, y) {
			return false, err
		}
	}
	return true, nil
}

// rowsOf yields the numbers of a weight without scales, row by row. A row is valid until the next one.
func (j *job) rowsOf(w *weights.Weight) iter.Seq2[[]float32, error] {
	return func(yield func([]float32, error) bool) {
		width := w.Shape[len(w.Shape)-1]
		size := int(w.DType.Bytes(int64(width)))
		var rest []byte // the begin of a row
		var values []float32
		for data, err := range j.pieces(w) {
			if err != nil {
				yield(nil, err)
				return
			}
			if len(rest) > 0 {
				data = append(rest, data...)
			}
			for ; len(data) >= size; data = data[size:] {
				values, err = tensor.Tensor{DType: w.DType, Shape: []int{width}, Data: data[:size]}.Float32s(values[:0])
				if !yield(values, err) || err != nil {
					return
				}
			}
			rest = slices.Clone(data)
		}
	}
}

// storedFrequencies describes the layers whose rotary_emb.inv_freq, which transformers before 4.32 stored, is not that
// of config.json.
func (j *job) storedFrequencies() (lines []string, err error) {
	layers := map[string][]string{} // by what they hold
	var order []string
	for _, w := range j.weights.All() {
		if !strings.HasSuffix(w.Name, table.InvFreqName) || !isRead(w) || !table.HoldsFrequencies(j.model.Config, w.Info) {
			continue
		}
		for row, err := range j.rowsOf(w) {
			if err != nil {
				return nil, err
			}
			if other := table.OtherFrequencies(j.model.Config, row, w.DType); other != "" {
				if layers[other] == nil {
					order = append(order, other)
				}
				layers[other] = append(layers[other], w.Name)
			}
		}
	}
	for _, other := range order {
		names := layers[other]
		what := text.Quote(names[0])
		if len(names) > 1 {
			what += " and " + text.Plural(len(names)-1, "other")
		}
		lines = append(lines, fmt.Sprintf("%s: %s: the reference computes RoPE from config.json, and so does this verification",
			what, other))
	}
	return lines, nil
}
