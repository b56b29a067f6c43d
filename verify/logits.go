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

// logits are logits, and the golden ones, in blocks of rows.
type logits[V any] struct {
	run   *run
	name  string
	width int
	size  int // rows of a block; the last may have fewer
	rows  int
	part  func(first, n int) V
	first V
}

// newLogits returns the blocks of logits of a shape; nil if they are few enough to be looked at as a whole, or if
// losses are computed of them.
func newLogits[V any](r *run, name string, shape []int, part func(first, n int) V) *logits[V] {
	b := &logits[V]{run: r, name: name, width: shape[2], rows: shape[0] * shape[1], part: part}
	if b.size = max(1, cmp.Or(r.o.block, logitsAtOnce)/b.width); b.size >= b.rows || r.pack.Manifest.Mode == "train" {
		return nil
	}
	b.first = part(0, b.size)
	return b
}

// block returns the block that a row is in: its first row, its values, and the golden's.
func (b *logits[V]) block(row int) (first int, x V, want []float32, err error) {
	first = row / b.size * b.size
	n := min(b.size, b.rows-first)
	if want, err = b.run.pack.Elements(b.name, first*b.width, n*b.width); err != nil {
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

// begin is tracer.begin for b. The golden's rows are read one by one.
func (b *logits[V]) begin(t *tracer, d tensor.DType) (c report.Check, rows *bounds.Rows, err error) {
	c = t.check(b.name)
	shape := []int{t.in.Batch, b.rows / t.in.Batch, b.width}
	if c.Reason = pack.Misfit(t.pack.Manifest.Tensors[b.name], shape, d); c.Reason != "" {
		c.Verdict = report.Fail
		return c, nil, nil
	}
	rows = bounds.SelectRowsOf(b.rows, func(i int) []float32 {
		row, wrong := t.pack.Elements(b.name, i*b.width, b.width)
		if wrong != nil {
			row, err = make([]float32, b.width), wrong
		}
		return row
	}, pack.PaddedRows(t.rows, b.name, shape))
	counted(&c, rows)
	return c, rows, err
}

// compare measures b with a Comparison, and what else add does.
func (b *logits[V]) compare(t *tracer, c *report.Check, rows *bounds.Rows, d tensor.DType, numbers func(V) []float32,
	add func(first int, x V, want []float32)) (bounds.Metrics, error) {
	comparison := bounds.NewComparison(rows, b.width, d)
	err := b.each(func(first int, x V, want []float32) {
		comparison.Add(first, numbers(x), want)
		add(first, x, want)
	})
	m := comparison.Metrics()
	if record(c, m); m.Scale == 0 {
		t.zeros = append(t.zeros, b.name)
	}
	return m, err
}

// distance returns what distance says of elements of b, which are asked for in their order.
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

// StageRows implements model.RowTrace.
func (t *localTrace) StageRows(name string, shape []int, part func(first, n int) *bounds.Value) (bool, error) {
	b := newLogits(t.run, name, shape, part)
	if b == nil {
		return false, nil
	}
	return true, showLogits(t.tracer, t.attribution, b, func() (report.Check, error) { return t.compareLogits(b) })
}

// showLogits is Stage for b.
func showLogits[V any](t *tracer, by *attribution[V], b *logits[*V], compare func() (report.Check, error)) error {
	has, err := t.golden(b.name)
	if err != nil {
		return err
	}
	if !has || !t.scope.compares(b.name) {
		if has || t.onPurpose(b.name) {
			setAside(t, by, b.first)
		}
		return nil
	}
	c, err := compare()
	if err != nil {
		return err
	}
	cover(t, c, by, b.first)
	return t.add(c)
}

// compareLogits is compare for b.
func (t *localTrace) compareLogits(b *logits[*bounds.Value]) (report.Check, error) {
	x := b.first
	c, rows, err := b.begin(t.tracer, x.DType)
	if err != nil || c.Verdict != "" {
		return c, err
	}
	factor, _ := t.factor(b.name)
	meter := bounds.NewMeter(rows, b.width, x.DType, factor)
	if _, err = b.compare(t.tracer, &c, rows, x.DType, func(x *bounds.Value) []float32 { return x.Values },
		meter.Add); err != nil {
		return c, err
	}
	d := meter.Distances()
	if settle(&c, d, rows, t.judgeDistances(&c, x, d, rows, "")); c.Verdict == report.Fail {
		c.Pattern = t.pattern(b.rows, b.width, rows, report.Sigmas, b.distance(func(x *bounds.Value, want []float32) func(i int) float64 {
			return deviations(x, want, factor)
		}))
	}
	return c, nil
}

// StageRows implements model.RowTrace.
func (t *chainedTrace) StageRows(name string, shape []int, part func(first, n int) *model.Activation) (bool, error) {
	b := newLogits(t.run, name, shape, part)
	if b == nil {
		return false, nil
	}
	return true, showLogits(t.tracer, t.attribution, b, func() (report.Check, error) { return t.compareLogits(b) })
}

// compareLogits is compare for b.
func (t *chainedTrace) compareLogits(b *logits[*model.Activation]) (report.Check, error) {
	d := b.first.DType
	c, rows, err := b.begin(t.tracer, d)
	if err != nil || c.Verdict != "" {
		return c, err
	}
	m, err := b.compare(t.tracer, &c, rows, d, func(a *model.Activation) []float32 { return a.Values },
		func(int, *model.Activation, []float32) {})
	if err != nil {
		return c, err
	}
	if t.judgeEndToEnd(&c, m); c.Verdict == report.Fail {
		c.Pattern = t.pattern(b.rows, b.width, rows, ofGolden, b.distance(func(a *model.Activation, want []float32) func(i int) float64 {
			return shares(a, want, m.Scale)
		}))
	}
	return c, nil
}
