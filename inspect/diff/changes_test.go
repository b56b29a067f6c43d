package diff

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/inspect"
	"dsmoe/inspect/inspecttest"
	"dsmoe/model/tensor"
)

// heavy are numbers with heavy tails, as trained weights have.
func heavy(draw *rand.Rand, n int) []float32 {
	values := make([]float32, n)
	for i := range values {
		x := draw.NormFloat64()
		values[i] = float32(0.02 * x * (1 + x*x/8))
	}
	return values
}

// lowRank adds a product of rank r, with singular values that fall to a tenth, of a share of the RMS of values.
func lowRank(draw *rand.Rand, values []float32, rows, cols, r int, share float64) {
	change, rms, sum := make([]float64, len(values)), 0.0, 0.0
	for k := range r {
		left, right := make([]float64, rows), make([]float64, cols)
		for i := range left {
			left[i] = draw.NormFloat64() * math.Pow(0.1, float64(k)/float64(r))
		}
		for i := range right {
			right[i] = draw.NormFloat64()
		}
		for i := range change {
			change[i] += left[i/cols] * right[i%cols]
		}
	}
	for i, v := range values {
		rms, sum = rms+float64(v)*float64(v), sum+change[i]*change[i]
	}
	for i := range values {
		values[i] += float32(share * math.Sqrt(rms/sum) * change[i])
	}
}

// TestRanks: a merged LoRA has its rank, in each dtype that weights are published in; a change of all numbers has more;
// what casting makes has none.
func TestRanks(t *testing.T) {
	const rows, cols, name = 176, 320, "model.layers.0.mlp.gate_proj.weight"
	for what, x := range map[string]struct {
		base, dtype tensor.DType
		rank        int
		share       float64
		want        string
	}{
		"F32, rank 8":            {tensor.F32, tensor.F32, 8, 0.01, "8"},
		"F32, rank 8, small":     {tensor.F32, tensor.F32, 8, 1e-5, "8"},
		"BF16, rank 1":           {tensor.BF16, tensor.BF16, 1, 0.01, "1"},
		"BF16, rank 16":          {tensor.BF16, tensor.BF16, 16, 0.05, "16"},
		"BF16, rank 64":          {tensor.BF16, tensor.BF16, 64, 0.2, "64"},
		"BF16, rank 65":          {tensor.BF16, tensor.BF16, 65, 0.2, "more than 64"},
		"F16, rank 4":            {tensor.F16, tensor.F16, 4, 0.01, "4"},
		"BF16 to F16, rank 4":    {tensor.BF16, tensor.F16, 4, 0.01, "4"},
		"F32 to BF16, rank 4":    {tensor.F32, tensor.BF16, 4, 0.05, "4"},
		"F32 to BF16":            {tensor.F32, tensor.BF16, 0, 0, "0"},
		"F32 to F16":             {tensor.F32, tensor.F16, 0, 0, "0"},
		"BF16, all":              {tensor.BF16, tensor.BF16, 176, 0.05, "more than 64"},
		"BF16, below its digits": {tensor.BF16, tensor.BF16, 4, 1e-4, "0"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			draw := rand.New(rand.NewPCG(1, uint64(len(what))))
			values := heavy(draw, rows*cols)
			shape := []int{rows, cols}
			stored := func(d tensor.DType, values []float32) *inspecttest.Stored {
				f := inspecttest.Floats(tensor.F32, shape, func(i int) float32 { return values[i] })
				if d != tensor.F32 {
					cast, err := tensor.NewCast(tensor.F32, d)
					require.NoError(t, err)
					data := make([]byte, 2*len(values))
					cast.Convert(data, f.Data)
					f.DType, f.Data = d, data
				}
				return inspecttest.Only(t, map[string]tensor.Tensor{name: f})
			}
			base := stored(x.base, values)
			tuned, err := tensor.Tensor{DType: x.base, Shape: shape, Data: base.Data[name]}.Float32s(nil)
			require.NoError(t, err)
			if x.rank > 0 {
				lowRank(draw, tuned, rows, cols, x.rank, x.share)
			}
			r, err := Against(t.Context(), stored(x.dtype, tuned).Weights(), base.Weights(), inspect.Selection{})
			require.NoError(t, err)
			require.Len(t, r.Weights, 1)
			g := changed{}
			g.add(&r.Weights[0])
			assert.Equal(t, x.want, g.rank())
			if x.rank == 1 {
				assert.InDelta(t, 1, *r.Weights[0].StableRank, 0.05)
			}
			if x.share > 0.005 {
				assert.InEpsilon(t, x.share, *r.Weights[0].Relative, 0.05)
			}
		})
	}
}

// TestAgainst: equal weights, changed ones, a number that is not finite, and what has no counterpart.
func TestAgainst(t *testing.T) {
	a, b := inspecttest.Filled(t, "v1-base"), inspecttest.Filled(t, "v1-base")
	equal, err := Against(t.Context(), a.Weights(), b.Weights(), inspect.Selection{})
	require.NoError(t, err)
	assert.Len(t, equal.Weights, 186)
	assert.Equal(t, []string{"against " + b.Weights().Path + ": 186 weights compared, and all are equal"}, equal.Lines())

	up := inspecttest.ExpertName(2, 4, "up")
	a.Change(up, inspecttest.Row(0, 64, inspecttest.Times(3)))
	a.Put(inspecttest.ExpertName(1, 0, "gate"), 3, 0x7f80)
	r, err := Against(t.Context(), a.Weights(), b.Weights(), inspect.Selection{})
	require.NoError(t, err)
	for _, w := range r.Weights {
		switch w.Name {
		case up:
			assert.Equal(t, 1, *w.Rank, "one row was changed")
			assert.InDelta(t, 1, *w.StableRank, 1e-6)
			assert.LessOrEqual(t, w.Different, int64(64))
			assert.Positive(t, *w.Relative)
		case inspecttest.ExpertName(1, 0, "gate"):
			assert.Nil(t, w.Relative)
			assert.EqualValues(t, 1, w.Different)
		default:
			assert.Zero(t, w.Different, w.Name)
			assert.Zero(t, *w.Relative, w.Name)
			assert.Nil(t, w.Rank)
		}
	}
	printed := strings.Join(r.Lines(), "\n") + "\n"
	assert.Contains(t, printed, "2 of 186 weights changed, by - of the base's RMS; rank of the changes: 1, of 1 not measured\n")
	assert.Contains(t, printed, "layer 2 expert 4 by ")
	assert.Contains(t, printed, "no router changed\n")
	assert.NotNil(t, r.Figure())

	one := b.Weights()
	one.List = one.List[:1]
	r, err = Against(t.Context(), a.Weights(), one, inspect.Selection{})
	require.NoError(t, err)
	assert.Len(t, r.Weights, 1)
	assert.Len(t, r.NotCompared, 185)
	assert.Equal(t, "the base does not have it", r.NotCompared[0].Cause)
	less := a.Weights()
	less.List = less.List[1:]
	r, err = Against(t.Context(), less, b.Weights(), inspect.Selection{})
	require.NoError(t, err)
	require.Len(t, r.NotCompared, 1)
	assert.Equal(t, "only the base has it", r.NotCompared[0].Cause)
	assert.Contains(t, r.Lines()[0], "; 1 not compared")
	r, err = Against(t.Context(), less, b.Weights(), inspect.Selection{Layers: inspecttest.Spans(t, "1")})
	require.NoError(t, err)
	assert.Empty(t, r.NotCompared, "a weight that is not selected")
	one.List = nil
	_, err = Against(t.Context(), a.Weights(), one, inspect.Selection{})
	assert.ErrorContains(t, err, "has a counterpart of its shape")
}

// TestNotCompared: why a weight was not compared, in the words of each; one without elements was.
func TestNotCompared(t *testing.T) {
	a, b := inspecttest.Filled(t, "v1-base"), inspecttest.Filled(t, "v1-base")
	for i, name := range []string{"first", "second", "third"} {
		dtypes := [2]tensor.DType{tensor.F32, tensor.F32}
		shapes := [2][]int{{2, 3}, {2, 3}}
		if i == 0 {
			shapes[1] = []int{3, 2}
		} else {
			dtypes[i-1] = tensor.I32
		}
		for k, s := range []*inspecttest.Stored{a, b} {
			s.Store(name, dtypes[k], shapes[k], make([]byte, 24))
		}
	}
	for name, shape := range map[string][]int{"empty": {0}, "without columns": {2, 0}} {
		a.Store(name, tensor.F32, shape, nil)
		b.Store(name, tensor.F32, shape, nil)
	}
	r, err := Against(t.Context(), a.Weights(), b.Weights(), inspect.Selection{})
	require.NoError(t, err)
	assert.Len(t, r.Weights, 188)
	assert.Equal(t, []inspect.NotCounted{
		{Name: "first", DType: tensor.F32, Cause: "shape [2 3], but the base's is [3 2]"},
		{Name: "second", DType: tensor.I32, Cause: "dtype I32 has no numbers that the model computes with"},
		{Name: "third", DType: tensor.F32, Cause: "dtype I32 has no numbers that the model computes with"},
	}, r.NotCompared)
}

// TestAgainstIsTheSame: for any number of workers, FP8 or what it decodes to.
func TestAgainstIsTheSame(t *testing.T) {
	a, b := inspecttest.Filled(t, "v1-base"), inspecttest.Filled(t, "v1-base")
	for _, name := range []string{inspecttest.ExpertName(2, 4, "up"), "model.layers.0.self_attn.q_proj.weight", "lm_head.weight"} {
		a.Change(name, func(values []float32) { lowRank(rand.New(rand.NewPCG(2, 3)), values, len(values)/64, 64, 3, 0.1) })
	}
	var reports []*Changes
	for _, threads := range []int{1, 7} {
		w := a.Weights()
		w.Threads = threads
		r, err := Against(t.Context(), w, b.Weights(), inspect.Selection{})
		require.NoError(t, err)
		reports = append(reports, r)
	}
	assert.Equal(t, reports[0], reports[1])

	fp8 := inspecttest.Filled(t, "v3-fp8").Weights()
	r, err := Against(t.Context(), fp8, fp8, inspect.Selection{})
	require.NoError(t, err)
	for _, w := range r.Weights {
		assert.Zero(t, w.Different, w.Name)
	}
	assert.Empty(t, r.NotCompared)
}
