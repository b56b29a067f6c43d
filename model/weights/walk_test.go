package weights

import (
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/model/tensor"
)

// TestPairs: pairs are by name, in the order of A, those of B alone last. Scales go with their weight; scales without
// one are a pair of their own.
func TestPairs(t *testing.T) {
	sides := [2][]*Weight{}
	for i, src := range []memory{
		{"a": counting(tensor.F32, 1), "w": counting(tensor.F8E4M3, 1, 1), "w_scale_inv": counting(tensor.F32, 1, 1)},
		{"b": counting(tensor.F32, 1), "w": counting(tensor.BF16, 1, 1), "w_scale_inv": counting(tensor.F32, 1, 1)},
	} {
		sides[i] = New(&config.Config{ModelType: "deepseek_v3", Quantization: config.Quantization{Method: "fp8"}}, src).All()
	}
	names := func(a, b []*Weight) (all [][2]string) {
		for _, p := range Pairs(a, b) {
			pair := [2]string{}
			for i, w := range []*Weight{p.A, p.B} {
				if w != nil {
					pair[i] = w.Name
				}
			}
			all = append(all, pair)
		}
		return all
	}
	require.Equal(t, [][2]string{{"a", ""}, {"w", "w"}, {"", "b"}, {"", "w_scale_inv"}}, names(sides[0], sides[1]))
	require.Equal(t, [][2]string{{"b", ""}, {"w", "w"}, {"w_scale_inv", "w_scale_inv"}, {"", "a"}},
		names(sides[1], sides[0]), "what B holds under a name is not A's alone")
}

// TestWalk: each element of both is measured once, the bytes of A are counted, and errors say whose they are.
func TestWalk(t *testing.T) {
	src := memory{"a": counting(tensor.F32, 5), "b": counting(tensor.BF16, 5), "c": counting(tensor.F32, 5)}
	pair := func(a, b string) Pair {
		of := func(name string) *Weight {
			return &Weight{Info: tensor.Info{Name: name, DType: src[name].DType, Shape: []int{5}}, Stored: name}
		}
		return Pair{of(a), of(b)}
	}
	var done int64
	var elements [2]int64
	var tiles [2]int
	measure := func(w *Walk) error {
		done, elements, tiles = 0, [2]int64{}, [2]int{}
		w.Reading = NewReading(t.Context(), 0, func(n, total int64) {
			require.EqualValues(t, 40, total)
			done = n
		})
		return w.Each([]Pair{pair("a", "b"), pair("c", "a")}, func(i int, p Pair) error {
			return w.Numbers(p, 2, func(at int64, a, b []float32) {
				require.Equal(t, elements[i], at)
				require.Len(t, b, len(a))
				elements[i], tiles[i] = elements[i]+int64(len(a)), tiles[i]+1
			})
		})
	}
	require.NoError(t, measure(&Walk{A: src, B: src}))
	require.Equal(t, [2]int64{5, 5}, elements)
	require.Equal(t, [2]int{3, 3}, tiles)
	require.EqualValues(t, 40, done)

	broken := memory{"a": src["a"]}
	require.EqualError(t, measure(&Walk{A: src, B: broken}), "tensor a: no such tensor")
	require.EqualError(t, measure(&Walk{A: broken, B: src, Other: "the base"}), "tensor c: no such tensor")
	require.EqualError(t, measure(&Walk{A: src, B: broken, Other: "the base"}), "tensor a: in the base: no such tensor")
}
