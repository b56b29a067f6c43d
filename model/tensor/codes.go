package tensor

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

// Codes are what a matrix went through before its numbers were stored as they are.
type Codes uint8

// The kinds of codes that show in numbers.
const (
	NoCodes     Codes = iota // as far as can be told
	FourBits                 // at most 16 different numbers in every group of 32 of a row
	EightFloats              // at most 8 different significands in every such group, as FP8 E4M3 leaves behind
	EightBits                // whole multiples of the largest number of a group, over 127, as 8-bit integers are
)

// CodesOf returns the codes that runs of a matrix's numbers went through: see CodeRuns. In BF16, whose significands have 128
// values, 32 random numbers have about 28 of them.
func CodesOf(runs [][]float32) Codes {
	groups, four, floats := 0, true, true
	for _, run := range runs {
		for at := 0; at+codeGroup <= len(run); at += codeGroup {
			var values [codeGroup]uint32
			significands := make([]uint32, 0, codeGroup) // of numbers other than 0
			for i, v := range run[at : at+codeGroup] {
				if values[i] = math.Float32bits(v); v != 0 {
					significands = append(significands, values[i]&(1<<23-1))
				}
			}
			if len(significands) < leastCodes {
				continue
			}
			groups++
			four, floats = four && atMost(16, values[:]), floats && atMost(8, significands)
		}
	}
	switch {
	case groups < leastGroup:
		return NoCodes
	case four:
		return FourBits
	case floats:
		return EightFloats
	case areIntegers(runs):
		return EightBits
	}
	return NoCodes
}

// Steps returns the distances of neighbouring codes at each number of a row.
func (c Codes) Steps(row []float32) []float64 {
	steps := make([]float64, len(row))
	for first := 0; first < len(row); first += codeGroup {
		group, most := row[first:min(first+codeGroup, len(row))], 0.0
		for _, v := range group {
			most = max(most, math.Abs(float64(v)))
		}
		for i, v := range group {
			switch c {
			case FourBits:
				steps[first+i] = most / 7
			case EightBits:
				steps[first+i] = most / 127
			case EightFloats: // 3 bits behind the first
				_, exponent := math.Frexp(float64(v))
				steps[first+i] = math.Ldexp(1, exponent-4)
			}
		}
	}
	return steps
}

// CodeRuns returns the first numbers of some rows of a matrix of so many rows.
func CodeRuns(rows int, row func(i int) []float32) (all [][]float32) {
	n := min(codeRows, rows)
	for i := range n {
		numbers := row(i * rows / n)
		all = append(all, slices.Clone(numbers[:min(codeRun, len(numbers))])) // row may use its memory again
	}
	return all
}

// atMost reports whether at most n of the numbers differ from each other. It overwrites them.
func atMost(n int, numbers []uint32) bool {
	seen := numbers[:0]
	for _, v := range numbers {
		if slices.Contains(seen, v) {
			continue
		}
		if len(seen) == n {
			return false
		}
		seen = append(seen, v)
	}
	return true
}

// Of numbers that went through 8-bit integers, all are multiples of their group's scale, but for rounding. Larger
// multiples than largestInteger say little: those of BF16 are off by up to 2⁻⁸ of the number, and so is the scale. Of
// random numbers a seventh pass, so that leastIntegers of them never do.
const (
	largestInteger = 16
	integerShare   = 0.98
	leastIntegers  = 64
)

// areIntegers reports whether the numbers of runs are 8-bit integers times the scale of their group, whichever size
// of group fits better.
func areIntegers(runs [][]float32) bool {
	var whole, multiples int
	for _, group := range []int{codeGroup, codeRun} {
		if all, exact := integers(runs, group); all > 0 && exact*whole >= multiples*all {
			whole, multiples = all, exact
		}
	}
	return whole >= leastIntegers && float64(multiples) >= integerShare*float64(whole)
}

// integers counts the numbers that are small beside the largest of their group, and those among them that are whole
// multiples of that over 127.
func integers(runs [][]float32, group int) (all, exact int) {
	for _, run := range runs {
		for at := 0; at+group <= len(run); at += group {
			most := 0.0
			for _, v := range run[at : at+group] {
				most = max(most, math.Abs(float64(v)))
			}
			large := most * (largestInteger + 1) / 127
			for _, v := range run[at : at+group] {
				size := math.Abs(float64(v))
				if size > large { // most are, and need no division
					continue
				}
				q := size / most * 127
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
