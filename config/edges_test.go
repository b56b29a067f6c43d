package config

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestEntryTokens: entries of compressed sparse attention are made of the tokens of two.
func TestEntryTokens(t *testing.T) {
	c := parse(t, `{"model_type":"deepseek_v4","num_hidden_layers":3,"layer_types":["sliding_attention",
		"compressed_sparse_attention","heavily_compressed_attention"]}`)
	for l, want := range []int{0, 8, 128} {
		assert.Equal(t, want, c.EntryTokens(l), "layer %d", l)
	}
}

// TestDensePredictions: the last layer of K-EXAONE's decoder has experts, its prediction layer has none.
func TestDensePredictions(t *testing.T) {
	c := parse(t, `{"model_type":"exaone_moe","num_nextn_predict_layers":1}`)
	assert.True(t, c.IsMoE(c.NumHiddenLayers-1))
	assert.False(t, c.IsMoE(c.NumHiddenLayers))
}

// TestRotaryWithinHead: no more channels are rotated than a head has.
func TestRotaryWithinHead(t *testing.T) {
	for fields, want := range map[string]string{
		`"minimax_m2","head_dim":63,"rotary_dim":64`:           "head_dim: 63, of which RoPE rotates 64: it rotates pairs of a head's first channels",
		`"glm4_moe","head_dim":64,"partial_rotary_factor":1.5`: "head_dim: 64, of which RoPE rotates 96, by partial_rotary_factor 1.5: it rotates pairs of a head's first channels",
	} {
		assert.Equal(t, want, problems(t, `{"model_type":`+fields+`}`)[0].String())
	}
}

// TestOneTypeTooFew: a list of types that ends one layer early is refused, in each family that has such a list.
func TestOneTypeTooFew(t *testing.T) {
	for family, types := range map[string]string{
		"glm4_moe_lite": `["dense","sparse","sparse"]`, "hy_v3": `["dense","sparse","sparse"]`, "exaone_moe": `["dense","sparse","sparse"]`,
	} {
		assert.Equal(t, "mlp_layer_types: 3 layers; num_hidden_layers is 4",
			problems(t, `{"model_type":"`+family+`","num_hidden_layers":4,"mlp_layer_types":`+types+`}`)[0].String())
	}
}

// TestRotationNumbers: mscale has no effect without mscale_all_dim, and no length is 0.
func TestRotationNumbers(t *testing.T) {
	keys := func(scaling string) (keys []string) {
		c := parse(t, `{"model_type":"deepseek_v3","rope_scaling":{"type":"yarn","factor":40,"original_max_position_embeddings":4096`+scaling+`}}`)
		for _, n := range RotationNumbers(&c, false) {
			keys = append(keys, n.Key)
			if n.Key == "rope_scaling.original_max_position_embeddings" {
				require.Equal(t, 1.0, n.Value(n.With(&c, 0.4)))
				require.Equal(t, 4096.0, n.Value(&c), "With changes a copy")
			}
		}
		return keys
	}
	few := []string{"rope_theta", "rope_scaling.factor", "rope_scaling.original_max_position_embeddings", "rope_scaling.beta_fast",
		"rope_scaling.beta_slow"}
	assert.Equal(t, few, keys(""))
	assert.Equal(t, few, keys(`,"mscale":2`))
	assert.Equal(t, append(few, "rope_scaling.mscale", "rope_scaling.mscale_all_dim"), keys(`,"mscale":2,"mscale_all_dim":1`))
}

// TestShareBesideNull: partial_rotary_factor null says nothing against the object's.
func TestShareBesideNull(t *testing.T) {
	c := parse(t, `{"model_type":"glm4_moe","head_dim":64,"partial_rotary_factor":null,"rope_parameters":{"rope_type":"default","partial_rotary_factor":0.25}}`)
	assert.Equal(t, 16, c.HeadDim())
}
