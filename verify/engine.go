package verify

import (
	"maps"
	"slices"
	"strings"

	"dsmoe/model"
	"dsmoe/model/table"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
)

// Traces of engines: what an engine declares of its arithmetic is reproduced; observe.go looks for what it does not
// declare.

// arithmetic is the analysis, or around it the arithmetic of the pack's engine.
func (j *job) arithmetic(a *bounds.Analysis) bounds.Arithmetic {
	switch {
	case j.operands != bounds.Whole:
		return bounds.NewShortProducts(a, bounds.TF32Bits, j.operands)
	case !j.pack.IsTrace():
		return a
	}
	e := &bounds.Engine{Seen: j.seen, Inputs: func(w *model.Weight) (keys, values *bounds.Rounding) {
		if forms := j.weights.forms(w.Name); forms != nil {
			keys, _ = bounds.RoundingOf(j.engine.Activations[forms[0]])
			values, _ = bounds.RoundingOf(j.engine.Activations[forms[len(forms)-1]])
		}
		return keys, values
	}}
	e.Cache, _ = bounds.RoundingOf(j.engine.Cache)
	if words := j.engine.LatentCache; len(words) > 0 && j.model.Config.LatentAttention() {
		latents, _ := bounds.RoundingOf(words[0])
		rotated, _ := bounds.RoundingOf(words[len(words)-1])
		e.Latents = func(w *model.Weight) (*bounds.Rounding, *bounds.Rounding, int) {
			if !table.PlaceOf(j.model.Config, w.Name).Is(table.Attention, table.KVBProj) {
				return nil, nil, 0
			}
			return latents, rotated, j.model.Config.Attention.QKNopeHeadDim
		}
	}
	e.Flash = slices.Contains(j.engine.Attention, pack.Flash)
	e.Narrow, e.Serial = j.engine.Sums == pack.F16Sums, j.engine.Sums == pack.SerialSums
	if j.counts { // of the other stages the goldens are taken
		e.Given = func(w *model.Weight) []float32 {
			stage := strings.TrimSuffix(w.Name, ".weight") + ".output"
			if !j.pack.Has(stage) || j.scope.compares(stage) {
				return nil
			}
			values, err := j.pack.Float32s(stage)
			if err != nil || !bounds.AllFinite(values) {
				return nil
			}
			return values
		}
	}
	c, points := j.model.Config, j.points()
	absorbing := func(points bounds.Points) *bounds.Engine {
		how := *e
		if (slices.Contains(j.engine.Attention, pack.Absorbed) || points.Absorbs()) && c.LatentAttention() {
			how.Absorbs = func(w *model.Weight) (keys, values int) {
				at := table.PlaceOf(c, w.Name)
				recorded := j.pack.Has(pack.StageOf(at.Layer, pack.InAttention(table.KVBProj))) // so that it was not absorbed
				if at.Is(table.Attention, table.KVBProj) && !(recorded && points.Ways[bounds.AbsorbedQuery] == bounds.Unknown) {
					return c.Attention.QKNopeHeadDim, c.ValueHeadDim()
				}
				return 0, 0
			}
		}
		return &how
	}
	engine := bounds.NewEngine(a, absorbing(points))
	for _, f := range j.found {
		if rows := j.pack.Manifest.DecodeRows(j.in); f.decode >= 0 && rows != nil {
			points.Ways = maps.Clone(points.Ways)
			maps.Copy(points.Ways, f.kind.waysOf(f.decode))
			return bounds.NewPhases(engine, bounds.NewEngine(a.WithPoints(points), absorbing(points)),
				func(batch, row int) bool { return rows[batch*j.in.Seq+row] })
		}
	}
	return engine
}

// undeclared is what of how an engine computes it does not declare; nil if that is nothing.
func undeclared(how, declared *pack.Arithmetic) *pack.Arithmetic {
	if declared == nil {
		declared = &pack.Arithmetic{}
	}
	seen := *how
	seen.Rounding = nil // see Golden.Recognised
	seen.Activations = maps.Clone(how.Activations)
	maps.DeleteFunc(seen.Activations, func(form, _ string) bool { return declared.Activations[form] != "" })
	if seen.Cache == declared.Cache {
		seen.Cache = ""
	}
	if slices.Equal(seen.LatentCache, declared.LatentCache) {
		seen.LatentCache = nil
	}
	if declared.Attention != nil {
		seen.Attention = nil
	}
	if seen.Sums == declared.Sums {
		seen.Sums = ""
	}
	if seen.String() == "" {
		return nil
	}
	return &seen
}
