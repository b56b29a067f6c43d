package verify

import (
	"bytes"
	"errors"
	"iter"
	"slices"
	"strings"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
)

// storedWeights are the weights of the source as they are stored, under the names of the table.
type storedWeights struct {
	*weights.Set
	source  weights.Source
	config  *config.Config
	pages   model.Pages // what the source is mapped into; may be nil
	decoded Decoded     // what the source knows of weights that it decodes; may be nil
}

// required yields the weights that the checkpoint must hold.
func (s *storedWeights) required() iter.Seq[table.Slot] {
	return table.FamilyOf(s.config).Required(s.config, s.Has)
}

// forms are the dtypes that a weight is stored in: of one that is made of keys' and of values' rows those of both.
func (s *storedWeights) forms(name string) []string {
	w := s.Find(name)
	if w == nil {
		return nil
	}
	if from := s.decodedFrom(w); from != "" {
		return strings.Split(from, " and ")
	}
	return []string{w.DType.String()}
}

// decodedFrom returns the dtypes that a weight is decoded from.
func (s *storedWeights) decodedFrom(w *weights.Weight) string {
	if s.decoded == nil {
		return ""
	}
	return s.decoded.DecodedFrom(w.Stored)
}

// sameBytes reports whether two weights have the same shape, dtype and bytes.
func (s *storedWeights) sameBytes(a, b *weights.Weight) (bool, error) {
	if a.DType != b.DType || a.Bytes() != b.Bytes() {
		return false, nil
	}
	next, stop := iter.Pull2(s.pieces(b))
	defer stop()
	for x, err := range s.pieces(a) {
		y, errB, _ := next()
		if err := errors.Join(err, errB); err != nil || !bytes.Equal(x, y) {
			return false, err
		}
	}
	return true, nil
}

// sameNumbers reports whether two matrices hold the same numbers, in whatever dtypes.
func (s *storedWeights) sameNumbers(a, b *weights.Weight) (bool, error) {
	if a.DType == b.DType || a.Scaled() || b.Scaled() || !slices.Equal(a.Shape, b.Shape) {
		return s.sameBytes(a, b)
	}
	next, stop := iter.Pull2(s.rowsOf(b))
	defer stop()
	for x, err := range s.rowsOf(a) {
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
func (s *storedWeights) rowsOf(w *weights.Weight) iter.Seq2[[]float32, error] {
	return func(yield func([]float32, error) bool) {
		width := w.Shape[len(w.Shape)-1]
		size := int(w.DType.Bytes(int64(width)))
		var rest []byte // the begin of a row
		var values []float32
		for data, err := range s.pieces(w) {
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

// pieceSize is the bytes that are read at once of a weight that cannot be viewed.
const pieceSize = 1 << 20

// pieces yields the bytes of a weight: all at once, or where it has no view in parts.
func (s *storedWeights) pieces(w *weights.Weight) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		u, unviewed := w.AsUnviewed(s.source)
		if !unviewed {
			x, err := w.View(s.source)
			if yield(x.Data, err); s.pages != nil && len(x.Data) > 0 {
				s.pages.DontNeed(x.Data)
			}
			return
		}
		size := w.DType.Bytes(w.DType.Elements(pieceSize))
		if w.Places != nil { // which each reading reads whole
			size = w.Bytes()
		}
		buffer := make([]byte, min(w.Bytes(), size))
		for at := int64(0); at < w.Bytes(); at += int64(len(buffer)) {
			part := buffer[:min(int64(len(buffer)), w.Bytes()-at)]
			if err := w.ReadAt(u, part, at); !yield(part, err) {
				return
			}
		}
	}
}
