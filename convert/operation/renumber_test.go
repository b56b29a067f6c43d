package operation

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/model/tensor"
)

// numbers encodes entries.
func numbers(d tensor.DType, entries ...int64) (b []byte) {
	for _, e := range entries {
		if d == tensor.I32 {
			b = binary.LittleEndian.AppendUint32(b, uint32(e))
		} else {
			b = binary.LittleEndian.AppendUint64(b, uint64(e))
		}
	}
	return b
}

// TestRenumber: kept experts get their numbers, and the next kept expert that a row lacks stands in for a dropped one.
// The proof takes nothing else, and entries that are no experts are refused.
func TestRenumber(t *testing.T) {
	for _, to := range []tensor.DType{tensor.I64, tensor.I32} {
		r := &Renumber{Experts: 7, Kept: []int{0, 2, 3, 5}, Row: 3, To: to}
		for _, c := range []struct{ in, out []int64 }{
			{[]int64{5, 0, 3}, []int64{3, 0, 2}},
			{[]int64{1, 0, 3}, []int64{1, 0, 2}}, // 2 is next
			{[]int64{1, 2, 0}, []int64{2, 1, 0}}, // the row has 2 already, behind
			{[]int64{6, 4, 1}, []int64{0, 3, 1}}, // behind the last is the first
			{[]int64{4, 4, 4}, []int64{3, 0, 1}}, // each its own
			{[]int64{2, 2, 6}, []int64{1, 1, 0}}, // a kept expert may be there twice
			{[]int64{6, 5, 0}, []int64{1, 3, 0}},
		} {
			lost := tensor.Loss{}
			in, out := Input{Data: numbers(tensor.I64, c.in...)}, make([]byte, r.Unit().Out)
			require.NoError(t, r.Apply(out, in, &lost))
			require.Equal(t, numbers(to, c.out...), out, "%v", c.in)
			require.NoError(t, r.Prove(out, in))
			for i := range c.out {
				for other := int64(-1); other <= 4; other++ {
					wrong := append([]int64{}, c.out...)
					if wrong[i] = other; other != c.out[i] {
						require.Error(t, r.Prove(numbers(to, wrong...), in), "%v: %v", c.in, wrong)
					}
				}
			}
		}
		for _, e := range []int64{-1, 7, 1 << 32} {
			in := Input{Data: numbers(tensor.I64, 0, 2, e), Into: 300}
			require.ErrorContains(t, r.Apply(make([]byte, r.Unit().Out), in, &tensor.Loss{}), "element 302 is ")
			require.Error(t, r.Prove(numbers(to, 0, 1, 2), in))
		}
	}
}
