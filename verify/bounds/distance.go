package bounds

import (
	"math"

	"dsmoe/model/tensor"
	"dsmoe/text"
)

// Distances are how far a golden tensor of shape [rows, width] is from what was computed, in
// standard deviations: z = d/σ of each element, d the distance of the value from the reals
// that round to the golden's. Where σ = 0 the two must be equal.
type Distances struct {
	Largest   float64   // z
	Worst     int       // flat index of largest, or of the first element that is not finite
	At        element   // the element Worst
	Finite    bool      // both tensors are; if not, only Worst and At are set
	Rms       float64   // of z, over distinct rows
	RowRMS    float64   // the largest of a row
	WorstRow  int       // of RowRMS
	ColumnRMS float64   // the largest of a column, over distinct rows
	Beyond    int       // elements further than Lambda
	Columns   []bool    // that have such elements
	Rows      []bool    // likewise
	rowsRMS   []float64 // of each row
	Sees      float64   // Lambda·rms(σ)/rms(golden): what a deviation must be to be seen; infinite if some σ is no number
	Ambiguous float64   // share of elements that may round to either neighbour
}

// element is an element of a stage and its golden.
type element struct {
	Got   float32 // what was computed, unrounded
	Want  float32
	Sigma float64 // Got's standard deviation
}

// Measure returns the distances of the selected rows of want from x, σ being multiplied by
// factor.
func Measure(x *Value, want []float32, selected *Rows, factor float64) *Distances {
	m := NewMeter(selected, x.Width(), x.DType, factor)
	m.Add(0, x, want)
	return m.Distances()
}

// Measure returns the distances of the selected rows of want from x, as Measure, and their metrics.
func (a *Analysis) Measure(x *Value, want []float32, selected *Rows, factor float64) (m Metrics, d *Distances) {
	a.plain.Each(2, 8*len(want), func(i int) {
		if i == 0 {
			d = Measure(x, want, selected, factor)
		} else {
			m = selected.Metrics(x.Values, want, x.Width(), x.DType)
		}
	})
	return m, d
}

// A meter finds the Distances of the selected rows of a stage that comes in blocks of rows, in their order.
type meter struct {
	selected  *Rows
	width     int
	dtype     tensor.DType
	factor    float64
	d         Distances
	compared  int       // rows, so far
	z         []float64 // of a row, in the columns nonzero
	nonzero   []int     // columns of a row whose z is not 0; in F32 all columns
	zeros     []float32 // deviations of a row whose values are exact
	sums      []float64 // of z², per column
	total     float64   // of z², over rows as they weigh
	sigmas    float64   // sum of σ²
	goldens   float64   // sum of the goldens' squares
	ambiguous int       // elements
}

// NewMeter returns the meter of a stage of dtype d whose rows have width elements: Add(first, x, want) takes the rows
// from first on, and Distances returns the Distances of all.
func NewMeter(selected *Rows, width int, d tensor.DType, factor float64) *meter {
	m := &meter{selected: selected, width: width, dtype: d, factor: factor, z: make([]float64, width),
		zeros: make([]float32, width), sums: make([]float64, width)}
	m.d = Distances{Finite: true, Largest: -1, Columns: make([]bool, width),
		Rows: make([]bool, selected.Padding+len(selected.Compared)), rowsRMS: make([]float64, selected.Padding+len(selected.Compared))}
	for c := range width {
		m.nonzero = append(m.nonzero, c)
	}
	return m
}

// Add measures x against want, the rows from first on.
func (m *meter) Add(first int, x *Value, want []float32) {
	d, width := &m.d, m.width
	for m.compared < len(m.selected.Compared) && d.Finite {
		row := m.selected.Compared[m.compared]
		if row >= first+len(want)/width {
			return
		}
		from := (row - first) * width
		values, golden, deviations := x.Values[from:from+width], want[from:from+width], m.zeros
		if x.sigma != nil {
			deviations = x.sigma.Values[from : from+width]
		}
		measure := m.measureFloat32
		if m.dtype != tensor.F32 {
			measure = m.measure
		}
		at := func(c int) element { return element{values[c], golden[c], m.sigma(deviations[c])} }
		if c := measure(values, golden, deviations); c >= 0 {
			*d = Distances{Worst: row*width + c, At: at(c)}
			return
		}
		weight, rowSum, zs, sums := m.selected.Weights[m.compared], 0.0, m.z, m.sums[:width]
		if d.Largest < 0 {
			d.Largest, d.Worst, d.At = 0, row*width, at(0)
		}
		for _, c := range m.nonzero {
			z := zs[c]
			if z > d.Largest {
				d.Largest, d.Worst, d.At = z, row*width+c, at(c)
			}
			if z > Lambda {
				d.Beyond++
				d.Columns[c], d.Rows[row] = true, true
			}
			rowSum += float64(z * z)
			sums[c] += float64(weight * float64(z*z))
		}
		m.total += float64(weight * rowSum)
		d.rowsRMS[row] = math.Sqrt(rowSum / float64(width))
		if d.rowsRMS[row] > d.RowRMS {
			d.RowRMS, d.WorstRow = d.rowsRMS[row], row
		}
		m.compared++
	}
}

// sigma is the σ that a distance is measured in, of a standard deviation in units of u: 0 if that is not finite, which
// excuses nothing.
func (m *meter) sigma(deviation float32) float64 {
	if s := m.factor * Unit * math.Abs(float64(deviation)); tensor.IsFinite(s) {
		return s
	}
	return 0
}

// measure sets m.z to the distances of a row, and adds to the other sums. It returns the first element that is not
// finite, or -1.
func (m *meter) measure(values, golden, deviations []float32) int {
	p := PrecisionOf(m.dtype)
	m.nonzero = m.nonzero[:0]
	for c := 0; ; c++ {
		if c += m.measureUsual(values[c:], golden[c:], deviations[c:]); c == len(values) {
			return -1
		}
		g, y, s := float64(golden[c]), float64(values[c]), m.sigma(deviations[c])
		r := p.Round(y)
		if s > 0 && p.Round(y-Lambda*s) != p.Round(y+Lambda*s) {
			m.ambiguous++
		}
		if !Agree(g, r) {
			return c
		}
		if m.z[c] = p.z(g, y, r, s); m.z[c] != 0 {
			m.nonzero = append(m.nonzero, c)
		}
		m.sigmas += float64(s * s)
		m.goldens += float64(g * g)
	}
}

// measureUsual is measure of the elements before the first that is not usual, or does not round to the golden. It
// returns their number.
func (m *meter) measureUsual(values, golden, deviations []float32) int {
	p, sigmas, goldens, ambiguous, unit := PrecisionOf(m.dtype), m.sigmas, m.goldens, uint64(0), m.factor*Unit
	golden, deviations = golden[:len(values)], deviations[:len(values)]
	n := len(values)
	for c, value := range values {
		r, room, usual := p.nearest(value)
		g, s2, room2 := golden[c], Sq(unit*float64(deviations[c])), Sq(Unit*room)
		gap := room2 - s2
		if !(usual && math.Float32bits(r) == math.Float32bits(g) && Sq(gap) > Sq(unsure*room2) && s2 <= math.MaxFloat64) {
			n = c
			break
		}
		ambiguous += math.Float64bits(gap) >> 63 // 1 if s is larger
		sigmas += s2
		goldens += Sq(float64(g))
	}
	m.sigmas, m.goldens, m.ambiguous = sigmas, goldens, m.ambiguous+int(ambiguous)
	return n
}

// measureFloat32 is measure of float32, where values are rounded already. It does not ask whether values are equal:
// half of the guesses would be wrong.
func (m *meter) measureFloat32(values, golden, deviations []float32) int {
	p, zs, sigmas, goldens, unit := PrecisionOf(tensor.F32), m.z[:len(values)], m.sigmas, m.goldens, m.factor*Unit
	golden, deviations = golden[:len(values)], deviations[:len(values)]
	for c, value := range values {
		g, y, s := float64(golden[c]), float64(value), unit*math.Abs(float64(deviations[c]))
		diff := math.Abs(g - y)
		z := positive(diff-p.Ulp(g)/2) / s
		if !(diff <= math.MaxFloat64 && s > 0 && s <= math.MaxFloat64) {
			if !Agree(g, y) {
				return c
			}
			s = m.sigma(deviations[c])
			z = p.Z(g, y, s)
		}
		zs[c] = z
		sigmas += float64(s * s)
		goldens += float64(g * g)
	}
	m.sigmas, m.goldens = sigmas, goldens
	return -1
}

// positive is max(0, x) of a number, without a branch.
func positive(x float64) float64 {
	bits := int64(math.Float64bits(x))
	return math.Float64frombits(uint64(bits &^ (bits >> 63)))
}

// Distances are those of all rows that were added.
func (m *meter) Distances() *Distances {
	d := &m.d
	if !d.Finite {
		return d
	}
	d.Rms = math.Sqrt(m.total / float64(m.selected.Distinct*m.width))
	for _, sum := range m.sums {
		d.ColumnRMS = max(d.ColumnRMS, math.Sqrt(sum/float64(m.selected.Distinct)))
	}
	d.Sees = Ratio(Lambda*math.Sqrt(m.sigmas), math.Sqrt(m.goldens))
	d.Ambiguous = float64(m.ambiguous) / float64(len(m.selected.Compared)*m.width)
	return d
}

// Agree reports whether a golden and the value computed are both finite, or infinities of
// the same sign.
func Agree(g, y float64) bool { return tensor.IsFinite(g) && tensor.IsFinite(y) || g == y }

// Z is the distance of y from the golden g in standard deviations s.
func (p *precision) Z(g, y, s float64) float64 { return p.z(g, y, p.Round(y), s) }

// z is Z of a y that rounds to r.
func (p *precision) z(g, y, r, s float64) float64 {
	switch {
	case g == r:
		return 0
	case s == 0:
		return math.Inf(1)
	}
	return max(0, math.Abs(g-y)-p.Ulp(g)/2) / s // the distance from the reals that round to g
}

// Blindness is the share of a golden's RMS that bounds may have at most, where numbers were rounded to
// dtype d: a stage with wider bounds proves nothing. In BF16 and F16 that is an
// eighth: an expert that is missing of 8 is .35 of a routed sum. To block types and FP8
// weights were rounded coarsely on purpose: the limit is 40 times the relative RMS error of normally distributed
// numbers, as half steps say it. In one product 8 σ are 8 times that; the largest of right references, an MLP's, is 20
// times. At most it is 2, so that a stage of zeros would
// fail: with 8 σ of twice the RMS the larger of normally distributed elements do, and in float32
// the RMS of all of them, 4 σ.
func Blindness(d tensor.DType) float64 {
	switch {
	case d == tensor.Q8_0: // .0055
		return 0.22
	case d == tensor.Q6_K: // .0225
		return 0.9
	case d == tensor.F8E4M3: // .0275
		return 1.1
	case d == tensor.Q5_0, d == tensor.Q5_1: // .0425, .040
		return 1.7
	case d.Blocked(), d.Scaled():
		return 2
	case d == tensor.BF16 || d == tensor.F16:
		return 0x1p-3
	}
	return 1e-3
}

// SaysNothing reports whether the bounds exceed the Blindness of a golden of dtype t, and of the dtype that weights
// were rounded to: t if none were.
func (d *Distances) SaysNothing(t, rounded tensor.DType) bool {
	limit := Blindness(t)
	if rounded != t {
		limit += Blindness(rounded)
	}
	return d.Sees > limit
}

// Excess is by how many standard deviations of their difference x's element i exceeds j.
func (x *Value) Excess(i, j int) float64 {
	gap := float64(x.Values[i]) - float64(x.Values[j])
	if gap == 0 {
		return 0
	}
	return gap / (Unit * math.Sqrt(x.Variance(i)+x.Variance(j)))
}

// Tie reports whether the golden's score, at position golden of x, of an expert or a group,
// ties with ours, in whose place it was chosen: exactly, or within Lambda standard
// deviations of their difference.
func (x *Value) Tie(ours, golden int) TieKind {
	switch gap := x.Excess(ours, golden); {
	case gap == 0:
		return ExactTie
	case gap > 0 && gap <= Lambda:
		return NearTie
	}
	return NoTie
}

// Hidden reports whether a score is what a mask leaves of it: the lowest finite value of F32 or BF16.
func Hidden(score float32) bool { return score <= -0x1.fep127 }

// TieKind is how near two scores are to each other.
type TieKind int

// The kinds of ties.
const (
	NoTie    TieKind = iota // apart by more than Lambda standard deviations of their difference
	NearTie                 // within these
	ExactTie                // equal
)

// Where names the columns that hold all elements beyond the limit, if they are few.
func (d *Distances) Where() string {
	switch at := Marked(d.Columns); {
	case len(at) == 1:
		return "all in column " + text.Ranges(at)
	case len(at) > 1 && len(at) <= Few && 2*len(at) < len(d.Columns):
		return "all in columns " + text.Ranges(at)
	}
	return ""
}

// FailingRows returns the rows with an element beyond the limit, or with an RMS beyond theirs; 0 is no limit.
func (d *Distances) FailingRows(limit float64) (rows []int) {
	for row, beyond := range d.Rows {
		if beyond || limit > 0 && d.rowsRMS[row] > limit {
			rows = append(rows, row)
		}
	}
	return rows
}

// Few is how many rows, columns or experts are named.
const Few = 3

// Marked returns the indices of the marked elements.
func Marked(marked []bool) (at []int) {
	for i, m := range marked {
		if m {
			at = append(at, i)
		}
	}
	return at
}

// NeuronLimit is what rounding explains at most of the residuals of a token, projected on a neuron, in standard
// deviations.
const NeuronLimit = 6

// Neuron is the neuron of an MLP on which most of a residual lies.
type Neuron struct {
	Expert int     `json:"expert"` // number of the routed expert, -1 for other MLPs
	Index  int     `json:"index"`  // row of gate_proj and up_proj, column of down_proj
	Token  int     `json:"token"`  // row of the stage
	Z      float64 `json:"z"`      // in standard deviations
	// Share is how much of the token's residual, of what exceeds rounding, lies on the neuron;
	// 0 if another neuron of the MLP would explain half of that.
	Share float64 `json:"share"`
	// explained is N²/E, the sum of squares of the token's residual, in standard deviations, that
	// lies on the neuron; 0 if it is not known.
	explained float64
}

// Certain is the share of a residual from which on it is the neuron's.
const Certain = 0.9
