package verify

import (
	"cmp"
	"errors"
	"slices"
	"strconv"
	"strings"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/table"
	"dsmoe/model/weights"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// newRun returns a run that compares all stages of the pack that the scope selects.
func newRun(s *scope, stored *config.Config, m *model.DeepseekForCausalLM, src weights.Source, in *model.Input,
	o *Options) *run {
	r := &run{pack: s.pack, how: cmp.Or(s.pack.Manifest.Arithmetic, &pack.Arithmetic{}), in: in, rows: comparedRows(m.Config, in), m: m, src: src, set: weights.New(m.Config, src),
		scope: s, o: o,
		settings: settingsOf(stored, m.Config, s.pack, in, o), kinds: map[string]bool{}}
	for name, e := range s.pack.Manifest.Tensors {
		kind := pack.Parse(name).Kind
		r.kinds[kind] = true
		if !pack.Parse(name).IsInput() && s.compares(name) {
			r.expected++
		}
		r.attnWeights = r.attnWeights || kind == pack.AttnWeights && e.Shape[len(e.Shape)-1] == in.Seq
	}
	return r
}

// comparedRows returns the input whose padding is not compared. Entries of windowed attention are made of padding,
// too, and all later tokens see them: what follows depends on it.
func comparedRows(c *config.Config, in *model.Input) *model.Input {
	if !c.Windowed() {
		return in
	}
	rows := *in
	rows.AttentionMask = nil
	return &rows
}

// leaveOut records the stages and weights that the scope excludes.
func (t *tracer) leaveOut() {
	if !t.scope.course.Embedding { // prediction layers without one of their own look tokens up in it
		t.leftOut["model.embed_tokens.weight"] = struct{}{}
	}
	for _, name := range []string{pack.LastNorm, pack.Logits} {
		if !t.scope.course.Head && t.scope.wantsEnd(name) { // behind a layer that is absent
			t.lacked[name] = true
		}
	}
}

// golden reports whether the pack has the stage. A stage that the pack lacks in this layer
// only is a failed check.
func (t *tracer) golden(name string) (bool, error) {
	s := pack.Parse(name)
	switch {
	case t.pack.Has(name):
		t.seen[name] = true
		return true, nil
	case s.Within != pack.OwnInputKind && t.pack.IsTrace() && t.scope.selects(name): // it may lack any
		t.lacked[s.Kind] = true
	case s.Within == pack.OwnInputKind, pack.Inner[s.Kind] && !t.kinds[s.Kind], !t.scope.selects(name):
	case t.kinds[s.Kind] && (s.Layer < 0 || t.scope.present[s.Layer]):
		of := "layer"
		if s.Expert >= 0 {
			of = "expert"
		}
		return false, t.add(report.Check{Tensor: name, Verdict: report.Fail, Status: report.NotInPack,
			Reason: report.NotInPack.Words() + of + ", though it has for others"})
	default:
		t.lacked[s.Kind] = true
	}
	return false, nil
}

// errStopped ends a run at the first failing stage.
var errStopped = errors.New("stopped at the first failing stage")

// add adds a check. The error ends the run: the check failed, and the user wants no more.
func (t *tracer) add(c report.Check) error {
	if c.Verdict == report.Fail && c.Failed == nil {
		c.Failed = c.Exceeded()
	}
	t.checks = append(t.checks, c)
	if t.o.Progress != nil {
		t.o.Progress(len(t.checks), t.expected)
	}
	if t.o.FailFast && c.Verdict == report.Fail {
		t.stopped = true
		return errStopped
	}
	return nil
}

// comparesTraining reports whether a loss or a gradient of the pack is to be compared.
func (t *run) comparesTraining() bool {
	for name := range t.pack.Manifest.Tensors {
		if pack.Parse(name).IsLoss() && t.scope.compares(name) {
			return true
		}
	}
	return false
}

// newCourse is the course of a pass over values that are made of what a part begins with.
func newCourse[V any](t *tracer, value func(*model.Activation) V) *model.Course[V] {
	c := &t.scope.course
	begin := func(l int) (v V, err error) {
		x, name, err := t.scope.starts(l, t.rows)
		if err != nil {
			return v, err
		}
		t.seen[name] = true
		t.starts = append(t.starts, start{l, name, l < len(t.m.Model.Layers) && sameRows(x, t.rows)})
		t.noteZeros(name, bounds.SelectRows(x.Values, x.Width(), pack.PaddedRows(t.m.Config, t.rows, name, x.Shape)).Gather(x.Values,
			x.Width()))
		return value(x), nil
	}
	return &model.Course[V]{Embedding: c.Embedding, Layers: c.Layers, Head: c.Head, Predictions: c.Predictions,
		Given: c.Given, Routers: c.Routers, Start: begin}
}

// noteZeros notes a golden tensor whose compared rows are all zero. A routed expert may give
// nothing, and a loss be nothing.
func (t *tracer) noteZeros(name string, want []float32) {
	if s := pack.Parse(name); s.Expert < 0 && !s.IsLoss() &&
		!slices.ContainsFunc(want, func(v float32) bool { return v != 0 }) {
		t.zeros = append(t.zeros, name)
	}
}

// noteClamped notes a layer with a neuron beyond swiglu_limit: above it, or of up_proj below its negative, too.
func (t *tracer) noteClamped(s pack.Stage, values []float32) {
	up := slices.Contains(pack.InMLPs(table.UpProj), s.Kind)
	limit := float32(t.m.Config.SwiGLULimit)
	if beyond := func(v float32) bool { return v > limit || up && v < -limit }; limit > 0 && !t.clamped[s.Layer] &&
		(up || slices.Contains(pack.InMLPs(table.GateProj), s.Kind)) {
		t.clamped[s.Layer] = slices.ContainsFunc(values, beyond)
	}
}

// setAside notes the weights behind a stage that is not compared.
func setAside[V any](t *tracer, by *attribution[V], x *V) {
	for _, w := range by.weights(x) {
		t.leftOut[w] = struct{}{}
	}
}

// begin returns a check of a stage, failed if it cannot be compared, skipped if all its rows
// are padding; the golden tensor, and its rows that are compared.
func (t *tracer) begin(name string, a *model.Activation) (c report.Check, want []float32, rows *bounds.Rows,
	err error) {
	c = t.check(name)
	if s := pack.Parse(name); s.IsProbe() {
		c.ProbeRows = t.pack.Manifest.Probes[strconv.Itoa(s.Layer)].Rows
	}
	if c.Reason = pack.Misfit(t.pack.Manifest.Tensors[name], a.Shape, a.DType); c.Reason != "" {
		c.Verdict = report.Fail
		return c, nil, nil, nil
	}
	if want, rows, err = t.goldenRows(name, a); err != nil {
		return c, nil, nil, err
	}
	if counted(&c, rows); c.Verdict == "" {
		t.noteZeros(name, rows.Gather(want, a.Width()))
	}
	return c, want, rows, nil
}

// check returns a check of a stage.
func (t *run) check(name string) report.Check {
	e := t.pack.Manifest.Tensors[name]
	return report.Check{Tensor: name, DType: e.DType.String(), Shape: e.Shape}
}

// counted notes the rows that are compared; a check of none is skipped.
func counted(c *report.Check, rows *bounds.Rows) {
	if c.Padding, c.Distinct = rows.Padding, rows.Distinct; len(rows.Compared) == 0 {
		c.Verdict, c.Reason = report.Skipped, allPadding
	}
}

// cover notes the weights behind a stage that was checked, by the arithmetic that knows them.
func cover[V any](t *tracer, c report.Check, by *attribution[V], x *V) {
	if c.Verdict == report.Skipped {
		return
	}
	for _, w := range by.weights(x) {
		t.exercised[w] = struct{}{}
		if c.Verdict == report.Fail {
			t.failed[w] = struct{}{}
		} else {
			t.passed[w] = struct{}{}
		}
	}
	if c.Verdict == report.Fail {
		t.behind[c.Tensor] = by.weights(x)
	}
	s := c.Stage()
	t.tellRotations(s.Layer, by.rotations(x))
	by.checked(x)
	switch s.Kind {
	case pack.ExpertOutput:
		addExpert(t.reached, s.Layer, s.Expert)
	case pack.ProbeOutput:
		addExpert(t.probed, s.Layer, s.Expert)
	}
}

// paddedRows marks the rows of padding of a stage. Rows of a routed expert are the tokens that chose it.
func (t *tracer) paddedRows(name string, a *model.Activation) pack.Padding {
	s := pack.Parse(name)
	if s.IsStageGradient() {
		s = pack.Parse(strings.TrimSuffix(name, pack.Grad))
	}
	if s.Expert >= 0 && !s.IsLossOrGradient() && !s.IsProbe() {
		return t.paddedOfExpert(s.Expert)
	}
	return pack.PaddedRows(t.m.Config, t.rows, s.Name, a.Shape)
}

// paddedOfExpert marks padding among the tokens that chose an expert of the last gate. It is nil without a mask.
func (t *tracer) paddedOfExpert(expert int) (rows pack.Padding) {
	if t.rows.AttentionMask == nil {
		return nil
	}
	k := t.m.Config.NumExpertsPerTok
	tokens := pack.PaddedTokens(t.rows, len(t.chosen)/k)
	for slot, e := range t.chosen {
		if e == expert {
			rows = append(rows, tokens.Has(slot/k))
		}
	}
	return rows
}

// goldenRows returns the golden tensor of a stage that has a's shape, and the rows of it that
// are compared.
func (t *tracer) goldenRows(name string, a *model.Activation) ([]float32, *bounds.Rows, error) {
	want, err := t.pack.Float32s(name)
	if err != nil {
		return nil, nil, err
	}
	padded := t.paddedRows(name, a)
	want = pack.ClearPadding(want, a.Width(), padded)
	return want, bounds.SelectRows(want, a.Width(), padded), nil
}

// allPadding is why a stage is not checked.
const allPadding = "all its rows are padding"

// addExpert puts an expert of a layer in a set.
func addExpert(set map[int]map[int]bool, layer, expert int) {
	if set[layer] == nil {
		set[layer] = map[int]bool{}
	}
	set[layer][expert] = true
}
