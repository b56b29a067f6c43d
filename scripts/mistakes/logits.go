package main

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"dsmoe/model"
	"dsmoe/verify/pack"
)

// logits are the logits of a batch, in float64, without the positions of padding.
type logits struct {
	want, got [][]float64 // the golden's and the subject's; [positions][vocab_size]
	next      []int       // the token after each position; -1 behind the last one of a sequence
}

// logitCheck is a way of checking a model by its logits alone.
type logitCheck struct {
	name   string
	value  func(l *logits) float64
	passes func(v float64) bool
	format string // of the value
}

// logitChecks are the ways that docs/detection.md describes.
func logitChecks() []logitCheck {
	return []logitCheck{
		{"top-1", top1, func(v float64) bool { return v == 1 }, "%.2f"},
		{"cosine", cosine, func(v float64) bool { return v >= 0.99 }, "%.4f"},
		{"L2", relativeL2, func(v float64) bool { return v <= 1e-3 }, "%.1e"},
		{"SGLang", relativeSGLang, func(v float64) bool { return v <= 1e-3 }, "%.1e"},
		{"KL", divergence, func(v float64) bool { return v < 1e-3 }, "%.1e"},
		{"PPL", perplexity, func(v float64) bool { return math.Abs(v) <= 1 }, "%+.2f%%"},
	}
}

// show returns a value as the page prints it: the same on all machines, whose exponentials and
// fused products differ in the last bits.
func (c *logitCheck) show(v float64) string {
	switch printed := fmt.Sprintf(c.format, v); {
	case printed == "-0.00%":
		return "+0.00%"
	case c.format == "%.1e" && v < 1e-9:
		return "<1e-9"
	default:
		return printed
	}
}

// modelOptions are the options with which the pack's reference ran.
func (s *subject) modelOptions() model.Options {
	return model.Options{DType: s.golden.DType, Parallelism: 1,
		RotaryDType: cmp.Or(s.options.RotaryDType, s.golden.Manifest.RotaryDType())}
}

// logits runs the subject end to end and returns its logits beside the golden's.
func (s *subject) logits(o model.Options) (*logits, error) {
	c, err := s.golden.Config(s.config, "")
	if err != nil {
		return nil, err
	}
	m, err := model.Load(c, s)
	if err != nil {
		return nil, err
	}
	in, err := s.golden.Input()
	if err != nil {
		return nil, err
	}
	got, err := m.Forward(context.Background(), in, o)
	if err != nil {
		return nil, err
	}
	want, err := s.golden.Float32s(pack.Logits)
	if err != nil {
		return nil, err
	}
	return newLogits(in, want, got.Values), nil
}

// newLogits pairs the rows of two runs on one input.
func newLogits(in *model.Input, want, got []float32) *logits {
	l, tokens := &logits{}, in.Batch*in.Seq
	for i := range tokens {
		if in.IsPadding(i) {
			continue
		}
		l.want, l.got = append(l.want, rowAt(want, i, tokens)), append(l.got, rowAt(got, i, tokens))
		if next := i + 1; next%in.Seq == 0 || in.IsPadding(next) {
			l.next = append(l.next, -1)
		} else {
			l.next = append(l.next, in.InputIDs[next])
		}
	}
	return l
}

func rowAt(values []float32, row, rows int) (wide []float64) {
	width := len(values) / rows
	for _, v := range values[row*width:][:width] {
		wide = append(wide, float64(v))
	}
	return wide
}

// top1 is the share of positions at which both runs have the same most likely token, of equal
// ones the first.
func top1(l *logits) float64 {
	same := 0
	for i := range l.want {
		if first(l.want[i]) == first(l.got[i]) {
			same++
		}
	}
	return float64(same) / float64(len(l.want))
}

// first is the index of the largest value, of the first NaN if there is one.
func first(row []float64) int {
	if i := slices.IndexFunc(row, math.IsNaN); i >= 0 {
		return i
	}
	return slices.Index(row, slices.Max(row))
}

// cosine is the smallest cosine of two rows.
func cosine(l *logits) float64 {
	least := 1.0
	for i := range l.want {
		least = min(least, dot(l.want[i], l.got[i])/math.Sqrt(dot(l.want[i], l.want[i])*dot(l.got[i], l.got[i])))
	}
	return least
}

// relativeL2 is ‖got − want‖ / ‖want‖ over all positions.
func relativeL2(l *logits) float64 {
	a, b := slices.Concat(l.got...), slices.Concat(l.want...)
	for i := range a {
		a[i] -= b[i]
	}
	return math.Sqrt(dot(a, a) / dot(b, b))
}

// relativeSGLang is 1 − 2·got·want / (‖got‖² + ‖want‖²) over all positions.
func relativeSGLang(l *logits) float64 {
	a, b := slices.Concat(l.got...), slices.Concat(l.want...)
	return 1 - 2*dot(a, b)/(dot(a, a)+dot(b, b))
}

// divergence is the mean of KL(golden ‖ subject) over positions, in nats.
func divergence(l *logits) float64 {
	var sum float64
	for i := range l.want {
		p, q := logSoftmax(l.want[i]), logSoftmax(l.got[i])
		for v := range p {
			sum += math.Exp(p[v]) * (p[v] - q[v])
		}
	}
	return sum / float64(len(l.want))
}

// perplexity is by how many per cent the subject's perplexity of the next tokens is above the golden's.
func perplexity(l *logits) float64 {
	var sum float64
	n := 0
	for i, next := range l.next {
		if next >= 0 {
			sum += logSoftmax(l.want[i])[next] - logSoftmax(l.got[i])[next]
			n++
		}
	}
	return 100 * math.Expm1(sum/float64(n))
}

func dot(a, b []float64) (sum float64) {
	for i := range a {
		sum += a[i] * b[i]
	}
	return sum
}

// logSoftmax are the logarithms of probabilities.
func logSoftmax(row []float64) (logs []float64) {
	largest, sum := slices.Max(row), 0.0
	for _, v := range row {
		sum += math.Exp(v - largest)
	}
	for _, v := range row {
		logs = append(logs, v-largest-math.Log(sum))
	}
	return logs
}
