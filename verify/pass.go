package verify

import (
	"slices"
	"strconv"
	"strings"
	"weak"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// pass is one walk through the model whose stages are compared with the pack's. Its traces hold it.
type pass struct {
	job          *job
	evidence     *evidence
	chosen       []int                    // experts, by the last gate
	rechoose     rechoose                 // of the last gate
	inFloat32    []int                    // experts that the last gate chooses in float32; nil if it rounds nothing to 16 bits
	rotations    map[string]map[tell]bool // what RoPE's tables tell, by their name
	roundsLogits bool                     // the last gate rounds its logits to 16 bits
	logitsErr    []float64                // of the last gate in chained mode, per token: max |logit - golden|
	keysErr      []float64                // of the last indexer likewise, per query: max |score - golden|
}

// rechoose hands look the choice of the last gate under another config, or with another gate. What it hands out is
// valid during the call.
type rechoose func(c *config.Config, g *model.MoEGate, look func(*choice))

// newPass begins a pass that has found nothing yet.
func newPass(j *job) *pass {
	return &pass{job: j, rotations: map[string]map[tell]bool{}, evidence: &evidence{job: j,
		shown: map[string]bool{"input_ids": true, "attention_mask": true}, lacked: map[string]bool{},
		exercised: bounds.WeightSet{}, failed: bounds.WeightSet{}, passed: bounds.WeightSet{}, behind: map[string][]string{},
		leftOut: bounds.WeightSet{}, unpinned: bounds.WeightSet{}, tells: map[tell]string{}, misses: map[string]misses{},
		reached: map[expert]bool{}, probed: map[expert]bool{},
		routing: report.Routing{Biases: []report.BiasPins{}, Layers: []report.LayerRouting{}},
		keys:    map[int]*report.KeyChoices{}, clamped: map[int]bool{}}}
}

// newCourse is the course of a pass. value turns a golden tensor that a unit begins with into a value of unit l.
func newCourse[V any](t *pass, value func(l int, x *model.Activation) V) *model.Course[V] {
	j, e, c := t.job, t.evidence, t.job.scope.course()
	begin := func(l int) (v V, err error) {
		x, name, err := j.scope.starts(l, j.rows)
		if err != nil {
			return v, err
		}
		e.shown[name] = true
		e.starts = append(e.starts, start{l, name, l < len(j.model.Model.Layers) && sameRows(x, j.rows)})
		padded := pack.PaddedRows(j.model.Config, j.rows, name, x.Shape)
		e.noteZeros(name, bounds.SelectRows(x.Values, x.Width(), padded).Gather(x.Values, x.Width()))
		return value(l, x), nil
	}
	return &model.Course[V]{Embedding: c.Embedding, Layers: c.Layers, Head: c.Head, Predictions: c.Predictions,
		Given: c.Given, Routers: c.Routers, Start: begin}
}

// begin returns a check of a stage, failed if it cannot be compared, skipped if all its rows
// are padding; the golden tensor, and its rows that are compared.
func (t *pass) begin(name string, a *model.Activation) (c report.Check, want []float32, rows *bounds.Rows,
	err error) {
	c = t.job.check(name)
	manifest := &t.job.pack.Manifest
	if s := pack.Parse(name); s.IsProbe() {
		c.ProbeRows = manifest.Probes[strconv.Itoa(s.Layer)].Rows
	}
	if c.Reason = t.job.misfit(name, a); c.Reason != "" {
		c.Verdict = report.Fail
		return c, nil, nil, nil
	}
	if want, rows, err = t.goldenRows(name, a); err != nil {
		return c, nil, nil, err
	}
	if countRows(&c, rows); c.Verdict == "" {
		t.evidence.noteZeros(name, rows.Gather(want, a.Width()))
	}
	return c, want, rows, nil
}

// otherDType reports whether an engine may keep a stage in the dtype that its trace has it in, float32 or the trace's
// own, whatever the reference does. A router that is declared to be in float32 has to be.
func (j *job) otherDType(name string) bool {
	d := j.pack.Manifest.Tensors[name].DType
	return j.pack.IsTrace() && (d == tensor.F32 || d == j.pack.DType) &&
		(pack.Parse(name).Within != pack.GateLogits || j.engine.Rounding[bounds.Router] != bounds.InF32)
}

// misfit returns why the golden tensor of a stage does not fit what is computed, "" if it does.
func (j *job) misfit(name string, a *model.Activation) string {
	e, d := j.pack.Manifest.Tensors[name], a.DType
	if j.otherDType(name) {
		d = e.DType
	}
	if e.Elements() == len(a.Values) && len(e.Shape) > 0 && e.Shape[len(e.Shape)-1] == a.Width() && j.pack.IsTrace() {
		e.Shape = a.Shape // shared experts see [tokens, hidden_size] in some classes, which recorders do not know
	}
	return pack.Misfit(e, a.Shape, d)
}

// countRows notes how many rows are compared. A check without such rows is skipped.
func countRows(c *report.Check, rows *bounds.Rows) {
	if c.Padding, c.Distinct = rows.Padding, rows.Distinct; len(rows.Compared) == 0 {
		c.Verdict, c.Reason = report.Skipped, allPadding
	}
}

// goldenRows returns the golden tensor of a stage that has a's shape, and the rows of it that
// are compared.
func (t *pass) goldenRows(name string, a *model.Activation) ([]float32, *bounds.Rows, error) {
	want, err := t.job.pack.Float32s(name)
	if err != nil {
		return nil, nil, err
	}
	padded := t.paddedRows(name, a)
	want = pack.ClearPadding(want, a.Width(), padded)
	return want, bounds.SelectRows(want, a.Width(), padded), nil
}

// tokensOf returns the token of each row of a stage, and the number of tokens in the order of the stage's rows; nil for
// stages whose rows are not tokens. Rows of a routed expert are the tokens that chose it at the last gate, those of a
// probe the tokens that it ran on.
func (t *pass) tokensOf(name string, shape []int) (tokens []int, of int) {
	j, s := t.job, pack.Parse(name)
	if s.IsStageGradient() {
		s = pack.Parse(strings.TrimSuffix(name, pack.Grad))
	}
	switch {
	case s.IsProbe():
		return j.pack.Manifest.Probes[strconv.Itoa(s.Layer)].Rows, len(j.in.InputIDs)
	case s.Expert < 0 || s.IsLossOrGradient():
		return pack.TokensOf(j.model.Config, s.Name, shape)
	}
	k := j.model.Config.MoE.NumExpertsPerTok
	tokens = []int{}
	for slot, e := range t.chosen {
		if e == s.Expert {
			tokens = append(tokens, slot/k)
		}
	}
	return tokens, len(t.chosen) / k
}

// paddedRows marks the rows of padding of a stage; it is nil without a mask, and of probes.
func (t *pass) paddedRows(name string, a *model.Activation) (rows pack.Padding) {
	if t.job.rows.AttentionMask == nil || pack.Parse(name).IsProbe() {
		return nil
	}
	tokens, of := t.tokensOf(name, a.Shape)
	padded := pack.PaddedTokens(t.job.rows, of)
	for _, token := range tokens {
		rows = append(rows, padded.Has(token))
	}
	return rows
}

// failingRows describes the failing rows of a stage of a shape, of those compared.
func (t *pass) failingRows(name string, shape, compared, failing []int) string {
	j := t.job
	tokens, of := t.tokensOf(name, shape)
	r := &pack.Rows{Length: max(1, of/j.in.Batch)}
	if tokens == nil { // rows of a weight's gradient or of a table
		r.Length = compared[len(compared)-1] + 1
	} else if r.Length == j.in.Seq {
		r.Steps = j.pack.Manifest.Steps
	}
	at := func(rows []int) (at []int) {
		if tokens == nil {
			return rows
		}
		for _, row := range rows {
			at = append(at, tokens[row])
		}
		slices.Sort(at)
		return slices.Compact(at)
	}
	r.Compared = at(compared)
	return r.Describe(at(failing))
}

// cover notes what a checked stage x shows: the weights behind it, the expert that it is of, and the numbers that the
// rotations behind it tell from others. by knows them.
func cover[V any](t *pass, c report.Check, by *attribution[V], x *V) {
	if c.Verdict == report.Skipped {
		return
	}
	e, weights := t.evidence, by.weights(x)
	for _, w := range weights {
		e.exercised[w] = struct{}{}
		if c.Verdict == report.Fail {
			e.failed[w] = struct{}{}
		} else {
			e.passed[w] = struct{}{}
		}
	}
	if c.Verdict == report.Fail {
		e.behind[c.Tensor] = weights
	}
	switch s := c.Stage(); s.Kind {
	case pack.ExpertOutput:
		e.reached[expert{s.Layer, s.Expert}] = true
	case pack.ProbeOutput:
		e.probed[expert{s.Layer, s.Expert}] = true
	}
	for _, name := range []string{mainRotation, compressedRotation} {
		if _, rotated := by.sets[weak.Make(x)][name]; rotated {
			if t.rotations[name] == nil {
				t.rotations[name] = t.job.rotationTells(name == compressedRotation)
			}
			for at := range t.rotations[name] {
				e.tell(&c, tell{c.Layer(), at.key, at.by})
			}
		}
	}
	by.checked(x)
}
