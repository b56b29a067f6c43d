package torchbin

import (
	"archive/zip"
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/model/tensor"
	"dsmoe/text/problem"
)

var oneTensor = stateOf(utf8("w"), tensorOf("FloatStorage", "0", 1, "K\x03", "K\x01"))

// run is the value that a pickle leaves, and the error if it is none.
func run(program string) (any, error) {
	value, _, err := execute([]byte(program))
	return value, err
}

// TestValues: every opcode that makes a value makes the one that Python's pickle names.
func TestValues(t *testing.T) {
	for program, want := range map[string]any{
		"\x80\x02N.":         nil,
		"\x80\x05\x88.":      true,
		"\x89.":              false,
		"K\xff.":             int64(255),
		"M\x01\x02.":         int64(0x201),
		"J\xfe\xff\xff\xff.": int64(-2),
		"\x8a\x00.":          int64(0),
		"\x8a\x01\xff.":      int64(-1),
		"\x8a\x02\xff\x00.":  int64(255),
		"\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80.": int64(-1 << 63),
		"G\x3f\xf8\x00\x00\x00\x00\x00\x00.":        1.5,
		"\x8c\x03abc.":                              "abc",
		"X\x02\x00\x00\x00hi.":                      "hi",
		").":                                        tuple{},
		"K\x01\x85.":                                tuple{int64(1)},
		"K\x01K\x02\x86.":                           tuple{int64(1), int64(2)},
		"K\x01K\x02K\x03\x87.":                      tuple{int64(1), int64(2), int64(3)},
		"(K\x01NK\x03t.":                            tuple{int64(1), nil, int64(3)},
		"((K\x01tt.":                                tuple{tuple{int64(1)}},
		"]K\x01a.":                                  &list{items: []any{int64(1)}},
		"](K\x01K\x02e.":                            &list{items: []any{int64(1), int64(2)}},
		"}K\x01K\x02s.":                             &dict{keys: []any{int64(1)}, values: []any{int64(2)}},
		"}(K\x01K\x02K\x03K\x04u.":                  &dict{keys: []any{int64(1), int64(3)}, values: []any{int64(2), int64(4)}},
		"K\x07q\x05h\x05\x86.":                      tuple{int64(7), int64(7)},
		"K\x07r\x00\x01\x00\x00j\x00\x01\x00\x00\x86.": tuple{int64(7), int64(7)},
		"K\x07\x94K\x08\x94h\x00h\x01\x86\x87.":        tuple{int64(7), int64(8), tuple{int64(7), int64(8)}},
		"\x95\x00\x00\x00\x00\x00\x00\x00\x00K\x01.":   int64(1),
		"ccollections\nOrderedDict\n)R.":               &dict{},
		"\x8c\x05torch\x8c\x0cFloatStorage\x93.":       global("torch.FloatStorage"),
		"ccollections\nOrderedDict\n)R}b.":             &dict{},
	} {
		got, err := run(program)
		require.NoError(t, err, "%q", program)
		require.Equal(t, want, got, "%q", program)
	}
}

// TestWrongPrograms: an opcode without what it needs is an error that says so.
func TestWrongPrograms(t *testing.T) {
	for program, want := range map[string]string{
		"a.":             "the stack is empty",
		"K\x01a.":        "the stack is empty",
		"(a.":            "a mark is in the way",
		"K\x01s.":        "the stack is empty",
		"K\x01t.":        "there is no mark",
		"K\x01\x86.":     "the stack is empty",
		"K\x01K\x02a.":   "items for what cannot take them",
		"}(K\x01u.":      "items for what cannot take them",
		"](K\x01K\x02u.": "items for what cannot take them",
		"}K\x01a.":       "items for what cannot take them",
		"K":              "ends too early",
		"M\x01":          "ends too early",
		"\x8a\x05\x01":   "ends too early",
		"\x8a\x09" + "\x01\x02\x03\x04\x05\x06\x07\x08\x09.": "an integer of 9 bytes",
		"\x8c\x05ab":                   "ends too early",
		"q":                            "ends too early",
		"q\x01":                        "the stack is empty",
		"h\x01":                        "nothing is kept under 1",
		"ctorch":                       "a line does not end",
		"ctorch\nFloat":                "a line does not end",
		"K\x01\x8c\x01a\x93":           "a name that is not a string",
		"\x8c\x01a\x93":                "a name that is not a string",
		"Q":                            "the stack is empty",
		"K\x01Q":                       "a persistent id that names no storage",
		")Q":                           "a persistent id that names no storage",
		"(K\x01K\x01K\x01K\x01K\x01tQ": "a persistent id that names no storage",
		"(\x8c\x07storageK\x01\x8c\x010\x8c\x03cpuK\x01tQ":                 "a persistent id that names no storage",
		"(\x8c\x07storagectorch\nFloatStorage\n\x8c\x00\x8c\x03cpuK\x01tQ": "a persistent id that names no storage",
		"R":                                     "the stack is empty",
		")R":                                    "the stack is empty",
		"K\x01)R":                               "a call of a value that is not a function",
		"ccollections\nOrderedDict\nK\x01R":     "a call of a value that is not a function",
		"ccollections\nOrderedDict\nK\x01\x85R": "a call of collections.OrderedDict that makes no tensor",
		"ctorch._utils\n_rebuild_parameter\n)R": "a call of torch._utils._rebuild_parameter that makes no tensor",
		"ctorch._utils\n_rebuild_parameter\nK\x01\x85R": "a call of torch._utils._rebuild_parameter that makes no tensor",
		"ctorch._utils\n_rebuild_tensor_v2\n)R":         "with 0 arguments",
		"ctorch._utils\n_rebuild_tensor_v2\n(NNNNNNtR":  "with wrong arguments",
		"b":        "the stack is empty",
		"}b":       "the stack is empty",
		"}K\x01b":  "attributes for what has none",
		"\x80\x06": "pickle protocol 6 is not known",
	} {
		_, err := run(program)
		require.ErrorContains(t, err, want, "%q", program)
	}
}

// rebuilt is the pickle of a tensor by version 3, with the dtype by itself.
func rebuilt(dtype, storage string) string {
	return call("torch._utils", "_rebuild_tensor_v3") + "((" + utf8("storage") + call("torch", storage) + utf8("0") + utf8("cpu") + "K" + string(numel[storage]) + "tQ" +
		"K\x01(K\x03t(K\x01t\x89" + call("collections", "OrderedDict") + ")R" + dtype + "tR"
}

// TestVersion3: the dtype is the call's, not the storage's; parameters are their tensors.
func TestVersion3(t *testing.T) {
	parameter := call("torch._utils", "_rebuild_parameter") + "(" + tensorOf("HalfStorage", "0", 2, "K\x06", "K\x01") + "\x88" + call("collections", "OrderedDict") + ")RtR"
	for item, want := range map[string]struct {
		dtype tensor.DType
		bytes string
	}{
		rebuilt(call("torch", "float8_e4m3fn"), "UntypedStorage"): {tensor.F8E4M3, "123"},
		rebuilt(call("torch", "uint16"), "UntypedStorage"):        {tensor.U16, "234567"},
		rebuilt(call("torch", "uint32"), "FloatStorage"):          {tensor.U32, "456789abcdef"},
		parameter: {tensor.F16, "456789abcdef"},
	} {
		data := archiveOf(t, stateOf(utf8("w"), item), map[string]string{"archive/data/0": "0123456789abcdef"})
		f, err := read(bytes.NewReader(data), int64(len(data)))
		require.NoError(t, err)
		require.Equal(t, want.dtype, f.Entries[0].Info.DType)
		require.Equal(t, want.bytes, string(data[f.Entries[0].Offset:][:f.Entries[0].Info.Bytes()]), "the offset counts elements")
	}
	for item, want := range map[string]string{
		rebuilt("N", "UntypedStorage"):                     "a tensor of no known dtype",
		rebuilt(call("torch", "uint64"), "UntypedStorage"): "it needs 24 bytes from element 1 of its storage data/0 on, which has 16",
	} {
		data := archiveOf(t, stateOf(utf8("w"), item), fourFloats)
		_, err := read(bytes.NewReader(data), int64(len(data)))
		require.ErrorContains(t, err, want)
	}
}

// TestShapes: scalars and empty tensors have no strides to speak of; lengths and ranks
// beyond the limits are refused.
func TestShapes(t *testing.T) {
	for name, c := range map[string]struct {
		shape, strides, want string
	}{
		"scalar":              {"", "", ""},
		"empty":               {"K\x00K\x05", "K\x09K\x09", ""},
		"one":                 {"K\x01K\x03", "K\x63K\x01", ""},
		"rank":                {strings.Repeat("K\x01", 17), strings.Repeat("K\x01", 17), "wrong arguments"},
		"length":              {"\x8a\x06\x01\x00\x00\x00\x00\x01", "K\x01", "wrong arguments"},
		"stride":              {"K\x02", "\x8a\x06\x01\x00\x00\x00\x00\x01", "wrong arguments"},
		"beyond 32 bits":      {"\x8a\x05\x01\x00\x00\x00\x01", "K\x01", "needs 16.00 GiB (17,179,869,188 bytes)"},
		"a length of no sort": {"N", "K\x01", "wrong arguments"},
	} {
		data := archiveOf(t, stateOf(utf8("w"), tensorOf("FloatStorage", "0", 0, c.shape, c.strides)), fourFloats)
		_, err := read(bytes.NewReader(data), int64(len(data)))
		if c.want == "" {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorContains(t, err, c.want, name)
	}
}

// TestCompressedArchives: torch compresses nothing; data.pkl may be, and is bounded.
func TestCompressedArchives(t *testing.T) {
	archive := func(method uint16, pickle, storage string) []byte {
		var b bytes.Buffer
		z := zip.NewWriter(&b)
		for _, part := range [][2]string{{"archive/data.pkl", pickle}, {"archive/data/0", storage}} {
			w, err := z.CreateHeader(&zip.FileHeader{Name: part[0], Method: method})
			require.NoError(t, err)
			_, err = w.Write([]byte(part[1]))
			require.NoError(t, err)
		}
		require.NoError(t, z.Close())
		return b.Bytes()
	}
	good := stateOf(utf8("w"), tensorOf("FloatStorage", "0", 0, "K\x04", "K\x01"))
	data := archive(zip.Deflate, good, strings.Repeat("\x00", 16))
	_, err := read(bytes.NewReader(data), int64(len(data)))
	require.ErrorContains(t, err, "its storage data/0 is compressed, which torch.save never does")

	data = archive(zip.Deflate, strings.Repeat("\x00", maxPickle+1), "")
	_, err = read(bytes.NewReader(data), int64(len(data)))
	require.ErrorContains(t, err, "archive entry archive/data.pkl has 64.00 MiB (67,108,865 bytes), more than the limit of 64.00 MiB")

	data = archive(zip.Store, good, strings.Repeat("\x00", 16))
	broken := bytes.Replace(data, []byte("FloatStorage"), []byte("FloatStorags"), 1)
	_, err = read(bytes.NewReader(broken), int64(len(broken)))
	require.ErrorContains(t, err, "archive entry archive/data.pkl: zip: checksum error")

	nothing := archiveOf(t, good, nil)
	nothing = bytes.ReplaceAll(nothing, []byte("data.pkl"), []byte("data.txt"))
	_, err = read(bytes.NewReader(nothing), int64(len(nothing)))
	require.ErrorContains(t, err, "archive holds no data.pkl: not written by torch.save")
}

// TestNested: the state dict beside a trainer's own state is read, and what is not read
// is said.
func TestNested(t *testing.T) {
	tensors := "}" + utf8("w") + tensorOf("FloatStorage", "0", 1, "K\x03", "K\x01") + "s"
	data := archiveOf(t, "\x80\x02}("+utf8("epoch")+"K\x03"+utf8("state_dict")+tensors+utf8("optimizer")+"}u.", fourFloats)
	path := filepath.Join(t.TempDir(), "pytorch_model.bin")
	require.NoError(t, os.WriteFile(path, data, 0o600))
	f, err := open(path)
	require.NoError(t, err)
	defer f.Close()
	require.Equal(t, []string{"the weights are those under state_dict; not read: epoch, optimizer"}, f.Stat().Notes)
	_, _, ok := f.Lookup("w")
	require.True(t, ok)

	ok4 := tensorOf("FloatStorage", "0", 0, "K\x04", "K\x01")
	for pickle, want := range map[string]string{
		"\x80\x02}" + utf8("model") + tensors + "s.":                                  "tensor model: is not a tensor",
		"\x80\x02}(" + utf8("w") + ok4 + utf8("state_dict") + tensors + "u.":          "tensor state_dict: is not a tensor",
		"\x80\x02}" + utf8("state_dict") + "}" + utf8("state_dict") + tensors + "ss.": "tensor state_dict: is not a tensor",
	} {
		data := archiveOf(t, pickle, fourFloats)
		_, err := read(bytes.NewReader(data), int64(len(data)))
		var e *problem.Error
		require.ErrorAs(t, err, &e)
		require.ErrorContains(t, err, want)
		require.Contains(t, e.Problems[0].Hint, "or one under state_dict")
	}
}

// TestStorages: a storage must hold what the pickle says of it, and a tensor must lie
// within what it says.
func TestStorages(t *testing.T) {
	w := utf8("w")
	said := func(n string) string {
		return stateOf(w, strings.Replace(tensorOf("FloatStorage", "0", 0, "K\x02", "K\x01"), "K\x04tQ", n+"tQ", 1))
	}
	for name, c := range map[string]struct{ pickle, want string }{
		"fewer bytes":  {said("K\x05"), "tensor w: its storage data/0 has 16 bytes, but the pickle says 5 elements of 4 bytes"},
		"overflow":     {said("\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f"), "but the pickle says 9223372036854775807 elements"},
		"negative":     {said("J\xff\xff\xff\xff"), "a persistent id that names no storage"},
		"no number":    {said("N"), "a persistent id that names no storage"},
		"fewer said":   {said("K\x01"), "it needs 8 bytes from element 0 of its storage data/0 on, which has 4"},
		"no agreement": {stateOf(w, tensorOf("FloatStorage", "0", 0, "K\x02", "K\x01"), utf8("v"), tensorOf("HalfStorage", "0", 0, "K\x02", "K\x01")), "storage 0 is not what it was before: 4 elements of 4 bytes, then 8 of 2"},
		"as much":      {said("K\x02"), ""},
	} {
		data := archiveOf(t, c.pickle, fourFloats)
		_, err := read(bytes.NewReader(data), int64(len(data)))
		if c.want == "" {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorContains(t, err, c.want, name)
	}
}

// TestBrokenPickles: a pickle that ends before its file does, or without a tensor, is
// broken; it is no state dict of fewer tensors.
func TestBrokenPickles(t *testing.T) {
	for pickle, want := range map[string]string{
		"\x80\x02}." + oneTensor[3:]:            "data.pkl: byte 4: the pickle ends here, and ",
		"\x80\x02}.":                            "data.pkl: the state dict is empty",
		"\x80\x02}}.":                           "data.pkl: byte 4: the pickle ends in the middle of a value",
		strings.Replace(oneTensor, "R", ".", 1): "data.pkl: byte ",
	} {
		data := archiveOf(t, pickle, fourFloats)
		_, err := read(bytes.NewReader(data), int64(len(data)))
		require.ErrorContains(t, err, want)
	}
}
