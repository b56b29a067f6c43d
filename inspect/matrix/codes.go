package matrix

import (
	"math"
	"slices"
)

// Groups of codes share a scale; those of 32 numbers are parts of larger ones. At most so many rows are looked at, and
// so many numbers of each.
const (
	codeGroup  = 32
	codeRows   = 64
	codeRun    = 128
	leastCodes = 24 // numbers other than 0 in a group that is looked at
	leastGroup = 8  // groups
)

// CodeBits returns the bits of the codes that the numbers went through before they were stored as they are; 0 if no
// such codes show. 4: at most 16 different numbers in every group of 32 of a row. 8: at most 8 different significands
// in every such group, as FP8 E4M3 leaves behind; or whole multiples of the largest number of a group, over 127, as
// 8-bit integers do. In BF16, whose significands have 128 values, 32 random numbers have about 28 of them.
func (m *Matrix) CodeBits() int {
	groups, four, floats := 0, true, true
	var whole, multiples int
	for _, run := range m.runs() {
		for at := 0; at+codeGroup <= len(run); at += codeGroup {
			values, significands, numbers := different(run[at : at+codeGroup])
			if numbers < leastCodes {
				continue
			}
			groups++
			four, floats = four && values <= 16, floats && significands <= 8
		}
	}
	for _, group := range []int{codeGroup, codeRun} {
		if all, exact := m.integers(group); all > 0 && exact*whole >= multiples*all {
			whole, multiples = all, exact
		}
	}
	switch {
	case groups < leastGroup:
		return 0
	case four:
		return 4
	case floats || whole >= leastIntegers && float64(multiples) >= integerShare*float64(whole):
		return 8
	}
	return 0
}

// runs returns the first numbers of some rows.
func (m *Matrix) runs() (all [][]float32) {
	rows := min(codeRows, m.Rows)
	for i := range rows {
		all = append(all, m.Row(i * m.Rows / rows)[:min(codeRun, m.Cols)])
	}
	return all
}

// different counts the different numbers, the different significands other than of 0, and the numbers other than 0.
func different(group []float32) (values, significands, numbers int) {
	var all, parts [codeGroup]uint32
	for i, v := range group {
		all[i] = math.Float32bits(v)
		if v != 0 {
			parts[numbers] = all[i] & (1<<23 - 1)
			numbers++
		}
	}
	return countDifferent(all[:]), countDifferent(parts[:numbers]), numbers
}

func countDifferent(bits []uint32) int {
	slices.Sort(bits)
	return len(slices.Compact(bits))
}

// Of numbers that went through 8-bit integers, all are multiples of their group's scale, but for rounding. Larger
// multiples than largestInteger say little: those of BF16 are off by up to 2⁻⁸ of the number, and so is the scale. Of
// random numbers a seventh pass, so that leastIntegers of them never do.
const (
	largestInteger = 16
	integerShare   = 0.98
	leastIntegers  = 64
)

// integers counts the numbers that are small beside the largest of their group, and those among them that are whole
// multiples of that over 127.
func (m *Matrix) integers(group int) (all, exact int) {
	for _, run := range m.runs() {
		for at := 0; at+group <= len(run); at += group {
			most := float32(0)
			for _, v := range run[at : at+group] {
				most = max(most, v, -v)
			}
			for _, v := range run[at : at+group] {
				q := math.Abs(float64(v)) / float64(most) * 127
				if !(q >= 0.5 && q <= largestInteger) {
					continue
				}
				all++
				if math.Abs(q-math.Round(q)) <= q/128+1e-3 {
					exact++
				}
			}
		}
	}
	return all, exact
}
