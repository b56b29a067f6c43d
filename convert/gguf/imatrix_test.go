package gguf

import (
	"bytes"
	"encoding/binary"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/format"
	"dsmoe/model/tensor"
)

// imatrixFile is an importance matrix in today's form, of tensors of F32 with these values.
func imatrixFile(t *testing.T, keys []string, names []string, values ...[]float32) []byte {
	w := &keyWriter{b: make([]byte, 8)}
	for _, key := range keys {
		if key == datasetsKey {
			w.put(key, []string{"a text", "another"})
		} else {
			w.put(key, uint32(7))
		}
	}
	var infos []tensor.Info
	for i, name := range names {
		infos = append(infos, tensor.Info{Name: name, DType: tensor.F32, Shape: []int{len(values[i])}})
	}
	l, err := newLayout(infos, format.Head{Keys: w.b})
	require.NoError(t, err)
	data := append(l.Header(), make([]byte, int(l.Size())-len(l.Header()))...)
	for i, v := range values {
		for k, x := range v {
			binary.LittleEndian.PutUint32(data[int(l.Offsets[i])+4*k:], math.Float32bits(x))
		}
	}
	return data
}

// oldImatrix is one in the form before, of one entry.
func oldImatrix(entries, calls, n int32, values []float32, rest ...byte) []byte {
	b := binary.LittleEndian.AppendUint32(nil, uint32(entries))
	b = append(binary.LittleEndian.AppendUint32(b, 1), 'x')
	b = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(b, uint32(calls)), uint32(n))
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return append(b, rest...)
}

func readImatrix(data []byte) (*Imatrix, error) {
	return ReadImatrix(bytes.NewReader(data), int64(len(data)), "m")
}

var imatrixKeys = []string{datasetsKey, chunksKey, chunkSizeKey}

// TestImatrix: values are means of squares; of a matrix that nothing was counted of they are 1, or in the old
// form the sums.
func TestImatrix(t *testing.T) {
	m, err := readImatrix(imatrixFile(t, imatrixKeys, []string{"x.counts", "x.in_sum2", "odd"}, []float32{2, 0, 3.5}, []float32{2, 4, 6, 8, 9, 0}, []float32{1}))
	require.NoError(t, err)
	require.Equal(t, format.Imatrix{File: "m", Dataset: "a text", Entries: 1, Chunks: 7}, m.Imatrix)
	require.Equal(t, 6, m.Len("x"))
	require.Zero(t, m.Len("y"))
	for first, want := range map[int][]float32{0: {1, 2}, 2: {1, 1}, 4: {2.25, 0}} { // a count of 3.5 is 4
		got := make([]float32, 2)
		require.NoError(t, m.Importance(got, "x", first))
		require.Equal(t, want, got)
	}

	m, err = readImatrix(oldImatrix(1, 4, 2, []float32{2, 4}, []byte("\x09\x00\x00\x00\x04\x00\x00\x00text")...))
	require.NoError(t, err)
	require.Equal(t, format.Imatrix{File: "m", Dataset: "text", Entries: 1, Chunks: 9}, m.Imatrix)
	got := make([]float32, 2)
	require.NoError(t, m.Importance(got, "x", 0))
	require.Equal(t, []float32{0.5, 1}, got)
	m, err = readImatrix(oldImatrix(1, 0, 2, []float32{2, 4}))
	require.NoError(t, err)
	require.NoError(t, m.Importance(got, "x", 0))
	require.Equal(t, []float32{2, 4}, got)
}

// TestImportanceKeys: of a text the keys have the 127 bytes that llama.cpp keeps, and none of what the matrix lacks.
func TestImportanceKeys(t *testing.T) {
	w := &keyWriter{b: make([]byte, 8)}
	w.importanceKeys(&format.Imatrix{File: strings.Repeat("f", 128), Dataset: strings.Repeat("d", 128), Entries: 2, Chunks: 3})
	h, _, err := w.header()
	require.NoError(t, err)
	require.Len(t, h.keys, 4)
	require.Equal(t, strings.Repeat("f", 127), h.values["quantize.imatrix.file"].one)
	require.Equal(t, strings.Repeat("d", 127), h.values["quantize.imatrix.dataset"].one)
	require.EqualValues(t, 2, h.values["quantize.imatrix.entries_count"].one)
	require.EqualValues(t, 3, h.values["quantize.imatrix.chunks_count"].one)
	w = &keyWriter{b: make([]byte, 8)}
	w.importanceKeys(&format.Imatrix{File: "f", Entries: 2})
	h, _, err = w.header()
	require.NoError(t, err)
	require.Equal(t, []string{"quantize.imatrix.file", "quantize.imatrix.entries_count"}, h.keys)
}

// TestWrongImatrices: what is no importance matrix, or has values that nothing can be weighted with, is
// refused with the reason.
func TestWrongImatrices(t *testing.T) {
	both, nan, inf := []string{"x.in_sum2", "x.counts"}, float32(math.NaN()), float32(math.Inf(1))
	for want, data := range map[string][]byte{
		"key imatrix.chunk_count is missing":                            imatrixFile(t, []string{datasetsKey, chunkSizeKey}, both, []float32{1}, []float32{1}),
		"no tensor is named ….in_sum2":                                  imatrixFile(t, imatrixKeys, []string{"x"}, []float32{1}),
		"tensor x.in_sum2: has no x.counts beside it":                   imatrixFile(t, imatrixKeys, both[:1], []float32{1}),
		"tensor x.counts: has no x.in_sum2 beside it":                   imatrixFile(t, imatrixKeys, both[1:], []float32{1}),
		"tensor x: 3 sums for 2 counts":                                 imatrixFile(t, imatrixKeys, both, []float32{1, 2, 3}, []float32{1, 1}),
		"tensor x: value 1 is NaN":                                      imatrixFile(t, imatrixKeys, both, []float32{1, nan}, []float32{1}),
		"tensor x: value 0 is -1":                                       imatrixFile(t, imatrixKeys, both, []float32{-1}, []float32{1}),
		"tensor x: value 0 is +Inf":                                     imatrixFile(t, imatrixKeys, both, []float32{inf}, []float32{1}),
		"tensor x: count 0 is -2":                                       imatrixFile(t, imatrixKeys, both, []float32{1}, []float32{-2}),
		"tensor x: count 0 is NaN":                                      imatrixFile(t, imatrixKeys, both, []float32{1}, []float32{nan}),
		"is no importance matrix, or is cut off at byte 0":              {},
		"is no importance matrix: 0 entries":                            oldImatrix(0, 1, 1, []float32{1}),
		"is no importance matrix: -1 entries":                           oldImatrix(-1, 1, 1, []float32{1}),
		"is no importance matrix: a name of 1768300647 bytes at byte 8": []byte("wrong file"),
		"is no importance matrix, or is cut off at byte 21":             oldImatrix(2, 1, 1, []float32{1}),
		"tensor x: 3 values, but 8 B are left":                          oldImatrix(1, 1, 3, []float32{1, 2}),
		"tensor x: value 0 is NaN: an importance is neither":            oldImatrix(1, 1, 1, []float32{nan}),
		"tensor x: occurs twice":                                        append(oldImatrix(2, 1, 1, []float32{1}), oldImatrix(1, 1, 1, []float32{1})[4:]...),
		"1 byte follow":                                                 oldImatrix(1, 1, 1, []float32{1}, []byte("\x09\x00\x00\x00\x01\x00\x00\x00xy")...),
		"is no importance matrix: a name of 99 bytes at byte 2":         oldImatrix(1, 1, 1, []float32{1}, []byte("\x09\x00\x00\x00\x63\x00\x00\x00x")...),
	} {
		_, err := readImatrix(data)
		require.ErrorContains(t, err, want)
	}
}

// FuzzImatrix: any bytes are read, or refused, without more memory than they take.
func FuzzImatrix(f *testing.F) {
	f.Add(oldImatrix(1, 4, 2, []float32{2, 4}))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := readImatrix(data)
		if err != nil {
			return
		}
		for name := range m.entries {
			require.NoError(t, m.Importance(make([]float32, m.Len(name)), name, 0))
		}
	})
}
