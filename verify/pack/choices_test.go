package pack

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/stretchr/testify/require"

	"dsmoe/config"
)

// TestChoices: choices of experts as rollout engines return them are those of a trace's gates; others are refused.
func TestChoices(t *testing.T) {
	t.Parallel()
	of, err := Open("../../fixtures/engines/sglang-served") // 24 tokens and 3 of padding; layer 1 of 2 has a gate
	require.NoError(t, err)
	c, err := of.RecordedConfig(config.Native)
	require.NoError(t, err)
	const gate = "model.layers.1." + TopKIdx
	want, err := of.Ints(gate)
	require.NoError(t, err)
	in, err := of.Input()
	require.NoError(t, err)
	var chosen []int // [tokens, 2], without padding
	for token := range in.InputIDs {
		if !in.IsPadding(token) {
			chosen = append(chosen, want[2*token:][:2]...)
		}
	}
	tokens := len(chosen) / 2
	all := func(chosen []int) (both []int) { // with the dense layer
		for ; len(chosen) > 0; chosen = chosen[2:] {
			both = append(both, 0, 0, chosen[0], chosen[1])
		}
		return both
	}
	numpy := func(descr string, shape string, values any) []byte {
		header := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': (%s), }\n", descr, shape)
		data := append([]byte("\x93NUMPY\x01\x00"), byte(len(header)), 0)
		data, err := binary.Append(append(data, header...), binary.LittleEndian, values)
		require.NoError(t, err)
		return data
	}
	of8 := func(values []int) (narrow []uint8) {
		for _, v := range values {
			narrow = append(narrow, uint8(v))
		}
		return narrow
	}
	of16 := func(values []int) (narrow []int16) {
		for _, v := range values {
			narrow = append(narrow, int16(v))
		}
		return narrow
	}
	of32 := func(values []int) []byte {
		var data []byte
		for _, v := range values {
			data = binary.LittleEndian.AppendUint32(data, uint32(v))
		}
		return data
	}
	var lists [][][]int
	for i := range tokens {
		lists = append(lists, [][]int{chosen[2*i:][:2]})
	}
	inJSON := func(value any) []byte {
		data, err := json.Marshal(value)
		require.NoError(t, err)
		return data
	}
	read := func(name string, data []byte) (*Pack, error) {
		path := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(path, data, 0o666))
		require.True(t, IsChoices(path))
		p, err := Choices(path, in, of.DType)
		if err == nil {
			err = p.Spell(c)
		}
		return p, err
	}
	for _, file := range []struct {
		name string
		data []byte
	}{
		{"vllm.npy", numpy("|u1", fmt.Sprintf("%d, 2, 2", tokens), of8(all(chosen)))},
		{"verl.npy", numpy("<i2", fmt.Sprintf("%d, 1, 2", tokens), of16(chosen))},
		{"sglang.json", inJSON(map[string]string{"routed_experts": base64.StdEncoding.EncodeToString(of32(all(chosen)))})},
		{"lists.json", inJSON(lists)},
	} {
		p, err := read(file.name, file.data)
		require.NoError(t, err, file.name)
		got, err := p.Ints(gate)
		require.NoError(t, err, file.name)
		require.Len(t, got, len(want), file.name)
		for token := range in.InputIDs {
			if !in.IsPadding(token) {
				require.Equal(t, want[2*token:][:2], got[2*token:][:2], "%s: token %d", file.name, token)
			}
		}
		its, err := p.Input()
		require.NoError(t, err)
		require.Equal(t, in, its)
	}
	whole := numpy("|u1", fmt.Sprintf("%d, 2, 2", tokens), of8(all(chosen)))
	for cause, file := range map[string][]byte{
		"leave that token out":         numpy("|u1", fmt.Sprintf("%d, 2, 2", tokens-1), of8(all(chosen[2:]))),
		"choices of 3 layers":          numpy("|u1", fmt.Sprintf("%d, 3, 2", tokens), make([]uint8, 6*tokens)),
		"[tokens, layers, 2] expected": numpy("|u1", fmt.Sprintf("%d, 2, 1", tokens), make([]uint8, 2*tokens)),
		"little-endian integers":       numpy("<f4", fmt.Sprintf("%d, 2, 2", tokens), make([]float32, 4*tokens)),
		"bytes, shape":                 whole[:len(whole)-1],
		"header ends too early":        whole[:20],
		"not a .npy file":              bytes.Repeat([]byte("x"), 40),
	} {
		_, err := read("wrong.npy", file)
		require.ErrorContains(t, err, cause)
	}
	for cause, data := range map[string]string{
		"no routed_experts":          `{"experts": []}`,
		"not base64 of int32":        `"AAA="`,
		"lists of token 1 are not 1": `[[[1, 2]], [[1]]]`,
		"whole numbers expected":     `[[[1.5, 2]]]`,
	} {
		_, err := read("wrong.json", []byte(data))
		require.ErrorContains(t, err, cause)
	}
}

// TestProbesInALatentSpace: experts in a latent space take and give rows of its width.
func TestProbesInALatentSpace(t *testing.T) {
	m := Manifest{Tensors: map[string]Entry{
		StageOf(1, AttentionNorm): {Shape: []int{1, 8, 16}}, StageOf(1, latentInput): {Shape: []int{8, 12}},
		ProbeStage(1, 2): {Shape: []int{2, 12}},
	}}
	probe := Probe{Rows: []int{0, 5}, Experts: []int{2}}
	require.Empty(t, m.checkProbe(1, probe))
	delete(m.Tensors, StageOf(1, latentInput))
	require.Len(t, m.checkProbe(1, probe), 1)
}
