package gguf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/format"
	"dsmoe/model/tensor"
	"dsmoe/text/problem"
)

// pythons is the file that gguf-py wrote: scripts/gguf_fixture.py.
const pythons = "testdata/gguf-py.gguf"

// TestValues: every type of value that gguf-py writes is read, and every dtype.
func TestValues(t *testing.T) {
	f, err := Open(pythons)
	require.NoError(t, err)
	defer f.Close()
	require.EqualValues(t, 3, f.Version)
	for key, want := range map[string]any{
		"general.architecture": "deepseek2", "test.u8": uint64(200), "test.i8": int64(-100), "test.u16": uint64(60000), "test.i16": int64(-30000),
		"test.u32": uint64(4000000000), "test.i32": int64(-2000000000), "test.f32": float64(float32(1e-6)), "test.bool": true,
		"test.string": "ein Füllhorn", "test.u64": uint64(1) << 63, "test.i64": -(int64(1) << 62), "test.f64": 0.1,
	} {
		require.Equal(t, want, f.values[key].one, key)
	}
	require.Equal(t, []any{"a", "", "ß"}, f.values["test.strings"].many)
	require.Equal(t, []any{int64(1), int64(-2), int64(3)}, f.values["test.ints"].many)
	require.Equal(t, []tensor.Info{
		{Name: "token_embd.weight", DType: tensor.F32, Shape: []int{5, 7}},
		{Name: "output_norm.weight", DType: tensor.F32, Shape: []int{7}},
		{Name: "blk.0.ffn_gate_exps.weight", DType: tensor.F16, Shape: []int{2, 3, 5}},
		{Name: "blk.0.attn_q.weight", DType: tensor.BF16, Shape: []int{2, 3}},
	}, slices.Collect(f.Tensors()))
	for name, want := range map[string][]float32{"output_norm.weight": {0, 1, 2, 3, 4, 5, 6}, "blk.0.attn_q.weight": {0, 1, 2, 3, 4, 5}} {
		x, err := f.Tensor(name)
		require.NoError(t, err)
		got, err := x.Float32s(nil)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

// TestLayoutIsPythons: what is laid out is byte for byte what gguf-py wrote.
func TestLayoutIsPythons(t *testing.T) {
	want, err := os.ReadFile(pythons)
	require.NoError(t, err)
	f, err := Open(pythons)
	require.NoError(t, err)
	defer f.Close()
	last := f.values[f.keys[len(f.keys)-1]]
	keys := binary.LittleEndian.AppendUint64(nil, uint64(len(f.keys)))
	keys = append(keys, want[24:last.end]...)
	l, err := newLayout(slices.Collect(f.Tensors()), format.Head{Keys: keys})
	require.NoError(t, err)
	require.Equal(t, want[:f.DataStart], l.Header())
	require.EqualValues(t, len(want), l.Size())
	for i := range l.Infos {
		_, offset, ok := f.Lookup(l.Infos[i].Name)
		require.True(t, ok)
		require.Equal(t, offset, l.Offsets[i])
	}
}

// header makes a file of keys and tensors.
type header struct {
	version       uint32
	keys          keyWriter
	tensors, keyN uint64 // if not 0, the numbers that the file says
	entries       []byte
	n             uint64
	data          int
	align         int64
}

func newHeader() *header {
	h := &header{version: 3, keys: keyWriter{b: make([]byte, 8)}, align: 32}
	h.keys.put(architectureKey, deepseek)
	return h
}

// tensor adds an entry.
func (h *header) tensor(name string, number uint32, offset uint64, dims ...uint64) *header {
	h.entries = binary.LittleEndian.AppendUint32(appendText(h.entries, name), uint32(len(dims)))
	for _, d := range dims {
		h.entries = binary.LittleEndian.AppendUint64(h.entries, d)
	}
	h.entries = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint32(h.entries, number), offset)
	h.n++
	return h
}

// bytes returns the file.
func (h *header) bytes() []byte {
	b := binary.LittleEndian.AppendUint32([]byte(magic), h.version)
	keys := slices.Clone(h.keys.b)
	if h.keyN > 0 {
		binary.LittleEndian.PutUint64(keys, h.keyN)
	}
	if h.tensors == 0 {
		h.tensors = h.n
	}
	b = append(binary.LittleEndian.AppendUint64(b, h.tensors), keys...)
	b = append(b, h.entries...)
	return append(b, make([]byte, padded(int64(len(b)), h.align)-int64(len(b))+int64(h.data))...)
}

// raw adds a key whose value is given byte by byte.
func (h *header) raw(key string, k uint32, value ...byte) *header {
	h.keys.key(key, kind(k))
	h.keys.b = append(h.keys.b, value...)
	return h
}

func le64(n uint64) []byte { return binary.LittleEndian.AppendUint64(nil, n) }

// hostile are files that must be refused, with a part of the reason.
func hostile() map[string]struct {
	data []byte
	want []string
} {
	type file = struct {
		data []byte
		want []string
	}
	files := map[string]file{
		"empty":       {nil, []string{"is not a GGUF file: it is empty, or begins with zeros"}},
		"zeros":       {make([]byte, 100), []string{"begins with zeros"}},
		"safetensors": {[]byte("\x08\x00\x00\x00\x00\x00\x00\x00{}      "), []string{`is not a GGUF file: it begins with`}},
		"LFS pointer": {[]byte(format.LFSPointer + "v1"), []string{"is a Git LFS pointer"}},
		"magic alone": {[]byte(magic), []string{"file is cut off, or damaged: the version needs 4 bytes, and 0 bytes are left"}},
		"big-endian":  {append([]byte(magic), 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0), []string{"is big-endian"}},
		"backwards":   {[]byte("FUGG\x03\x00\x00\x00"), []string{"is a big-endian GGUF file"}},
		"version 1":   {append([]byte(magic), 1, 0, 0, 0), []string{"is of version 1 of GGUF"}},
		"version 4":   {append([]byte(magic), 4, 0, 0, 0), []string{"is of version 4 of GGUF: 2 and 3 are read"}},
	}
	add := func(name string, h *header, want ...string) { files[name] = file{h.bytes(), want} }
	h := newHeader()
	h.tensors = 1 << 60
	add("more tensors than any file has", h, "1152921504606846976 tensors, more than the limit of")
	h = newHeader()
	h.tensors = 1 << 18
	add("more tensors than fit", h, "a list of 262144 tensors needs 6.00 MiB (6,291,456 bytes)")
	h = newHeader()
	h.keyN = 1 << 62
	add("more keys than any file has", h, "4611686018427387904 keys, more than the limit of 65536")
	h = newHeader()
	h.keyN = 2
	add("one key too few", h, "is empty")
	h = newHeader()
	h.keys.b = append(h.keys.b, le64(1<<63)...)
	h.keyN = 2
	add("a key that is too long", h, "a key has 9223372036854775808 bytes, more than the limit of 65536")
	add("an empty key", newHeader().raw("", 4, 0, 0, 0, 0), "is empty")
	add("a key twice", newHeader().raw(architectureKey, 4, 0, 0, 0, 0), "key general.architecture occurs twice")
	add("a key with a line in it", newHeader().raw("a\nb", 4, 0, 0, 0, 0), "cannot be printed")
	add("an unknown type", newHeader().raw("x", 13, 0, 0, 0, 0), "key x: unknown value of type 13")
	add("a string longer than the file", newHeader().raw("x", 8, le64(1<<20)...), "key x needs 1.00 MiB (1,048,576 bytes)")
	add("a string longer than any", newHeader().raw("x", 8, le64(1<<40)...), "key x has 1099511627776 bytes, more than the limit")
	add("no truth value", newHeader().raw("x", 7, 2), "key x: 2 is not a boolean")
	add("an array of arrays", newHeader().raw("x", 9, append([]byte{9, 0, 0, 0}, le64(1)...)...), "key x is an array of array")
	add("an array longer than the file", newHeader().raw("x", 9, append([]byte{10, 0, 0, 0}, le64(1<<20)...)...), "key x needs 8.00 MiB (8,388,608 bytes)")
	add("an array whose length overflows", newHeader().raw("x", 9, append([]byte{10, 0, 0, 0}, le64(1<<61)...)...), "key x is an array of 2305843009213693952 elements")
	add("an array of strings that are not there", newHeader().raw("x", 9, append([]byte{8, 0, 0, 0}, le64(100)...)...), "key x needs 800 bytes")
	add("alignment 0", newHeader().raw(alignmentKey, 4, 0, 0, 0, 0), "key general.alignment is 0: a u32 that is a power of two")
	add("alignment 48", newHeader().raw(alignmentKey, 4, 48, 0, 0, 0), "key general.alignment is 48")
	add("alignment of another type", newHeader().raw(alignmentKey, 10, le64(32)...), "a u32 that is a power of two")
	add("five dimensions", newHeader().tensor("a", 0, 0, 1, 1, 1, 1, 1), "tensor a", "5 dimensions, more than the limit of 4")
	add("a name that is too long", newHeader().tensor(string(bytes.Repeat([]byte("a"), 64)), 0, 0, 1), "a tensor's name has 64 bytes, more than the limit of 63")
	add("what is wrong with tensors, all of it",
		newHeader().tensor("a", 0, 0, 1<<41).tensor("b", 99, 0, 1).tensor("c", 16, 0, 256).tensor("C", 16, 0, 256).tensor("d", 2, 0, 33).tensor("d", 0, 0, 4).tensor("", 0, 0, 1).tensor("e", 0, 0, 1<<39, 1<<39),
		"tensor a: dimension 2199023255552 exceeds the limit", "tensor b: type 99 is not a type of ggml", "type IQ2_XXS of ggml is not read here: 2 tensors, the first c",
		"tensor d: ", "tensor d: name occurs twice", "name is empty", "tensor e: number of")
	h = newHeader().tensor("a", 0, 0, 8).tensor("b", 0, 0, 8)
	h.data = 64
	add("two tensors in one place", h, "tensor b: data begins at offset 0, but the tensors before it end at 32")
	h = newHeader().tensor("a", 0, 0, 7).tensor("b", 0, 28, 1)
	h.data = 64
	add("a tensor that is not aligned", h, "tensor b: data begins at offset 28, but the tensors before it end at 32, the padding included")
	h = newHeader().tensor("a", 0, 0, 7).tensor("b", 0, 64, 1)
	h.data = 128
	add("a hole", h, "tensor b: data begins at offset 64, but the tensors before it end at 32")
	h = newHeader().tensor("a", 0, 0, 8).tensor("b", 0, 32, 9)
	h.data = 64
	add("a file that is cut off", h, "tensor b: file is cut off: the tensor's 36 bytes begin at byte")
	return files
}

// TestHostileFiles: what llama.cpp could not load, or would misunderstand, is refused with
// the reason.
func TestHostileFiles(t *testing.T) {
	for name, c := range hostile() {
		_, err := readHeader(bytes.NewReader(c.data), int64(len(c.data)), "x.gguf")
		require.Error(t, err, name)
		for _, want := range c.want {
			require.ErrorContains(t, err, want, name)
		}
		var bad *problem.Error
		require.True(t, errors.As(err, &bad) && bad.Path == "x.gguf", name)
	}
}

// TestEveryCut: a file that ends anywhere before its end is refused, and no cut of one is read
// past its end.
func TestEveryCut(t *testing.T) {
	whole, err := os.ReadFile(pythons)
	require.NoError(t, err)
	for n := range len(whole) - 32 { // the last tensor, and its padding, end there
		_, err := readHeader(bytes.NewReader(whole[:n]), int64(n), "x.gguf")
		require.Error(t, err, "%d bytes", n)
	}
}

// TestOtherForms: files of version 2, with another alignment, bytes behind the last tensor,
// and no tensors at all are read.
func TestOtherForms(t *testing.T) {
	h := newHeader().raw(alignmentKey, 4, 64, 0, 0, 0).tensor("a", 0, 0, 1).tensor("b", 1, 64, 2, 3)
	h.version, h.align, h.data = 2, 64, 128+7
	data := h.bytes()
	got, err := readHeader(bytes.NewReader(data), int64(len(data)), "x.gguf")
	require.NoError(t, err)
	require.EqualValues(t, 2, got.Version)
	info, offset, ok := got.Lookup("b")
	require.True(t, ok)
	require.Equal(t, tensor.Info{Name: "b", DType: tensor.F16, Shape: []int{3, 2}}, info)
	require.EqualValues(t, len(data)-7-64, offset)
	require.Equal(t, []string{"7 bytes behind the last tensor are not read"}, got.notes)

	data = newHeader().bytes()
	got, err = readHeader(bytes.NewReader(data), int64(len(data)), "x.gguf")
	require.NoError(t, err)
	require.Empty(t, slices.Collect(got.Tensors()))
	require.NoError(t, os.WriteFile(filepath.Join(t.TempDir(), "x.gguf"), data, 0o600))
}

// namedData is Data with a name alone.
type namedData struct{ format.Data }

// Path returns the name.
func (namedData) Path() string { return "x" }

// FuzzHeader: whatever a file holds, reading its header ends, in an error or in tensors that
// lie in the file one behind the other; and what was read is laid out to the same places.
func FuzzHeader(f *testing.F) {
	whole, err := os.ReadFile(pythons)
	require.NoError(f, err)
	f.Add(whole)
	for _, c := range hostile() {
		f.Add(c.data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		h, err := readHeader(bytes.NewReader(data), int64(len(data)), "x")
		if err != nil {
			return
		}
		end := h.DataStart
		for info := range h.Tensors() {
			_, offset, ok := h.Lookup(info.Name)
			require.True(t, ok)
			require.Equal(t, padded(end-h.DataStart, h.alignment)+h.DataStart, offset)
			end = offset + info.Bytes()
			require.LessOrEqual(t, end, int64(len(data)))
		}
		require.Len(t, h.values, len(h.keys))
		r := keyReader{File: &File{Header: h, Data: namedData{}}, arch: deepseek2}
		if document, c := r.config("", func(string) bool { return false }); document == nil {
			require.NotEmpty(t, r.wrong)
			require.Nil(t, c)
		}
	})
}
