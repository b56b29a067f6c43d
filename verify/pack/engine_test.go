package pack

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/model/tensor"
)

// TestSpellHeadNorms: norms of heads, which llama.cpp has within tokens, lie as the model has them: so, or tokens within
// heads. Other shapes stay, for the comparison to refuse them.
func TestSpellHeadNorms(t *testing.T) {
	const name, stage = "blk.0.attn_q_norm.output", "model.layers.0.self_attn.q_norm.output"
	var values bytes.Buffer // of 2 sequences of 2 tokens with 3 heads of 2 channels: sequence, token, head and channel as digits
	for i := range 24 {
		binary.Write(&values, binary.LittleEndian, float32(i/12*1000+i/6%2*100+i/2%3*10+i%2))
	}
	header := `{"` + name + `":{"dtype":"F32","shape":[2,2,3,2],"data_offsets":[0,96]}}`
	file := append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a"), append(file, values.Bytes()...), 0o600))
	within := []float32{0, 1, 10, 11, 20, 21, 100, 101, 110, 111, 120, 121, 1000, 1001, 1010, 1011, 1020, 1021, 1100, 1101, 1110, 1111, 1120, 1121}
	first := []float32{0, 1, 100, 101, 10, 11, 110, 111, 20, 21, 120, 121, 1000, 1001, 1100, 1101, 1010, 1011, 1110, 1111, 1020, 1021, 1120, 1121}
	for fixture, want := range map[string]struct {
		shape  []int
		values []float32
	}{"glm4-moe": {[]int{2, 2, 3, 2}, within}, "hy-v3": {[]int{2, 3, 2, 2}, first}, "exaone-moe": {[]int{2, 3, 2, 2}, first}} {
		c := configOf(t, fixture)
		p := trace(dir, name, 2, 2, 3, 2)
		require.NoError(t, p.Spell(c))
		assert.Equal(t, want.shape, p.Manifest.Tensors[stage].Shape, fixture)
		got, err := p.Float32s(stage)
		require.NoError(t, err)
		assert.Equal(t, want.values, got, fixture)

		p = trace(dir, name, 4, 6)
		require.NoError(t, p.Spell(c))
		assert.Equal(t, []int{4, 6}, p.Manifest.Tensors[stage].Shape)
		_, err = p.Float32s(stage)
		assert.ErrorContains(t, err, "file has F32 [2 2 3 2], manifest.json says F32 [4 6]", fixture)
	}
}

// trace is an engine's, of one tensor of a shape in the file a.
func trace(dir, name string, shape ...int) *Pack {
	return &Pack{Dir: dir, Manifest: Manifest{Reference: Reference{Kind: Engine},
		Tensors: map[string]Entry{name: {File: "a", DType: tensor.F32, Shape: shape}}}}
}

func configOf(t *testing.T, fixture string) *config.Config {
	f, err := os.Open("../../fixtures/" + fixture + "/checkpoint/config.json")
	require.NoError(t, err)
	defer f.Close()
	c, err := config.Parse(f)
	require.NoError(t, err)
	return c
}

// TestRoundingsOfForms: sums of blocks are multiplied with minima, which blocks of Q5_1 have and others have not.
func TestRoundingsOfForms(t *testing.T) {
	for form, refused := range map[string]bool{"Q5_1": false, "Q8_0": true, "F32": true, "": true} {
		a := Arithmetic{Activations: map[string]string{form: "q8_1"}}
		if form == "" {
			a = Arithmetic{Cache: "q8_1"}
		}
		m := Manifest{Mode: "eval", Reference: Reference{Kind: Engine, Name: "e", Version: "1"}, Arithmetic: &a}
		var causes []string
		m.checkEngine(func(cause string, args ...any) { causes = append(causes, fmt.Sprintf(cause, args...)) })
		assert.Equal(t, refused, len(causes) == 1, causes)
	}
}
