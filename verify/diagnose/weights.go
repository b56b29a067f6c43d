package diagnose

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
)

// Mistakes in the weights: exchanged, transposed or reordered by a conversion.

// weightMistakes are mistakes in layers, norms, MLPs and routers as a whole.
func weightMistakes(f *Failure) (list []mistake) {
	for l := range f.Model.Model.Layers {
		list = append(list, mistake{id: "layers-exchanged", kinds: normStages, undo: func(x *Trial) string {
			if !slices.Contains(f.Layers, l) { // its weights were not read
				return ""
			}
			if x.layer == nil || l == f.Layer || !sameModules(f.Model.Config, l, f.Layer) ||
				(f.Model.Layer(l).Indexer == nil) != (x.layer.Indexer == nil) {
				return ""
			}
			*x.layer = ownLayer(&f.Model.Model.Layers[l])
			return fmt.Sprintf("the weights of model.layers.%d are not its own: with those of model.layers.%d it is right",
				f.Layer, l)
		}})
	}
	for _, offset := range []struct {
		by    float32
		words string
	}{
		{1, "the weight is the reference's less 1, as for a norm that multiplies with 1 + weight"},
		{-1, "the weight is the reference's plus 1"},
	} {
		list = append(list, mistake{id: "norm-off-by-one", kinds: normStages, undo: func(x *Trial) string {
			x.offsetNorm(strings.TrimSuffix(f.Name, ".output")+".weight", offset.by)
			return offset.words
		}})
	}
	return append(list, []mistake{
		{id: "gate-up-swapped", kinds: pack.MLPOutputs, experts: true, undo: undoGateUp},
		{id: "gate-up-swapped", kinds: gateStages, undo: undoGateUp},
		{id: "expert-order", kinds: []string{pack.ExpertsOutput}, experts: true, undo: undoLexicographic},
		{id: "expert-order", kinds: []string{expertGate}, undo: undoLexicographic},
		{id: "experts-renumbered", kinds: []string{pack.GateLogits}, undo: undoRenumbered(false), more: f.sumsInWords},
		{id: "experts-renumbered", kinds: []string{pack.GateLogits}, unless: "experts-renumbered",
			undo: undoRenumbered(true), more: f.sumsInWords},
		{id: "router-rows", kinds: []string{pack.GateLogits}, unless: "experts-renumbered", undo: undoRouterRows(false)},
		{id: "router-rows", kinds: []string{pack.GateLogits}, unless: "experts-renumbered", undo: undoRouterRows(true)},
	}...)
}

// sameModules reports whether two layers have the same modules, but for an indexer.
func sameModules(c *config.Config, a, b int) bool {
	return c.IsMoE(a) == c.IsMoE(b) && c.Hashes(a) == c.Hashes(b) && c.CompressRate(a) == c.CompressRate(b) &&
		c.Overlaps(a) == c.Overlaps(b)
}

// offsetNorm has a trial add a number to the weight of a norm. What the weight lost when it was stored off by that
// number is an error of half a unit.
func (x *Trial) offsetNorm(name string, by float32) {
	x.round(name, "stored off by 1")
	x.change(func(a bounds.Arithmetic, o *operations) {
		o.rmsNorm = func(x *bounds.Value, weight *model.Weight, eps float64) *bounds.Value {
			if weight.Name != name {
				return a.RMSNorm(x, weight, eps)
			}
			stored, _ := weight.Float32s(nil) // loading has checked the dtype
			moved, p := *weight, bounds.PrecisionOf(weight.DType)
			moved.Tensor = vectorOf(stored, func(_ int, w float32) float32 { return w + by })
			y := a.RMSNorm(x, &moved, eps)
			for i, v := range y.Values {
				if w := stored[i%y.Width()]; w+by != 0 {
					y.Set(i, float64(v), y.Variance(i)+bounds.Sq(float64(v)/float64(w+by)*p.Ulp(float64(w))/bounds.Unit)/12)
				}
			}
			return y
		}
	})
}

// round has a trial take a weight for the reference's, rounded by an operation.
func (x *Trial) round(name, by string) {
	x.Rounded = bounds.Roundings{name: bounds.AllRounded(by)}
	maps.Copy(x.Rounded, x.failed.Rounded)
}

// roundedMistakes is a router whose weight of 16 bits was rounded, and the reference's was not; or one in float32 that the
// reference kept so, and its manifest does not say that.
func roundedMistakes(*Failure) []mistake {
	return []mistake{{id: "router-rounded", kinds: []string{pack.GateLogits}, undo: func(x *Trial) string {
		w := &x.layer.MoE.Gate.Weight
		switch {
		case w.DType == tensor.BF16 || w.DType == tensor.F16:
			x.round(w.Name, "cast")
			return fmt.Sprintf("%s was rounded to %s: the reference's, in F32, differs by no more than that", w.Name, w.DType)
		case w.DType == tensor.F32 && !w.InFloat32 && x.Options.DType != tensor.F32:
			w.InFloat32 = true
			return fmt.Sprintf("the reference kept %s in F32, here it is rounded to %s, as kept_float32 of the manifest does not "+
				"name it", w.Name, x.Options.DType)
		}
		return ""
	}}}
}

// mlpsOf returns the MLPs behind the failed stage: the layer's MLP, the shared experts or all routed experts.
func (x *Trial) mlpsOf() (list []*model.DeepseekMLP) {
	moe := x.layer.MoE
	switch {
	case moe == nil:
		return []*model.DeepseekMLP{x.layer.MLP}
	case strings.HasPrefix(x.failed.Kind, sharedMLP+"."):
		return []*model.DeepseekMLP{moe.SharedExperts}
	}
	for e := range moe.Experts {
		list = append(list, &moe.Experts[e])
	}
	return list
}

// undoGateUp exchanges gate_proj and up_proj of the failed MLP, of all routed experts alike.
func undoGateUp(x *Trial) string {
	of := x.mlpsOf()
	if x.layer.MoE != nil && x.failed.Kind == "mlp.output" {
		of = append(of, x.layer.MoE.SharedExperts)
	}
	for _, m := range of {
		switch {
		case m == nil:
		case m.GateProj.Weight.Name == "": // there is none
			return ""
		default:
			m.GateProj, m.UpProj = m.UpProj, m.GateProj
		}
	}
	return "gate_proj and up_proj are exchanged"
}

// undoLexicographic puts experts that were numbered in the order "0", "1", "10", …
// back into the order of their numbers.
func undoLexicographic(x *Trial) string {
	experts := x.layer.MoE.Experts
	names := make([]string, len(experts))
	for e := range names {
		names[e] = strconv.Itoa(e)
	}
	slices.Sort(names)
	sorted := make([]model.DeepseekMLP, len(experts))
	for at, name := range names {
		e, _ := strconv.Atoi(name)
		sorted[e] = experts[at]
	}
	if slices.IsSortedFunc(names, func(a, b string) int { return len(a) - len(b) }) {
		return "" // no expert 10
	}
	copy(experts, sorted)
	return "the experts are in the order of their names as text: 0, 1, 10, 11, …, 2, …"
}

// expertMistakes are mistakes of single routed experts, and of their numbers.
func expertMistakes(f *Failure) (list []mistake) {
	kind := f.kind()
	add := func(id, unless string, undo func(experts []model.DeepseekMLP) (words string)) {
		list = append(list, mistake{id: id, kinds: []string{kind}, experts: kind != pack.ProbeOutput, unless: unless,
			undo: func(x *Trial) string { return undo(x.layer.MoE.Experts) }})
	}
	probes := f.failedExperts(pack.ProbeOutput)
	if len(probes) > mostPaired {
		probes = nil
	}
	single, unless, rotated, pairs := f.suspects(), "gate-up-swapped", []int(nil), [][2]int(nil)
	switch kind {
	case pack.ProbeOutput: // of one expert; those before it are right
		e := pack.Parse(f.Kind).Expert
		single, unless = []int{e}, ""
		for _, other := range probes {
			if other > e {
				pairs = append(pairs, [2]int{e, other})
			}
		}
	case pack.ExpertsOutput, expertGate:
		rotated = rotations(f.Model.Config.MoE.NRoutedExperts)
		paired := slices.Compact(slices.Sorted(slices.Values(slices.Concat(single, probes))))
		for i, a := range paired {
			for _, b := range paired[i+1:] {
				if len(paired) <= mostPaired {
					pairs = append(pairs, [2]int{a, b})
				}
			}
		}
	}
	for _, e := range single {
		add("gate-up-swapped", unless, func(experts []model.DeepseekMLP) string {
			m := &experts[e]
			m.GateProj, m.UpProj = m.UpProj, m.GateProj
			return fmt.Sprintf("gate_proj and up_proj of expert %d are exchanged", e)
		})
	}
	for _, by := range rotated {
		add("experts-rotated", "", func(experts []model.DeepseekMLP) string {
			n := len(experts)
			copy(experts, slices.Concat(experts[by:], experts[:by]))
			off := fmt.Sprintf("%d too high", by)
			if 2*by > n {
				off = fmt.Sprintf("%d too low", n-by)
			}
			return fmt.Sprintf("the experts' numbers are %s, in a circle: expert 0 is stored as %d", off, by)
		})
	}
	for _, pair := range pairs {
		add("experts-swapped", "", func(experts []model.DeepseekMLP) string {
			a, b := pair[0], pair[1]
			experts[a], experts[b] = experts[b], experts[a]
			return fmt.Sprintf("experts %d and %d are exchanged", a, b)
		})
	}
	return list
}

// mostPaired is how many experts are tried in pairs, whose number grows with the square.
const mostPaired = 8

// rotations are how far experts' numbers may be off: by one, or by a share of the experts, as
// several devices hold them.
func rotations(experts int) (by []int) {
	for n := 1; n < experts; n *= 2 {
		by = append(by, n)
		if 2*n != experts {
			by = append(by, experts-n)
		}
	}
	if half := experts / 2; experts%2 == 0 && !slices.Contains(by, half) {
		by = append(by, half)
	}
	return by
}

// projectionMistakes are projections of attention that are exchanged or transposed.
func projectionMistakes(*Failure) (list []mistake) {
	plain := []table.Role{table.QProj, table.KProj, table.VProj, table.OProj}
	for i, a := range plain {
		for _, b := range plain[i+1:] {
			list = append(list, mistake{id: "projections-exchanged", kinds: stagesOf(a), undo: func(x *Trial) string {
				p, q := x.layer.Projection(a), x.layer.Projection(b)
				if p == nil || q == nil || !slices.Equal(p.Weight.Shape, q.Weight.Shape) {
					return ""
				}
				*p, *q = *q, *p
				return fmt.Sprintf("%s and %s are exchanged", a, b)
			}})
		}
	}
	for _, role := range projections {
		add := func(id string, undo func(w *model.Weight) (words string)) {
			list = append(list, mistake{id: id, kinds: stagesOf(role), undo: func(x *Trial) string {
				if l := x.layer.Projection(role); l != nil {
					return undo(&l.Weight)
				}
				return ""
			}})
		}
		add("transposed", func(w *model.Weight) string {
			if w.Shape[0] != w.Shape[1] || w.Scales != nil || w.DType.Blocked() {
				return ""
			}
			n, size := w.Shape[0], int(w.DType.Bytes(1))
			t := make([]byte, len(w.Data))
			for r := range n {
				for c := range n {
					copy(t[(c*n+r)*size:(c*n+r+1)*size], w.Data[(r*n+c)*size:])
				}
			}
			w.Data = t
			return string(role) + ".weight is transposed"
		})
		add("scales-transposed", func(w *model.Weight) string {
			if !transposeScales(w) {
				return ""
			}
			return fmt.Sprintf("%s.weight%s is transposed", role, w.DType.Form().Parts[0])
		})
	}
	return list
}

// scaleMistakes are transposed scales of projections of every MLP that takes part.
func scaleMistakes(*Failure) (list []mistake) {
	for _, roles := range [][]table.Role{{table.GateProj, table.UpProj, table.DownProj}, {table.GateProj}, {table.UpProj},
		{table.GateProj, table.UpProj}, {table.DownProj}} {
		list = append(list, mistake{id: "scales-transposed", kinds: slices.Concat(gateStages, upStages, pack.MLPOutputs),
			experts: true, undo: func(x *Trial) string {
				changed, scales := map[string]bool{}, ""
				for _, m := range x.mlpsOf() {
					for _, role := range roles {
						if w := &m.Linear(role).Weight; transposeScales(w) {
							changed[string(role)], scales = true, w.DType.Form().Parts[0]
						}
					}
				}
				if len(changed) == 0 {
					return ""
				}
				return fmt.Sprintf("weight%s is transposed: %s", scales, strings.Join(slices.Sorted(maps.Keys(changed)), ", "))
			}})
	}
	return list
}

// transposeScales reads w's scales column by column. It reports whether there are several.
func transposeScales(w *model.Weight) bool {
	if w.Scales == nil || w.Zeros != nil {
		return false
	}
	rows, cols := (w.Shape[0]+w.Block[0]-1)/w.Block[0], (w.Shape[1]+w.Block[1]-1)/w.Block[1]
	if rows == 1 || cols == 1 {
		return false // the same numbers in the same order
	}
	scales := make([]float32, len(w.Scales))
	for r := range rows {
		for c := range cols {
			scales[r*cols+c] = w.Scales[c*rows+r]
		}
	}
	w.Scales = scales
	return true
}
