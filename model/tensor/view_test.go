package tensor

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// views are what conversions between layouts need, each with where its elements are
// stored, counted out axis by axis.
func views() map[string]struct {
	view *View
	want []int64
} {
	const heads, half, cols = 2, 3, 4
	var permuted []int64 // rows of a head, halves (i, i+half) interleaved to (2i, 2i+1)
	for h := range int64(heads) {
		for i := range int64(half) {
			for pair := range int64(2) {
				for c := range int64(cols) {
					permuted = append(permuted, ((h*2+pair)*half+i)*cols+c)
				}
			}
		}
	}
	const nope, value, rank = 2, 3, 4
	var keys, values []int64 // kv_b_proj [heads·(nope+value), rank] split: keys transposed, values as they are
	for h := range int64(heads) {
		for r := range int64(rank) {
			for n := range int64(nope) {
				keys = append(keys, (h*(nope+value)+n)*rank+r)
			}
		}
		for v := range int64(value) {
			for r := range int64(rank) {
				values = append(values, (h*(nope+value)+nope+v)*rank+r)
			}
		}
	}
	for i := range values {
		values[i] -= nope * rank // the segment begins there
	}
	return map[string]struct {
		view *View
		want []int64
	}{
		"permuted rows":   {&View{[]int64{heads, half, 2, cols}, []int64{2 * half * cols, cols, half * cols, 1}}, permuted},
		"transposed keys": {&View{[]int64{heads, rank, nope}, []int64{(nope + value) * rank, 1, rank}}, keys},
		"every value":     {&View{[]int64{heads, value, rank}, []int64{(nope + value) * rank, rank, 1}}, values},
		"all as they lie": {&View{[]int64{2, 3}, []int64{3, 1}}, []int64{0, 1, 2, 3, 4, 5}},
		"one element":     {&View{nil, nil}, []int64{0}},
	}
}

// TestViews: Element is the definition, and Runs are the same elements, whichever part of
// the view is asked for.
func TestViews(t *testing.T) {
	for name, c := range views() {
		n := c.view.Len()
		require.EqualValues(t, len(c.want), n, name)
		for i := range n {
			require.Equal(t, c.want[i], c.view.Element(i), "%s %d", name, i)
		}
		for from := range n {
			for to := from; to <= n; to++ {
				got := []int64{}
				for r := range c.view.Runs(from, to) {
					require.Positive(t, r.N)
					for i := range r.N {
						got = append(got, r.At+i)
					}
				}
				require.Equal(t, append([]int64{}, c.want[from:to]...), got, "%s %d…%d", name, from, to)
			}
		}
	}
}

// TestRunsAreLong: elements that lie side by side are one run.
func TestRunsAreLong(t *testing.T) {
	count := func(v *View) (n int) {
		for range v.Runs(0, v.Len()) {
			n++
		}
		return n
	}
	all := views()
	require.Equal(t, 1, count(all["all as they lie"].view))
	require.Equal(t, 2, count(all["every value"].view), "a run per head")
	require.Equal(t, 12, count(all["permuted rows"].view), "a run per row")
}

// TestInverse: a view and then its inverse leave everything where it was.
func TestInverse(t *testing.T) {
	all := views()
	inner, heads := all["transposed keys"].view.Inner()
	require.EqualValues(t, 2, heads)
	for name, v := range map[string]*View{"permuted": all["permuted rows"].view, "transposed": inner, "as they lie": all["all as they lie"].view,
		"axes of one": {[]int64{1, 3, 1, 2}, []int64{6, 1, 6, 3}}} {
		back := v.Inverse()
		require.Equal(t, v.Len(), back.Len(), name)
		for i := range v.Len() {
			require.Equal(t, i, v.Element(back.Element(i)), "%s %d", name, i)
		}
	}
}
