package verify

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"dsmoe/model"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/text/problem"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
)

// points returns where the engine of a trace rounds, or the fused code of a reference.
func (j *job) points() bounds.Points {
	p := bounds.Points{Ways: j.engine.Rounding, Layers: map[int]map[string]string{}, Weights: j.weightsOf,
		Factor: j.model.Config.Router.RoutedScalingFactor, Of: func(w *model.Weight) (string, int) {
			at := j.placeOf(w)
			return operationOf(at, j.model.Config.NumHiddenLayers), at.Layer
		}, Reference: j.referenceWays()}
	for _, f := range j.found {
		for layer, way := range f.layers {
			if p.Layers[layer] == nil {
				p.Layers[layer] = map[string]string{}
			}
			maps.Copy(p.Layers[layer], f.kind.waysOf(way))
		}
	}
	return p
}

// referenceWays returns the ways of rounding, by operation, in which the model's own classes differ from HuggingFace's others.
func (j *job) referenceWays() map[string]string {
	ways, rules := map[string]string{}, j.model.Config.Rules()
	if rules.NormsOnce {
		for _, operation := range []string{bounds.Norm, bounds.LatentNorm, bounds.QKNorm} {
			ways[operation] = bounds.Once
		}
	}
	if rules.Router.WidensLogits {
		ways[bounds.Router] = bounds.InT
	}
	return ways
}

// operationOf returns the operation of bounds.Points that reads the weight at a place; "" of other weights.
func operationOf(at table.Place, layers int) string {
	switch role := at.Role(); role {
	case table.InputLayernorm:
		if at.Layer == 0 || at.Layer >= layers { // prediction layers begin with a product
			return bounds.Norm
		}
		return bounds.InputAddNorm
	case table.PostAttentionLayernorm:
		return bounds.PostAddNorm
	case table.QALayernorm, table.KVALayernorm, table.QANorm, table.KVNorm:
		return bounds.LatentNorm
	case table.QNorm, table.KNorm:
		return bounds.QKNorm
	case table.OProj, table.OBProj, table.DownProj:
		if at.Module() != table.RoutedExperts {
			return bounds.Ranks
		}
	case table.Gate:
		return bounds.Router
	case table.UpProj:
		return map[table.Module]string{table.DenseMLP: bounds.SwiGLU, table.SharedExperts: bounds.SharedSwiGLU,
			table.RoutedExperts: bounds.ExpertsGLU}[at.Module()]
	case table.ENorm, table.HNorm, table.PostMLPLayernorm:
		return bounds.Norm
	default:
		if at.Module() == table.Norms && at.Layer < 0 {
			return bounds.FinalAddNorm
		}
	}
	return ""
}

// placeOf returns the place of a weight in the model. A trial may have a weight elsewhere than its name says.
func (j *job) placeOf(w *model.Weight) table.Place {
	if at, moved := j.places[w]; moved {
		return at
	}
	return table.PlaceOf(j.model.Config, w.Name)
}

// weightsOf returns topk_weight of the tokens that chose the expert a weight belongs to, as the pack has it; nil if the
// pack lacks it.
func (j *job) weightsOf(w *model.Weight) []float32 {
	at := j.placeOf(w)
	idx, err := j.pack.Ints(pack.StageOf(at.Layer, pack.TopKIdx))
	weights, failed := j.pack.Float32s(pack.StageOf(at.Layer, pack.TopKWeight))
	if err != nil || failed != nil {
		return nil
	}
	var of []float32
	for slot, e := range idx {
		if e == at.Expert {
			of = append(of, weights[slot])
		}
	}
	return of
}

// exactStart is x, the golden that layer l or the head begins with, as a value. A norm of an engine may read it before
// it was rounded: the sum of what the pack has of the layer before.
func (j *job) exactStart(l int, x *model.Activation) *bounds.Value {
	y, before := bounds.Exact(x), l-1
	if before < 0 || len(j.engine.Rounding) == 0 || j.model.Config.HyperConnections.HCMult > 0 {
		return y
	}
	sum := &model.Activation{Shape: x.Shape, Values: make([]float32, len(x.Values)), DType: tensor.F32}
	for i, name := range []string{pack.InputStage(before), pack.StageOf(before, "self_attn.output"),
		pack.StageOf(before, "mlp.output")} {
		values, err := j.pack.Float32s(name)
		if err != nil || len(values) != len(x.Values) {
			return y
		}
		for at, v := range values {
			if i == 2 { // the sum with attention is rounded
				sum.Values[at] = tensor.Rounded(sum.Values[at], x.DType)
			}
			sum.Values[at] += v
		}
	}
	for at, v := range x.Values {
		if tensor.Rounded(sum.Values[at], x.DType) != v { // the layer begins with something else
			return y
		}
	}
	return y.WithSum(sum)
}

// checkRounding refuses declared ways of rounding that are not known.
func checkRounding(golden *pack.Pack) error {
	if golden.Manifest.Arithmetic == nil {
		return nil
	}
	var problems []problem.Problem
	rounding := golden.Manifest.Arithmetic.Rounding
	for _, operation := range slices.Sorted(maps.Keys(rounding)) {
		ways, cause := bounds.WaysOf(operation), ""
		switch {
		case ways == nil:
			cause = "no operation that engines round in several ways: see dsmoe help traces"
		case !slices.Contains(ways, rounding[operation]):
			cause = fmt.Sprintf("%.40q is not one of %s", rounding[operation], strings.Join(ways, "; "))
		}
		if cause != "" {
			problems = append(problems, problem.Problem{Field: "arithmetic.rounding: " + text.Quote(operation), Cause: cause})
		}
	}
	if problems != nil {
		return problem.In(golden.Dir, problems...)
	}
	return nil
}

// kindsOf returns the kinds whose roundings show in a stage.
func (j *job) kindsOf(stage string) []string {
	s, c := pack.Parse(stage), j.model.Config
	has := func(within string) bool { return j.pack.Has(pack.StageOf(s.Layer, within)) }
	weight := strings.TrimSuffix(stage, ".output") + ".weight"
	switch of := operationOf(table.PlaceOf(c, weight), c.NumHiddenLayers); of {
	case bounds.Norm, bounds.InputAddNorm, bounds.PostAddNorm, bounds.FinalAddNorm, bounds.LatentNorm, bounds.QKNorm, bounds.Ranks:
		return []string{of}
	}
	switch s.Within {
	case "mlp.down_proj.input":
		return []string{bounds.SwiGLU}
	case "mlp.shared_experts.down_proj.input":
		return []string{bounds.SharedSwiGLU}
	case pack.SharedOutput:
		if has("mlp.shared_experts.down_proj.input") {
			return []string{bounds.Ranks}
		}
		return []string{bounds.SharedSwiGLU, bounds.Ranks}
	case "self_attn.output":
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
		if j.replays(stage) {
			return nil
		}
		return []string{bounds.ChoiceScore}
	case pack.TopKWeight:
		return []string{bounds.Score}
	case pack.Attended, pack.AttnWeights:
		return []string{attention}
	}
	return nil
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

// adopt gives x the dtype in which an engine's trace has the stage. An engine may keep router and head in float32, or
// in 16 bits, where the reference does not; numbers of float32 that all are numbers of x's dtype are of that.
func (t *pass) adopt(name string, x *bounds.Value) error {
	d := t.job.pack.Manifest.Tensors[name].DType
	if pack.Parse(name).Within == pack.GateLogits && t.job.engine.Rounding[bounds.Router] == bounds.InT &&
		!t.job.model.Config.Rules().Router.WidensLogits {
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
