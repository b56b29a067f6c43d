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
	pass  *pass
	g     *bounds.Gradients
	local *localTrace // judges by the same analysis
}

// learn runs the backward pass.
func (t *pass) learn(ctx context.Context) error {
	if err := model.Learns(t.job.model.Config, t.job.in); err != nil {
		return err
	}
	j, o := t.job, t.job.modelOptions()
	o.AttnWeights = true // all queries at once, as the reference has them
	a := t.analysis(o)
	defer a.Close()
	l := &learning{pass: t, g: bounds.NewGradients(a, j.model), local: &localTrace{pass: t, analysis: a,
		attribution: newAttribution[bounds.Value]()}}
	l.g.Wanted = func(weight string) bool { return j.pack.Has(weight+pack.Grad) && j.scope.compares(weight+pack.Grad) }
	l.g.OnWeight = func(weight string, dw *bounds.Value, by bounds.WeightSet) error {
		return l.compare(weight+pack.Grad, dw, by)
	}
	net := &network{Model: j.model, Input: j.in, Options: o, Arithmetic: l.g, Trace: l}
	_, err := net.Run(ctx, newCourse(t, j.exactStart))
	return err
}

// TopK implements model.Trace.
func (l *learning) TopK(name string, ours *choice) error {
	err := l.pass.choose(name, ours.Idx, ours.Scores.Rows(), ours.Scores.Width(), false)
	l.pass.chosen = slices.Clone(ours.Idx) // experts' rows are of these tokens
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

// stage compares the gradient of a stage, and goes on with the golden's. The pack may lack it if it does in all layers.
func (l *learning) stage(name string, x *bounds.Value) error {
	j, grad, d := l.pass.job, name+pack.Grad, l.g.Adjoint(x)
	switch selected := j.scope.selects(grad); {
	case j.pack.Has(grad):
		dx := l.g.Total(x)
		if j.scope.compares(grad) {
			if err := l.compare(grad, dx, d.By); err != nil {
				return err
			}
		} else if err := l.local.substitute(grad, dx); err != nil {
			return err
		}
		l.g.Set(x, dx)
	case selected && j.kinds[pack.Parse(grad).Kind]:
		return l.pass.evidence.add(report.Check{Tensor: grad, Verdict: report.Fail,
			Reason: "the pack has no such tensor here, though it has elsewhere"})
	}
	return nil
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
	c := l.pass.job.model.Config
	for s := range table.FamilyOf(c).Slots(c) {
		name := s.Name + pack.Grad
		if s.Layer == layer && l.g.Wanted(s.Name) && !l.pass.evidence.shown[name] && s.Name != l.g.Tied {
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
	l.pass.evidence.shown[name] = true
	c, want, rows, err := l.pass.begin(name, dx.Activation)
	if err != nil {
		return err
	}
	if c.Verdict == report.Skipped {
		dx.Replace(want)
	} else if c.Verdict != report.Fail {
		l.local.attribution.sets[weak.Make(dx)] = by
		l.local.judgeErrors(&c, dx, want, rows)
		l.local.attribution.checked(dx)
		c.Blind = c.Blind && bounds.RMS(want) > 0 // nothing flows to an expert of last tokens
		dx.Replace(want)
	}
	return l.pass.evidence.add(c)
}

// head computes the loss and the gradient of the logits, and goes back through the head.
func (l *learning) head(x *bounds.Value) error {
	sum, dx := l.g.CrossEntropy(x, l.pass.job.in)
	if l.pass.job.pack.Has(pack.Loss) && l.pass.job.scope.compares(pack.Loss) {
		loss := &model.Activation{Shape: []int{1}, Values: []float32{float32(sum)}, DType: tensor.F32}
		if err := newChainedTrace(l.pass).Stage(pack.Loss, loss); err != nil {
			return err
		}
	}
	l.g.Set(x, dx)
	if err := l.stage(pack.Logits, x); err != nil {
		return err
	}
	return l.rewind(-1)
}
