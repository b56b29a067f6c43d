package torchbin

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/format"
	"dsmoe/model/tensor"
)

// The parts of a file as torch wrote it before version 1.6.
const (
	legacyHead  = "\x80\x02" + magic + "\x80\x02M\xe9\x03."
	legacySizes = "\x80\x02}X\x0d\x00\x00\x00little_endian\x88s."
	legacyKeys  = "\x80\x02]X\x01\x00\x00\x000a."
	fourLegacy  = "\x04\x00\x00\x00\x00\x00\x00\x00" + "0123456789abcdef"
)

var oneTensor = stateOf(utf8("w"), tensorOf("FloatStorage", "0", 1, "K\x03", "K\x01"))

// legacyOf makes a file of a state dict, the keys of its storages, and these.
func legacyOf(state, keys, storages string) string {
	return legacyHead + legacySizes + state + keys + storages
}

// TestLegacy reads what torch wrote without an archive: the same bytes as in one.
func TestLegacy(t *testing.T) {
	legacy, err := open(filepath.Join(fixtures, "legacy.bin"))
	require.NoError(t, err)
	defer legacy.Close()
	cases, err := open(filepath.Join(fixtures, "cases.bin"))
	require.NoError(t, err)
	defer cases.Close()
	got, err := legacy.Tensor("w")
	require.NoError(t, err)
	want, err := cases.Tensor("f32")
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.Equal(t, 1, legacy.Stat().Tensors)

	data := legacyOf(oneTensor, legacyKeys, fourLegacy)
	f, err := read(strings.NewReader(data), int64(len(data)))
	require.NoError(t, err)
	require.Equal(t, tensor.Info{Name: "w", DType: tensor.F32, Shape: []int{3}}, f.Entries[0].Info)
	require.Equal(t, "456789abcdef", data[f.Entries[0].Offset:][:12])
}

// TestLegacyBeyondTheFirstMegabyte: the pickles are read to their end, however long.
func TestLegacyBeyondTheFirstMegabyte(t *testing.T) {
	state := "\x80\x02}" + utf8("state_dict") + "}" + utf8("w") + tensorOf("FloatStorage", "0", 1, "K\x03", "K\x01") + "ss" +
		utf8("log") + utf8(strings.Repeat("x", 3<<20)) + "s."
	data := legacyOf(state, legacyKeys, fourLegacy)
	f, err := read(strings.NewReader(data), int64(len(data)))
	require.NoError(t, err)
	require.Equal(t, "456789abcdef", data[f.Entries[0].Offset:][:12])
}

// TestBrokenLegacy: each part that is not as it should be is named.
func TestBrokenLegacy(t *testing.T) {
	part := strings.Replace(oneTensor, "K\x04tQ", "K\x04(K\x00K\x00ttQ", 1)
	for name, c := range map[string]struct{ data, want string }{
		"plain":         {"\x80\x02}X\x01\x00\x00\x00aK\x01s.", "is a plain pickle, not written by torch.save"},
		"plain tensors": {"\x80\x04" + call("torch.storage", "_load_from_bytes") + ".", "is a plain pickle, not written by torch.save: pickle: byte 34: refers to torch.storage._load_from_bytes, which is not allowed"},
		"plain code":    {"\x80\x03" + call("os", "system") + ".", "refers to os.system"},
		"plain, cut":    {"\x80\x02}X", "ends too early"},
		"version":       {"\x80\x02" + magic + "\x80\x02K\x01.", "version of the file is not 1001"},
		"big endian":    {legacyHead + "\x80\x02}X\x0d\x00\x00\x00little_endian\x89s.", "not written on a little-endian machine"},
		"no sizes":      {legacyHead + "N.", "not written on a little-endian machine"},
		"code":          {legacyHead + legacySizes + stateOf(utf8("w"), call("os", "system")+")R"), "refers to os.system, which is not allowed"},
		"no dict":       {legacyHead + legacySizes + "K\x01.", "holds no state dict"},
		"keys":          {legacyOf(oneTensor, "N.", fourLegacy), "the keys of the storages are no list"},
		"other keys":    {legacyOf(oneTensor, "]X\x01\x00\x00\x001a.", fourLegacy), "are not those that the tensors name"},
		"key twice":     {legacyOf(oneTensor, "](X\x01\x00\x00\x000X\x01\x00\x00\x000e.", fourLegacy+fourLegacy), "are not those that the tensors name"},
		"no keys":       {legacyOf(oneTensor, "].", ""), "its storage 0 is not in the file"},
		"count":         {legacyOf(oneTensor, legacyKeys, "\x05"+fourLegacy[1:]), "storage 0: has 5 elements, but the pickle says 4"},
		"cut count":     {legacyOf(oneTensor, legacyKeys, fourLegacy[:5]), "file is cut off: storage 0 of 4 elements of 4 bytes is not whole"},
		"cut data":      {legacyOf(oneTensor, legacyKeys, fourLegacy[:20]), "file is cut off: storage 0"},
		"too long":      {legacyOf(oneTensor, legacyKeys, fourLegacy+"x"), "1 bytes too many: they follow the last storage"},
		"view":          {legacyOf(part, legacyKeys, fourLegacy), "a storage that is a part of another"},
		"beyond": {legacyOf(stateOf(utf8("w"), tensorOf("FloatStorage", "0", 2, "K\x03", "K\x01")), legacyKeys, fourLegacy),
			"tensor w: it needs 12 bytes from element 2 of its storage 0 on, which has 16"},
	} {
		_, err := read(strings.NewReader(c.data), int64(len(c.data)))
		require.ErrorContains(t, err, c.want, name)
	}
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
		var e *format.Error
		require.ErrorAs(t, err, &e)
		require.ErrorContains(t, err, want)
		require.Contains(t, e.Hint, "or one under state_dict")
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
