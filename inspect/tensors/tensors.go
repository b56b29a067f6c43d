// Package tensors finds what is odd about the weights that are no experts: beside the same weights of other layers, and
// beside each other.
package tensors

import (
	"fmt"
	"math"
	"slices"

	"dsmoe/inspect"
	"dsmoe/inspect/matrix"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
)

// measured is a weight and its numbers.
type measured struct {
	*weights.Weight
	hash     uint64          // of all numbers in their order
	size     float64         // mean of log₂|w| over the numbers that are not 0; NaN without one
	ones     int             // numbers that are 1
	rows     []matrix.LogSum // of embedding and head; nil of others
	rank     float64         // stable rank of the first rows and columns, over the rank of random numbers; NaN if unknown
	codeBits int             // see matrix.CodeBits
}

// blockSide is how many rows and columns of a matrix are kept, for its rank.
const blockSide = 1024

// isVocabulary reports whether the rows of a weight are tokens.
func (m *measured) isVocabulary() bool {
	return slices.Contains([]table.Role{table.EmbedTokens, table.LMHead, table.SharedHeadHead}, m.Role())
}

// measure reads the weight once.
func (m *measured) measure(x *matrix.Reader) error {
	cols := 1 // of a scalar
	if n := len(m.Shape); n > 0 {
		cols = m.Shape[n-1]
	}
	var sum matrix.LogSum
	block := &matrix.Matrix{}
	if len(m.Shape) == 2 {
		block.Rows, block.Cols = min(blockSide, m.Shape[0]), min(blockSide, cols)
		block.Values = make([]float32, 0, block.Rows*block.Cols)
		if m.isVocabulary() {
			m.rows = make([]matrix.LogSum, m.Shape[0])
		}
	}
	row, col := 0, 0
	for values, err := range x.Numbers(x.Reader, m.Weight, 0, int64(m.Len())) {
		if err != nil {
			return err
		}
		for len(values) > 0 {
			part := values[:min(len(values), cols-col)]
			logs := m.add(part)
			sum.Merge(logs)
			if m.rows != nil {
				m.rows[row].Merge(logs)
			}
			if row < block.Rows && col < block.Cols {
				block.Values = append(block.Values, part[:min(len(part), block.Cols-col)]...)
			}
			if col += len(part); col == cols {
				row, col = row+1, 0
			}
			values = values[len(part):]
		}
	}
	m.size = sum.Log2()
	if len(m.Shape) == 2 && !x.Ended() {
		m.measureBlock(block)
	}
	return nil
}

// add adds numbers to the hash and to the count of ones, and returns the sum of their logarithms.
func (m *measured) add(values []float32) (logs matrix.LogSum) {
	hash := m.hash
	for _, v := range values {
		hash = matrix.Mix(hash, matrix.Bits(v))
		if v == 1 {
			m.ones++
		}
		if tensor.IsFinite(v) {
			logs.Add(v)
		}
	}
	m.hash = hash
	return logs
}

// measureBlock fills in what the first rows and columns say.
func (m *measured) measureBlock(b *matrix.Matrix) {
	if m.DType.Casts() {
		m.codeBits = matrix.CodeBits(b.Rows, b.Row)
	}
	p := matrix.Arithmetic()
	defer p.Close(nil)
	transposed, squares := make([]float32, len(b.Values)), 0.0
	b.Transpose(transposed)
	for _, v := range b.Values {
		squares += float64(v) * float64(v)
	}
	s := b.SpectralNorm(p, transposed)
	edge := math.Sqrt(float64(b.Rows)) + math.Sqrt(float64(b.Cols))
	m.rank = squares / float64(s*s) / (float64(b.Rows) * float64(b.Cols) / float64(edge*edge))
}

// about returns an observation about a weight.
func (m *measured) about(id string, value, expected *float64, format string, args ...any) inspect.Observation {
	return inspect.Observation{ID: id, Layer: m.Layer, Experts: []int{}, Tensor: m.Name,
		Text:  fmt.Sprintf(format, args...),
		Value: value, Expected: expected}
}

// byKind divides the weights of layers by module, role and shape, each kind in the order of the layers.
func byKind(all []*measured) (kinds [][]*measured) {
	known := slices.DeleteFunc(slices.Clone(all), func(m *measured) bool { return m.Layer < 0 || m.Row == nil })
	kinds = inspect.GroupBy(known, func(m *measured) string { return fmt.Sprint(m.Module(), " ", m.Role(), " ", m.Shape) })
	for _, kind := range kinds {
		slices.SortStableFunc(kind, func(a, b *measured) int { return a.Layer - b.Layer })
	}
	return kinds
}
