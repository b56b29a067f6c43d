package convert

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/gguf"
	"dsmoe/convert/internal/fixture"
	"dsmoe/convert/plan"
	"dsmoe/model/tensor"
)

// TestTablesOfExpertsInGGUF: a number that I32 does not have, or a dtype that is not I64, is refused.
func TestTablesOfExpertsInGGUF(t *testing.T) {
	t.Parallel()
	const name, of = "layers.0.ffn.gate.tid2eid", `"dtype":"I64"`
	write := func(dir string) error {
		_, err := Run(t.Context(), filepath.Join(t.TempDir(), "v4.gguf"), open(t, dir), Options{plan.Options{NoVocab: true}, inMemory()})
		return err
	}
	c := open(t, "../fixtures/v4-gguf/checkpoint")
	at, err := c.Tensor(name)
	require.NoError(t, err)
	dir := fixture.Clone(t, "../fixtures/v4-gguf/checkpoint")
	data := fixture.Read(t, dir, "model.safetensors")
	fixture.Poke(t, filepath.Join(dir, "model.safetensors"), int64(strings.Index(data, string(at.Data)))+4, "\x01")
	require.ErrorContains(t, write(dir), "tensor blk.0.ffn_gate_tid2eid.weight: element 0 is ")
	require.Equal(t, 1, strings.Count(data, of))
	fixture.Write(t, dir, "model.safetensors", strings.Replace(data, of, `"dtype":"F64"`, 1))
	require.ErrorContains(t, write(dir), name+": dtype F64, I64 is expected")
}

// TestTensorsAreLlamaCpps: DeepSeek-V4 in q8_0, and the families with plain attention and head_dim in bf16, have the
// tensors of llama.cpp's converter, byte for byte. The lists are its own: scripts/gguf_converter.py --hashes.
func TestTensorsAreLlamaCpps(t *testing.T) {
	t.Parallel()
	tensorsAreLlamaCpps(t, "v4-gguf", "deepseek4", plan.Options{Mixture: "q8_0", NoVocab: true})
	for _, name := range []string{"glm4-moe", "dots1", "solar-open", "hy-v3", "minimax-m2", "exaone-moe", "ernie45-moe", "ling-2"} {
		tensorsAreLlamaCpps(t, name, "families/"+name, plan.Options{DType: tensor.BF16, NoVocab: true})
	}
}

func tensorsAreLlamaCpps(t *testing.T, fixture, list string, o plan.Options) {
	want, err := os.ReadFile("gguf/testdata/" + list + ".txt")
	require.NoError(t, err)
	dst := filepath.Join(t.TempDir(), "model.gguf")
	r, err := Run(t.Context(), dst, open(t, "../fixtures/"+fixture+"/checkpoint"), Options{o, inMemory()})
	require.NoError(t, err, fixture)
	require.True(t, r.Verified)
	f, err := gguf.Open(dst)
	require.NoError(t, err)
	defer f.Close()
	var lines []string
	for info := range f.Tensors() {
		x, err := f.Tensor(info.Name)
		require.NoError(t, err)
		shape := slices.Clone(info.Shape)
		slices.Reverse(shape)
		sizes := strings.ReplaceAll(fmt.Sprint(shape), " ", ", ")
		lines = append(lines, fmt.Sprintf("%s %s %s %x\n", info.Name, info.DType, sizes, sha256.Sum256(x.Data)))
	}
	slices.Sort(lines)
	require.Equal(t, string(want), strings.Join(lines, ""), fixture)
}
