package verify

import (
	"math"
	"slices"

	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/verify/bounds"
	"dsmoe/verify/report"
)

// patternRows and patternColumns are the most cells that a pattern has.
const patternRows, patternColumns = 48, 64

// ofGolden is the unit of distances in chained mode.
const ofGolden = "RMS of the golden"

// deviations returns the distance of each element of x from the golden, in standard deviations.
func deviations(x *bounds.Value, want []float32, factor float64) func(i int) float64 {
	p := bounds.PrecisionOf(x.DType)
	return func(i int) float64 {
		g, y, s := float64(want[i]), float64(x.Values[i]), factor*bounds.Unit*math.Sqrt(x.Variance(i))
		switch {
		case !bounds.Agree(g, p.Round(y)):
			return math.Inf(1)
		case !tensor.IsFinite(s):
			return 0
		}
		return p.Z(g, y, s)
	}
}

// shares returns the distance of each element of a from the golden, as a share of scale.
func shares(a *model.Activation, want []float32, scale float64) func(i int) float64 {
	return func(i int) float64 {
		if diff := math.Abs(float64(a.Values[i]) - float64(want[i])); tensor.IsFinite(diff) {
			return bounds.Ratio(diff, scale)
		}
		return math.Inf(1)
	}
}

// pattern keeps the largest distance in each cell of a stage [height, width], rows that are not compared being 0; nil
// if another check has a pattern. It asks for the distances in the elements' order.
func (e *evidence) pattern(height, width int, compared *bounds.Rows, unit string,
	distance func(i int) float64) *report.Pattern {
	if slices.ContainsFunc(e.checks, func(c report.Check) bool { return c.Pattern != nil }) {
		return nil
	}
	steps := func(n, most int) (size, count int) {
		size = max(1, (n+most-1)/most)
		return size, (n + size - 1) / size
	}
	rowStep, rows := steps(height, patternRows)
	columnStep, columns := steps(width, patternColumns)
	p := &report.Pattern{RowStep: rowStep, ColumnStep: columnStep, Unit: unit}
	for range rows {
		cells := make([]*float64, columns)
		for i := range cells {
			cells[i] = new(float64)
		}
		p.Cells = append(p.Cells, cells)
	}
	largest, seen := -1.0, make([]bool, rows)
	for _, row := range compared.Compared {
		seen[row/rowStep] = true
		for c := range width {
			cell := &p.Cells[row/rowStep][c/columnStep]
			d := distance(row*width + c)
			if *cell != nil && d > **cell {
				*cell = report.JSONFloat(d)
			}
			if d > largest {
				largest, p.Worst = d, [2]int{row / rowStep, c / columnStep}
			}
		}
	}
	for i, any := range seen {
		if !any {
			p.Padding = append(p.Padding, i)
		}
	}
	if e.job.in.Batch > 1 && height == e.job.in.Batch*e.job.in.Seq {
		p.Seq = e.job.in.Seq
	}
	return p
}
