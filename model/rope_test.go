package model

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config"
)

// TestTorchsFrequencies: of each of these settings torch (2.3.1 and 2.8.0, on a CPU) has one inv_freq that does not
// come from the correctly rounded power of theta. The two that it may have are known.
func TestTorchsFrequencies(t *testing.T) {
	yarn := func(factor float64, original int, fast float64) *config.RopeScaling {
		return &config.RopeScaling{Type: "yarn", Factor: factor, OriginalMaxPositionEmbeddings: original, BetaFast: fast, BetaSlow: 1}
	}
	for _, test := range []struct {
		theta   float64
		dim     int
		scaling *config.RopeScaling
		seq     int
		pair    int
		torch   uint32 // bits of its inv_freq
	}{
		{50000, 64, yarn(32, 4096, 1), 0, 5, 0x3e3cd623}, // Kimi-K2's
		{50000, 100, nil, 0, 5, 0x3ead8784},
		{50000, 128, yarn(40, 4096, 32), 0, 47, 0x37148b26},
		{1e6, 128, nil, 0, 37, 0x39b229fb},
		{1e6, 128, yarn(40, 4096, 32), 0, 37, 0x370e87fd}, // two units away
		{8e6, 66, nil, 0, 2, 0x3ec363ab},
		{1e6, 64, &config.RopeScaling{Type: "dynamic", Factor: 4}, 4096, 6, 0x3d60f1cd},
		{147762.459, 128, nil, 0, 5, 0x3eca0586},
	} {
		c := &config.Config{HiddenSize: 2 * test.dim, Attention: config.Attention{NumAttentionHeads: 2},
			RoPE: config.RoPE{MaxPositionEmbeddings: 2048}}
		freq, other := ropeParameters{theta: test.theta, scaling: test.scaling}.inverseFrequencies(c, test.seq)
		require.NotEqual(t, test.torch, math.Float32bits(freq[test.pair]), test)
		require.Equal(t, test.torch, math.Float32bits(other[test.pair]), test)
	}
}

// TestFrequenciesAreMostlyCertain: the first pair's frequency is 1, and of the others few have a neighbour.
func TestFrequenciesAreMostlyCertain(t *testing.T) {
	uncertain, all := 0, 0
	for theta := 500.0; theta < 1e8; theta *= 1.01 {
		for _, dim := range []int{8, 16, 32, 64, 128} {
			c := &config.Config{HiddenSize: 2 * dim, Attention: config.Attention{NumAttentionHeads: 2}}
			freq, other := ropeParameters{theta: theta}.inverseFrequencies(c, 0)
			require.Equal(t, float32(1), other[0])
			for i, f := range freq {
				if all++; other[i] != f {
					uncertain++
				}
			}
		}
	}
	require.InDelta(t, 0.025, float64(uncertain)/float64(all), 0.005)
}

// TestRotatesAlike: configs that differ in cosines, or in the scale of scores alone, do not rotate alike.
func TestRotatesAlike(t *testing.T) {
	with := func(mscale, all float64) *config.Config {
		c := config.Defaults("deepseek_v3")
		c.RoPE.RopeScaling = &config.RopeScaling{Type: "yarn", Factor: 40, OriginalMaxPositionEmbeddings: 4096,
			BetaFast: 32, BetaSlow: 1,
			MScale: mscale, MScaleAllDim: all}
		return c
	}
	o := &Options{}
	require.True(t, RotatesAlike(with(1, 1), with(1, 1), false, 5, o))
	require.False(t, RotatesAlike(with(1, 1), with(0.5, 0.5), false, 5, o), "the factor of cosines is 1, the scale is another")
	require.False(t, RotatesAlike(with(1, 1), with(1, 0), false, 5, o))
}
