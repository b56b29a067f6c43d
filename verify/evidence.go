package verify

import (
	"errors"
	"slices"
	"strings"

	"dsmoe/model/table"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// evidence is what the passes of a job have found so far. They append to it and take nothing back; accept marks checks
// after them. The report follows from it alone: see project and conclude.
type evidence struct {
	job       *job
	checks    []report.Check
	shown     map[string]bool     // golden tensors that the model showed a stage for, and inputs
	lacked    map[string]bool     // kinds of stages that the model has and the pack lacks
	zeros     []string            // golden tensors that are all zero
	notFinite []string            // where weights that took part in no checked stage hold a NaN or an infinity
	exercised bounds.WeightSet    // weights behind a checked stage
	failed    bounds.WeightSet    // of these, behind one that failed
	passed    bounds.WeightSet    // of these, behind one that passed
	behind    map[string][]string // weights behind each checked stage that failed
	leftOut   bounds.WeightSet    // weights behind a stage that is absent on purpose, or not selected
	unpinned  bounds.WeightSet    // weights that decide choices which are the same without them, or were not compared
	tells     map[tell]string     // numbers that a compared stage tells from others: the stage if only one that fails does
	stepsErr  error               // why half steps of a weight could not be read
	stopped   bool                // at the first failing stage, because the user asked for that
	misses    map[string]misses   // elements beyond the limit, by stage, if the job counts them
	routing   report.Routing
	keys      map[int]*report.KeyChoices // of indexers, by layer
	clamped   map[int]bool               // layers with a neuron beyond swiglu_limit
	starts    []start                    // tensors that parts of the model began with
	reached   map[expert]bool            // whose output shows for some token
	probed    map[expert]bool            // on which a probe ran
}

// start is a tensor of the pack that a layer or the head began with, because the part before it was not run, or ran on
// something else.
type start struct {
	layer   int // num_hidden_layers for the head
	name    string
	uniform bool // for all tokens
}

// expert is a routed expert of a layer.
type expert struct{ layer, number int }

// tell is a number of config.json that a compared stage of a layer, -1 outside the layers, tells from half as much or
// from twice as much.
type tell struct {
	layer int
	key   string
	by    float64 // 0.5 or 2
}

// golden notes that the model shows a stage, and reports whether the pack has it. A stage that the pack lacks in this
// layer only is a failed check.
func (e *evidence) golden(name string) (bool, error) {
	s, j := pack.Parse(name), e.job
	switch {
	case j.pack.Has(name):
		e.shown[name] = true
		return true, nil
	case s.Within != pack.OwnInputKind && j.pack.IsTrace() && j.scope.selects(name): // it may lack any
		e.lacked[s.Kind] = true
	case s.Within == pack.OwnInputKind, pack.Inner[s.Kind] && !j.kinds[s.Kind], !j.scope.selects(name):
	case j.kinds[s.Kind] && (s.Layer < 0 || j.scope.present[s.Layer]):
		of := "layer"
		if s.Expert >= 0 {
			of = "expert"
		}
		return false, e.add(report.Check{Tensor: name, Verdict: report.Fail, Status: report.NotInPack,
			Reason: report.NotInPack.Words() + of + ", though it has for others"})
	default:
		e.lacked[s.Kind] = true
	}
	return false, nil
}

// errStopped ends a run at the first failing stage.
var errStopped = errors.New("stopped at the first failing stage")

// add adds a check. The error ends the run: the check failed, and the user wants no more.
func (e *evidence) add(c report.Check) error {
	if c.Verdict == report.Fail && c.Failed == nil {
		c.Failed = c.Exceeded()
	}
	e.checks = append(e.checks, c)
	if _, noted := e.misses[c.Tensor]; e.job.counts && c.Verdict == report.Fail && !noted { // of another dtype or shape
		golden := e.job.pack.Manifest.Tensors[c.Tensor]
		e.misses[c.Tensor] = allMissed(golden.Elements())
	}
	if e.job.options.Progress != nil {
		e.job.options.Progress(len(e.checks), e.job.expected)
	}
	if e.job.options.FailFast && c.Verdict == report.Fail {
		e.stopped = true
		return errStopped
	}
	return nil
}

// noteZeros notes a golden tensor whose compared rows are all zero. A routed expert may give nothing, and a loss be
// nothing.
func (e *evidence) noteZeros(name string, want []float32) {
	if s := pack.Parse(name); s.Expert < 0 && !s.IsLoss() &&
		!slices.ContainsFunc(want, func(v float32) bool { return v != 0 }) {
		e.zeros = append(e.zeros, name)
	}
}

// noteClamped notes a layer with a neuron beyond swiglu_limit: above it, or of up_proj below its negative, too.
func (e *evidence) noteClamped(s pack.Stage, values []float32) {
	up := slices.Contains(pack.InMLPs(table.UpProj), s.Kind)
	limit := float32(e.job.model.Config.Limit(s.Layer, strings.HasPrefix(s.Kind, "mlp.experts.")))
	if beyond := func(v float32) bool { return v > limit || up && v < -limit }; limit > 0 && !e.clamped[s.Layer] &&
		(up || slices.Contains(pack.InMLPs(table.GateProj), s.Kind)) {
		e.clamped[s.Layer] = slices.ContainsFunc(values, beyond)
	}
}

// leaveOut notes weights whose stages are absent on purpose, or not selected.
func (e *evidence) leaveOut(weights ...string) {
	for _, w := range weights {
		e.leftOut[w] = struct{}{}
	}
}

// allPadding is why a stage is not checked.
const allPadding = "all its rows are padding"

// tell notes that the stage of a check tells a number of config.json from another one.
func (e *evidence) tell(c *report.Check, at tell) {
	if _, told := e.tells[at]; c.Verdict != report.Fail {
		e.tells[at] = ""
	} else if !told {
		e.tells[at] = c.Tensor
	}
}
