package pack

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/model/tensor"
)

// TestSpellHeadNorms: norms of heads have a stage where the model's lie as llama.cpp's do, and are refused where its heads
// come before its tokens.
func TestSpellHeadNorms(t *testing.T) {
	const name = "blk.0.attn_q_norm.output"
	for fixture, refused := range map[string]bool{"glm4-moe": false, "hy-v3": true} {
		f, err := os.Open("../../fixtures/" + fixture + "/checkpoint/config.json")
		require.NoError(t, err)
		defer f.Close()
		c, err := config.Parse(f)
		require.NoError(t, err)
		p := &Pack{Dir: "trace", Manifest: Manifest{Reference: Reference{Kind: Engine},
			Tensors: map[string]Entry{name: {File: "a", DType: tensor.F32, Shape: []int{1, 4, 4, 24}}}}}
		if err := p.Spell(c); refused {
			assert.ErrorContains(t, err, `"blk.0.attn_q_norm.output": heads lie within tokens`)
			continue
		}
		assert.NoError(t, err)
		assert.Contains(t, p.Manifest.Tensors, "model.layers.0.self_attn.q_norm.output")
	}
}
