package verify

import (
	"math"
	"slices"

	"dsmoe/model"
	"dsmoe/verify/bounds"
	"dsmoe/verify/report"
)

// patternRows and patternColumns are the most cells that a pattern has.
const patternRows, patternColumns = 48, 64

// localPattern is the pattern of a stage that is held to the error analysis.
func (t *tracer) localPattern(x *bounds.Value, want []float32, rows *bounds.Rows, factor float64) *report.Pattern {
	p := bounds.PrecisionOf(x.DType)
	return t.pattern(x.Activation, rows, report.Sigmas, func(i int) float64 {
		g, y, s := float64(want[i]), float64(x.Values[i]), factor*bounds.Unit*math.Sqrt(x.Variance(i))
		switch {
		case !bounds.Agree(g, p.Round(y)):
			return math.Inf(1)
		case s-s != 0:
			return 0
		}
		return p.Z(g, y, s)
	})
}

// metricPattern is the pattern of a stage that is held to Metrics.
func (t *tracer) metricPattern(a *model.Activation, want []float32, rows *bounds.Rows) *report.Pattern {
	scale := bounds.RMS(rows.Gather(want, a.Width()))
	return t.pattern(a, rows, "RMS of the golden", func(i int) float64 {
		if diff := math.Abs(float64(a.Values[i]) - float64(want[i])); diff-diff == 0 {
			return bounds.Ratio(diff, scale)
		}
		return math.Inf(1)
	})
}

// pattern keeps the largest distance in each cell of a, rows that are not compared being 0; nil
// if another check has a pattern.
func (t *tracer) pattern(a *model.Activation, compared *bounds.Rows, unit string,
	distance func(i int) float64) *report.Pattern {
	if slices.ContainsFunc(t.checks, func(c report.Check) bool { return c.Pattern != nil }) {
		return nil
	}
	steps := func(n, most int) (size, count int) {
		size = max(1, (n+most-1)/most)
		return size, (n + size - 1) / size
	}
	rowStep, rows := steps(a.Rows(), patternRows)
	columnStep, columns := steps(a.Width(), patternColumns)
	p := &report.Pattern{RowStep: rowStep, ColumnStep: columnStep, Unit: unit}
	for range rows {
		cells := make([]*float64, columns)
		for i := range cells {
			cells[i] = new(float64)
		}
		p.Cells = append(p.Cells, cells)
	}
	for _, row := range compared.Compared {
		for c := range a.Width() {
			cell := &p.Cells[row/rowStep][c/columnStep]
			if d := distance(row*a.Width() + c); *cell != nil && d > **cell {
				*cell = report.JSONFloat(d)
			}
		}
	}
	return p
}
