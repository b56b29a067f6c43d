package gguf

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/convert/format"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
)

// weightsOf lists the weights of a fixture's model.
func weightsOf(t *testing.T, fixture string) (infos []tensor.Info) {
	c := configtest.Fixture(t, fixture+"/checkpoint")
	for s := range table.FamilyOf(c).Slots(c) {
		infos = append(infos, s.Info(tensor.BF16))
	}
	return infos
}

// TestWeightsThatDoNotFit: a stack without one of its experts, and a weight that the table does not know, are refused.
func TestWeightsThatDoNotFit(t *testing.T) {
	const expert = "model.layers.1.mlp.experts.5.up_proj.weight"
	weights := []tensor.Info{{Name: "stranger.weight", DType: tensor.BF16, Shape: []int{2}}}
	for _, w := range weightsOf(t, "v1-base") {
		if w.Name != expert {
			weights = append(weights, w)
		}
	}
	_, wrong := arrange(configtest.Fixture(t, "v1-base/checkpoint"), weights, "keep")
	require.Len(t, wrong, 2)
	require.Contains(t, wrong[0].String(),
		"model.layers.1.mlp.experts.0.up_proj.weight: is one of 15 experts to be written, but a file has all 16 experts")
	require.Contains(t, wrong[1].String(), "stranger.weight: is not in the table of deepseek")
}

// TestIndexersWeights: llama.cpp's converter keeps the weights of an indexer's heads in F32, its quantiser does not.
func TestIndexersWeights(t *testing.T) {
	for kind, want := range map[string]tensor.DType{"bf16": tensor.F32, "keep": tensor.F32, "q8_0": tensor.F16} {
		made, wrong := arrange(configtest.Fixture(t, "v32/checkpoint"), weightsOf(t, "v32"), kind)
		require.Empty(t, wrong)
		seen := 0
		for _, x := range made {
			if strings.HasSuffix(x.Name, ".indexer.proj.weight") {
				seen++
				require.Equal(t, want, x.DType, kind)
			}
		}
		require.Positive(t, seen)
	}
}

// TestIndexersTypes: the key that says which layers have an indexer is there only where the config says it.
func TestIndexersTypes(t *testing.T) {
	for fixture, key := range map[string]string{"v32": deepseek32 + "." + indexerTypes, "glm5": glmDSA + "." + indexerTypes} {
		_, written := modelPairs(configtest.Fixture(t, fixture+"/checkpoint")).of[key]
		require.Equal(t, fixture == "glm5", written, fixture)
	}
}

// TestLayoutRefuses: what no GGUF file can hold is refused before a byte is written.
func TestLayoutRefuses(t *testing.T) {
	keys := make([]byte, 8)
	for cause, x := range map[string]struct {
		info tensor.Info
		keys []byte
	}{
		"GGUF has no dtype F8_E4M3":   {tensor.Info{Name: "x", DType: tensor.F8E4M3, Shape: []int{2}}, keys},
		"a name has 63 bytes at most": {tensor.Info{Name: strings.Repeat("x", 64), DType: tensor.F32, Shape: []int{2}}, keys},
		"a shape 4 dimensions":        {tensor.Info{Name: "x", DType: tensor.F32, Shape: []int{1, 1, 1, 1, 2}}, keys},
		"tensor x: a scalar":          {tensor.Info{Name: "x", DType: tensor.F32}, keys},
		"there are no keys":           {tensor.Info{Name: "x", DType: tensor.F32, Shape: []int{2}}, nil},
	} {
		_, err := newLayout([]tensor.Info{x.info}, format.Head{Keys: x.keys})
		require.ErrorContains(t, err, cause, fmt.Sprint(x))
	}
	_, err := newLayout([]tensor.Info{{Name: strings.Repeat("x", 63), DType: tensor.F32, Shape: []int{1, 1, 1, 2}}}, format.Head{Keys: keys})
	require.NoError(t, err)
}

// TestReplacedPairs: a key of the source is written anew only if the config changed it. Other keys keep their bytes, even
// where this program would write a number of another width.
func TestReplacedPairs(t *testing.T) {
	before := configtest.Fixture(t, "v1-base/checkpoint")
	after := *before
	after.MoE.NumExpertsPerTok--
	w := &keyWriter{b: make([]byte, 8), arch: deepseek}
	w.key("deepseek.context_length", u64)
	w.b = append(w.b, le64(uint64(before.RoPE.MaxPositionEmbeddings))...)
	w.of("expert_used_count", uint32(before.MoE.NumExpertsPerTok))
	w.put("own.key", "kept")
	source := pairsOf(w)
	keys, changed := replacedPairs(source, format.Description{Config: &after, Before: before, Type: "keep"})
	require.Equal(t, []string{"deepseek.expert_used_count"}, changed)
	replaced := pairsOf(&keyWriter{b: keys})
	require.Equal(t, source.keys, replaced.keys)
	require.Equal(t, source.of["deepseek.context_length"], replaced.of["deepseek.context_length"])
	require.Equal(t, modelPairs(&after).of["deepseek.expert_used_count"], replaced.of["deepseek.expert_used_count"])
}
