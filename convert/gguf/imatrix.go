package gguf

// Importance matrices as llama.cpp's imatrix writes them: GGUF files of today, and the .dat files of
// before. common/imatrix-loader.cpp and load_imatrix of tools/quantize/quantize.cpp.

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"dsmoe/convert/format"
	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// Imatrix is an importance matrix whose values are read where they are needed. It is safe for concurrent
// use.
type Imatrix struct {
	format.Imatrix
	r       io.ReaderAt
	entries map[string]importance
}

// importance is the entry of a tensor: sums of squares of activations, of each column, and how many were
// added, of each matrix of the tensor.
type importance struct {
	offset int64
	n      int       // sums
	counts []float32 // at least one; the sums of a matrix of count 0 are importance 1, or in .dat files themselves
	old    bool
}

// The suffixes of the tensors of an entry, and the keys that a file must have.
const (
	sumsSuffix   = ".in_sum2"
	countsSuffix = ".counts"
	datasetsKey  = "imatrix.datasets"
	chunksKey    = "imatrix.chunk_count"
	chunkSizeKey = "imatrix.chunk_size"
)

// ReadImatrix reads the table of an importance matrix and checks every value: none is negative, infinite
// or NaN. file is the name for errors and keys. An error is a *problem.Error, or several of them joined.
func ReadImatrix(r io.ReaderAt, size int64, file string) (*Imatrix, error) {
	m := &Imatrix{Imatrix: format.Imatrix{File: file}, r: r, entries: map[string]importance{}}
	head := make([]byte, len(magic))
	if n, err := r.ReadAt(head, 0); n < len(head) && err != io.EOF {
		return nil, problem.System(file, "first bytes", err)
	}
	read := m.readOld
	if string(head) == magic {
		read = m.readGGUF
	}
	if err := read(size); err != nil {
		return nil, err
	}
	m.Entries = len(m.entries)
	return m, nil
}

// fail is an error of the file, or of one entry.
func (m *Imatrix) fail(name, cause string, args ...any) error {
	return problem.In(m.File, problem.Problem{Tensor: name, Cause: fmt.Sprintf(cause, args...)})
}

// readGGUF reads a file of today.
func (m *Imatrix) readGGUF(size int64) error {
	h, err := readHeader(m.r, size, m.File)
	if err != nil {
		return err
	}
	for _, key := range []string{datasetsKey, chunksKey, chunkSizeKey} {
		if _, known := h.values[key]; !known {
			return m.fail("", "is no importance matrix: key %s is missing", key)
		}
	}
	if texts := h.values[datasetsKey].many; len(texts) > 0 {
		m.Dataset, _ = texts[0].(string)
	}
	chunks, _ := h.values[chunksKey].one.(uint64)
	m.Chunks = int(chunks)
	var wrong []error
	for _, e := range h.Entries {
		name, sums := strings.CutSuffix(e.Info.Name, sumsSuffix)
		other := name + countsSuffix
		if !sums {
			if name, sums = strings.CutSuffix(e.Info.Name, countsSuffix); !sums {
				continue
			}
			other = name + sumsSuffix
		}
		if _, _, both := h.Lookup(other); !both {
			wrong = append(wrong, m.fail(e.Info.Name, "has no %s beside it", text.Quote(other)))
		} else if strings.HasSuffix(e.Info.Name, sumsSuffix) {
			wrong = append(wrong, m.addGGUF(h, name))
		}
	}
	if len(m.entries) == 0 && wrong == nil {
		return m.fail("", "is no importance matrix: no tensor is named …%s", sumsSuffix)
	}
	return errors.Join(wrong...)
}

// addGGUF adds the entry of a tensor.
func (m *Imatrix) addGGUF(h *Header, name string) error {
	sums, offset, _ := h.Lookup(name + sumsSuffix)
	counts, at, _ := h.Lookup(name + countsSuffix)
	if sums.DType != tensor.F32 || counts.DType != tensor.F32 {
		return m.fail(name, "sums are %s and counts %s, not F32", sums.DType, counts.DType)
	}
	e := importance{offset: offset, n: sums.Len(), counts: make([]float32, counts.Len())}
	if err := m.floats(e.counts, at); err != nil {
		return err
	}
	if e.n == 0 || len(e.counts) == 0 || e.n%len(e.counts) != 0 {
		return m.fail(name, "%d sums for %d counts", e.n, len(e.counts))
	}
	for i, c := range e.counts {
		if !(c >= 0) || c > math.MaxInt32 {
			return m.fail(name, "count %d is %v", i, c)
		}
		e.counts[i] = float32(math.Round(float64(c)))
	}
	return m.add(name, e)
}

// readOld reads a .dat file: a number of entries, each with its name, calls and values; then, in newer
// ones, the chunks and the name of the text.
func (m *Imatrix) readOld(size int64) error {
	r := oldReader{m, 0, size}
	return format.Parse(func() {
		entries := r.number()
		if entries < 1 {
			r.fail("", "is no importance matrix: %d entries", entries)
		}
		for range entries {
			name, calls, n := r.word(), r.number(), r.number()
			if n < 1 || int64(n) > (size-r.at)/4 {
				r.fail(name, "%d values, but %s are left: it is no importance matrix, or is cut off", n, text.Bytes(size-r.at))
			}
			counts := []float32{float32(max(calls, 0))}
			if err := m.add(name, importance{offset: r.at, n: int(n), counts: counts, old: true}); err != nil {
				format.Fail(err)
			}
			r.at += 4 * int64(n)
		}
		if r.at == size {
			return
		}
		m.Chunks = int(r.number())
		if r.at < size {
			m.Dataset = r.word()
		}
		if r.at != size {
			r.fail("", "%s follow the last entry", text.Plural(int(size-r.at), "byte"))
		}
	})
}

// oldReader reads a .dat file from its begin to its end.
type oldReader struct {
	m        *Imatrix
	at, size int64
}

// fail ends the reading.
func (r *oldReader) fail(name, cause string, args ...any) {
	format.Fail(r.m.fail(name, cause, args...))
}

func (r *oldReader) number() int32 {
	var b [4]byte
	if _, err := r.m.r.ReadAt(b[:], r.at); err != nil {
		r.fail("", "is no importance matrix, or is cut off at byte %d", r.at)
	}
	r.at += int64(len(b))
	return int32(binary.LittleEndian.Uint32(b[:]))
}

// word reads a name behind its length. Bytes behind a NUL are no part of it.
func (r *oldReader) word() string {
	n := r.number()
	if n < 0 || n > maxKey || int64(n) > r.size-r.at {
		r.fail("", "is no importance matrix: a name of %d bytes at byte %d", n, r.at)
	}
	b := make([]byte, n)
	if _, err := r.m.r.ReadAt(b, r.at); err != nil && err != io.EOF {
		format.Fail(problem.System(r.m.File, "a name", err))
	}
	r.at += int64(n)
	name, _, _ := strings.Cut(string(b), "\x00")
	return name
}

// add adds an entry after looking at all its values.
func (m *Imatrix) add(name string, e importance) error {
	if _, twice := m.entries[name]; twice {
		return m.fail(name, "occurs twice")
	}
	var room [4096]float32
	for first := 0; first < e.n; first += len(room) {
		part := room[:min(len(room), e.n-first)]
		if err := m.floats(part, e.offset+4*int64(first)); err != nil {
			return err
		}
		for i, v := range part {
			if !(v >= 0) || math.IsInf(float64(v), 0) {
				return m.fail(name, "value %d is %v: an importance is neither negative, infinite nor NaN", first+i, v)
			}
		}
	}
	m.entries[name] = e
	return nil
}

// floats reads float32 numbers at an offset.
func (m *Imatrix) floats(dst []float32, offset int64) error {
	b := make([]byte, 4*len(dst))
	if _, err := m.r.ReadAt(b, offset); err != nil {
		return problem.System(m.File, "values", err)
	}
	for i := range dst {
		dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return nil
}

// Len returns the number of values of a tensor, 0 without an entry.
func (m *Imatrix) Len(name string) int { return m.entries[name].n }

// Importance sets dst to the importance of columns of a tensor with an entry, from value first on, which
// are all of one matrix: the mean of the squares.
func (m *Imatrix) Importance(dst []float32, name string, first int) error {
	e := m.entries[name]
	if err := m.floats(dst, e.offset+4*int64(first)); err != nil {
		return err
	}
	for i := range dst {
		switch count := e.counts[(first+i)/(e.n/len(e.counts))]; {
		case count > 0:
			dst[i] /= count
		case !e.old:
			dst[i] = 1
		}
	}
	return nil
}

// importanceKeys writes the keys that llama.cpp's quantiser adds; m may be nil.
func (w *keyWriter) importanceKeys(m *format.Imatrix) {
	if m == nil {
		return
	}
	const most = 127 // bytes of a text, as llama.cpp's kv_override has them
	w.put("quantize.imatrix.file", m.File[:min(len(m.File), most)])
	if m.Dataset != "" {
		w.put("quantize.imatrix.dataset", m.Dataset[:min(len(m.Dataset), most)])
	}
	w.put("quantize.imatrix.entries_count", uint32(m.Entries))
	if m.Chunks > 0 {
		w.put("quantize.imatrix.chunks_count", uint32(m.Chunks))
	}
}
