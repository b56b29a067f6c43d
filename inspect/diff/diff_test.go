package diff

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/config/configtest"
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
	return Side{Weights: weights.New(&config.Config{ModelType: "deepseek_v3", Quantization: config.Quantization{Method: "fp8", Block: [2]int{2, 2}}}, m).All(), Reader: m}
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
		return r, Finding{Status: statusEqual}
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
		"same":            {tensortest.Vector(t, tensor.BF16, x...), tensortest.Vector(t, tensor.BF16, x...), statusEqual, true, true},
		"wider":           {tensortest.Vector(t, tensor.BF16, x...), tensortest.Vector(t, tensor.F32, x...), statusEqual, true, false},
		"rounded":         {tensortest.Vector(t, tensor.F32, 1.001), tensortest.Vector(t, tensor.BF16, 1.001), statusClose, true, false},
		"rounded back":    {tensortest.Vector(t, tensor.F16, 1.001), tensortest.Vector(t, tensor.F32, 1.001), statusClose, true, false},
		"not rounded":     {tensortest.Vector(t, tensor.F32, 1.001), tensortest.Vector(t, tensor.BF16, 1.0078125), statusDiffers, false, false},
		"one step":        {tensortest.Vector(t, tensor.BF16, 1), tensortest.Vector(t, tensor.BF16, 1.0078125), statusDiffers, false, false},
		"minus zero":      {tensortest.Vector(t, tensor.F32, 0), tensortest.Vector(t, tensor.F32, float32(math.Copysign(0, -1))), statusDiffers, false, false},
		"NaN on both":     {tensortest.Vector(t, tensor.F32, nan), tensortest.Vector(t, tensor.BF16, nan), statusEqual, true, false},
		"NaN on one":      {tensortest.Vector(t, tensor.F32, 1, nan), tensortest.Vector(t, tensor.F32, 1, 2), statusDiffers, false, false},
		"overflow":        {tensortest.Vector(t, tensor.F32, 1e30), tensortest.Vector(t, tensor.F16, inf), statusDiffers, false, false},
		"infinities":      {tensortest.Vector(t, tensor.F32, inf), tensortest.Vector(t, tensor.BF16, inf), statusEqual, true, false},
		"signs":           {tensortest.Vector(t, tensor.F32, inf), tensortest.Vector(t, tensor.F32, -inf), statusDiffers, false, false},
		"shape":           {tensortest.Vector(t, tensor.F32, 1, 2), tensortest.Vector(t, tensor.F32, 1), statusShape, false, false},
		"integers":        {tensor.Tensor{DType: tensor.I8, Shape: []int{2}, Data: []byte{1, 2}}, tensor.Tensor{DType: tensor.I8, Shape: []int{2}, Data: []byte{1, 3}}, statusDiffers, false, false},
		"integer, float":  {tensor.Tensor{DType: tensor.I32, Shape: []int{1}, Data: []byte{0, 0, 0, 0}}, tensortest.Vector(t, tensor.F32, 0), statusDiffers, false, false},
		"equal integers":  {tensor.Tensor{DType: tensor.I8, Shape: []int{2}, Data: []byte{1, 2}}, tensor.Tensor{DType: tensor.I8, Shape: []int{2}, Data: []byte{1, 2}}, statusEqual, true, true},
		"no elements":     {tensor.Tensor{DType: tensor.F32, Shape: []int{0}}, tensor.Tensor{DType: tensor.F32, Shape: []int{0}}, statusEqual, true, true},
		"all zero, other": {tensortest.Vector(t, tensor.F32, 0, 0), tensortest.Vector(t, tensor.F32, 0, 1), statusDiffers, false, false},
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

// TestAddIsTheDefinition: chunks of patterns give what their elements give one by one, by the roundings and
// ordinals of package tensor: numbers of any size, ties, zeros of both signs, infinities and NaNs.
func TestAddIsTheDefinition(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	values := func(n int, d tensor.DType, near []float32, odd bool) []float32 {
		x := make([]float32, n)
		for i := range x {
			bits := r.Uint32() >> r.IntN(32) << r.IntN(32)
			if near != nil && r.IntN(4) > 0 {
				bits = math.Float32bits(near[i]) + uint32(r.IntN(3)-1)<<(8*r.IntN(4))
			}
			v := tensor.Rounded(math.Float32frombits(bits), d)
			if v-v != 0 && !odd {
				v = 0
			}
			x[i] = v
		}
		return x
	}
	all := []tensor.DType{tensor.F32, tensor.F16, tensor.BF16}
	for _, da := range all {
		for _, db := range all {
			for _, n := range []int{1, 100, chunk, 2*chunk + 5} {
				for _, odd := range []bool{false, true} {
					a := values(n, da, nil, odd)
					b := values(n, db, a, odd)
					got, want := Measures{nanBits: odd}, Measures{nanBits: odd}
					got.add(a, b, 7, da, db)
					want.define(a, b, 7, da, db)
					got.skipped = false
					require.Equal(t, want, got, "%s %s %d", da, db, n)
					var unequal, notFinite, alike int64
					for i, x := range a {
						switch y := b[i]; {
						case x != y && (x == x || y == y):
							if unequal++; x-x != 0 || y-y != 0 {
								notFinite++
							}
						case x-x != 0:
							alike++
						}
					}
					require.Equal(t, []int64{unequal, notFinite, alike},
						[]int64{got.Unequal(), got.NotFinite(), got.alike + got.nans}, "%s %s %d", da, db, n)
				}
			}
		}
	}
}

// define adds values by the definition of Measures.
func (m *Measures) define(a, b []float32, at int64, da, db tensor.DType) {
	m.values(a, b, at, da, db)
	for i := range a {
		p, q := float64(a[i]), float64(b[i])
		if p-p != 0 || q-q != 0 {
			continue
		}
		m.SumA, m.SumB, m.sumAB, m.SumD = m.SumA+p*p, m.SumB+q*q, m.sumAB+p*q, m.SumD+float64((p-q)*(p-q))
		if d := math.Abs(p - q); d > m.MaxAbs {
			m.MaxAbs, m.worst = d, at+int64(i)
		}
	}
}

// TestLines: a line says what was measured, and nothing that was not.
func TestLines(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	ints := func(d tensor.DType, shape int, data ...byte) tensor.Tensor {
		return tensor.Tensor{DType: d, Shape: []int{shape}, Data: data}
	}
	for _, c := range []struct {
		a, b tensor.Tensor
		want string
	}{
		{tensortest.Vector(t, tensor.F32, 1e30, 1), tensortest.Vector(t, tensor.F16, inf, 1), "w: differs, F32 then F16: 1 of 2 values, 1 element not finite in one only (0 in A, 1 in B)"},
		{tensortest.Vector(t, tensor.F32, nan, 1, 2), tensortest.Vector(t, tensor.F32, 1, nan, 2), "w: differs: 2 of 3 values, 2 elements not finite in one only (1 in A, 1 in B)"},
		{tensortest.Vector(t, tensor.F32, inf, nan), tensortest.Vector(t, tensor.F32, -inf, inf), "w: differs: 2 of 2 values, 2 elements not finite in both, but not alike"},
		{tensortest.Vector(t, tensor.F32, 4, nan), tensortest.Vector(t, tensor.F32, 2, 1),
			"w: differs: 2 of 2 values, rel RMS 0.5, max abs 2 at 0, 8388608 ulp, cosine 1.000000000, 1 element not finite in one only (1 in A, 0 in B)"},
		{ints(tensor.F32, 2, 0, 0, 0xc0, 0x7f, 1, 0, 0xc0, 0x7f), ints(tensor.F32, 2, 0, 0, 0xc0, 0x7f, 2, 0, 0xc0, 0x7f), "w: differs: 1 of 2 values, 1 element not finite in both, but not alike"},
		{tensortest.Vector(t, tensor.F32, 0, 1), tensortest.Vector(t, tensor.F32, float32(math.Copysign(0, -1)), 1), "w: differs: 1 of 2 values, by the sign of zero alone where they are finite"},
		{tensortest.Vector(t, tensor.F32, 0, 0), tensortest.Vector(t, tensor.F32, 0, 0x1p-149), "w: differs: 1 of 2 values, rel RMS infinite, max abs 1.4e-45 at 1, 1 ulp, cosine 0.000000000"},
		{ints(tensor.I8, 3, 1, 2, 3), ints(tensor.I8, 3, 1, 9, 8), "w: differs: 2 of 3 values, the first at 1"},
		{ints(tensor.I16, 3, 1, 0, 2, 0, 3, 0), ints(tensor.I16, 3, 1, 0, 2, 1, 3, 0), "w: differs: 1 of 3 values, the first at 1"},
		{ints(tensor.F4, 4, 0x21, 0x43), ints(tensor.F4, 4, 0x21, 0x53), "w: differs: 1 of 4 values, the first at 3"},
		{ints(tensor.F6E2M3, 4, 0, 0, 0), ints(tensor.F6E2M3, 4, 0x40, 0, 0x04), "w: differs: 2 of 4 values, the first at 1"},
		{ints(tensor.I32, 1, 0, 0, 0, 0), tensortest.Vector(t, tensor.F32, 0), "w: differs, I32 then F32: dtypes that cannot be compared"},
	} {
		r, _ := one(t, c.a, c.b, Options{})
		assert.False(t, r.Same())
		assert.Equal(t, c.want, firstLine(t, r))
	}
}

// firstLine is that of the report's text.
func firstLine(t *testing.T, r *Report) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, r.WriteText(&b))
	line, _, _ := strings.Cut(b.String(), "\n")
	return line
}

// TestLongNames are cut in lines.
func TestLongNames(t *testing.T) {
	name := strings.Repeat("x", 1<<20)
	a, b := new(memory).add(name, tensortest.Vector(t, tensor.F32, 1)), new(memory).add(name, tensortest.Vector(t, tensor.F32, 2))
	r, err := Compare(t.Context(), a.side(), b.side(), Options{})
	require.NoError(t, err)
	assert.Less(t, len(firstLine(t, r)), 400)
}

// TestTiles: a difference in the last element of many tiles.
func TestTiles(t *testing.T) {
	values := make([]float32, 3*weights.TileElements+5)
	for i := range values {
		values[i] = float32(i % 7)
	}
	a := tensortest.Vector(t, tensor.BF16, values...)
	values[len(values)-1]++
	_, f := one(t, a, tensortest.Vector(t, tensor.F16, values...), Options{})
	assert.EqualValues(t, 1, f.Different)
	assert.EqualValues(t, len(values)-1, f.Worst)
}

// TestByteTiles: integers are compared to the last byte of many tiles.
func TestByteTiles(t *testing.T) {
	data := make([]byte, 2*weights.TileElements+5)
	for i := range data {
		data[i] = byte(i / weights.TileElements)
	}
	a := tensor.Tensor{DType: tensor.I8, Shape: []int{len(data)}, Data: data}
	r, _ := one(t, a, tensor.Tensor{DType: tensor.I8, Shape: []int{len(data)}, Data: bytes.Clone(data)}, Options{})
	assert.True(t, r.Same())
	changed := bytes.Clone(data)
	changed[len(data)-1]++
	_, f := one(t, a, tensor.Tensor{DType: tensor.I8, Shape: []int{len(data)}, Data: changed}, Options{})
	assert.Equal(t, statusDiffers, f.Status)
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
	for d, want := range map[tensor.DType]Status{tensor.F32: statusEqual, tensor.BF16: statusClose} {
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
	assert.Equal(t, map[Status]int{statusEqual: 2, statusDiffers: 2, statusRemoved: 1, statusAdded: 1}, r.Counts)
	var text bytes.Buffer
	require.NoError(t, r.WriteText(&text))
	assert.Equal(t, `model.layers.1.mlp.experts.{1,3}.up_proj.weight: differs, at worst in model.layers.1.mlp.experts.3.up_proj.weight: 1 of 2 values, rel RMS 1.34, max abs 3 at 1, 10485760 ulp, cosine 0.964763821
gone: removed: F32 [1]
"new\x1b": added: F32 [1]
differs: 4 tensors compared: 2 equal, 0 close, 2 differ; 0 of another dtype, 0 of another shape, 1 removed, 1 added
`, text.String())
	assert.True(t, slices.IsSortedFunc(r.Findings[:2], func(x, y Finding) int { return bytes.Compare([]byte(x.Name), []byte(y.Name)) }))
}

// TestOrderOfLines: a line per kind, the worst first, whatever the order of the tensors; a line per kind of
// cast comes last, and names are folded only where every named layer has every named expert.
// TestUnused: a scale of a cache, the norm of A.X-K1's dense layers and the bias of 0 that save_pretrained adds, on one
// side alone, make no difference; with Exact they do, and so does a bias that is not 0.
func TestUnused(t *testing.T) {
	c := configtest.Fixture(t, "axk1/checkpoint")
	side := func(m *memory) Side { return Side{Weights: weights.New(c, m).All(), Reader: m, Config: c} }
	vector := func(v float32) tensor.Tensor { return tensortest.Vector(t, tensor.F32, v, v, v) }
	const norm, bias, cache = "model.layers.0.post_mlp_layernorm.weight", "model.layers.1.mlp.gate.e_score_correction_bias",
		"model.layers.0.self_attn.k_proj.k_scale"
	a := func() *memory { return new(memory).add("lm_head.weight", vector(1)) }
	for _, test := range []struct {
		b     *memory
		exact bool
		want  string
	}{
		{a().add(norm, vector(2)).add(bias, vector(0)).add(cache, vector(3)), false, "same"},
		{a().add(norm, vector(2)), true, "differs"},
		{a().add(bias, vector(0.5)), false, "differs"},
		{a().add("model.layers.1.post_mlp_layernorm.weight", vector(2)), false, "differs"},
	} {
		for _, sides := range [][2]Side{{side(a()), side(test.b)}, {side(test.b), side(a())}} {
			r, err := Compare(t.Context(), sides[0], sides[1], Options{Exact: test.exact})
			require.NoError(t, err)
			require.Equal(t, test.want, r.Verdict, "%v", r.Findings)
		}
	}
}

func TestOrderOfLines(t *testing.T) {
	a, b := new(memory), new(memory)
	add := func(name string, x, y tensor.Tensor) {
		a.add(name, x)
		b.add(name, y)
	}
	one := tensortest.Vector(t, tensor.F32, 1, 2)
	add("model.embed_tokens.weight", tensortest.Vector(t, tensor.BF16, 1, 2), one)
	add("model.layers.0.self_attn.q_proj.bias", tensortest.Vector(t, tensor.F32, 1.001, 2), tensortest.Vector(t, tensor.BF16, 1.001, 2))
	for l := range 2 {
		layer := fmt.Sprintf("model.layers.%d.", l)
		add(layer+"self_attn.q_proj.weight", tensortest.Vector(t, tensor.BF16, 1, 2), one)
		add(layer+"input_layernorm.weight", one, tensortest.Vector(t, tensor.F32, 1, 2.5+float32(l)))
		for e := range 2 {
			expert := fmt.Sprintf("%smlp.experts.%d.", layer, e)
			add(expert+"gate_proj.weight", one, tensortest.Vector(t, tensor.F32, 1, 9))
			add(expert+"up_proj.weight", tensortest.Vector(t, tensor.BF16, 1, 2), one)
			if l+e < 2 {
				add(expert+"down_proj.weight", one, tensortest.Vector(t, tensor.F32, 1))
			}
		}
	}
	r, err := Compare(t.Context(), a.side(), b.side(), Options{})
	require.NoError(t, err)
	var text bytes.Buffer
	require.NoError(t, r.WriteText(&text))
	got := strings.Split(text.String(), "\n")
	for i, want := range []string{
		"model.layers.{0..1}.mlp.experts.{0..1}.gate_proj.weight: differs, at worst in model.layers.0.mlp.experts.0.gate_proj.weight: 1 of 2 values, rel RMS 3.13, ",
		"model.layers.{0..1}.input_layernorm.weight: differs, at worst in model.layers.1.input_layernorm.weight: ",
		"3 of model.layers.{0..1}.mlp.experts.{0..1}.down_proj.weight: shape: [2], then [1]",
		"model.layers.0.self_attn.q_proj.bias: F32 in A, BF16 in B, equal after the cast, which rounds: 1 of 2 values, ",
		"7 weights of 5 modules: BF16 in A, F32 in B, equal after the cast",
		"differs: 14 tensors compared: 7 equal, 1 close, 6 differ; 8 of another dtype, 3 of another shape, 0 removed, 0 added",
		"",
	} {
		require.True(t, strings.HasPrefix(got[i], want), "%s\n%s", got[i], want)
	}
	require.Len(t, r.Findings, 17)
}

// failing is a reader whose reads of one tensor fail.
type failing struct {
	*memory
	name string
}

// ReadAt fails for the one tensor.
func (f failing) ReadAt(name string, dst []byte, offset int64) error {
	if name == f.name {
		return errors.New("disk on fire")
	}
	return f.memory.ReadAt(name, dst, offset)
}

// TestReadErrors: what cannot be read is an error that names the tensor, on either side,
// of numbers, of scales and of bytes.
func TestReadErrors(t *testing.T) {
	grid := tensortest.New(t, tensor.F32, []int{1, 1}, []float32{2})
	code := tensor.Tensor{DType: tensor.F8E4M3, Shape: []int{1, 1}, Data: []byte{0x38}}
	number := tensortest.New(t, tensor.F32, []int{1, 1}, []float32{2})
	whole := new(memory).add("w", code).add("w_scale_inv", grid).add("b", tensor.Tensor{DType: tensor.I8, Shape: []int{1}, Data: []byte{1}})
	plain := new(memory).add("w", number).add("b", tensor.Tensor{DType: tensor.I8, Shape: []int{1}, Data: []byte{1}})
	for _, name := range []string{"w", "w_scale_inv", "b"} {
		a := whole.side()
		a.Reader = failing{whole, name}
		for _, sides := range [][2]Side{{a, whole.side()}, {whole.side(), a}, {a, plain.side()}, {plain.side(), a}} {
			_, err := Compare(t.Context(), sides[0], sides[1], Options{})
			require.ErrorContains(t, err, "disk on fire", name)
			require.ErrorContains(t, err, "tensor "+strings.TrimSuffix(name, "_scale_inv")+": ")
		}
	}
}

// TestCancelled: no report comes of a comparison that was called off.
func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	m := new(memory).add("w", tensortest.Vector(t, tensor.F32, 1)).side()
	r, err := Compare(ctx, m, m, Options{})
	require.ErrorIs(t, err, context.Canceled)
	require.Nil(t, r)
}

// TestUnusableScales: FP8 whose scales are not those of its blocks has no numbers to
// compare.
func TestUnusableScales(t *testing.T) {
	code := tensor.Tensor{DType: tensor.F8E4M3, Shape: []int{2, 2}, Data: make([]byte, 4)}
	m := new(memory).add("w", code).add("w_scale_inv", tensortest.Vector(t, tensor.F32, 1, 2, 3)).side()
	_, err := Compare(t.Context(), m, m, Options{})
	require.ErrorContains(t, err, "tensor w: dtype F8_E4M3, but its scales have shape [3]")
}

// TestScalesOnOneSide: nobody knows whether the values are the same.
func TestScalesOnOneSide(t *testing.T) {
	code := tensor.Tensor{DType: tensor.F8E4M3, Shape: []int{1, 1}, Data: []byte{0x38}}
	a, b := new(memory).add("w", code).add("w_scale_inv", tensortest.New(t, tensor.F32, []int{1, 1}, []float32{1})), new(memory).add("w", code)
	for _, sides := range [][2]*memory{{a, b}, {b, a}} {
		r, err := Compare(t.Context(), sides[0].side(), sides[1].side(), Options{})
		require.NoError(t, err)
		require.False(t, r.Same())
		require.Equal(t, "w: differs: FP8 with scales in one only, whose values cannot be compared", firstLine(t, r))
	}
}

// TestUnmeasuredLines: weights without values to compare have a line of their own.
func TestUnmeasuredLines(t *testing.T) {
	const first, second = "model.layers.0.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.weight"
	grid := tensortest.New(t, tensor.F32, []int{1, 1}, []float32{1})
	a, b := new(memory), new(memory)
	for _, name := range []string{first, second} {
		a.add(name, tensor.Tensor{DType: tensor.F8E4M3, Shape: []int{1, 1}, Data: []byte{0x38}})
		b.add(name, tensor.Tensor{DType: tensor.F8E4M3, Shape: []int{1, 1}, Data: []byte{0x40}})
		a.add(name+"_scale_inv", grid)
	}
	b.add(first+"_scale_inv", grid)
	r, err := Compare(t.Context(), a.side(), b.side(), Options{})
	require.NoError(t, err)
	var text strings.Builder
	require.NoError(t, r.WriteText(&text))
	lines := strings.Split(text.String(), "\n")
	require.Len(t, lines, 4, "two tensors, the verdict, and the end of its line")
	require.Contains(t, lines[0], first+": differs: 1 of 1 values")
	require.Equal(t, second+": differs: FP8 with scales in one only, whose values cannot be compared", lines[1])
}

// TestProgress: every byte of A is told of, once, whatever becomes of it, and never fewer than before.
func TestProgress(t *testing.T) {
	m := new(memory).add("w", tensortest.Vector(t, tensor.BF16, make([]float32, 2*weights.TileElements+3)...)).
		add("x", tensortest.Vector(t, tensor.F32, 1, 2)).add("b", tensor.Tensor{DType: tensor.I8, Shape: []int{weights.TileElements + 1}, Data: make([]byte, weights.TileElements+1)})
	last := int64(0)
	_, err := Compare(t.Context(), m.side(), m.side(), Options{Progress: func(done, total int64) {
		require.GreaterOrEqual(t, done, last)
		require.EqualValues(t, 2*(2*weights.TileElements+3)+8+weights.TileElements+1, total)
		last = done
	}})
	require.NoError(t, err)
	require.EqualValues(t, 2*(2*weights.TileElements+3)+8+weights.TileElements+1, last)
}

// TestPredictionLayersOnOneSide: a prediction layer of which the other side has nothing makes no difference, unless Exact asks
// for one, and has one line; of one that the other side has in part every missing weight is a difference.
func TestPredictionLayersOnOneSide(t *testing.T) {
	c := configtest.Parse(t, configtest.Published(t, "deepseek-v3", func(keys map[string]any) {
		keys["num_hidden_layers"], keys["quantization_config"] = 2, nil
	}))
	model := func(names ...string) Side {
		m := &memory{}
		for _, name := range names {
			m.add(name, tensor.Tensor{DType: tensor.F32, Shape: []int{1}, Data: make([]byte, 4)})
		}
		return Side{Weights: weights.New(c, m).All(), Reader: m, Config: c}
	}
	const decoder, own, attention = "model.norm.weight", "model.layers.2.enorm.weight", "model.layers.2.self_attn.o_proj.weight"
	compared := func(a, b Side, o Options) *Report {
		r, err := Compare(t.Context(), a, b, o)
		require.NoError(t, err)
		return r
	}
	for side, r := range map[string]*Report{"A": compared(model(decoder, own, attention), model(decoder), Options{}),
		"B": compared(model(decoder), model(decoder, own, attention), Options{})} {
		assert.True(t, r.Same())
		assert.Equal(t, map[Status]int{statusEqual: 1, statusPredicts: 2}, r.Counts)
		var b strings.Builder
		require.NoError(t, r.WriteText(&b))
		assert.Equal(t, "2 weights of 2 modules: in "+side+" alone: of prediction layers, which transformers drops, and no forward pass of the "+
			"decoder reads\nsame: 1 tensor compared: 1 equal, 0 close, 0 differ; 0 of another dtype, 0 of another shape, 0 removed, 0 added; "+
			"2 of prediction layers on one side alone\n", b.String())
	}
	assert.False(t, compared(model(decoder, own), model(decoder), Options{Exact: true}).Same())
	c.NumNextNPredictLayers = 0 // a config that has fewer layers than the files says nothing of prediction layers
	assert.Equal(t, 1, compared(model(decoder, attention), model(decoder), Options{}).Counts[statusRemoved])
	c.NumNextNPredictLayers = 1
	part := compared(model(decoder, own, attention), model(decoder, own), Options{})
	assert.False(t, part.Same())
	assert.Equal(t, 1, part.Counts[statusRemoved])
}

// TestPredictionLayersThatTheTableLeavesOut: ERNIE-4.5's prediction layers go by their names alone.
func TestPredictionLayersThatTheTableLeavesOut(t *testing.T) {
	s := Side{Config: configtest.Fixture(t, "ernie45-moe/checkpoint")}
	for name, want := range map[string]bool{"model.mtp_block.0.mlp.up_proj.weight": true, "model.layers.1.mlp.gate.weight": false} {
		m := new(memory).add(name, tensor.Tensor{DType: tensor.F32, Shape: []int{1}, Data: make([]byte, 4)})
		require.Equal(t, want, s.predicts(weights.New(s.Config, m).All()[0]), name)
	}
}
