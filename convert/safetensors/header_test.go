package safetensors

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/model/tensor"
	"dsmoe/text"
)

func read(t testing.TB, data []byte) *header {
	t.Helper()
	h, err := readHeader(bytes.NewReader(data), int64(len(data)), "model.safetensors")
	require.NoError(t, err)
	return h
}

func names(h *header) (names []string) {
	for info := range h.Tensors() {
		names = append(names, info.Name)
	}
	return names
}

func TestValidHeaders(t *testing.T) {
	all := [...]struct {
		name   string
		data   []byte
		tensor []string
	}{
		{"no tensors", pack("{}", 0), nil},
		{"metadata only", pack(`{"__metadata__":{"format":"pt"}}`, 0), nil},
		{"metadata null", pack(`{"__metadata__":null}`, 0), nil},
		{"leading white space", pack(" \n\t\r{}", 0), nil},
		{"trailing white space", pack("{} \n\t\r   ", 0), nil},
		{"much white space", pack(strings.Repeat(" ", 20<<20)+"{}"+strings.Repeat(" ", 20<<20), 0), nil},
		{"scalar", pack(obj(entryOf("w", "F32", "[]", "[0,4]")), 4), []string{"w"}},
		{"empty", pack(obj(entryOf("w", "F32", "[0]", "[0,0]")), 0), []string{"w"}},
		{"zero before large", pack(obj(entryOf("w", "F32", "[0,4294967296,4294967296]", "[0,0]")), 0), []string{"w"}},
		{"rank 16", pack(obj(entryOf("w", "U8", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "[0,1]")), 1), []string{"w"}},
		{"keys in any order", pack(`{"w":{"data_offsets":[0,2],"shape":[1],"dtype":"BF16"}}`, 2), []string{"w"}},
		{"spaces between tokens", pack(`{ "w" : { "dtype" : "U8" , "shape" : [ 1 ] , "data_offsets" : [ 0 , 1 ] } }`, 1), []string{"w"}},
		{"unaligned", pack(obj(entryOf("a", "U8", "[1]", "[0,1]"), entryOf("b", "F64", "[1]", "[1,9]")), 9), []string{"a", "b"}},
		{"not in file order", pack(obj(entryOf("b", "U8", "[1]", "[1,2]"), entryOf("a", "U8", "[1]", "[0,1]")), 2), []string{"a", "b"}},
		{"empty tensors by name", pack(obj(entryOf("z", "U8", "[0]", "[0,0]"), entryOf("w", "U8", "[1]", "[0,1]"), entryOf("y", "U8", "[0]", "[0,0]")), 1), []string{"y", "z", "w"}},
		{"unicode name", pack(obj(entryOf("wé世", "U8", "[1]", "[0,1]")), 1), []string{"wé世"}},
		{"surrogate pair", pack(`{"\ud83d\ude00":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1), []string{"😀"}},
		{"path as name", pack(obj(entryOf("../etc/passwd", "U8", "[1]", "[0,1]")), 1), []string{"../etc/passwd"}},
		{"F4", pack(obj(entryOf("w", "F4", "[3,2]", "[0,3]")), 3), []string{"w"}},
		{"F6", pack(obj(entryOf("w", "F6_E2M3", "[4]", "[0,3]")), 3), []string{"w"}},
	}
	for _, c := range all {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, c.tensor, names(read(t, c.data)))
		})
	}
}

func TestEveryDType(t *testing.T) {
	for d := tensor.Invalid + 1; d.Bytes(8) != 0 || d.Blocked(); d++ {
		if d.Blocked() {
			continue
		}
		size := int(d.Bytes(8))
		h := read(t, pack(obj(entryOf("w", d.String(), "[8]", fmt.Sprintf("[0,%d]", size))), size))
		info, _, ok := h.Lookup("w")
		require.True(t, ok)
		require.Equal(t, d, info.DType)
	}
}

func TestMetadata(t *testing.T) {
	h := read(t, pack(`{"__metadata__":{"b":"<\u00e9\n","a":""}}`, 0))
	require.Equal(t, map[string]string{"a": "", "b": "<é\n"}, h.Metadata)
	require.Nil(t, read(t, pack("{}", 0)).Metadata)
}

// countingReader records which bytes are read.
type countingReader struct {
	data []byte
	end  int64
}

// ReadAt implements io.ReaderAt.
func (r *countingReader) ReadAt(b []byte, off int64) (int, error) {
	r.end = max(r.end, off+int64(len(b)))
	return bytes.NewReader(r.data).ReadAt(b, off)
}

func TestReadsTheHeaderOnly(t *testing.T) {
	header := obj(entryOf("w", "U8", "[1000000]", "[0,1000000]"))
	r := &countingReader{data: pack(header, 1_000_000)}
	_, err := readHeader(r, int64(len(r.data)), "model.safetensors")
	require.NoError(t, err)
	require.Equal(t, int64(8+len(header)), r.end)
}

// bomb is a header that makes other readers take gigabytes.
type bomb struct{ name, head, unit, tail string }

var bombs = []bomb{
	{"one long shape", `{"w":{"dtype":"F32","shape":[1`, ",1", `],"data_offsets":[0,4]}}`},
	{"shape of arrays", `{"w":{"dtype":"F32","shape":[[]`, ",[]", `],"data_offsets":[0,4]}}`},
	{"many unknown keys", `{"w":{"k":1`, `,"k":1`, `}}`},
	{"many tensors", `{"a":{"dtype":"I8","shape":[0],"data_offsets":[0,0]}`, `,"%d":{"dtype":"I8","shape":[0],"data_offsets":[0,0]}`, "}"},
	{"many metadata pairs", `{"__metadata__":{"a":""`, `,"%d":""`, "}}"},
	{"one long string", `{"__metadata__":{"a":"`, "x", `"}}`},
	{"one long escape", `{"__metadata__":{"a":"`, `\u0061`, `"}}`},
	{"leading spaces", "", " ", "{}"},
	{"trailing spaces", "{}", " ", ""},
	{"inner spaces", "{", " ", "}"},
	{"deep nesting", `{"w":`, "[", "}"},
	{"one long number", `{"w":{"dtype":"F32","shape":[`, "9", `],"data_offsets":[0,4]}}`},
}

// file fills the bomb to a header of at most size bytes, in memory that has room for it.
func (b bomb) file(memory []byte, size int) []byte {
	data := append(memory[:8], b.head...)
	end := 8 + size - len(b.tail)
	if before, after, numbered := strings.Cut(b.unit, "%d"); numbered {
		for i := int64(0); len(data)+len(b.unit)+10 < end; i++ {
			data = append(strconv.AppendInt(append(data, before...), i, 10), after...)
		}
	} else {
		first := len(data)
		data = append(data, b.unit...)
		for end-len(data) >= len(b.unit) { // as many as there are already, if there is room
			n := min(len(data)-first, (end-len(data))/len(b.unit)*len(b.unit))
			data = append(data, data[first:first+n]...)
		}
	}
	data = append(data, b.tail...)
	binary.LittleEndian.PutUint64(data, uint64(len(data)-8))
	return data
}

// TestBombs_every reads huge headers, one of the full 100 MB, and bounds what is
// allocated in all, a limit above any peak. What decides lies in the first 30 MB. Without -every it
// reads some of them, none of the full size.
func TestBombs_every(t *testing.T) {
	memory := make([]byte, 8+maxHeader)
	for i, b := range bombs {
		if i%3 > 0 && !configtest.Every(t) {
			continue
		}
		t.Run(b.name, func(t *testing.T) {
			size := 32 << 20
			if i == 0 && configtest.Every(t) {
				size = maxHeader
			}
			data := b.file(memory, size)
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			start := time.Now()
			_, err := readHeader(bytes.NewReader(data), int64(len(data)), "model.safetensors")
			runtime.ReadMemStats(&after)
			t.Logf("%v, %d MB allocated: %v", time.Since(start).Round(time.Millisecond), (after.TotalAlloc-before.TotalAlloc)>>20, err)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(250<<20))
			if err != nil {
				requireOneLine(t, err.Error())
			}
		})
	}
}

func TestManyTensors(t *testing.T) {
	const n = 20_000
	infos := make([]tensor.Info, n)
	for i := range infos {
		infos[i] = tensor.Info{Name: fmt.Sprintf("model.layers.%d.mlp.experts.%d.weight", i%61, i), DType: tensor.BF16, Shape: []int{i % 7}}
	}
	l, err := NewLayout(infos, nil)
	require.NoError(t, err)
	h, err := readHeader(bytes.NewReader(l.Header()), l.Size(), "model.safetensors")
	require.NoError(t, err)
	require.Equal(t, n, h.Len())
	for i, info := range infos {
		got, offset, ok := h.Lookup(info.Name)
		require.True(t, ok)
		require.Equal(t, info, got)
		require.Equal(t, l.Offsets[i], offset)
	}
}

func write(t testing.TB, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "model.safetensors")
	require.NoError(t, os.WriteFile(path, data, 0o644))
	return path
}

func TestOpen(t *testing.T) {
	data := pack(obj(entryOf("b", "U8", "[2]", "[2,4]"), entryOf("a", "U8", "[2]", "[0,2]"), entryOf("e", "F32", "[0]", "[4,4]")), 4)
	copy(data[len(data)-4:], "abcd")
	f, err := Open(write(t, data))
	require.NoError(t, err)
	for name, want := range map[string]string{"a": "ab", "b": "cd", "e": ""} {
		v, err := f.Tensor(name)
		require.NoError(t, err)
		require.Equal(t, want, string(v.Data))
	}
	_, err = f.Tensor("c")
	require.ErrorContains(t, err, "tensor c: no such tensor")
	require.NoError(t, f.Close())
	_, err = f.Tensor("a")
	require.ErrorContains(t, err, "file is closed")
	require.NoError(t, f.Close())
}

func TestOpenWithoutData(t *testing.T) {
	f, err := Open(write(t, pack("{}", 0)))
	require.NoError(t, err)
	require.Zero(t, f.Len())
	require.NoError(t, f.Close())
}

func TestOpenRefusesWhatIsNoFile(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo.safetensors")
	require.NoError(t, syscall.Mkfifo(fifo, 0o644))
	dangling := filepath.Join(dir, "dangling.safetensors")
	require.NoError(t, os.Symlink("../../blobs/0123abcd", dangling))
	toFifo := filepath.Join(dir, "link.safetensors")
	require.NoError(t, os.Symlink("fifo.safetensors", toFifo))
	for path, want := range map[string]string{
		fifo: "is a FIFO", toFifo: "is a FIFO", dir: "is a directory", "/dev/zero": "is a device",
		dangling: "is a link to ../../blobs/0123abcd, which does not exist", filepath.Join(dir, "none"): "no such file",
	} {
		_, err := Open(path)
		require.ErrorContains(t, err, text.Quote(path)+": "+want)
	}
}

func TestOpenFollowsLinks(t *testing.T) {
	path := write(t, pack("{}", 0))
	link := filepath.Join(t.TempDir(), "link.safetensors")
	require.NoError(t, os.Symlink(path, link))
	f, err := Open(link)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

func fixtures(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("../../fixtures/*/*/*.safetensors")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	return files
}

// TestLayoutReproducesPython lays the tensors of every fixture, which Python
// wrote, out again.
func TestLayoutReproducesPython(t *testing.T) {
	for _, path := range fixtures(t) {
		f, err := os.Open(path)
		require.NoError(t, err)
		stat, err := f.Stat()
		require.NoError(t, err)
		h, err := readHeader(f, stat.Size(), path)
		require.NoError(t, err)
		header := make([]byte, h.DataStart)
		_, err = f.ReadAt(header, 0)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		infos := slices.Collect(h.Tensors())
		l, err := NewLayout(infos, h.Metadata)
		require.NoError(t, err)
		if h.Metadata == nil {
			continue // transformers refuses such files: none is ever written
		}
		require.True(t, string(header) == string(l.Header()), path)
		require.Equal(t, stat.Size(), l.Size())

		sorted := slices.Clone(infos)
		slices.Reverse(sorted)
		Sort(sorted)
		require.Equal(t, infos, sorted, path)
	}
}

func TestLayout(t *testing.T) {
	w := tensor.Info{Name: "a<b>&\"é", DType: tensor.F32, Shape: []int{}}
	l, err := NewLayout([]tensor.Info{w, {Name: "z", DType: tensor.F4, Shape: []int{2, 3}}}, map[string]string{"k": "<\n\x01>", "a": "é"})
	require.NoError(t, err)
	require.Equal(t, `{"__metadata__":{"a":"é","k":"<\n\u0001>"},"a<b>&\"é":{"dtype":"F32","shape":[],"data_offsets":[0,4]},`+
		`"z":{"dtype":"F4","shape":[2,3],"data_offsets":[4,7]}}`, strings.TrimRight(string(l.Header()[8:]), " "))
	require.Zero(t, len(l.Header())%8)
	require.Equal(t, int64(len(l.Header())), l.Offsets[0])
	require.Equal(t, l.Offsets[1]+3, l.Size())

	l, err = NewLayout(nil, map[string]string{})
	require.NoError(t, err)
	require.Equal(t, "{}      ", string(l.Header()[8:]))
}

func TestLayoutRefuses(t *testing.T) {
	info := func(name string, d tensor.DType, shape ...int) []tensor.Info {
		return []tensor.Info{{Name: name, DType: d, Shape: shape}}
	}
	for name, c := range map[string]struct {
		infos    []tensor.Info
		metadata map[string]string
		want     string
	}{
		"name":         {info("", tensor.F32), nil, "name is empty"},
		"reserved":     {info("__metadata__", tensor.F32), nil, "name is reserved"},
		"UTF-8":        {info("\xff", tensor.F32), nil, "cannot be printed"},
		"dtype":        {info("w", tensor.Invalid), nil, "dtype invalid"},
		"dtype 99":     {info("w", 99), nil, "dtype DType(99)"},
		"of GGUF":      {info("w", tensor.Q8_0, 32), nil, "dtype Q8_0"},
		"negative":     {info("w", tensor.F32, -1), nil, "negative dimension"},
		"half a byte":  {info("w", tensor.F4, 3), nil, "whole bytes"},
		"rank":         {info("w", tensor.F32, make([]int, 17)...), nil, "17 dimensions"},
		"twice":        {append(info("w", tensor.F32), info("w", tensor.I8)...), nil, "tensor w: name occurs twice"},
		"metadata":     {nil, map[string]string{"a": "\xff"}, "metadata a: not valid UTF-8"},
		"metadata key": {nil, map[string]string{"\xff": "a"}, "not valid UTF-8"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := NewLayout(c.infos, c.metadata)
			require.ErrorContains(t, err, c.want)
		})
	}
}

func BenchmarkReadHeader(b *testing.B) {
	infos := make([]tensor.Info, 5466)
	for i := range infos {
		infos[i] = tensor.Info{Name: fmt.Sprintf("model.layers.%d.mlp.experts.%d.gate_proj.weight", i/200, i), DType: tensor.BF16, Shape: []int{1408, 2048}}
	}
	l, err := NewLayout(infos, nil)
	require.NoError(b, err)
	b.SetBytes(int64(len(l.Header())))
	for b.Loop() {
		_, err := readHeader(bytes.NewReader(l.Header()), l.Size(), "model.safetensors")
		require.NoError(b, err)
	}
}
