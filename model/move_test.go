package model

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMoves holds every move against its definition: with operands whose values are the
// names of their places, the result's value at each place is the one that it should be.
func TestMoves(t *testing.T) {
	in := &Input{Batch: 2, Seq: 5}
	const heads, width, shared = 3, 4, 2
	name := func(operand string, index ...int) string { return fmt.Sprint(operand, index) }
	for what, test := range map[string]struct {
		move     *Move
		operands [][]int // shapes
		want     func(index []int) string
	}{
		"split heads": {splitHeads(in, heads, width, 1, 3), [][]int{{2, 5, heads * width}}, func(i []int) string {
			return name("a", i[0], i[2], i[1]*width+1+i[3])
		}},
		"split heads, transposed": {splitHeadsT(in, heads, width, 1, 3), [][]int{{2, 5, heads * width}}, func(i []int) string {
			return name("a", i[0], i[3], i[1]*width+1+i[2])
		}},
		"merge heads": {mergeHeads(in, heads, width, 2), [][]int{{2, heads, 2, width}, {2, heads, 2, width}, {2, heads, 1, width}}, func(i []int) string {
			return name(string(rune('a'+i[1]/2)), i[0], i[2]/width, i[1]%2, i[2]%width)
		}},
		"join heads": {joinHeads(in, heads, width, shared), [][]int{{2, heads, 5, width}, {2, 1, 5, shared}}, func(i []int) string {
			if i[3] < width {
				return name("a", i...)
			}
			return name("b", i[0], 0, i[2], i[3]-width)
		}},
		"columns": {TakeColumns(in, 7, 2, 6), [][]int{{2, 5, 7}}, func(i []int) string { return name("a", i[0], i[1], 2+i[2]) }},
		"join columns": {joinColumns(in, 4, 2), [][]int{{2, 5, 4}, {2, 5, 2}}, func(i []int) string {
			if i[2] < 4 {
				return name("a", i...)
			}
			return name("b", i[0], i[1], i[2]-4)
		}},
		"first":  {takeFirst(in, 7, 3), [][]int{{2, 7, 3}}, func(i []int) string { return name("a", i...) }},
		"rows":   {takeRows([]int{3, 0, 3}, 4), [][]int{{5, 4}}, func(i []int) string { return name("a", []int{3, 0, 3}[i[0]], i[1]) }},
		"gather": {gather([]int{2, 0, 1, 1}, 2, 3), [][]int{{2, 3}}, func(i []int) string { return name("a", i[0], []int{2, 0, 1, 1}[2*i[0]+i[1]]) }},
	} {
		t.Run(what, func(t *testing.T) {
			var operands [][]string
			for o, shape := range test.operands {
				var values []string
				for index := range indices(shape) {
					values = append(values, name(string(rune('a'+o)), index...))
				}
				operands = append(operands, values)
			}
			var want []string
			for index := range indices(test.move.Shape) {
				want = append(want, test.want(index))
			}
			got := make([]string, len(want))
			test.move.Each(func(r Run) { moveRun(got, operands[r.Operand], r) })
			require.Equal(t, want, got)
		})
	}
}

// indices yields all indices of a shape, row-major.
func indices(shape []int) func(yield func([]int) bool) {
	return func(yield func([]int) bool) {
		n := 1
		for _, d := range shape {
			n *= d
		}
		for flat := range n {
			index, rest := make([]int, len(shape)), flat
			for d := len(shape) - 1; d >= 0; d-- {
				index[d], rest = rest%shape[d], rest/shape[d]
			}
			if !yield(index) {
				return
			}
		}
	}
}
