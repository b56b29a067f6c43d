package verify

import (
	"context"
	"slices"
	"weak"

	"dsmoe/model"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// learning holds the gradients of a training pack against the error analysis, a layer at a time:
// it puts the golden's stages in place of those of a forward pass and, at the end of each layer,
// goes back through that layer from the golden's gradient of the layer's output. Each stage's
// gradient is compared and replaced by the golden's, so that no error travels.
type learning struct {
	*tracer
	g           *bounds.Gradients
	local       *localTrace
	attribution *attribution[bounds.Value]
}

// stageGradients reports whether the pack has what a backward pass a layer at a time begins with: the
// gradients of the layers' outputs. Without them gradients are judged end to end.
func (t *run) stageGradients() bool {
	for l := range t.m.Model.Layers {
		if name := pack.StageOf(l, pack.LayerOutput) + pack.Grad; !t.pack.Has(name) {
			return false
		}
	}
	return true
}

// learn runs the backward pass.
func (t *tracer) learn(ctx context.Context) error {
	if err := model.Learns(t.m.Config, t.in); err != nil {
		return err
	}
	o := t.options()
	o.AttnWeights = true // all queries at once, as the reference has them
	a := t.analysis(o, t.rounded)
	defer a.Close()
	g := bounds.NewGradients(a, t.m)
	watched := newAttribution[bounds.Value](nil, t.rows, nil)
	l := &learning{tracer: t, g: g, attribution: watched, local: &localTrace{tracer: t, analysis: a, attribution: watched}}
	g.Wanted = func(weight string) bool { return t.pack.Has(weight+pack.Grad) && t.scope.compares(weight+pack.Grad) }
	g.OnWeight = func(weight string, dw *bounds.Value, by bounds.WeightSet) error {
		return l.compare(weight+pack.Grad, dw, by)
	}
	net := &network{Model: t.m, Input: t.in, Options: o, Arithmetic: g, Trace: l}
	_, err := net.Run(ctx, newCourse(t, bounds.Exact))
	return err
}

// TopK implements model.Trace.
func (l *learning) TopK(name string, ours *choice) error {
	var err error
	if l.pack.Has(name) {
		err = l.choose(name, ours.Idx, ours.Scores.Rows(), ours.Scores.Width(), false)
	}
	l.chosen = slices.Clone(ours.Idx) // experts' rows are of these tokens
	return err
}

// Stage implements model.Trace.
func (l *learning) Stage(name string, x *bounds.Value) error {
	if err := l.local.substitute(name, x); err != nil {
		return err
	}
	s := pack.Parse(name)
	switch {
	case s.IsTable() || s.Within == pack.OwnInputKind:
		return nil
	case s.Within == pack.LayerOutput:
		return l.layer(s.Layer, name, x)
	case name == pack.Logits:
		return l.head(x)
	}
	l.g.Steps = append(l.g.Steps, func() error { return l.stage(name, x) })
	return nil
}

// stage compares the gradient of a stage, and goes on with the golden's.
func (l *learning) stage(name string, x *bounds.Value) error {
	switch d := l.g.Adjoint(x); {
	case l.pack.Has(name + pack.Grad):
		dx := l.g.Total(x)
		if l.scope.compares(name + pack.Grad) {
			if err := l.compare(name+pack.Grad, dx, d.By); err != nil {
				return err
			}
		} else if err := l.local.substitute(name+pack.Grad, dx); err != nil {
			return err
		}
		l.g.Set(x, dx)
	case l.misses(name + pack.Grad):
		return l.add(report.Check{Tensor: name + pack.Grad, Verdict: report.Fail,
			Reason: "the pack has no such tensor here, though it has elsewhere"})
	}
	return nil
}

// misses reports whether the pack lacks a gradient that it has in another layer.
func (l *learning) misses(name string) bool {
	return l.kinds[pack.Parse(name).Kind] && l.scope.selects(name)
}

// layer goes back through a layer that has been run, from the golden's gradient of its output x.
// The gradient that the part behind it computes for x is compared when that part has been run.
func (l *learning) layer(n int, name string, x *bounds.Value) error {
	dx := bounds.Exact(&model.Activation{Shape: x.Shape, Values: make([]float32, len(x.Values)), DType: tensor.F32})
	if err := l.local.substitute(name+pack.Grad, dx); err != nil {
		return err
	}
	l.g.Set(x, dx)
	if err := l.rewind(n); err != nil {
		return err
	}
	l.g.Steps = append(l.g.Steps, func() error { return l.stage(name, x) })
	return nil
}

// rewind goes back through a part of the model, and sees to the weights that got no gradient: those
// of experts that no token chose, which are 0.
func (l *learning) rewind(layer int) error {
	if err := l.g.Rewind(); err != nil {
		return err
	}
	for s := range table.FamilyOf(l.m.Config).Slots(l.m.Config) {
		if name := s.Name + pack.Grad; s.Layer == layer && l.g.Wanted(s.Name) && !l.seen[name] && s.Name != l.g.Tied {
			zeros := bounds.Exact(&model.Activation{Shape: s.Shape, Values: make([]float32, s.Info(tensor.F32).Len()),
				DType: tensor.F32})
			if err := l.compare(name, zeros, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// compare holds a gradient against the golden's, and becomes that.
func (l *learning) compare(name string, dx *bounds.Value, by bounds.WeightSet) error {
	l.seen[name] = true
	c, want, rows, err := l.begin(name, dx.Activation)
	if err != nil {
		return err
	}
	if c.Verdict == report.Skipped {
		dx.Replace(want)
	} else if c.Verdict != report.Fail {
		l.attribution.sets[weak.Make(dx)] = by
		l.local.judgeErrors(&c, dx, want, rows)
		delete(l.attribution.sets, weak.Make(dx))
		c.Blind = c.Blind && bounds.RMS(want) > 0 // nothing flows to an expert of last tokens
		dx.Replace(want)
	}
	return l.add(c)
}

// head computes the loss and the gradient of the logits, and goes back through the head.
func (l *learning) head(x *bounds.Value) error {
	sum, dx := l.g.CrossEntropy(x, l.tracer.in)
	if l.pack.Has(pack.Loss) && l.scope.compares(pack.Loss) {
		trace := &chainedTrace{tracer: l.tracer, attribution: newAttribution[model.Activation](nil, l.tracer.rows, nil)}
		if err := trace.Stage(pack.Loss, &model.Activation{Shape: []int{1}, Values: []float32{float32(sum)},
			DType: tensor.F32}); err != nil {
			return err
		}
	}
	l.g.Set(x, dx)
	if err := l.stage(pack.Logits, x); err != nil {
		return err
	}
	return l.rewind(-1)
}
