package bounds

import (
	"math"
	"slices"

	"dsmoe/model/tensor"
)

// Metrics say how far got is from want, both of shape [rows, width], with d = got -
// want and rms(x) = sqrt(mean(x²)) over the whole tensor or one row. A row far below
// the tensor's average is measured against an eighth of that: it is the difference of
// larger numbers, and carries their rounding errors.
type Metrics struct {
	RelRMS   float64 // rms(d) / rms(want)
	RowRMS   float64 // the largest rms(d[row]) / max(rms(want[row]), rms(want)/8)
	MaxRMS   float64 // max|d| / rms(want)
	MaxAbs   float64 // max|d|
	BitEqual float64 // share of elements that are equal
	OneULP   float64 // share of elements that are equal or neighbours in the dtype
	WorstRow int     // of RowRMS
	Worst    int     // flat index of MaxAbs, or of the first non-finite element
	Finite   bool    // got and want are finite everywhere; if not, only Worst is set
}

// rowFloor is the share of the tensor's RMS below which a row's own is not used.
const rowFloor = 1.0 / 8

// Compare measures got, rounded to dtype d, against want, rows of width elements each. A want of zeros demands
// zeros: any difference is infinite.
func Compare(got, want []float32, width int, d tensor.DType) Metrics {
	m := Metrics{Finite: true}
	rows := make([]struct{ differences, want float64 }, len(want)/max(1, width)) // sums of squares
	var sum, wants float64
	var equal, near int
	for row := range rows {
		g, w := got[row*width:(row+1)*width], want[row*width:(row+1)*width]
		var ofDiff, ofWant float64
		for i, y := range w {
			r := rounded(g[i], d)
			if !Finite(r) || !Finite(y) {
				return Metrics{Worst: row*width + i}
			}
			square := float64(y) * float64(y) // exact, so fusing does not show
			wants, ofWant = wants+square, ofWant+square
			if r == y {
				equal++
				continue
			}
			diff := float64(r) - float64(y)
			ofDiff += float64(diff * diff)
			if math.Abs(diff) > m.MaxAbs {
				m.MaxAbs, m.Worst = math.Abs(diff), row*width+i
			}
			switch apart(r, y, d) {
			case 0:
				equal++
			case 1:
				near++
			}
		}
		rows[row].differences, rows[row].want = ofDiff, ofWant
		sum += ofDiff
	}
	n := float64(len(want))
	scale := math.Sqrt(wants / n)
	for row, s := range rows {
		ratio := Ratio(math.Sqrt(s.differences/float64(width)), max(math.Sqrt(s.want/float64(width)), scale*rowFloor))
		if ratio > m.RowRMS {
			m.RowRMS, m.WorstRow = ratio, row
		}
	}
	m.RelRMS = Ratio(math.Sqrt(sum/n), scale)
	m.MaxRMS = Ratio(m.MaxAbs, scale)
	m.BitEqual, m.OneULP = float64(equal)/n, float64(equal+near)/n
	return m
}

// rounded is x rounded to d.
func rounded(x float32, d tensor.DType) float32 {
	if d == tensor.F32 {
		return x
	}
	return tensor.Rounded(x, d)
}

// RMS is the root of the mean of squares.
func RMS(x []float32) float64 {
	sum := 0.0
	for _, v := range x {
		sum += float64(v) * float64(v) // exact, so fusing does not show
	}
	return math.Sqrt(sum / float64(len(x)))
}

// Ratio is diff/scale: 0 for no difference, infinite for one from nothing.
func Ratio(diff, scale float64) float64 {
	switch {
	case diff == 0:
		return 0
	case scale == 0:
		return math.Inf(1)
	}
	return diff / scale
}

// apart returns how many steps of dtype d lie between two of its values.
func apart(a, b float32, d tensor.DType) int64 {
	n := tensor.Ordinal(a, d) - tensor.Ordinal(b, d)
	return max(n, -n)
}

// Finite reports whether v is neither NaN nor infinite.
func Finite(v float32) bool { return v-v == 0 }

// AllFinite reports whether all numbers are finite.
func AllFinite(x []float32) bool {
	return !slices.ContainsFunc(x, func(v float32) bool { return !Finite(v) })
}
