package inspect

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/config/configtest"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text"
)

// weights is the checkpoint as its weights are read.
func (s *stored) weights() Weights {
	return Weights{Path: s.Path, Config: s.Config, List: weights.New(s.Config, headers{s.Checkpoint}).Ordered(s.Config), Reader: s}
}

// only returns a checkpoint of some tensors, which are no model.
func only(t *testing.T, tensors map[string]tensor.Tensor) *stored {
	s := &stored{Checkpoint: &Checkpoint{Path: "ckpt", Config: override(t, configtest.Fixture(t, "v3-fp8/checkpoint"), "num_nextn_predict_layers", "0"),
		Files: make([]File, 2)}, data: map[string][]byte{}, broken: map[string]bool{}}
	for name, x := range tensors {
		s.store(name, x.DType, x.Shape, x.Data)
	}
	return s
}

// floats returns a tensor of a dtype whose elements f gives, as float32 that fit it.
func floats(d tensor.DType, shape []int, f func(i int) float32) tensor.Tensor {
	x := tensor.Tensor{DType: d, Shape: shape}
	for i := range x.Len() {
		b := math.Float32bits(f(i))
		switch d {
		case tensor.F32:
			x.Data = binary.LittleEndian.AppendUint32(x.Data, b)
		case tensor.BF16:
			x.Data = binary.LittleEndian.AppendUint16(x.Data, uint16(b>>16))
		}
	}
	return x
}

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
func hostile() map[string]tensor.Tensor {
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
		"bf16":     floats(tensor.BF16, []int{200, 500}, normal),
		"spiked":   floats(tensor.BF16, []int{200, 500}, spiked),
		"f16":      random16(50_000),
		"small":    random16(1000),
		"f32":      floats(tensor.F32, []int{1200, 2000}, spiked), // more than one job
		"empty":    floats(tensor.F32, []int{0, 7}, normal),
		"one":      floats(tensor.BF16, []int{1}, func(int) float32 { return -1.5 }),
		"scalar":   floats(tensor.F32, []int{}, func(int) float32 { return 2 }),
		"nan":      floats(tensor.F32, []int{3, 2}, func(int) float32 { return nan }),
		"constant": floats(tensor.F32, []int{300, 90}, func(int) float32 { return 0.1 }),
		"zeros":    floats(tensor.BF16, []int{256, 256}, func(i int) float32 { return float32(math.Copysign(0, float64(i%2)-0.5)) }),
		"fp8":      {DType: tensor.F8E4M3, Shape: []int{300, 200}},
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
	tensors["fp8_scale_inv"] = floats(tensor.F32, []int{3, 2}, func(i int) float32 { return scales[i] })
	return tensors
}

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
	r, err := Stats(t.Context(), only(t, tensors).weights128(), StatsOptions{Quantiles: quantilesOf(t, someQuantiles...)})
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
	x := tensor.Tensor{DType: tensor.BF16, Shape: []int{MaxRows + 1, 1}, Data: make([]byte, 2*(MaxRows+1))}
	r, err := Stats(t.Context(), only(t, map[string]tensor.Tensor{"x": x}).weights(), StatsOptions{})
	require.NoError(t, err)
	assert.EqualValues(t, MaxRows+1, r.Tensors[0].Zeros)
	assert.Nil(t, r.Tensors[0].Rows)
	assert.Regexp(t, ` 0 +- +-\n$`, printed(t, r), "nothing is said of outliers")
}

// weights128 is weights with the blocks of the tensors of hostile.
func (s *stored) weights128() Weights {
	w := s.weights()
	for _, x := range w.List {
		x.Block = [2]int{128, 128}
	}
	return w
}

// plainRows looks at rows by plain loops.
func plainRows(values []float32, rows int) *RowStats {
	peaks := make([]float64, rows)
	width := len(values) / rows
	for i, v := range values {
		if a := math.Abs(float64(v)); a <= math.MaxFloat32 {
			peaks[i/width] = max(peaks[i/width], a)
		}
	}
	s := &RowStats{Count: rows, Median: slices.Sorted(slices.Values(peaks))[(rows-1)/2], Largest: []RowPeak{}}
	for i, p := range peaks {
		if p > 4*s.Median {
			s.Outliers++
			s.Largest = append(s.Largest, RowPeak{i, p})
		}
	}
	slices.SortStableFunc(s.Largest, func(a, b RowPeak) int {
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
	w := only(t, renamed).weights128()
	for by, names := range map[Grouping][]string{
		ByExpert: {expert, shared},
		ByLayer:  {"model.norm", "model.layers.1", "model.layers.2"},
		ByModule: {"norms", "other"},
	} {
		r, err := Stats(t.Context(), w, StatsOptions{By: by, Quantiles: quantilesOf(t, someQuantiles...)})
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
	s := only(t, hostile())
	for _, by := range []Grouping{ByTensor, ByModule} {
		var want string
		for _, threads := range []int{1, 2, 7, 0} {
			w, last := s.weights128(), int64(0)
			w.Threads = threads
			w.Progress = func(done, total int64) {
				assert.LessOrEqual(t, last, done)
				assert.LessOrEqual(t, done, total)
				last = done
			}
			r, err := Stats(t.Context(), w, StatsOptions{By: by, Quantiles: quantilesOf(t, someQuantiles...)})
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
	assert.LessOrEqual(t, s.largest, weights.TileBytes)
}

// TestStatsOfFusedExperts: each expert's matrices are counted apart.
func TestStatsOfFusedExperts(t *testing.T) {
	s := fill(t, configtest.Fixture(t, "v1-base/checkpoint"))
	const layer = "model.layers.2.mlp.experts"
	want, err := Stats(t.Context(), s.weights(), StatsOptions{Selection: Selection{Layers: text.Spans{{2, 2}}, Experts: text.Spans{{3, 3}}}})
	require.NoError(t, err)
	require.Len(t, want.Tensors, 3)
	var gateUp, down []byte
	for e := range 16 {
		for _, part := range []string{"gate_proj", "up_proj"} {
			gateUp = append(gateUp, s.data[fmt.Sprintf("%s.%d.%s.weight", layer, e, part)]...)
		}
		down = append(down, s.data[fmt.Sprintf("%s.%d.down_proj.weight", layer, e)]...)
	}
	for i := range s.Files {
		s.Files[i].Tensors = slices.DeleteFunc(slices.Clone(s.Files[i].Tensors), func(x tensor.Info) bool { return strings.HasPrefix(x.Name, layer+".") })
	}
	s.store(layer+".gate_up_proj", tensor.BF16, []int{16, 48, 64}, gateUp)
	s.store(layer+".down_proj", tensor.BF16, []int{16, 64, 24}, down)
	got, err := Stats(t.Context(), s.weights(), StatsOptions{Selection: Selection{Layers: text.Spans{{2, 2}}, Experts: text.Spans{{3, 3}}}})
	require.NoError(t, err)
	assert.Equal(t, want, got)
}

// TestStatsThatCannotBe: what is not counted is listed with its cause; what cannot be read
// is one error.
func TestStatsThatCannotBe(t *testing.T) {
	tensors := hostile()
	delete(tensors, "fp8_scale_inv")
	tensors["ids"] = tensor.Tensor{DType: tensor.I64, Shape: []int{1}, Data: make([]byte, 8)}
	s := only(t, tensors)
	r, err := Stats(t.Context(), s.weights(), StatsOptions{})
	require.NoError(t, err)
	assert.Equal(t, []NotCounted{
		{"fp8", tensor.F8E4M3, "dtype F8_E4M3, but its scales, fp8_scale_inv, are missing"},
		{"ids", tensor.I64, "dtype I64 has no numbers that the model computes with"},
	}, r.NotCounted)
	assert.Len(t, r.Tensors, len(tensors)-2)
	assert.Contains(t, printed(t, r), "not counted: ids: dtype I64")

	s.broken["bf16"], s.broken["f32"] = true, true
	for _, by := range []Grouping{ByTensor, ByModule} {
		_, err = Stats(t.Context(), s.weights(), StatsOptions{By: by, Quantiles: quantilesOf(t, "0.5")})
		require.ErrorContains(t, err, "tensor bf16: disk on fire")
		require.ErrorContains(t, err, "tensor f32: disk on fire")
	}
	whole := fill(t, configtest.Fixture(t, "v3-fp8/checkpoint")).weights()
	_, err = Stats(t.Context(), whole, StatsOptions{By: ByExpert, Selection: Selection{Layers: text.Spans{{0, 0}}}})
	require.EqualError(t, err, "nothing to count by expert: none of the selected tensors is in one")
	scales := Selection{Match: []string{"*_scale_inv"}}
	r, err = Stats(t.Context(), whole, StatsOptions{Selection: scales})
	require.NoError(t, err)
	assert.Len(t, r.Tensors, 72)
	_, err = Stats(t.Context(), whole, StatsOptions{By: ByLayer, Selection: scales})
	require.ErrorContains(t, err, "nothing to count by layer")
	_, err = Hash(t.Context(), whole, scales, HashTensors)
	require.ErrorContains(t, err, "scales have no hash of their own")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Stats(ctx, only(t, tensors).weights(), StatsOptions{})
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

// TestSelection: what is selected, and what of a selection is not there.
func TestSelection(t *testing.T) {
	names := func(c *config.Config) (all []string) {
		for s := range table.FamilyOf(c).Slots(c) {
			all = append(all, s.Name)
		}
		return all
	}(configtest.Fixture(t, "v1-base/checkpoint"))
	self := func(s string) string { return s }
	for name, c := range map[string]struct {
		s    Selection
		want int
	}{
		"all":              {Selection{}, 186},
		"layer":            {Selection{Layers: text.Spans{{0, 0}}}, 9},
		"layers":           {Selection{Layers: text.Spans{{1, 2}, {3, 3}}}, 3 * 58},
		"experts":          {Selection{Experts: text.Spans{{0, 0}, {5, 9}}}, 3 * 6 * 3},
		"expert of layer":  {Selection{Layers: text.Spans{{1, 1}}, Experts: text.Spans{{15, 15}}}, 3},
		"glob":             {Selection{Match: []string{"*.gate.weight", "lm_head.*"}}, 4},
		"glob of a layer":  {Selection{Match: []string{"*.gate.weight"}, Layers: text.Spans{{3, 3}}}, 1},
		"glob and experts": {Selection{Match: []string{"*.up_proj.weight"}, Experts: text.Spans{{3, 4}}}, 6},
	} {
		got, err := pick(c.s, names, self)
		require.NoError(t, err, name)
		assert.Len(t, got, c.want, name)
		assert.True(t, slices.IsSortedFunc(got, func(a, b string) int { return slices.Index(names, a) - slices.Index(names, b) }))
	}
	_, err := pick(Selection{Layers: text.Spans{{2, 5}}, Experts: text.Spans{{16, 17}}, Match: []string{"nosuch", "[", "*"}}, names, self)
	assert.EqualError(t, err, "layers 2-5: 4, 5 not there: the checkpoint has 0-3\n"+
		"experts 16-17: 16, 17 not there: the checkpoint has 0-15\n"+
		"the glob \"nosuch\" matches no tensor\n"+
		"\"[\" is not a glob: * stands for anything, ? for a character, [a-z] for one of a set")
	_, err = pick(Selection{Layers: text.Spans{{0, 0}}, Experts: text.Spans{{1, 1}}}, names, self)
	assert.ErrorContains(t, err, "nothing is selected")
	_, err = pick(Selection{Experts: text.Spans{{1, 1}}}, []string{"model.norm.weight"}, self)
	assert.EqualError(t, err, "experts 1: 1 not there: the checkpoint has none")

	fused := []string{"layers.1.mlp.experts.gate_up_proj", "layers.1.mlp.experts.gate_up_proj_scale_inv", "layers.1.mlp.gate.weight"}
	got, err := pick(Selection{Layers: text.Spans{{1, 1}}, Experts: text.Spans{{7, 7}}}, fused, self)
	require.NoError(t, err)
	assert.Equal(t, fused[:2], got, "fused experts are of every number, and names may lack model.")
	got, err = pick(Selection{Match: []string{"*.gate_up_proj"}}, fused, self)
	require.NoError(t, err)
	assert.Equal(t, fused[:2], got, "scales go with their weight")
}
