package synth

import (
	"encoding/binary"
	"hash/fnv"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/model/tensor/tensortest"
)

// TestCheckValues holds the values of the format's definition, and of each
// rule the first ones as a float64 calculation gives them.
func TestCheckValues(t *testing.T) {
	c := configtest.Fixture(t, "states/deepseek-moe-16b")
	info := tensor.Info{Name: "model.layers.1.mlp.experts.0.gate_proj.weight", DType: tensor.BF16, Shape: []int{1408, 2048}}
	data := make([]byte, 16)
	require.NoError(t, New(c, 7).Fill(info, data, 0))
	want := []uint16{15597, 48272, 48210, 48386, 48355, 48390, 48169, 48218}
	for i, w := range want {
		assert.Equal(t, w, binary.LittleEndian.Uint16(data[2*i:]), "value %d", i)
	}
}

// TestFollowsItsFormula compares a tensor of every rule with the formula,
// written out with the standard library's hash and no bit tricks.
func TestFollowsItsFormula(t *testing.T) {
	c := configtest.Fixture(t, "v1-base/checkpoint")
	s := New(c, 7)
	for name, w := range map[string]func(u float32) float32{
		"model.norm.weight":                           func(u float32) float32 { return 1 + float32(0.1*u) },
		"model.embed_tokens.weight":                   func(u float32) float32 { return u * float32(math.Sqrt(3)) },
		"model.layers.1.mlp.gate.weight":              func(u float32) float32 { return u * float32(1.5*math.Sqrt(3.0/64)) },
		"model.layers.0.mlp.down_proj.weight":         func(u float32) float32 { return u * float32(math.Sqrt(3.0/160)) },
		"lm_head.weight":                              func(u float32) float32 { return u * float32(math.Sqrt(3.0/64)) },
		"model.layers.1.mlp.experts.0.up_proj.weight": func(u float32) float32 { return u * float32(math.Sqrt(3.0/64)) },
	} {
		t.Run(name, func(t *testing.T) {
			got, err := s.Tensor(name)
			require.NoError(t, err)
			h := fnv.New64a()
			h.Write([]byte(name))
			key, values := h.Sum64()^7, make([]float32, got.Len())
			for i := range values {
				values[i] = w(float32(float32(mix(key+uint64(i+1)*0x9E3779B97F4A7C15)>>40)*0x1p-23) - 1)
			}
			assert.Equal(t, tensortest.New(t, tensor.BF16, got.Shape, values), got)
		})
	}
}

func TestHasEveryWeight(t *testing.T) {
	for _, name := range []string{"v1-base", "v1-dense", "v1-rope-linear-tied-bias", "v1-top1-noshared"} {
		c := configtest.Fixture(t, name+"/checkpoint")
		_, err := model.Load(c, New(c, 1))
		assert.NoError(t, err, name)
	}
}

// TestTilesAreTheTensor cuts a tensor of either rule at every byte, and makes the later
// part first.
func TestTilesAreTheTensor(t *testing.T) {
	c := configtest.Fixture(t, "v1-base/checkpoint")
	for name, s := range map[string]*Source{"model.norm.weight": New(c, 3), "model.layers.3.mlp.gate.weight": Torch(c, 3)} {
		want, err := s.Tensor(name)
		require.NoError(t, err)
		for cut := range len(want.Data) + 1 {
			got := make([]byte, len(want.Data))
			require.NoError(t, s.Fill(s.infos[name], got[cut:], int64(cut)))
			require.NoError(t, s.Fill(s.infos[name], got[:cut], 0))
			require.Equal(t, want.Data, got, "%s, cut at byte %d", name, cut)
		}
	}
}

func TestSeedsDiffer(t *testing.T) {
	c := configtest.Fixture(t, "v1-base/checkpoint")
	a, err := New(c, 0).Tensor("lm_head.weight")
	require.NoError(t, err)
	b, err := New(c, 1).Tensor("lm_head.weight")
	require.NoError(t, err)
	assert.NotEqual(t, a.Data, b.Data)
}

func TestRefusesWhatItDoesNotHave(t *testing.T) {
	c := configtest.Fixture(t, "v1-base/checkpoint")
	s := New(c, 0)
	_, err := s.Tensor("model.layers.9.mlp.gate.weight")
	assert.ErrorContains(t, err, "no such tensor")
	norm := tensor.Info{Name: "model.norm.weight", DType: tensor.BF16, Shape: []int{64}}
	assert.NoError(t, s.Fill(norm, make([]byte, 128), 0))
	assert.ErrorContains(t, s.Fill(norm, make([]byte, 128), 1), "bytes 1..129 of 128")
	assert.ErrorContains(t, s.Fill(norm, make([]byte, 1), -1), "bytes -1..0 of 128")
	norm.DType = tensor.F32
	assert.ErrorContains(t, s.Fill(norm, nil, 0), "no such tensor of F32 [64]")
}

func BenchmarkFill(b *testing.B) {
	c := configtest.Fixture(b, "states/deepseek-moe-16b")
	s := New(c, 7)
	info := s.infos["model.layers.1.mlp.experts.0.gate_proj.weight"]
	dst := make([]byte, 1<<18)
	for b.Loop() {
		_ = s.Fill(info, dst, 0)
	}
	b.ReportMetric(float64(len(dst)/2)*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mvalues/s")
}
