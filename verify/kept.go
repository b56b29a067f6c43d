package verify

import (
	"context"
	"slices"
	"strings"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// Weights of routers that an engine in a 16-bit dtype keeps in float32, where others round them. The manifest's kept_float32
// names them; of a trace without it, such as a dump, they are recognised. An engine that rounds what the reference keeps is
// wrong.

// keptKinds are the kinds of weights that engines keep in float32, in the manifest's words.
var keptKinds = map[table.Role]string{table.Gate: "mlp.gate.weight", table.EScoreCorrectionBias: "mlp.gate.e_score_correction_bias"}

// recogniseKept looks for the weights of routers that the engine keeps in float32. It does so if routers fail and the
// manifest has no kept_float32, and returns the run as it is with these weights kept.
func recogniseKept(ctx context.Context, e *evidence, r *report.Report) (*evidence, *report.Report, error) {
	j, stages := e.job, []string{}
	for _, c := range r.Checks {
		if c.Verdict == report.Fail && slices.Contains([]string{pack.GateLogits, pack.TopKIdx}, c.Stage().Kind) {
			stages = append(stages, c.Tensor)
		}
	}
	rounded := map[table.Role]bool{} // roles whose weights lose digits here
	for _, w := range j.weights.All() {
		if at := w.Place; keptKinds[at.Role()] != "" && w.DType == tensor.F32 && !model.InFloat32(j.model.Config, at) {
			rounded[at.Role()] = true
		}
	}
	if !j.recognises || j.pack.Manifest.KeptFloat32 != nil || len(stages) == 0 || len(rounded) == 0 {
		return e, r, nil
	}
	k, jobs, by := kind{name: "kept_float32", operations: []string{"kept_float32", bounds.Router}}, []*job{}, []map[string]misses{}
	for _, keeps := range [][]table.Role{nil, {table.Gate}, {table.EScoreCorrectionBias}, {table.Gate, table.EScoreCorrectionBias}} {
		if slices.ContainsFunc(keeps, func(role table.Role) bool { return !rounded[role] }) {
			continue
		}
		keeping, err := j.keeping(keeps)
		if err != nil {
			return nil, nil, err
		}
		for _, router := range bounds.WaysOf(bounds.Router) {
			tried := keeping.rounding(func(ways map[string]string) { ways[bounds.Router] = router })
			missed, err := tried.missesOf(ctx, stages)
			if err != nil {
				return nil, nil, err
			}
			k.ways, jobs, by = append(k.ways, []string{keeping.kept(), router}), append(jobs, keeping), append(by, missed)
		}
	}
	f := decide(&k, by)
	if !f.decided || jobs[f.way] == jobs[0] {
		return e, r, nil
	}
	j = jobs[f.way]
	k.operations = k.operations[:1] // how logits are rounded recognise finds
	j.found = append(slices.Clone(j.found), f)
	found, err := j.gather(ctx)
	if err != nil {
		return nil, nil, err
	}
	return found, conclude(found.project()), nil
}

// keeping returns the job whose model keeps weights of some roles in float32, too: for no role the job itself.
func (j *job) keeping(roles []table.Role) (*job, error) {
	if roles == nil {
		return j, nil
	}
	again := *j
	c := j.model.Config.WithRules(func(r *config.Rules) {
		r.Router.KeepsGate = r.Router.KeepsGate || slices.Contains(roles, table.Gate)
		r.Router.CastsRouterBias = r.Router.CastsRouterBias && !slices.Contains(roles, table.EScoreCorrectionBias)
	})
	var err error
	again.model, err = model.LoadPart(c, j.weights.source, j.scope.runs)
	return &again, err
}

// kept names the weights of routers that the job's model keeps in float32, in the manifest's words.
func (j *job) kept() string {
	var kinds []string
	for s := range j.weights.required() {
		if kind := keptKinds[s.Role()]; kind != "" && model.InFloat32(j.model.Config, s.Place) && !slices.Contains(kinds, kind) {
			kinds = append(kinds, kind)
		}
	}
	if kinds == nil {
		return "nothing"
	}
	slices.Sort(kinds)
	return strings.Join(kinds, ", ")
}
