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
	"dsmoe/model/weights"
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

// TestFP8FollowsItsFormula compares an FP8 matrix and its scales with the formula; the
// nearest code is searched for among all.
func TestFP8FollowsItsFormula(t *testing.T) {
	s := New(configtest.Fixture(t, "v3-fp8/checkpoint"), 7)
	const name = "model.layers.1.mlp.experts.0.up_proj.weight"
	u := func(name string, i int) float32 {
		h := fnv.New64a()
		h.Write([]byte(name))
		return float32(float32(mix((h.Sum64()^7)+uint64(i+1)*0x9E3779B97F4A7C15)>>40)*0x1p-23) - 1
	}
	got, err := s.Tensor(name)
	require.NoError(t, err)
	require.Equal(t, tensor.F8E4M3, got.DType)
	require.Equal(t, []int{72, 192}, got.Shape)
	for i, code := range got.Data {
		require.Equal(t, nearestE4M3(448*u(name, i)), code, "element %d", i)
	}
	scales, err := s.Tensor(name + "_scale_inv")
	require.NoError(t, err)
	want := make([]float32, 2)
	for j := range want {
		want[j] = float32(math.Sqrt(3.0/192)/448) * float32(1+float32(0.1*u(name+"_scale_inv", j)))
	}
	assert.Equal(t, tensortest.New(t, tensor.F32, []int{1, 2}, want), scales)

	for _, name := range []string{name, name + "_scale_inv"} { // in parts of any size
		whole, err := s.Tensor(name)
		require.NoError(t, err)
		for from := range 6 {
			part := make([]byte, min(7, len(whole.Data)-from))
			require.NoError(t, s.Fill(tensor.Info{Name: name, DType: whole.DType, Shape: whole.Shape}, part, int64(from)))
			assert.Equal(t, whole.Data[from:from+len(part)], part)
		}
	}
}

// nearestE4M3 returns the code of the number nearest to v, of two the even one.
func nearestE4M3(v float32) (nearest byte) {
	best := math.Inf(1)
	for code := range 256 {
		x := tensor.E4M3(byte(code))
		d := math.Abs(float64(x) - float64(v))
		if math.Signbit(float64(x)) == math.Signbit(float64(v)) && (d < best || d == best && code%2 == 0) {
			nearest, best = byte(code), d
		}
	}
	return nearest
}

// TestE4M3 rounds numbers between all neighbours, and the ties.
func TestE4M3(t *testing.T) {
	for code := range 0x7e {
		a, b := tensor.E4M3(byte(code)), tensor.E4M3(byte(code+1))
		for _, v := range []float32{a, b, (a + b) / 2, a + (b-a)/8, b - (b-a)/8} {
			assert.Equal(t, nearestE4M3(v), tensor.FP8.Nearest(v), "%v", v)
			assert.Equal(t, nearestE4M3(-v), tensor.FP8.Nearest(-v), "%v", -v)
		}
	}
}

// TestFP8IsWhatTheConfigPromises: the same tensors as the published layout of the fixture.
func TestFP8IsWhatTheConfigPromises(t *testing.T) {
	c := configtest.Fixture(t, "v3-fp8/checkpoint")
	counts := map[tensor.DType]int{}
	for i := range New(c, 0).Tensors() {
		counts[i.DType]++
	}
	assert.Equal(t, map[tensor.DType]int{tensor.F8E4M3: 72, tensor.F32: 72, tensor.BF16: 19}, counts)
	require.NoError(t, weights.New(c, New(c, 0)).Check(c))
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
			require.NoError(t, s.Fill(s.made[name].Info, got[cut:], int64(cut)))
			require.NoError(t, s.Fill(s.made[name].Info, got[:cut], 0))
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
	info := s.made["model.layers.1.mlp.experts.0.gate_proj.weight"]
	dst := make([]byte, 1<<18)
	for b.Loop() {
		_ = s.Fill(info.Info, dst, 0)
	}
	b.ReportMetric(float64(len(dst)/2)*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mvalues/s")
}

// TestTokens: ids are what torch 2.8.0 gives for torch.randint(vocab, (n,),
// generator=torch.Generator().manual_seed(seed)).
func TestTokens(t *testing.T) {
	require.Equal(t, []int{172, 47, 117, 192, 67, 251, 195, 103}, Tokens(0, 8, 256))
	require.Equal(t, []int{61615, 29892, 16921, 68086, 22083, 65747, 33687, 63079}, Tokens(7, 8, 102400))
	require.Equal(t, []int{93546, 82328, 30457, 124547, 64440}, Tokens(1<<40+3, 5, 129280))
}
