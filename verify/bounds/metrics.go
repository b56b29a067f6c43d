package bounds

import (
	"math"

	"dsmoe/model/tensor"
)

// Metrics say how far got is from want, both of shape [rows, width], with d = got -
// want and rms(x) = sqrt(mean(x²)) over the whole tensor or one row. A row far below
// the tensor's average is measured against an eighth of that: it is the difference of
// larger numbers, and carries their rounding errors.
type Metrics struct {
	RelRMS   float64   // rms(d) / rms(want)
	RowRMS   float64   // the largest rms(d[row]) / max(rms(want[row]), rms(want)/8)
	MaxRMS   float64   // max|d| / rms(want)
	MaxAbs   float64   // max|d|
	BitEqual float64   // share of elements that are equal
	OneULP   float64   // share of elements that are equal or neighbours in the dtype
	WorstRow int       // of RowRMS
	Rows     []float64 // the same of each compared row; of a tensor that is not finite, infinite for rows that are not, else 0
	Worst    int       // flat index of MaxAbs, or of the first non-finite element
	Got      float32   // element Worst of got, rounded
	Want     float32   // of want
	Scale    float64   // rms(want)
	Finite   bool      // got and want are finite everywhere; if not, only Worst, Got, Want, Scale and FailingRows are set
}

// rowFloor is the share of the tensor's RMS below which a row's own is not used.
const rowFloor = 1.0 / 8

// Compare measures got, rounded to dtype d, against want, rows of width elements each. A want of zeros demands
// zeros: any difference is infinite.
func Compare(got, want []float32, width int, d tensor.DType) Metrics {
	all := &Rows{Compared: make([]int, len(want)/max(1, width))}
	for row := range all.Compared {
		all.Compared[row] = row
	}
	return all.Metrics(got, want, width, d)
}

// Metrics compares the selected rows of got, rounded to d, with want's, as Compare does.
func (r *Rows) Metrics(got, want []float32, width int, d tensor.DType) Metrics {
	c := NewComparison(r, width, d)
	c.Add(0, got, want)
	return c.Metrics()
}

// A Comparison finds the Metrics of the selected rows of a stage that comes in blocks of rows, in their order.
type Comparison struct {
	selected   *Rows
	width      int
	dtype      tensor.DType
	m          Metrics
	rows       []struct{ differences, want float64 } // sums of squares
	sum, wants float64                               // of all rows
	steps      [3]int                                // elements that are so many steps of the dtype apart, 2 or more
}

// NewComparison is the Comparison of a stage of dtype d whose rows have width elements.
func NewComparison(selected *Rows, width int, d tensor.DType) *Comparison {
	return &Comparison{selected: selected, width: width, dtype: d, m: Metrics{Finite: true}}
}

// Add compares got, rounded, with want, the rows from first on.
func (c *Comparison) Add(first int, got, want []float32) {
	for len(c.rows) < len(c.selected.Compared) {
		row := c.selected.Compared[len(c.rows)]
		from := (row - first) * c.width
		if from >= len(want) {
			return
		}
		g, w, d := got[from:from+c.width], want[from:from+c.width], c.dtype
		if len(c.rows) == 0 {
			c.m.WorstRow, c.m.Worst, c.m.Got, c.m.Want = row, row*c.width, rounded(g[0], d), w[0]
		}
		differences, wants, ok := 0.0, 0.0, false
		if d == tensor.F32 && c.m.Finite {
			differences, wants, ok = c.addFloat32(row, g, w)
		}
		if !ok {
			differences, wants = c.add(row, g, w)
		}
		c.rows = append(c.rows, struct{ differences, want float64 }{differences, wants})
		c.sum += differences
	}
}

// add compares a row, and returns the sums of its squared differences, infinite if one is not finite, and of its wants'
// squares. Behind a row that is not finite it looks for more such rows alone.
func (c *Comparison) add(row int, g, w []float32) (differences, wants float64) {
	m, all, d, p, equal := &c.m, c.wants, c.dtype, PrecisionOf(c.dtype), 0
	g = g[:len(w)]
	for i, y := range w {
		square := float64(y) * float64(y) // exact, so fusing does not show
		all, wants = all+square, wants+square
		if r, _, usual := p.nearest(g[i]); usual && r == y {
			equal++
			continue
		}
		r := rounded(g[i], d)
		diff := float64(r) - float64(y)
		switch {
		case !tensor.IsFinite(diff): // r or y is not
			if m.Finite {
				*m = Metrics{Worst: row*c.width + i, Got: r, Want: y}
			}
			differences = math.Inf(1)
			continue
		case !m.Finite:
			continue
		case diff == 0:
			equal++
			continue
		}
		differences += float64(diff * diff)
		if math.Abs(diff) > m.MaxAbs {
			m.MaxAbs, m.Worst, m.Got, m.Want = math.Abs(diff), row*c.width+i, r, y
		}
		steps := tensor.Ordinal(r, d) - tensor.Ordinal(y, d)
		c.steps[min(max(steps, -steps), 2)]++
	}
	c.wants = all
	c.steps[0] += equal
	return differences, wants
}

// addFloat32 is add in float32, where nothing is to be rounded. If a difference is not finite it changes nothing, and
// reports that. It branches on no sign and on no equality: half of the guesses would be wrong.
func (c *Comparison) addFloat32(row int, g, w []float32) (differences, wants float64, finite bool) {
	m, all, most, worst, equal, near := &c.m, c.wants, c.m.MaxAbs, -1, 0, 0
	g = g[:len(w)]
	for i, y := range w {
		square := float64(y) * float64(y) // exact, so fusing does not show
		all, wants = all+square, wants+square
		diff := float64(g[i]) - float64(y)
		if size := math.Abs(diff); !(size <= most) {
			if !tensor.IsFinite(diff) {
				return 0, 0, false
			}
			most, worst = size, i
		}
		differences += float64(diff * diff)
		steps := ordinal(g[i]) - ordinal(y)
		if steps == 0 {
			equal++
		}
		if steps+1 <= 2 { // from -1 to 1
			near++
		}
	}
	if worst >= 0 {
		m.MaxAbs, m.Worst, m.Got, m.Want = most, row*c.width+worst, g[worst], w[worst]
	}
	c.wants = all
	c.steps[0] += equal
	c.steps[1] += near - equal
	c.steps[2] += len(w) - near
	return differences, wants, true
}

// ordinal is tensor.Ordinal of a finite float32, without a call. Two of them are less than 2^32 - 1 apart.
func ordinal(v float32) uint32 {
	bits := math.Float32bits(v)
	sign := uint32(int32(bits) >> 31)
	return (bits&math.MaxInt32 ^ sign) - sign
}

// Metrics are those of all rows that were added.
func (c *Comparison) Metrics() Metrics {
	m, n := c.m, float64(len(c.rows)*c.width)
	if m.Scale = math.Sqrt(c.wants / n); !m.Finite {
		for _, s := range c.rows {
			if !math.IsInf(s.differences, 1) {
				s.differences = 0
			}
			m.Rows = append(m.Rows, s.differences)
		}
		return m
	}
	for i, s := range c.rows {
		ratio := Ratio(math.Sqrt(s.differences/float64(c.width)),
			max(math.Sqrt(s.want/float64(c.width)), m.Scale*rowFloor))
		m.Rows = append(m.Rows, ratio)
		if ratio > m.RowRMS {
			m.RowRMS, m.WorstRow = ratio, c.selected.Compared[i]
		}
	}
	m.RelRMS = Ratio(math.Sqrt(c.sum/n), m.Scale)
	m.MaxRMS = Ratio(m.MaxAbs, m.Scale)
	m.BitEqual, m.OneULP = float64(c.steps[0])/n, float64(c.steps[0]+c.steps[1])/n
	return m
}

// FailingRows returns which of the compared rows are further off than the limit of their RMS, or are not finite.
func (m *Metrics) FailingRows(r *Rows, limit float64) (rows []int) {
	for i, ratio := range m.Rows {
		if ratio > limit {
			rows = append(rows, r.Compared[i])
		}
	}
	return rows
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
