package stats

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/inspect"
	"dsmoe/inspect/inspecttest"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text"
)

// random16 returns F16 patterns with nothing left out: NaN, infinities, subnormal numbers.
func random16(n int) tensor.Tensor {
	r := rand.New(rand.NewPCG(5, 6))
	x := tensor.Tensor{DType: tensor.F16, Shape: []int{n}}
	for range n {
		x.Data = binary.LittleEndian.AppendUint16(x.Data, uint16(r.Uint32()))
	}
	return x
}

// hostile are tensors of every kind.
func hostile() map[string]tensor.Tensor { return maps.Clone(hostiles()) }

var hostiles = sync.OnceValue(func() map[string]tensor.Tensor {
	r := rand.New(rand.NewPCG(1, 2))
	normal := func(int) float32 { return float32(0.02 * r.NormFloat64()) }
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	spiked := func(i int) float32 {
		switch i {
		case 70_000:
			return -3e38
		case 70_001, 99_999:
			return nan
		case 3:
			return -inf
		case 4:
			return float32(math.Copysign(0, -1))
		case 5:
			return 70000
		}
		return normal(i)
	}
	tensors := map[string]tensor.Tensor{
		"bf16":     inspecttest.Floats(tensor.BF16, []int{200, 500}, normal),
		"spiked":   inspecttest.Floats(tensor.BF16, []int{200, 500}, spiked),
		"f16":      random16(50_000),
		"small":    random16(1000),
		"f32":      inspecttest.Floats(tensor.F32, []int{1200, 2000}, spiked), // more than one job
		"empty":    inspecttest.Floats(tensor.F32, []int{0, 7}, normal),
		"one":      inspecttest.Floats(tensor.BF16, []int{1}, func(int) float32 { return -1.5 }),
		"scalar":   inspecttest.Floats(tensor.F32, []int{}, func(int) float32 { return 2 }),
		"nan":      inspecttest.Floats(tensor.F32, []int{3, 2}, func(int) float32 { return nan }),
		"constant": inspecttest.Floats(tensor.F32, []int{300, 90}, func(int) float32 { return 0.1 }),
		"zeros": inspecttest.Floats(tensor.BF16, []int{256, 256}, func(i int) float32 {
			return float32(math.Copysign(0,
				float64(i%2)-0.5))
		}),
		"fp8": {DType: tensor.F8E4M3, Shape: []int{300, 200}},
	}
	fp8, scales := tensors["fp8"], make([]float32, 6)
	for i := range 300 * 200 {
		fp8.Data = append(fp8.Data, byte(i*7))
	}
	tensors["fp8"] = fp8
	for i := range scales {
		scales[i] = float32(i+1) * 0.001
	}
	scales[4] = 1e37 // beyond F16, and infinite for some
	tensors["fp8_scale_inv"] = inspecttest.Floats(tensor.F32, []int{3, 2}, func(i int) float32 { return scales[i] })
	return tensors
})

// valuesOf decodes a tensor by its definition.
func valuesOf(t *testing.T, tensors map[string]tensor.Tensor, name string) []float32 {
	x := tensors[name]
	values, err := x.Float32s(nil)
	require.NoError(t, err)
	if name == "fp8" {
		scales := valuesOf(t, tensors, "fp8_scale_inv")
		for i := range values {
			values[i] *= scales[i/200/128*2+i%200/128]
		}
	}
	return values
}

// compensated sums up what f makes of values, with A. Neumaier's correction of every
// rounding.
func compensated(values []float64, f func(v float64) float64) float64 {
	sum, lost := 0.0, 0.0
	for _, v := range values {
		x := f(v)
		t := sum + x
		if math.Abs(sum) >= math.Abs(x) {
			lost += (sum - t) + x
		} else {
			lost += (x - t) + sum
		}
		sum = t
	}
	return sum + lost
}

// plain computes statistics by plain loops: compensated sums, quantiles by sorting.
func plain(values []float32, quantiles []string) (n Numbers) {
	n.Elements = int64(len(values))
	var finite []float64
	for _, v := range values {
		switch f := float64(v); {
		case math.IsNaN(f):
			n.NaN++
		case math.IsInf(f, 0):
			n.Infinite++
		default:
			finite = append(finite, f)
			if f == 0 {
				n.Zeros++
			}
			if math.Abs(f) >= 65520 {
				n.BeyondF16++
			}
		}
	}
	if len(finite) == 0 {
		return n
	}
	m := compensated(finite, func(v float64) float64 { return v }) / float64(len(finite))
	std := math.Sqrt(compensated(finite, func(v float64) float64 { return (v - m) * (v - m) }) / float64(len(finite)))
	slices.Sort(finite)
	least, most := finite[0]+0, finite[len(finite)-1]+0
	largest := max(math.Abs(least), math.Abs(most))
	n.Min, n.Max, n.AbsMax, n.Mean, n.Std = &least, &most, &largest, &m, &std
	for _, q := range quantiles {
		share, _ := new(big.Rat).SetString(q)
		i := sort.Search(len(finite), func(i int) bool { // at least q·n are at most finite[i]
			return big.NewRat(int64(i+1), int64(len(finite))).Cmp(share) >= 0
		})
		n.Quantiles = append(n.Quantiles, QuantileValue{q, finite[i] + 0})
	}
	return n
}

// same compares what is exact to the bit, and sums with a relative error of 1e-12 of the
// largest magnitude and the standard deviation.
func same(t *testing.T, want, got Numbers, what string) {
	t.Helper()
	if want.Mean != nil {
		require.NotNil(t, got.Mean, what)
		assert.InDelta(t, *want.Mean, *got.Mean, 1e-12**want.AbsMax, what)
		assert.InDelta(t, *want.Std, *got.Std, 1e-12**want.Std, what)
		want.Mean, want.Std = got.Mean, got.Std
	}
	assert.Equal(t, want, got, what)
}

var someQuantiles = []string{"0", "0.001", "0.07", "0.5", "0.999", "1"}

// quantilesOf reads them.
func quantilesOf(t *testing.T, list ...string) []Quantile {
	q, err := ParseQuantiles(strings.Join(list, ","))
	require.NoError(t, err)
	return q
}

// TestStats: the numbers of each tensor are those of plain loops, whatever is in it.
func TestStats(t *testing.T) {
	tensors := hostile()
	r, err := Compute(t.Context(), weights128(inspecttest.Only(t, tensors)),
		Options{Quantiles: quantilesOf(t, someQuantiles...)})
	require.NoError(t, err)
	require.Len(t, r.Tensors, len(tensors))
	assert.Empty(t, r.NotCounted)
	assert.Empty(t, r.Groups)
	for _, x := range r.Tensors {
		values := valuesOf(t, tensors, x.Name)
		same(t, plain(values, someQuantiles), x.Numbers, x.Name)
		assert.Equal(t, tensors[x.Name].DType, x.DType)
		assert.Equal(t, tensors[x.Name].Shape, x.Shape)
		if len(x.Shape) == 0 || x.Shape[0] == 0 {
			assert.Nil(t, x.Rows, x.Name)
			continue
		}
		assert.Equal(t, plainRows(values, x.Shape[0]), x.Rows, x.Name)
	}
}

// TestStatsOfManyRows: a tensor of very many rows has statistics, but none of rows.
func TestStatsOfManyRows(t *testing.T) {
	x := tensor.Tensor{DType: tensor.BF16, Shape: []int{maxRows + 1, 1}, Data: make([]byte, 2*(maxRows+1))}
	r, err := Compute(t.Context(), inspecttest.Only(t, map[string]tensor.Tensor{"x": x}).Weights(), Options{})
	require.NoError(t, err)
	assert.EqualValues(t, maxRows+1, r.Tensors[0].Zeros)
	assert.Nil(t, r.Tensors[0].Rows)
	assert.Regexp(t, ` 0 +- +-\n$`, inspecttest.Printed(t, r), "nothing is said of outliers")
}

// weights128 is weights with the blocks of the tensors of hostile.
func weights128(s *inspecttest.Stored) inspect.Weights {
	w := s.Weights()
	for _, x := range w.List {
		x.Block = [2]int{128, 128}
	}
	return w
}

// plainRows looks at rows by plain loops.
func plainRows(values []float32, rows int) *rowSpread {
	peaks := make([]float64, rows)
	width := len(values) / rows
	for i, v := range values {
		if a := math.Abs(float64(v)); a <= math.MaxFloat32 {
			peaks[i/width] = max(peaks[i/width], a)
		}
	}
	s := &rowSpread{Count: rows, Median: slices.Sorted(slices.Values(peaks))[(rows-1)/2], Largest: []rowPeak{}}
	for i, p := range peaks {
		if p > 4*s.Median {
			s.Outliers++
			s.Largest = append(s.Largest, rowPeak{i, p})
		}
	}
	slices.SortStableFunc(s.Largest, func(a, b rowPeak) int {
		if a.AbsMax > b.AbsMax {
			return -1
		}
		return map[bool]int{true: 1}[a.AbsMax < b.AbsMax]
	})
	s.Largest = s.Largest[:min(8, len(s.Largest))]
	return s
}

// TestStatsOfGroups: the numbers of a group are those of all its tensors, in dtypes that
// are counted in different ways, and scales are no members.
func TestStatsOfGroups(t *testing.T) {
	tensors := hostile()
	tensors["f32"] = tensor.Tensor{DType: tensor.F32, Shape: []int{50, 2000}, Data: tensors["f32"].Data[:4*50*2000]}
	const expert, shared = "model.layers.1.mlp.experts.3", "model.layers.2.mlp.shared_experts"
	renamed, original := map[string]tensor.Tensor{}, map[string]string{}
	for name, x := range tensors {
		full := expert + "." + name
		if slices.Contains([]string{"f32", "fp8", "fp8_scale_inv", "spiked"}, name) {
			full = shared + "." + name
		}
		renamed[full], original[full] = x, name
	}
	const norm = "model.norm.weight"
	renamed[norm], original[norm] = tensors["small"], "small"
	w := weights128(inspecttest.Only(t, renamed))
	for by, names := range map[inspect.Grouping][]string{
		inspect.ByExpert: {expert, shared},
		inspect.ByLayer:  {"model.norm", "model.layers.1", "model.layers.2"},
		inspect.ByModule: {"norms", "other"},
	} {
		r, err := Compute(t.Context(), w, Options{By: by, Quantiles: quantilesOf(t, someQuantiles...)})
		require.NoError(t, err)
		assert.Empty(t, r.Tensors)
		require.Len(t, r.Groups, len(names))
		for i, g := range r.Groups {
			assert.Equal(t, names[i], g.Name)
			var values []float32
			n := 0
			for name := range original {
				inside := strings.HasPrefix(name, g.Name) || g.Name == "norms" && name == norm || g.Name == "other" && name != norm
				if inside && !strings.HasSuffix(name, "_inv") {
					n++
					values = append(values, valuesOf(t, tensors, original[name])...)
				}
			}
			assert.Equal(t, n, g.Tensors, g.Name)
			same(t, plain(values, someQuantiles), g.Numbers, g.Name)
		}
	}
}

// TestStatsDoNotDependOnThreads: the same bits, and the same bytes told of; never more than a
// tile is read at a time.
func TestStatsDoNotDependOnThreads(t *testing.T) {
	s := inspecttest.Only(t, hostile())
	for _, by := range []inspect.Grouping{inspect.ByTensor, inspect.ByModule} {
		var want string
		for _, threads := range []int{1, 2, 7, 0} {
			w, last := weights128(s), int64(0)
			w.Threads = threads
			w.Progress = func(done, total int64) {
				assert.LessOrEqual(t, last, done)
				assert.LessOrEqual(t, done, total)
				last = done
			}
			r, err := Compute(t.Context(), w, Options{By: by, Quantiles: quantilesOf(t, someQuantiles...)})
			require.NoError(t, err)
			got, err := json.Marshal(r)
			require.NoError(t, err)
			if want == "" {
				want = string(got)
			}
			assert.Equal(t, want, string(got), "%s, %d threads", by, threads)
			assert.NotContains(t, want, "NaN")
		}
	}
	assert.LessOrEqual(t, s.Largest, weights.TileBytes)
}

// TestStatsOfFusedExperts: each expert's matrices are counted apart.
func TestStatsOfFusedExperts(t *testing.T) {
	s := inspecttest.Fill(t, configtest.Fixture(t, "v1-base/checkpoint"))
	const layer = "model.layers.2.mlp.experts"
	want, err := Compute(t.Context(), s.Weights(), Options{Selection: inspect.Selection{Layers: text.Spans{{2, 2}},
		Experts: text.Spans{{3, 3}}}})
	require.NoError(t, err)
	require.Len(t, want.Tensors, 3)
	var gateUp, down []byte
	for e := range 16 {
		for _, part := range []string{"gate_proj", "up_proj"} {
			gateUp = append(gateUp, s.Data[fmt.Sprintf("%s.%d.%s.weight", layer, e, part)]...)
		}
		down = append(down, s.Data[fmt.Sprintf("%s.%d.down_proj.weight", layer, e)]...)
	}
	for i := range s.Files {
		s.Files[i].Tensors = slices.DeleteFunc(slices.Clone(s.Files[i].Tensors),
			func(x tensor.Info) bool { return strings.HasPrefix(x.Name, layer+".") })
	}
	s.Store(layer+".gate_up_proj", tensor.BF16, []int{16, 48, 64}, gateUp)
	s.Store(layer+".down_proj", tensor.BF16, []int{16, 64, 24}, down)
	got, err := Compute(t.Context(), s.Weights(), Options{Selection: inspect.Selection{Layers: text.Spans{{2, 2}},
		Experts: text.Spans{{3, 3}}}})
	require.NoError(t, err)
	assert.Equal(t, want, got)
}

// TestStatsThatCannotBe: what is not counted is listed with its cause; what cannot be read
// is one error.
func TestStatsThatCannotBe(t *testing.T) {
	tensors := hostile()
	delete(tensors, "fp8_scale_inv")
	tensors["ids"] = tensor.Tensor{DType: tensor.I64, Shape: []int{1}, Data: make([]byte, 8)}
	s := inspecttest.Only(t, tensors)
	r, err := Compute(t.Context(), s.Weights(), Options{})
	require.NoError(t, err)
	assert.Equal(t, []inspect.NotCounted{
		{Name: "fp8", DType: tensor.F8E4M3, Cause: "dtype F8_E4M3, but its scales, fp8_scale_inv, are missing"},
		{Name: "ids", DType: tensor.I64, Cause: "dtype I64 has no numbers that the model computes with"},
	}, r.NotCounted)
	assert.Len(t, r.Tensors, len(tensors)-2)
	assert.Contains(t, inspecttest.Printed(t, r), "not counted: ids: dtype I64")

	s.Broken["bf16"], s.Broken["f32"] = true, true
	for _, by := range []inspect.Grouping{inspect.ByTensor, inspect.ByModule} {
		_, err = Compute(t.Context(), s.Weights(), Options{By: by, Quantiles: quantilesOf(t, "0.5")})
		require.ErrorContains(t, err, "tensor bf16: disk on fire")
		require.ErrorContains(t, err, "tensor f32: disk on fire")
	}
	whole := inspecttest.Fill(t, configtest.Fixture(t, "v3-fp8/checkpoint")).Weights()
	_, err = Compute(t.Context(), whole, Options{By: inspect.ByExpert,
		Selection: inspect.Selection{Layers: text.Spans{{0, 0}}}})
	require.EqualError(t, err, "nothing to count by expert: none of the selected tensors is in one")
	scales := inspect.Selection{Match: []string{"*_scale_inv"}}
	r, err = Compute(t.Context(), whole, Options{Selection: scales})
	require.NoError(t, err)
	assert.Len(t, r.Tensors, 72)
	_, err = Compute(t.Context(), whole, Options{By: inspect.ByLayer, Selection: scales})
	require.ErrorContains(t, err, "nothing to count by layer")
	_, err = Hash(t.Context(), whole, scales, inspect.ByTensor)
	require.ErrorContains(t, err, "scales have no hash of their own")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Compute(ctx, inspecttest.Only(t, tensors).Weights(), Options{})
	require.ErrorIs(t, err, context.Canceled)
}

func TestParseQuantiles(t *testing.T) {
	for list, want := range map[string]string{
		"": "not shares", "a": "not shares", "1.1": "not shares", "-0.1": "not shares", "1/2": "not shares", "1e-3": "not shares", "0.5,": "not shares",
		"0.5,.50": "given twice", "0,.1,.2,.3,.4,.5,.6,.7,.8,.9,.01,.02,.03,.04,.05,.06,.07": "more than 16",
		"0.0000000000000000000000000001": "not shares",
	} {
		_, err := ParseQuantiles(list)
		assert.ErrorContains(t, err, want, list)
	}
	// 0.07 · 100 is more than 7 in float64.
	assert.EqualValues(t, 7, quantilesOf(t, "0.07")[0].rank(100))
	assert.EqualValues(t, 8, quantilesOf(t, "0.07")[0].rank(101))
	assert.EqualValues(t, 1, quantilesOf(t, "0")[0].rank(5))
	assert.EqualValues(t, 5, quantilesOf(t, "1")[0].rank(5))
}
