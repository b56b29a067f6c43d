package tensor

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPlaces: the codes, scales and zeros of AWQ and GPTQ are where the libraries put them, one by one, whichever
// run of them is picked, by runs and by definition.
func TestPlaces(t *testing.T) {
	const rows, cols, groups = 16, 136, 3
	inWord := []int{0, 4, 1, 5, 2, 6, 3, 7} // of AWQ
	data := make([]byte, 4*rows*cols)
	for i := range data {
		data[i] = byte(i*7 + i/3)
	}
	word := func(i int) uint32 { return binary.LittleEndian.Uint32(data[4*i:]) }
	for _, c := range []struct {
		form  *Form
		name  string
		shape []int
		at    func(element int) uint32 // the code of an element of the matrix as its form has it
	}{
		{awq, "x.qweight", []int{cols, rows / 8}, func(e int) uint32 {
			o, i := e/cols, e%cols
			return word(i*rows/8+o/8) >> (4 * inWord[o%8]) & 15
		}},
		{gptq, "x.qweight", []int{cols / 8, rows}, func(e int) uint32 {
			o, i := e/cols, e%cols
			return word(i/8*rows+o) >> (i % 8 * 4) & 15
		}},
		{awq, "x.qzeros", []int{groups, rows / 8}, func(e int) uint32 { // I32 [rows/8, groups] of eight rows each
			v, g, k := e/8/groups, e/8%groups, e%8
			return word(g*rows/8+v) >> (4 * inWord[k]) & 15
		}},
		{gptqV2, "x.qzeros", []int{groups, rows / 8}, func(e int) uint32 {
			v, g, k := e/8/groups, e/8%groups, e%8
			return word(g*rows/8+v) >> (4 * k) & 15
		}},
	} {
		_, _, p, _ := c.form.layout.partOf(Info{c.name, I32, c.shape})
		n := I32.Elements(int64(c.shape[0]*c.shape[1]*4)) * 8
		for _, pick := range []func([]byte, int64, []byte, int64, int64){p.Pick, p.PickByDefinition} {
			for first := range int64(12) {
				got := make([]byte, n/2)
				pick(got, 1, data, first, n-first-1)
				for i := range n - first - 1 {
					require.Equal(t, c.at(int(first+i)), uint32(got[(i+1)/2]>>((i+1)%2*4)&15), fmt.Sprint(c, first, i))
				}
			}
		}
	}
	_, _, p, _ := awq.layout.partOf(Info{"x.scales", F16, []int{groups, rows}})
	got := p.Part(nil, data, 2*groups, 8*groups, p.Pick)
	for e := range 3 * groups {
		o, g := 1+e/groups, e%groups
		require.Equal(t, data[2*(g*rows+o):][:2], got[2*e:][:2])
	}
}

// TestOrderedColumns: a group that is none, groups that are in no order without desc_act, and a zero that
// libraries read in two ways are refused.
func TestOrderedColumns(t *testing.T) {
	index := func(groups ...int32) (side []byte) {
		for _, g := range groups {
			side = binary.LittleEndian.AppendUint32(side, uint32(g))
		}
		return side
	}
	one := []byte{0, 0x3c, 0, 0x40} // F16 1, 2
	for _, c := range []struct {
		form  *Form
		zeros []byte
		order []byte
		want  string
	}{
		{gptqV2, []byte{8, 0, 0, 0, 15, 0, 0, 0}, index(0, 0, 1, 1), "[1 2] [0 7]"},
		{gptq, []byte{8, 0, 0, 0, 14, 0, 0, 0}, index(0, 0, 1, 1), "[1 2] [1 7]"},
		{gptq, []byte{8, 0, 0, 0, 15, 0, 0, 0}, index(0, 0, 1, 1), "a zero is stored as 15, less 1"},
		{gptqV2, make([]byte, 8), index(0, 1, 1, 0), "g_idx: column 1 is of group 1, but without desc_act"},
		{gptqV2DescAct, make([]byte, 8), index(0, 1, 1, 0), "[1 2 2 1] [-8 -8 -8 -8]"},
		{gptqV2DescAct, make([]byte, 8), index(0, 1, 2, 0), "g_idx: column 2 is of group 2: there are 2"},
		{gptqV2DescAct, make([]byte, 8), index(0, -1, 1, 0), "g_idx: column 1 is of group -1: there are 2"},
	} {
		s := c.form.Scaling(F16, Blocks{1, 4, 1, 2}, true, Invalid)
		g, err := s.Grid([][]byte{one, c.zeros, c.order}, 0)
		if err != nil {
			require.ErrorContains(t, err, c.want)
			continue
		}
		require.Equal(t, c.want, fmt.Sprint(g.Scales, g.Zeros))
	}
}
