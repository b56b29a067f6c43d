package verify

import (
	"context"
	"fmt"
	"maps"
	"math/bits"
	"slices"

	"dsmoe/model/tensor"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// Recognition: where an engine in a 16-bit dtype rounds is read off its numbers. For each kind of operations one way of
// rounding is taken for the whole run, HuggingFace's eager one if all elements fit it, else the one that most elements
// fit.

// kind is operations whose ways of rounding are recognised together.
type kind struct {
	name       string
	operations []string
	ways       [][]string // one way of each operation; HuggingFace's first
}

// single is a kind of one operation, with all of its ways.
func single(operation string) kind {
	k := kind{operation, []string{operation}, nil}
	for _, way := range bounds.WaysOf(operation) {
		k.ways = append(k.ways, []string{way})
	}
	return k
}

// kindsOf returns the kinds whose roundings show in a stage.
func (j *job) kindsOf(stage string) []string {
	s, c := pack.Parse(stage), j.model.Config
	has := func(within string) bool { return j.pack.Has(pack.StageOf(s.Layer, within)) }
	switch s.Within {
	case "input_layernorm.output":
		if s.Layer == 0 || s.Layer >= c.NumHiddenLayers {
			return []string{bounds.Norm}
		}
		return []string{bounds.InputAddNorm}
	case pack.AttentionNorm:
		return []string{bounds.PostAddNorm}
	case pack.LastNorm:
		return []string{bounds.FinalAddNorm}
	case "self_attn.q_a_layernorm.output", "self_attn.kv_a_layernorm.output":
		return []string{bounds.LatentNorm}
	case "self_attn.q_norm.output", "self_attn.k_norm.output":
		return []string{bounds.QKNorm}
	case "mlp.down_proj.input":
		return []string{bounds.SwiGLU}
	case "mlp.shared_experts.down_proj.input":
		return []string{bounds.SharedSwiGLU}
	case pack.SharedOutput:
		if has("mlp.shared_experts.down_proj.input") {
			return []string{bounds.Ranks}
		}
		return []string{bounds.SharedSwiGLU, bounds.Ranks}
	case "self_attn.o_proj.output", "self_attn.output":
		return []string{bounds.Ranks}
	case pack.ExpertsOutput:
		return []string{routedSums}
	case "mlp.output":
		switch {
		case c.IsMoE(s.Layer) && !has(pack.ExpertsOutput):
			return []string{mixtures}
		case c.IsMoE(s.Layer):
			return []string{bounds.ExpertsShared}
		case has("mlp.down_proj.input"):
			return []string{bounds.Ranks}
		}
		return []string{bounds.SwiGLU, bounds.Ranks}
	case pack.GateLogits:
		return []string{bounds.Router}
	case pack.TopKIdx:
		return []string{bounds.ChoiceScore}
	case pack.TopKWeight:
		return []string{bounds.Score}
	case pack.Attended, pack.AttnWeights:
		return []string{attention}
	}
	return nil
}

// The names of kinds of several operations.
const (
	attention  = "attention"
	routedSums = "experts"            // whose sum is recorded
	mixtures   = "experts and shared" // whose sum with the shared experts is recorded alone
)

// kinds lists the kinds.
var kinds = func() []kind {
	var all []kind
	for _, operation := range []string{bounds.Norm, bounds.LatentNorm, bounds.QKNorm, bounds.InputAddNorm, bounds.PostAddNorm,
		bounds.FinalAddNorm, bounds.SwiGLU, bounds.SharedSwiGLU, bounds.Ranks, bounds.ExpertsShared, bounds.Router,
		bounds.Score, bounds.ChoiceScore} {
		all = append(all, single(operation))
	}
	operations := []string{bounds.ExpertsGLU, bounds.ExpertsWeight, bounds.ExpertsW, bounds.ExpertsSum}
	all = append(all, kind{routedSums, operations, bounds.ExpertsWays})
	mixed := kind{mixtures, append(slices.Clone(operations), bounds.ExpertsFactor, bounds.ExpertsShared), nil}
	for i, sum := range bounds.SharedWays {
		for n, way := range bounds.ExpertsWays {
			if i < 2 || n == 1 || n == 2 { // one sum with shared experts is one in float32
				mixed.ways = append(mixed.ways, slices.Concat(way, sum))
			}
		}
	}
	return append(all, mixed, kind{attention, []string{bounds.RoPE, bounds.RoPETables, bounds.Scores, bounds.Probs,
		bounds.AbsorbedQuery, bounds.AbsorbedContext}, bounds.AttentionWays})
}()

// waysOf returns the i-th way of a kind, by operation.
func (k *kind) waysOf(i int) map[string]string {
	ways := map[string]string{}
	for n, operation := range k.operations {
		ways[operation] = k.ways[i][n]
	}
	return ways
}

// misses are the elements of a stage, as bits, that are beyond the limit.
type misses []uint64

// set notes element i.
func (m misses) set(i int) { m[i/64] |= 1 << (i % 64) }

// count returns how many elements there are.
func (m misses) count() (n int) {
	for _, w := range m {
		n += bits.OnesCount64(w)
	}
	return n
}

// without returns how many elements miss in m and not in other.
func (m misses) without(other misses) (n int) {
	for i, w := range m {
		if i < len(other) {
			w &^= other[i]
		}
		n += bits.OnesCount64(w)
	}
	return n
}

// recognised is what the numbers of a run say of a kind.
type recognised struct {
	kind    *kind
	way     int // of the kind, which most elements fit
	missed  int // elements that it does not explain
	rival   int // the way that explains most of the others
	alone   int // elements that way explains and the rival does not
	against int // elements that the rival explains and way does not
	decided bool
}

// The limits of recognition: see rounding.md's tables in docs/guarantees.md.
const (
	leastContrast = 20   // elements that a way must explain alone to be recognised although others miss
	leastShare    = 0.95 // of the elements on which it and a rival differ
)

// decide returns what the misses of each way, by stage, say of a kind. A way without misses is recognised. Another one
// is if it explains nearly all elements on which it differs from each rival, in the stages that it explains if these
// show enough: what it misses then is wrong.
func decide(k *kind, by []map[string]misses) recognised {
	total := func(i int) (n int) {
		for _, m := range by[i] {
			n += m.count()
		}
		return n
	}
	r := recognised{kind: k, missed: total(0), rival: -1}
	for i := 1; i < len(by); i++ {
		if n := total(i); n < r.missed {
			r.way, r.missed = i, n
		}
	}
	r.decided = true
	lowest := 2.0
	for i := range by {
		var clean, all [2]int // elements of stages without a miss, of all
		for stage, m := range by[r.way] {
			a, b := by[i][stage].without(m), m.without(by[i][stage])
			all[0], all[1] = all[0]+a, all[1]+b
			if m.count() == 0 {
				clean[0], clean[1] = clean[0]+a, clean[1]+b
			}
		}
		of := all
		if clean[0] >= leastContrast {
			of = clean
		}
		if i == r.way || of[0]+of[1] == 0 { // or the same numbers
			continue
		}
		share := float64(of[0]) / float64(of[0]+of[1])
		if share < lowest || share == lowest && of[0] < r.alone {
			lowest, r.rival, r.alone, r.against = share, i, of[0], of[1]
		}
		r.decided = r.decided && share >= leastShare && of[0] >= leastContrast
	}
	r.decided = r.decided || r.missed == 0
	return r
}

// recognise looks for the ways of rounding of an engine in a 16-bit dtype, where stages fail by those that it is taken
// to have. It returns the run with what was found.
func recognise(ctx context.Context, e *evidence, r *report.Report) (*evidence, *report.Report, error) {
	j := e.job
	if !j.pack.IsTrace() || j.pack.DType == tensor.F32 {
		return e, r, nil
	}
	declared := map[string]string{}
	if a := j.pack.Manifest.Arithmetic; a != nil {
		declared = a.Rounding
	}
	for _, everywhere := range []bool{false, true} {
		open := j.openKinds(r, declared)
		if everywhere { // what the first layers said to be wrong is wrong
			open = slices.DeleteFunc(open, func(k *kind) bool {
				return slices.ContainsFunc(j.found, func(f recognised) bool { return f.kind == k && f.decided && f.missed > 0 })
			})
		}
		if len(open) == 0 {
			break
		}
		found, err := j.tryWays(ctx, open, r, everywhere)
		if err != nil {
			return e, r, err
		}
		if e, err = j.recognising(found).gather(ctx); err != nil {
			return e, r, err
		}
		j = e.job
		if r = conclude(e.project()); r.Verdict != report.Fail {
			break
		}
	}
	return e, r, nil
}

// recognising returns the job with the ways of rounding that were found.
func (j *job) recognising(found []recognised) *job {
	again := j.rounding(func(ways map[string]string) {
		for _, f := range found {
			maps.Copy(ways, f.ways())
		}
	})
	again.found = slices.DeleteFunc(slices.Clone(j.found), func(old recognised) bool {
		return slices.ContainsFunc(found, func(f recognised) bool { return f.kind == old.kind })
	})
	for _, f := range found {
		if f.way > 0 || f.missed > 0 { // otherwise as HuggingFace's eager classes
			again.found = append(again.found, f)
		}
	}
	return again
}

// rounding returns the job with other ways of rounding, which set has set.
func (j *job) rounding(set func(ways map[string]string)) *job {
	again, engine := *j, *j.engine
	engine.Rounding = maps.Clone(j.engine.Rounding)
	if engine.Rounding == nil {
		engine.Rounding = map[string]string{}
	}
	set(engine.Rounding)
	again.engine = &engine
	return &again
}

// ways are the ways of rounding that were found, by operation.
func (r *recognised) ways() map[string]string {
	ways := r.kind.waysOf(r.way)
	for operation := range ways {
		if !r.decided {
			ways[operation] = bounds.Unknown
		}
	}
	return ways
}

// reported is what a report says of a kind.
func (r *recognised) reported() report.Recognised {
	says := report.Recognised{Kind: r.kind.name, Ways: r.ways(), Missed: r.missed, Alone: r.alone}
	if r.rival >= 0 {
		says.Rival = r.kind.waysOf(r.rival)
	}
	return says
}

// doubt says that the roundings of a kind are not known.
func (r *recognised) doubt() string {
	return fmt.Sprintf("the engine rounds %s in a way that is not known: all roundings that engines are known to do there were "+
		"allowed for; declare them in the manifest's arithmetic.rounding", r.kind.name)
}

// roundsUnknown reports whether the roundings of a stage are not known.
func (j *job) roundsUnknown(stage string) bool {
	if len(j.engine.Rounding) == 0 {
		return false
	}
	of := j.kindsOf(stage)
	return slices.ContainsFunc(kinds, func(k kind) bool {
		return slices.Contains(of, k.name) && slices.ContainsFunc(k.operations, func(operation string) bool {
			return j.engine.Rounding[operation] == bounds.Unknown
		})
	})
}

// openKinds returns the kinds of the stages that fail, but for what is declared.
func (j *job) openKinds(r *report.Report, declared map[string]string) (open []*kind) {
	failing := map[string]bool{}
	for _, c := range r.Checks {
		if c.Verdict == report.Fail {
			for _, name := range j.kindsOf(c.Tensor) {
				failing[name] = true
			}
		}
	}
	for i := range kinds {
		k := &kinds[i]
		if failing[k.name] && !slices.ContainsFunc(k.operations, func(o string) bool { return declared[o] != "" }) {
			open = append(open, k)
		}
	}
	return open
}

// stagesOf returns the stages of the open kinds that are compared: everywhere, or in the first layers in which one
// fails.
func (j *job) stagesOf(open []*kind, r *report.Report, everywhere bool) (stages []string) {
	for _, k := range open {
		of := func(stage string) bool { return slices.Contains(j.kindsOf(stage), k.name) }
		layers := map[int]bool{}
		for _, c := range r.Checks {
			if c.Verdict == report.Fail && of(c.Tensor) && len(layers) < recognisedLayers {
				layers[c.Layer()] = true
			}
		}
		for name := range j.pack.Manifest.Tensors {
			if of(name) && j.scope.compares(name) && (everywhere || layers[pack.Parse(name).Layer]) {
				stages = append(stages, name)
			}
		}
	}
	slices.Sort(stages)
	return slices.Compact(stages)
}

// recognisedLayers is the number of layers of a kind in which its ways are tried; the way that is found is confirmed in
// all.
const recognisedLayers = 2

// tryWays runs the layers in which stages of the open kinds fail with each of their ways, all kinds at once: each is
// computed from goldens, so that they do not depend on one another.
func (j *job) tryWays(ctx context.Context, open []*kind, r *report.Report, everywhere bool) ([]recognised, error) {
	o := *j.options
	o.Progress, o.FailFast, o.Part, o.Stages = nil, false, nil, j.stagesOf(open, r, everywhere)
	s, err := newScope(j.model.Config, j.pack, &o)
	if err != nil {
		return nil, err
	}
	part := *j
	part.options, part.scope, part.trial, part.counts = &o, s, true, true
	by, most := map[string][]map[string]misses{}, 0
	for _, k := range open {
		most = max(most, len(k.ways))
	}
	for i := range most {
		part := part.rounding(func(ways map[string]string) {
			for _, k := range open {
				if i < len(k.ways) {
					maps.Copy(ways, k.waysOf(i))
				}
			}
		})
		found, err := part.gather(ctx)
		if err != nil {
			return nil, err
		}
		for _, k := range open {
			if i >= len(k.ways) {
				continue
			}
			of := map[string]misses{}
			for stage, m := range found.misses {
				if slices.Contains(j.kindsOf(stage), k.name) {
					of[stage] = m
				}
			}
			by[k.name] = append(by[k.name], of)
		}
	}
	var found []recognised
	for _, k := range open {
		found = append(found, decide(k, by[k.name]))
	}
	return found, nil
}

// noteMisses notes the elements of a stage that are beyond the limit.
func (e *evidence) noteMisses(stage string, x *bounds.Value, want []float32, rows *bounds.Rows, factor float64) {
	m, distance := make(misses, len(want)/64+1), deviations(x, want, factor)
	for _, row := range rows.Compared {
		for i := row * x.Width(); i < (row+1)*x.Width(); i++ {
			if distance(i) > bounds.Lambda {
				m.set(i)
			}
		}
	}
	e.misses[stage] = m
}

// adopt gives x the dtype in which an engine's trace has the stage. An engine may keep router and head in float32, or
// in 16 bits, where the reference does not; numbers of float32 that all are numbers of x's dtype are of that.
func (t *pass) adopt(name string, x *bounds.Value) error {
	d := t.job.pack.Manifest.Tensors[name].DType
	if pack.Parse(name).Within == pack.GateLogits && t.job.engine.Rounding[bounds.Router] == bounds.InT {
		d = t.job.pack.DType // whatever they are recorded in
	}
	if d == x.DType || t.job.pack.DType == tensor.F32 || !t.job.otherDType(name) {
		return nil
	}
	if d == tensor.F32 {
		want, err := t.job.pack.Float32s(name)
		if err != nil || !slices.ContainsFunc(want, func(v float32) bool { return tensor.Rounded(v, x.DType) != v }) {
			return err
		}
	}
	x.DType = d
	return nil
}
