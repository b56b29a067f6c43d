package torchbin

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/convert/format"
	"dsmoe/model/tensor"
	"dsmoe/text/problem"
)

const fixtures = "../../fixtures/torch-bin"

func open(path string) (*file, error) { return format.OpenFile(path, readData) }

// TestCases reads every dtype and view that torch wrote, and compares the bytes
// with torch's own.
func TestCases(t *testing.T) {
	var want map[string][3]json.RawMessage
	text, err := os.ReadFile(filepath.Join(fixtures, "cases.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &want))
	f, err := open(filepath.Join(fixtures, "cases.bin"))
	require.NoError(t, err)
	defer f.Close()
	require.Equal(t, len(want), f.Stat().Tensors)
	for info := range f.Tensors() {
		x, err := f.Tensor(info.Name)
		require.NoError(t, err)
		sum := sha256.Sum256(x.Data)
		shape, err := json.Marshal(info.Shape)
		require.NoError(t, err)
		var compact bytes.Buffer
		require.NoError(t, json.Compact(&compact, want[info.Name][1]))
		require.Equal(t, compact.String(), string(shape), info.Name)
		require.Equal(t, string(want[info.Name][2]), `"`+hex.EncodeToString(sum[:])+`"`, info.Name)
	}
	dtypes := map[string]tensor.DType{"f64": tensor.F64, "bf16": tensor.BF16, "e4m3": tensor.F8E4M3, "e5m2": tensor.F8E5M2, "bool": tensor.Bool, "i16": tensor.I16}
	for name, d := range dtypes {
		info, _, ok := f.Lookup(name)
		require.True(t, ok)
		require.Equal(t, d, info.DType)
	}
}

func TestRefusedFiles(t *testing.T) {
	for name, want := range map[string]string{
		"transposed.bin": "tensor turned: shape [4 6] with strides [1 4] is not contiguous",
		"cases.json":     "is not a zip archive",
		"checkpoint":     "is a directory, not a regular file",
		"none":           "no such file",
	} {
		_, err := open(filepath.Join(fixtures, name))
		var refused *problem.Error
		require.ErrorAs(t, err, &refused, name)
		require.ErrorContains(t, err, want, name)
	}
}

// TestLookalikes: what is no archive is named for what it is.
func TestLookalikes(t *testing.T) {
	for data, want := range map[string]string{
		"":                  "file is empty",
		"PK\x03\x04 and on": "archive is cut off",
		"version https://git-lfs.github.com/spec/v1\noid sha256:0": "is a Git LFS pointer",
		"ver":        "is not a zip archive",
		"\x80\x02}.": "is a plain pickle, not written by torch.save",
	} {
		path := filepath.Join(t.TempDir(), "pytorch_model.bin")
		require.NoError(t, os.WriteFile(path, []byte(data), 0o600))
		_, err := open(path)
		require.ErrorContains(t, err, want)
	}
}

// archiveOf makes a file as torch.save lays it out.
func archiveOf(t testing.TB, pickle string, entries map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	add := func(name, data string) {
		w, err := z.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Store})
		require.NoError(t, err)
		_, err = w.Write([]byte(data))
		require.NoError(t, err)
	}
	add("archive/data.pkl", pickle)
	for name, data := range entries {
		add(name, data)
	}
	require.NoError(t, z.Close())
	return b.Bytes()
}

// Parts of pickles.
func utf8(s string) string {
	return "X" + string(binary.LittleEndian.AppendUint32(nil, uint32(len(s)))) + s
}

func call(module, name string) string { return "c" + module + "\n" + name + "\n" }

// numel is how many elements of a storage type are 16 bytes.
var numel = map[string]byte{"FloatStorage": 4, "HalfStorage": 8, "UntypedStorage": 16}

// tensorOf is the pickle of a tensor on storage key, of 16 bytes.
func tensorOf(storage, key string, offset byte, shape, strides string) string {
	return call("torch._utils", "_rebuild_tensor_v2") + "((" + utf8("storage") + call("torch", storage) + utf8(key) + utf8("cpu") + "K" + string([]byte{numel[storage]}) + "tQ" +
		"K" + string([]byte{offset}) + "(" + shape + "t(" + strides + "t\x89" + call("collections", "OrderedDict") + ")RtR"
}

func stateOf(items ...string) string { return "\x80\x02}(" + strings.Join(items, "") + "u." }

var fourFloats = map[string]string{"archive/data/0": strings.Repeat("\x00", 16)}

func TestCraftedIsRead(t *testing.T) {
	data := archiveOf(t, stateOf(utf8("w"), tensorOf("FloatStorage", "0", 1, "K\x03", "K\x01")), fourFloats)
	f, err := read(bytes.NewReader(data), int64(len(data)))
	require.NoError(t, err)
	require.Equal(t, tensor.Info{Name: "w", DType: tensor.F32, Shape: []int{3}}, f.Entries[0].Info)
}

// TestHostile: whatever asks for anything but tensors is refused by its name, and
// broken files are refused.
func TestHostile(t *testing.T) {
	w := utf8("w")
	ok := tensorOf("FloatStorage", "0", 0, "K\x04", "K\x01")
	for name, c := range map[string]struct{ pickle, want string }{
		"os.system":          {stateOf(w, call("os", "system")+"("+utf8("touch /tmp/pwned")+"tR"), "refers to os.system, which is not allowed"},
		"posix.system":       {stateOf(w, call("posix", "system")+"("+utf8("id")+"tR"), "refers to posix.system"},
		"builtins.eval":      {stateOf(w, call("builtins", "eval")+"("+utf8("1")+"tR"), "refers to builtins.eval"},
		"builtins.exec":      {stateOf(w, call("__builtin__", "exec")+"("+utf8("1")+"tR"), "refers to __builtin__.exec"},
		"getattr":            {stateOf(w, call("builtins", "getattr")+")R"), "refers to builtins.getattr"},
		"subprocess":         {stateOf(w, call("subprocess", "Popen")+")R"), "refers to subprocess.Popen"},
		"torch.load":         {stateOf(w, call("torch", "load")+"("+utf8("x")+"tR"), "refers to torch.load"},
		"torch.hub":          {stateOf(w, call("torch.hub", "load")+")R"), "refers to torch.hub.load"},
		"numpy scalar":       {stateOf(w, call("numpy.core.multiarray", "scalar")+")R"), "refers to numpy.core.multiarray.scalar"},
		"codecs":             {stateOf(w, call("_codecs", "encode")+")R"), "refers to _codecs.encode"},
		"dotted name":        {stateOf(w, call("torch", "_utils.os.system")+")R"), "is not allowed"},
		"stack global":       {stateOf(w, "\x8c\x02os\x8c\x06system\x93)R"), "refers to os.system"},
		"control bytes":      {stateOf(w, call("os\x1b[2J", "system")+")R"), `refers to "os\x1b[2J.system"`},
		"INST":               {"\x80\x02(" + utf8("id") + "ios\nsystem\n.", "opcode INST is not allowed"},
		"OBJ":                {"\x80\x02(" + "o.", "opcode OBJ is not allowed"},
		"NEWOBJ":             {"\x80\x02)\x81.", "opcode NEWOBJ is not allowed"},
		"EXT1":               {"\x80\x02\x82\x01.", "opcode EXT1 is not allowed"},
		"PERSID":             {"\x80\x02Px\n.", "opcode PERSID is not allowed"},
		"unknown opcode":     {"\x80\x02\xfe.", "opcode 0xfe is not allowed"},
		"BUILD on a tensor":  {stateOf(w, ok+"}b"), "attributes for what has none"},
		"called dtype":       {stateOf(w, call("torch", "float8_e4m3fn")+")R"), "that makes no tensor"},
		"protocol":           {"\x80\x09.", "pickle protocol 9"},
		"empty":              {"", "ends too early"},
		"no stop":            {"\x80\x02}", "ends too early"},
		"long string":        {"\x80\x02X\xff\xff\xff\xff", "ends too early"},
		"empty stack":        {"\x80\x02.", "the stack is empty"},
		"no dict":            {"\x80\x02K\x01.", "holds no state dict"},
		"no memo":            {"\x80\x02h\x05.", "nothing is kept under 5"},
		"no tensor":          {stateOf(utf8("epoch"), "K\x05"), "tensor epoch: is not a tensor"},
		"twice":              {stateOf(w, ok, w, ok), "tensor w: name occurs twice"},
		"number as name":     {stateOf("K\x05", ok), "a key of the state dict is not a string"},
		"beyond the storage": {stateOf(w, tensorOf("FloatStorage", "0", 1, "K\x04", "K\x01")), "needs 16 bytes from element 1"},
		"strides":            {stateOf(w, tensorOf("FloatStorage", "0", 0, "K\x02K\x02", "K\x01K\x02")), "is not contiguous"},
		"rank":               {stateOf(w, tensorOf("FloatStorage", "0", 0, "K\x02K\x02", "K\x01")), "wrong arguments"},
		"negative shape":     {stateOf(w, tensorOf("FloatStorage", "0", 0, "J\xff\xff\xff\xff", "K\x01")), "wrong arguments"},
		"overflow":           {stateOf(w, tensorOf("FloatStorage", "0", 0, "\x8a\x06\x00\x00\x00\x00\x00\x01\x8a\x06\x00\x00\x00\x00\x00\x01", "K\x01K\x01")), "overflows"},
		"other storage":      {stateOf(w, tensorOf("FloatStorage", "../0", 0, "K\x04", "K\x01")), `its storage 0 is not in the archive`},
		"no such storage":    {stateOf(w, tensorOf("FloatStorage", "7", 0, "K\x04", "K\x01")), "its storage data/7 is not in the archive"},
		"list of itself":     {"\x80\x02]q\x00h\x00a.", "holds no state dict"},
	} {
		t.Run(name, func(t *testing.T) {
			data := archiveOf(t, c.pickle, fourFloats)
			_, err := read(bytes.NewReader(data), int64(len(data)))
			require.ErrorContains(t, err, c.want)
			assert.NotContains(t, err.Error(), "\n")
			assert.NotContains(t, err.Error(), "\x1b")
			assert.Less(t, len(err.Error()), 1000)
		})
	}
}

func TestHostileArchives(t *testing.T) {
	good := stateOf(utf8("w"), tensorOf("FloatStorage", "0", 0, "K\x04", "K\x01"))
	for name, c := range map[string]struct {
		entries map[string]string
		want    string
	}{
		"big endian":  {map[string]string{"archive/data/0": strings.Repeat("\x00", 16), "archive/byteorder": "big"}, "byte order is big"},
		"other roots": {map[string]string{"evil/data/0": strings.Repeat("\x00", 16)}, "is outside the folder"},
		"no storage":  {nil, "is not in the archive"},
	} {
		data := archiveOf(t, good, c.entries)
		_, err := read(bytes.NewReader(data), int64(len(data)))
		require.ErrorContains(t, err, c.want, name)
	}
	data := archiveOf(t, good, fourFloats)
	for _, n := range []int{0, 3, 40, len(data) - 1} {
		_, err := read(bytes.NewReader(data[:n]), int64(n))
		require.Error(t, err, n)
	}
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, part := range []string{"archive/data.pkl", "archive/data/0", "archive/data/0"} {
		w, err := z.Create(part) // compressed, and one twice
		require.NoError(t, err)
		_, err = w.Write([]byte(good))
		require.NoError(t, err)
	}
	require.NoError(t, z.Close())
	_, err := read(bytes.NewReader(b.Bytes()), int64(b.Len()))
	require.ErrorContains(t, err, "is there twice")
}

// requireInside demands an error of one line, or tensors inside the file.
func requireInside(t *testing.T, data []byte) {
	t.Helper()
	f, err := read(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		require.NotContains(t, err.Error(), "\n")
		return
	}
	for _, e := range f.Entries {
		require.GreaterOrEqual(t, e.Offset, int64(0))
		require.LessOrEqual(t, e.Offset+e.Info.Bytes(), int64(len(data)))
	}
}

// FuzzUnpickle: whatever the pickle, an error or tensors inside the file.
func FuzzUnpickle(f *testing.F) {
	f.Add([]byte(stateOf(utf8("w"), tensorOf("FloatStorage", "0", 1, "K\x03", "K\x01"))))
	f.Add([]byte(stateOf(utf8("w"), call("os", "system")+")R")))
	f.Add([]byte("\x80\x02}" + utf8("state_dict") + "}" + utf8("w") + tensorOf("FloatStorage", "0", 1, "K\x03", "K\x01") + "ss."))
	f.Fuzz(func(t *testing.T, pickle []byte) { requireInside(t, archiveOf(t, string(pickle), fourFloats)) })
}

// FuzzArchive: whatever the file, an error or tensors inside it.
func FuzzArchive(f *testing.F) {
	f.Add(archiveOf(f, stateOf(utf8("w"), tensorOf("FloatStorage", "0", 1, "K\x03", "K\x01")), fourFloats))
	f.Add([]byte("\x80\x02" + legacyMagic))
	f.Fuzz(func(t *testing.T, data []byte) { requireInside(t, data) })
}

// TestLegacy: a file of torch before 1.6 is refused by what it is, with what to do; and so is a pickle of another program.
func TestLegacy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pytorch_model.bin")
	require.NoError(t, os.WriteFile(path, []byte("\x80\x02"+legacyMagic+"\x80\x02M\xe9\x03."), 0o600))
	_, err := open(path)
	require.Equal(t, problem.New(path, "was written by torch before 1.6, or in its format, which is not read",
		"load it with torch 1.6 or later where you trust it, and save it again: torch.save(torch.load(FILE), FILE)"), err)

	require.NoError(t, os.WriteFile(path, []byte("\x80\x03"+call("os", "system")+"."), 0o600))
	_, err = open(path)
	require.ErrorContains(t, err, "is a plain pickle, not written by torch.save")
}

// TestIdentify: the tensors, and where each begins.
func TestIdentify(t *testing.T) {
	identity := func(entries ...format.Entry) string {
		var b bytes.Buffer
		require.NoError(t, (&file{Directory: format.Directory{Entries: entries}}).Identify(&b))
		return b.String()
	}
	one := format.Entry{Info: tensor.Info{Name: "w", DType: tensor.F32, Shape: []int{3}}, Offset: 64}
	seen := map[string]bool{identity(one): true, identity(one, one): true, identity(): true}
	for _, other := range []format.Entry{
		{Info: tensor.Info{Name: "x", DType: tensor.F32, Shape: []int{3}}, Offset: 64}, {Info: tensor.Info{Name: "w", DType: tensor.F16, Shape: []int{3}}, Offset: 64},
		{Info: tensor.Info{Name: "w", DType: tensor.F32, Shape: []int{3, 1}}, Offset: 64}, {Info: tensor.Info{Name: "w", DType: tensor.F32, Shape: []int{3}}, Offset: 65},
	} {
		require.False(t, seen[identity(other)], other)
		seen[identity(other)] = true
	}
}

// TestLeaves: tensors, texts and numbers of any value have the names that lead to them; a value that contains itself is refused.
func TestLeaves(t *testing.T) {
	leaves := func(program string) (found []string, err error) {
		path := filepath.Join(t.TempDir(), "file.pt")
		data := archiveOf(t, program, map[string]string{"archive/data/0": "0123456789abcdef"})
		require.NoError(t, os.WriteFile(path, data, 0o666))
		err = Leaves(path, func(name string, x *tensor.Info, offset int64, value any) {
			if x != nil {
				value = string(data[offset:][:x.Bytes()])
			}
			found = append(found, fmt.Sprintf("%s=%v", name, value))
		})
		return found, err
	}
	one := tensorOf("FloatStorage", "0", 1, "K\x01", "K\x01") // the second of four numbers
	for program, want := range map[string][]string{
		"K\x05.": {"=5"},
		"}(" + utf8("a") + "]K\x01a" + utf8("b") + one + "u.":           {"a.0=1", "b=4567"},
		"(" + one + utf8("x") + "t.":                                    {"0=4567", "1=x"},
		"(" + tensorOf("FloatStorage", "0", 1, "K\x04", "K\x01") + "t.": {"0=it needs 16 bytes from element 1 of its storage data/0 on, which has 16 bytes"},
		// attributes of a tensor are dropped
		"ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_tensor_v2\nctorch\nTensor\n" +
			strings.TrimSuffix(strings.TrimPrefix(one, "ctorch._utils\n_rebuild_tensor_v2\n"), "R") + "}tR.": {"=4567"},
	} {
		got, err := leaves(program)
		require.NoError(t, err, "%q", program)
		require.Equal(t, want, got, "%q", program)
	}
	for program, cause := range map[string]string{
		"]q\x00h\x00a.": "in more than 16 lists in one another",
		"ctorch._tensor\n_rebuild_from_type_v2\n(ctorch\nTensor\nctorch\nTensor\n)}tR.": "makes no tensor",
		"cos\nsystem\n)R.": "os.system",
	} {
		_, err := leaves(program)
		require.ErrorContains(t, err, cause, "%q", program)
	}
}
