package tensors

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/inspect"
	"dsmoe/inspect/inspecttest"
	"dsmoe/inspect/matrix"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
)

// TestOddShapes: scalars, vectors, constants and numbers that are not finite are no reason to fail.
func TestOddShapes(t *testing.T) {
	tensors := map[string]tensor.Tensor{}
	for name, shape := range map[string][]int{"scalar": {}, "vector": {300}, "cube": {3, 4, 5}, "row": {1, 2000},
		"column": {2000, 1}, "model.embed_tokens.weight": {256, 64}} {
		tensors[name] = inspecttest.Floats(tensor.F32, shape, func(i int) float32 { return 2 })
	}
	for name, v := range map[string]float64{"nan": math.NaN(), "infinite": math.Inf(1), "zero": 0} {
		tensors[name] = inspecttest.Floats(tensor.F32, []int{40, 50}, func(int) float32 { return float32(v) })
	}
	found, err := Find(t.Context(), inspecttest.Only(t, tensors).Weights())
	require.NoError(t, err)
	for _, o := range found {
		require.Equal(t, "low-bits", o.ID, o.Tensor) // one number alone fits 4 bits
	}
}

// layered makes a matrix of a model of some layers a factor times as large, and returns which tensors are off the trend then.
func layered(t *testing.T, s *inspecttest.Stored, name string, by float64) (names []string) {
	defer func(before []byte) { s.Data[name] = before }(slices.Clone(s.Data[name]))
	s.Change(name, func(values []float32) { inspecttest.Row(0, len(values), inspecttest.Times(float32(by)))(values) })
	w := s.Weights()
	own := w.List[slices.IndexFunc(w.List, func(x *weights.Weight) bool { return x.Name == name })]
	w.List = slices.DeleteFunc(w.List, func(x *weights.Weight) bool { return !x.Is(own.Module(), own.Role()) })
	all, err := Find(t.Context(), w)
	require.NoError(t, err)
	for _, o := range all {
		require.Equal(t, "trend", o.ID)
		names = append(names, o.Tensor)
	}
	return names
}

// offBy returns the factor that makes the matrix as large as the middle of its neighbours, the lower or the upper one.
func offBy(s *inspecttest.Stored, name string, upper bool) float64 {
	own, near := 0.0, []float64{}
	place := regexp.MustCompile(`layers\.(\d+)`)
	at, _ := strconv.Atoi(place.FindStringSubmatch(name)[1])
	for l := at - 2; l <= at+2; l++ {
		other := place.ReplaceAllString(name, fmt.Sprintf("layers.%d", l))
		if s.Data[other] == nil {
			continue
		}
		sum, numbers := 0.0, s.Numbers(other)
		for _, v := range numbers {
			sum += math.Log2(math.Abs(float64(v)))
		}
		if l == at {
			own = sum / float64(len(numbers))
		} else {
			near = append(near, sum/float64(len(numbers)))
		}
	}
	slices.Sort(near)
	middle := near[(len(near)-1)/2]
	if upper {
		middle = near[len(near)/2]
	}
	return math.Exp2(middle - own)
}

// TestLimitsOfTrends_every: 3 times its neighbours, or a third, where 10 layers show how far they are apart, the first and the
// last aside; 20 times, or a twentieth, in any layer of any model, and only the matrix that is off is named.
func TestLimitsOfTrends_every(t *testing.T) {
	t.Parallel()
	const q, shared = "model.layers.%d.self_attn.q_proj.weight", "model.layers.%d.mlp.shared_experts.up_proj.weight"
	for i, c := range []struct {
		layers, layer int
		name          string
		limit         float64
	}{{24, 6, q, 3}, {24, 1, q, 3}, {24, 0, q, 20}, {24, 23, q, 20}, {9, 5, q, 20},
		{7, 6, shared, 20}, {7, 6, q, 20}, {7, 0, q, 20}, {7, 3, q, 20}, {5, 2, shared, 20}} {
		if i%3 > 0 && !configtest.Every(t) {
			continue
		}
		s, name := inspecttest.Model(t, inspecttest.Kind{Layers: c.layers}, 1), fmt.Sprintf(c.name, c.layer)
		s.InFloat32(t, name)
		most, least := offBy(s, name, c.limit == 20)*c.limit, offBy(s, name, false)/c.limit
		require.Equal(t, []string{name}, layered(t, s, name, 1.03*most), "%v", c)
		require.Empty(t, layered(t, s, name, 0.97*most), "%v", c)
		require.Equal(t, []string{name}, layered(t, s, name, 0.97*least), "%v", c)
		require.Empty(t, layered(t, s, name, 1.03*least), "%v", c)
	}
	// Of two layers either may be the odd one.
	two := inspecttest.Model(t, inspecttest.Kind{Layers: 4}, 1)
	require.Len(t, layered(t, two, fmt.Sprintf(shared, 3), 100), 2)
}

// TestLimitsOfRandomAttention: attention looks random from 0.85 of the rank of random numbers on, if that of every other
// layer is below 0.6.
func TestLimitsOfRandomAttention(t *testing.T) {
	t.Parallel()
	list := inspecttest.Filled(t, "v1-base").Weights().List
	found := func(own, others float64) int {
		var all []*measured
		for _, w := range list {
			m := &measured{Weight: w, rank: others}
			if w.Layer == 1 {
				m.rank = own
			}
			all = append(all, m)
		}
		return len(untrained(all))
	}
	require.Equal(t, 4, found(0.86, 0.3), "q, k, v and o")
	require.Equal(t, 0, found(0.84, 0.3))
	require.Equal(t, 4, found(0.95, 0.59))
	require.Equal(t, 0, found(0.95, 0.61))
}

// TestLimitOfTokenRows: a row of the embedding is large from 6 times the median row's typical magnitude on.
func TestLimitOfTokenRows(t *testing.T) {
	t.Parallel()
	c := inspecttest.Override(t, inspecttest.Filled(t, "v1-base").Config, "hidden_size", "256")
	inspecttest.Limit(t, c, "row-norm", 6, func(s *inspecttest.Stored, by float64) {
		s.Change("model.embed_tokens.weight", inspecttest.Row(3*256, 256, inspecttest.Times(float32(by))))
	}, func(s *inspecttest.Stored) []inspect.Observation {
		w := s.Weights()
		w.List = slices.DeleteFunc(w.List, func(x *weights.Weight) bool { return x.Role() != table.EmbedTokens })
		found, err := Find(t.Context(), w)
		require.NoError(t, err)
		return found
	})
}

// TestFirstRowsAndColumns: a matrix has the rank of its first 1024 rows and columns.
func TestFirstRowsAndColumns(t *testing.T) {
	t.Parallel()
	const side = 1100
	rank := func(f func(row, col int) float32) float64 {
		w := inspecttest.Only(t, map[string]tensor.Tensor{"matrix": inspecttest.Floats(tensor.F32, []int{side, side},
			func(i int) float32 { return f(i/side, i%side) })}).Weights()
		m := &measured{Weight: w.List[0]}
		require.NoError(t, m.measure(matrix.NewReader(t.Context(), w)))
		return m.rank
	}
	diagonal := func(row, col int) float32 {
		if row == col {
			return 1
		}
		return 0
	}
	all := rank(diagonal)
	require.Equal(t, all, rank(func(row, col int) float32 {
		if row >= 1024 || col >= 1024 {
			return 1
		}
		return diagonal(row, col)
	}))
	require.Less(t, rank(func(row, col int) float32 {
		if row == 1023 || col == 1023 {
			return 1
		}
		return diagonal(row, col)
	}), all/2)
}
