package pack_test

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/nlpodyssey/safetensors"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/model"
	"dsmoe/verify/pack"
)

// view is a tensor to be written.
type view struct {
	dtype string
	shape []uint64
	data  []byte
}

func (v view) DType() safetensors.DType { return must(safetensors.ParseDType(v.dtype)) }
func (v view) Shape() []uint64          { return v.shape }
func (v view) Data() []byte             { return v.data }
func (v view) DataLen() uint64          { return uint64(len(v.data)) }

// must returns v if there was no error.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// tokensFile writes a file and returns its path.
func tokensFile(t *testing.T, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, data, 0o600))
	return path
}

// tokenTensors returns a safetensors file of whole numbers, under a dtype of 8 bytes.
func tokenTensors(dtype string, tensors map[string][]int, shape ...uint64) []byte {
	views := map[string]view{}
	for name, values := range tensors {
		x := view{dtype: dtype, shape: shape}
		for _, v := range values {
			x.data = binary.LittleEndian.AppendUint64(x.data, uint64(v))
		}
		views[name] = x
	}
	return must(safetensors.Serialize(views, nil))
}

// TestReadTokens reads every form that golden.py --tokens takes.
func TestReadTokens(t *testing.T) {
	one := &model.Input{Batch: 1, Seq: 3, InputIDs: []int{5, 0, 7}}
	two := &model.Input{Batch: 2, Seq: 2, InputIDs: []int{5, 0, 7, 8}, AttentionMask: []int{0, 1, 1, 1}}
	for name, c := range map[string]struct {
		data string
		want *model.Input
	}{
		"list":          {"[5, 0, 7]", one},
		"lists":         {"[[5, 0, 7]]", one},
		"object":        {`{"input_ids": [5, 0, 7], "attention_mask": null, "text": "x"}`, one},
		"object, masks": {`{"attention_mask": [[0, 1], [1, 1]], "input_ids": [[5, 0], [7, 8]]}`, two},
	} {
		in, err := pack.ReadTokens(tokensFile(t, "tokens.json", []byte(c.data)))
		require.NoError(t, err, name)
		assert.Equal(t, c.want, in, name)
	}
	in, err := pack.ReadTokens(tokensFile(t, "t.safetensors", tokenTensors("I64", map[string][]int{"input_ids": {5, 0, 7}, "other": {1, 2, 3}}, 3)))
	require.NoError(t, err)
	assert.Equal(t, one, in)
	in, err = pack.ReadTokens(tokensFile(t, "t.safetensors", tokenTensors("I64", map[string][]int{"input_ids": {5, 0, 7, 8}, "attention_mask": {0, 1, 1, 1}}, 2, 2)))
	require.NoError(t, err)
	assert.Equal(t, two, in)
}

// TestReadTokensRefuses what is no batch of tokens, and names the file.
func TestReadTokensRefuses(t *testing.T) {
	for data, want := range map[string]string{
		"":                       "byte 0: unexpected EOF; tokens are JSON, such as [[3, 14, 15]], or a .safetensors file",
		"[":                      "byte 1: unexpected EOF",
		"the text itself":        "byte 1: ",
		"[1.5]":                  "neither whole numbers nor lists of them: [1.5]",
		`["a"]`:                  "neither whole numbers nor lists of them",
		"[99999999999999999999]": "neither whole numbers nor lists of them",
		"[[[1]]]":                "neither whole numbers nor lists of them",
		"[]":                     "input_ids: no token",
		"[[]]":                   "input_ids: no token",
		"{}":                     "no input_ids",
		`{"input_ids": null}`:    "input_ids: no token",
		"[[1, 2], [3]]":          "input_ids: 1 numbers in list 1, 2 in the first",
		`{"input_ids": [1], "attention_mask": [2]}`:    "attention_mask[0, 0]: 2 is not 0 or 1",
		`{"input_ids": [1], "attention_mask": [1, 1]}`: "attention_mask: shape [1 2], input_ids has [1 1]",
		`{"input_ids": [1], "input_ids": [2]}`:         "duplicate",
	} {
		path := tokensFile(t, "tokens.json", []byte(data))
		_, err := pack.ReadTokens(path)
		require.ErrorContains(t, err, want, data)
		require.ErrorContains(t, err, path)
	}
	for want, data := range map[string][]byte{
		"not a safetensors file":                          []byte("short"),
		"no input_ids":                                    tokenTensors("I64", map[string][]int{"ids": {1}}, 1),
		"input_ids: dtype F64, I64 expected":              tokenTensors("F64", map[string][]int{"input_ids": {1}}, 1),
		"input_ids: shape [1 1 1], [batch, seq] expected": tokenTensors("I64", map[string][]int{"input_ids": {1}}, 1, 1, 1),
	} {
		_, err := pack.ReadTokens(tokensFile(t, "tokens.safetensors", data))
		require.ErrorContains(t, err, want)
	}
	_, err := pack.ReadTokens(t.TempDir())
	require.ErrorContains(t, err, "not a regular file")
	_, err = pack.ReadTokens(filepath.Join(t.TempDir(), "nosuch"))
	require.ErrorIs(t, err, os.ErrNotExist)
}
