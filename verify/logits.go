package verify

import (
	"cmp"

	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// logitsAtOnce is how many logits are in memory at once, with their goldens and, in local mode, their deviations: of
// 2,112 tokens and a vocabulary of 129,280 all of them are 1 GiB each.
const logitsAtOnce = 1 << 23

// logits are the logits of a stage, and the golden ones, of which a block of rows is in memory at once.
type logits[V any] struct {
	job   *job
	name  string // of the stage
	width int    // of a row
	size  int    // rows of a block; the last may have fewer
	rows  int    // of the stage
	part  func(first, n int) V
	first V // the first block
}

// newLogits returns the blocks of logits of a shape; nil if they are few enough to be looked at as a whole, or if
// losses are computed of them.
func newLogits[V any](j *job, name string, shape []int, part func(first, n int) V) *logits[V] {
	b := &logits[V]{job: j, name: name, width: shape[2], rows: shape[0] * shape[1], part: part}
	if b.size = max(1, cmp.Or(j.options.block, logitsAtOnce)/b.width); b.size >= b.rows || j.pack.Manifest.Mode == "train" {
		return nil
	}
	b.first = part(0, b.size)
	return b
}

// block returns the block that a row is in: its first row, its values, and the golden's.
func (b *logits[V]) block(row int) (first int, x V, want []float32, err error) {
	first = row / b.size * b.size
	n := min(b.size, b.rows-first)
	if want, err = b.job.pack.Elements(b.name, first*b.width, n*b.width); err != nil {
		return first, x, nil, err
	}
	if first == 0 {
		return first, b.first, want, nil
	}
	return first, b.part(first, n), want, nil
}

// each calls f with one block after the other.
func (b *logits[V]) each(f func(first int, x V, want []float32)) error {
	for row := 0; row < b.rows; row += b.size {
		first, x, want, err := b.block(row)
		if err != nil {
			return err
		}
		f(first, x, want)
	}
	return nil
}

// begin is pass.begin for b. The golden's rows are read one by one.
func (b *logits[V]) begin(d tensor.DType) (c report.Check, rows *bounds.Rows, err error) {
	j := b.job
	c = j.check(b.name)
	shape := []int{j.in.Batch, b.rows / j.in.Batch, b.width}
	if c.Reason = pack.Misfit(j.pack.Manifest.Tensors[b.name], shape, d); c.Reason != "" {
		c.Verdict = report.Fail
		return c, nil, nil
	}
	rows = bounds.SelectRowsOf(b.rows, func(i int) []float32 {
		row, wrong := j.pack.Elements(b.name, i*b.width, b.width)
		if wrong != nil {
			row, err = make([]float32, b.width), wrong
		}
		return row
	}, pack.PaddedRows(j.model.Config, j.rows, b.name, shape))
	countRows(&c, rows)
	return c, rows, err
}

// record records what a Comparison of b found.
func (b *logits[V]) record(e *evidence, c *report.Check, comparison *bounds.Comparison) bounds.Metrics {
	m := comparison.Metrics()
	if record(c, m); m.Scale == 0 {
		e.zeros = append(e.zeros, b.name)
	}
	return m
}

// distance returns what of says of elements of b, which are asked for in their order.
func (b *logits[V]) distance(of func(x V, want []float32) func(i int) float64) func(i int) float64 {
	var from, next int
	var inBlock func(i int) float64
	return func(i int) float64 {
		for row := i / b.width; row >= next; {
			first, x, want, err := b.block(row)
			if err != nil { // it was read before
				return 0
			}
			from, next, inBlock = first*b.width, first+b.size, of(x, want)
		}
		return inBlock(i - from)
	}
}

// showLogits is Stage for b, which judge compares with the golden.
func showLogits[V any](t *pass, by *attribution[V], b *logits[*V], d tensor.DType,
	judge func(c *report.Check, rows *bounds.Rows) error) error {
	e := t.evidence
	has, err := e.golden(b.name)
	if err != nil {
		return err
	}
	if !has || !t.job.scope.compares(b.name) {
		if has || t.job.pack.MayLack(b.name) {
			e.leaveOut(by.weights(b.first)...)
		}
		return nil
	}
	c, rows, err := b.begin(d)
	if err == nil && c.Verdict == "" {
		err = judge(&c, rows)
	}
	if err != nil {
		return err
	}
	cover(t, c, by, b.first)
	return e.add(c)
}

// StageRows implements model.RowTrace.
func (t *localTrace) StageRows(name string, shape []int, part func(first, n int) *bounds.Value) (bool, error) {
	b := newLogits(t.pass.job, name, shape, part)
	if b == nil {
		return false, nil
	}
	return true, t.showLogits(b)
}

// showLogits is Stage for b.
func (t *localTrace) showLogits(b *logits[*bounds.Value]) error {
	return showLogits(t.pass, t.attribution, b, b.first.DType, func(c *report.Check, rows *bounds.Rows) error {
		x := b.first
		factor, _ := t.pass.job.options.factor(b.name)
		comparison, meter := bounds.NewComparison(rows, b.width, x.DType), bounds.NewMeter(rows, b.width, x.DType, factor)
		err := b.each(func(first int, x *bounds.Value, want []float32) {
			comparison.Add(first, x.Values, want)
			meter.Add(first, x, want)
		})
		if err != nil {
			return err
		}
		m := b.record(t.pass.evidence, c, comparison)
		d := meter.Distances()
		if setVerdict(c, d, t.judgeDistances(c, x, d, rows, x.Width(), "")); c.Verdict == report.Fail {
			c.Rows = t.failingRows(c, c.Shape, d, m, rows)
			c.Pattern = t.pass.evidence.pattern(b.rows, b.width, rows, report.Sigmas,
				b.distance(func(x *bounds.Value, want []float32) func(i int) float64 { return deviations(x, want, factor) }))
		}
		return nil
	})
}

// StageRows implements model.RowTrace.
func (t *chainedTrace) StageRows(name string, shape []int, part func(first, n int) *model.Activation) (bool, error) {
	b := newLogits(t.pass.job, name, shape, part)
	if b == nil {
		return false, nil
	}
	return true, showLogits(t.pass, t.attribution, b, b.first.DType, func(c *report.Check, rows *bounds.Rows) error {
		comparison := bounds.NewComparison(rows, b.width, b.first.DType)
		err := b.each(func(first int, a *model.Activation, want []float32) { comparison.Add(first, a.Values, want) })
		if err != nil {
			return err
		}
		m := b.record(t.pass.evidence, c, comparison)
		if t.pass.judgeEndToEnd(c, m); c.Verdict == report.Fail {
			c.Rows = t.pass.failingRows(c.Tensor, c.Shape, rows.Compared, m.FailingRows(rows, c.Limits.RelRMS))
			c.Pattern = t.pass.evidence.pattern(b.rows, b.width, rows, ofGolden,
				b.distance(func(a *model.Activation, want []float32) func(i int) float64 { return shares(a, want, m.Scale) }))
		}
		return nil
	})
}
