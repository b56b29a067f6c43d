package diff

import (
	"bytes"
	"encoding/json"
	"iter"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/model/tensor"
	"dsmoe/model/tensor/tensortest"
	"dsmoe/model/weights"
)

// memory is a checkpoint in memory.
type memory struct {
	names   []string
	tensors map[string]tensor.Tensor
}

func (m *memory) Tensors() iter.Seq[tensor.Info] {
	return func(yield func(tensor.Info) bool) {
		for _, n := range m.names {
			if t := m.tensors[n]; !yield(tensor.Info{Name: n, DType: t.DType, Shape: t.Shape}) {
				return
			}
		}
	}
}

func (m *memory) ReadAt(name string, dst []byte, offset int64) error {
	copy(dst, m.tensors[name].Data[offset:])
	return nil
}

// side maps the tensors' names, in blocks of 2 × 2 for FP8.
func (m *memory) side() Side {
	return Side{Weights: weights.New(&config.Config{FP8Block: [2]int{2, 2}}, m).All(), Reader: m}
}

func (m *memory) add(name string, t tensor.Tensor) *memory {
	if m.tensors == nil {
		m.tensors = map[string]tensor.Tensor{}
	}
	m.names = append(m.names, name)
	m.tensors[name] = t
	return m
}

// one compares two tensors of one name.
func one(t *testing.T, a, b tensor.Tensor, o Options) (*Report, Finding) {
	t.Helper()
	r, err := Compare(t.Context(), new(memory).add("w", a).side(), new(memory).add("w", b).side(), o)
	require.NoError(t, err)
	if len(r.Findings) == 0 {
		return r, Finding{Status: Equal}
	}
	require.Len(t, r.Findings, 1)
	return r, r.Findings[0]
}

func TestStatus(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	x := []float32{1, -2.5, 3, 0}
	for name, c := range map[string]struct {
		a, b  tensor.Tensor
		want  Status
		same  bool
		exact bool
	}{
		"same":            {tensortest.Vector(t, tensor.BF16, x...), tensortest.Vector(t, tensor.BF16, x...), Equal, true, true},
		"wider":           {tensortest.Vector(t, tensor.BF16, x...), tensortest.Vector(t, tensor.F32, x...), Equal, true, false},
		"rounded":         {tensortest.Vector(t, tensor.F32, 1.001), tensortest.Vector(t, tensor.BF16, 1.001), Close, true, false},
		"rounded back":    {tensortest.Vector(t, tensor.F16, 1.001), tensortest.Vector(t, tensor.F32, 1.001), Close, true, false},
		"not rounded":     {tensortest.Vector(t, tensor.F32, 1.001), tensortest.Vector(t, tensor.BF16, 1.0078125), Differs, false, false},
		"one step":        {tensortest.Vector(t, tensor.BF16, 1), tensortest.Vector(t, tensor.BF16, 1.0078125), Differs, false, false},
		"minus zero":      {tensortest.Vector(t, tensor.F32, 0), tensortest.Vector(t, tensor.F32, float32(math.Copysign(0, -1))), Differs, false, false},
		"NaN on both":     {tensortest.Vector(t, tensor.F32, nan), tensortest.Vector(t, tensor.BF16, nan), Equal, true, false},
		"NaN on one":      {tensortest.Vector(t, tensor.F32, 1, nan), tensortest.Vector(t, tensor.F32, 1, 2), Differs, false, false},
		"overflow":        {tensortest.Vector(t, tensor.F32, 1e30), tensortest.Vector(t, tensor.F16, inf), Close, true, false},
		"shape":           {tensortest.Vector(t, tensor.F32, 1, 2), tensortest.Vector(t, tensor.F32, 1), Shape, false, false},
		"integers":        {tensor.Tensor{DType: tensor.I8, Shape: []int{2}, Data: []byte{1, 2}}, tensor.Tensor{DType: tensor.I8, Shape: []int{2}, Data: []byte{1, 3}}, Differs, false, false},
		"integer, float":  {tensor.Tensor{DType: tensor.I32, Shape: []int{1}, Data: []byte{0, 0, 0, 0}}, tensortest.Vector(t, tensor.F32, 0), Differs, false, false},
		"equal integers":  {tensor.Tensor{DType: tensor.I8, Shape: []int{2}, Data: []byte{1, 2}}, tensor.Tensor{DType: tensor.I8, Shape: []int{2}, Data: []byte{1, 2}}, Equal, true, true},
		"no elements":     {tensor.Tensor{DType: tensor.F32, Shape: []int{0}}, tensor.Tensor{DType: tensor.F32, Shape: []int{0}}, Equal, true, true},
		"all zero, other": {tensortest.Vector(t, tensor.F32, 0, 0), tensortest.Vector(t, tensor.F32, 0, 1), Differs, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			r, f := one(t, c.a, c.b, Options{})
			assert.Equal(t, c.want, f.Status)
			assert.Equal(t, c.same, r.Same())
			exact, _ := one(t, c.a, c.b, Options{Exact: true})
			assert.Equal(t, c.exact, exact.Same())
			_, err := json.Marshal(r) // no infinity, no NaN
			require.NoError(t, err)
			var b bytes.Buffer
			require.NoError(t, r.WriteText(&b))
		})
	}
}

func TestMeasures(t *testing.T) {
	_, f := one(t, tensortest.Vector(t, tensor.BF16, 3, 4, 0, 1), tensortest.Vector(t, tensor.BF16, 3, 4.03125, 0, 2), Options{})
	assert.EqualValues(t, 2, f.Different)
	assert.Equal(t, 1.0, f.MaxAbs)
	assert.EqualValues(t, 3, f.Worst)
	assert.EqualValues(t, 128, f.MaxULP)
	assert.InDelta(t, math.Sqrt((1+0.03125*0.03125)/26), f.RelRMS, 1e-12)
	assert.InDelta(t, (9+4*4.03125+2)/math.Sqrt(26)/math.Sqrt(9+4.03125*4.03125+4), f.Cosine, 1e-12)
	_, f = one(t, tensortest.Vector(t, tensor.F32, 1, float32(math.Inf(1))), tensortest.Vector(t, tensor.F32, 1, 5), Options{})
	assert.EqualValues(t, 1, f.NonFinite)
	assert.EqualValues(t, 1, f.Worst)
}

// TestTiles: a difference in the last element of many tiles.
func TestTiles(t *testing.T) {
	values := make([]float32, 3*tileElements+5)
	for i := range values {
		values[i] = float32(i % 7)
	}
	a := tensortest.Vector(t, tensor.BF16, values...)
	values[len(values)-1]++
	_, f := one(t, a, tensortest.Vector(t, tensor.F16, values...), Options{})
	assert.EqualValues(t, 1, f.Different)
	assert.EqualValues(t, len(values)-1, f.Worst)
}

// TestFP8 against its dequantised twin, ragged blocks and all.
func TestFP8(t *testing.T) {
	codes := []byte{0x38, 0x40, 0x44, 0xb8, 0x01, 0x7e, 0, 0x39, 0x3a}
	scales := []float32{1, 3, 0.7, 11}
	weight := tensor.Tensor{DType: tensor.F8E4M3, Shape: []int{3, 3}, Data: codes}
	grid := tensortest.Vector(t, tensor.F32, scales...)
	grid.Shape = []int{2, 2}
	a := new(memory).add("w", weight).add("w_scale_inv", grid)
	values := make([]float32, 9)
	for i, c := range codes {
		values[i] = tensor.E4M3(c) * scales[i/3/2*2+i%3/2]
	}
	plain := func(d tensor.DType) *memory {
		v := tensortest.Vector(t, d, values...)
		v.Shape = []int{3, 3}
		return new(memory).add("w", v)
	}
	for d, want := range map[tensor.DType]Status{tensor.F32: Equal, tensor.BF16: Close} {
		r, err := Compare(t.Context(), a.side(), plain(d).side(), Options{})
		require.NoError(t, err)
		require.Len(t, r.Findings, 1)
		assert.Equal(t, want, r.Findings[0].Status)
		assert.True(t, r.Same())
	}
	scales[3] = 12
	other := tensortest.Vector(t, tensor.F32, scales...)
	other.Shape = []int{2, 2}
	r, err := Compare(t.Context(), a.side(), new(memory).add("w", weight).add("w_scale_inv", other).side(), Options{})
	require.NoError(t, err)
	require.Len(t, r.Findings, 1)
	assert.EqualValues(t, 1, r.Findings[0].Different)
	alone := new(memory).add("w", weight)
	r, err = Compare(t.Context(), a.side(), alone.side(), Options{})
	require.NoError(t, err)
	assert.False(t, r.Same())
}

func TestAddedRemovedAndFolding(t *testing.T) {
	a, b := new(memory), new(memory)
	for e := range 4 {
		name := "model.layers.1.mlp.experts." + string(rune('0'+e)) + ".up_proj.weight"
		a.add(name, tensortest.Vector(t, tensor.F32, 1, 2))
		b.add(name, tensortest.Vector(t, tensor.F32, 1, 2+float32(e%2)*float32(e)))
	}
	a.add("gone", tensortest.Vector(t, tensor.F32, 1))
	b.add("new\x1b", tensortest.Vector(t, tensor.F32, 1))
	r, err := Compare(t.Context(), a.side(), b.side(), Options{})
	require.NoError(t, err)
	assert.Equal(t, map[Status]int{Equal: 2, Differs: 2, Removed: 1, Added: 1}, r.Counts)
	var text bytes.Buffer
	require.NoError(t, r.WriteText(&text))
	assert.Equal(t, `model.layers.1.mlp.experts.{1,3}.up_proj.weight: differs, at worst in model.layers.1.mlp.experts.3.up_proj.weight: 1 of 2 values, rel RMS 1.34, max abs 3 at 1, 10485760 ulp, cosine 0.964763821
gone: removed: F32 [1]
"new\x1b": added: F32 [1]
differs: 4 tensors compared: 2 equal, 0 close, 2 differ; 0 of another dtype, 0 of another shape, 1 removed, 1 added
`, text.String())
	assert.True(t, slices.IsSortedFunc(r.Findings[:2], func(x, y Finding) int { return bytes.Compare([]byte(x.Name), []byte(y.Name)) }))
}
