package safetensors

import (
	"bytes"
	"encoding/binary"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	oracle "github.com/nlpodyssey/safetensors"
	"github.com/stretchr/testify/require"
)

// stricter are the reasons to refuse a file that the oracle accepts: the written
// list of what this reader is stricter about, besides whatever is not I-JSON (bad
// UTF-8, lone surrogates, a key twice in any object, of which the oracle takes
// the last). Anything else is a bug.
var stricter = []string{
	"header is null",         // the oracle sees no tensors
	"exceeds the limit of",   // dimensions
	"more than 16 dimension", // rank
	"overflows",              // behind a dimension of zero
	"name is empty", "name has",
	"__metadata__ exceeds", "more than 16 MiB", "tensors in one file",
}

// lacking are the dtypes that the oracle does not know.
var lacking = []string{"F8_", "F6_", "F4", "C64"}

// FuzzHeader compares readHeader with nlpodyssey/safetensors, on whole files and,
// because few random files have a header at all, on headers with n data bytes.
func FuzzHeader(f *testing.F) {
	add := func(data []byte) {
		f.Add(data, uint16(0), true)
		if h := data[min(len(data), 8):]; len(h) > 0 && h[0] == '{' {
			end := bytes.LastIndexByte(h, '}') + 1
			f.Add(h[:end], uint16(len(h)-end), false)
		}
	}
	for _, c := range hostiles() {
		if len(c.data) < 4096 {
			add(c.data)
		}
	}
	for _, path := range []string{"../../fixtures/v1-base/golden-bf16/inputs.safetensors", "../../fixtures/v1-base/golden-bf16/embed.safetensors"} {
		data, err := os.ReadFile(path)
		require.NoError(f, err)
		add(data)
	}
	add(pack(obj(valid), 16))
	add(pack(obj(`"__metadata__":{"format":"pt"}`, entryOf("a", "I8", "[0]", "[0,0]"), entryOf("b", "I8", "[2]", "[0,2]")), 2))
	f.Fuzz(func(t *testing.T, data []byte, n uint16, whole bool) {
		if len(data) > 1<<20 {
			return
		}
		if !whole {
			data = pack(string(data), int(n))
		}
		h, err := readHeader(bytes.NewReader(data), int64(len(data)), "fuzz.safetensors")
		theirs, oracleErr := oracle.Deserialize(data)
		switch {
		case err != nil:
			requireOneLine(t, err.Error())
			if oracleErr == nil && !containsAny(err.Error(), stricter) && isIJSON(data) {
				t.Fatalf("the oracle accepts what we refuse: %v", err)
			}
		case oracleErr != nil:
			if !hasLackingDType(h) {
				t.Fatalf("we accept what the oracle refuses: %v", oracleErr)
			}
		default:
			compareWithOracle(t, h, theirs, data)
		}
		if err == nil {
			requireLayoutAgrees(t, h)
		}
	})
}

func containsAny(s string, parts []string) bool {
	for _, p := range parts {
		if strings.Contains(s, p) {
			return true
		}
	}
	return false
}

// isIJSON says whether the header of a file is JSON as RFC 7493 restricts it.
func isIJSON(data []byte) bool {
	n := binary.LittleEndian.Uint64(data)
	return jsontext.Value(data[8 : 8+n]).IsValid()
}

func hasLackingDType(h *header) bool {
	for info := range h.Tensors() {
		for _, prefix := range lacking {
			if strings.HasPrefix(info.DType.String(), prefix) {
				return true
			}
		}
	}
	return false
}

func compareWithOracle(t *testing.T, h *header, theirs oracle.SafeTensors, data []byte) {
	require.Equal(t, theirs.Len(), h.Len())
	for info := range h.Tensors() {
		v, ok := theirs.Tensor(info.Name)
		require.True(t, ok, info.Name)
		require.Equal(t, v.DType().String(), info.DType.String())
		require.Equal(t, len(v.Shape()), len(info.Shape))
		for i, d := range v.Shape() {
			require.Equal(t, d, uint64(info.Shape[i]))
		}
		_, offset, _ := h.Lookup(info.Name)
		require.Equal(t, v.Data(), data[offset:offset+info.Bytes()])
	}
}

// requireLayoutAgrees lays an accepted header out again and reads that.
func requireLayoutAgrees(t *testing.T, h *header) {
	if h.Metadata == nil {
		h.Metadata = map[string]string{}
	}
	infos := slices.Collect(h.Tensors())
	l, err := NewLayout(infos, h.Metadata)
	require.NoError(t, err)
	again, err := readHeader(bytes.NewReader(l.Header()), l.Size(), "again.safetensors")
	require.NoError(t, err)
	for i, info := range infos {
		got, offset, ok := again.Lookup(info.Name)
		require.True(t, ok)
		require.Equal(t, info, got)
		require.Equal(t, l.Offsets[i], offset)
	}
}
