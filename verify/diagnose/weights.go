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
	"dsmoe/verify/bounds"
)

// Mistakes in the weights: exchanged, transposed or reordered by a conversion.

// undoGateUp exchanges gate_proj and up_proj of the failed MLP, of all routed experts alike.
func undoGateUp(x *Trial) string {
	moe, of := x.layer.MoE, []*model.DeepseekMLP{x.layer.MLP}
	switch {
	case moe == nil:
	case strings.HasPrefix(x.failed.Kind, sharedMLP+"."):
		of = []*model.DeepseekMLP{moe.SharedExperts}
	default:
		of = nil
		for e := range moe.Experts {
			of = append(of, &moe.Experts[e])
		}
		if x.failed.Kind == "mlp.output" {
			of = append(of, moe.SharedExperts)
		}
	}
	for _, m := range of {
		if m != nil {
			m.GateProj, m.UpProj = m.UpProj, m.GateProj
		}
	}
	return "gate_proj and up_proj are exchanged"
}

// undoGateUpOf exchanges gate_proj and up_proj of one expert.
func undoGateUpOf(e int) func(x *Trial) string {
	return func(x *Trial) string {
		m := &x.layer.MoE.Experts[e]
		m.GateProj, m.UpProj = m.UpProj, m.GateProj
		return fmt.Sprintf("gate_proj and up_proj of expert %d are exchanged", e)
	}
}

// undoLayer puts another layer's weights in the place of the layer's.
func undoLayer(other int) func(x *Trial) string {
	return func(x *Trial) string {
		f := x.failed
		if !slices.Contains(f.Layers, other) {
			return "" // its weights were not read
		}
		if x.layer == nil || other == f.Layer || !sameModules(f.Model.Config, other, f.Layer) ||
			(f.Model.Layer(other).Indexer == nil) != (x.layer.Indexer == nil) {
			return "" // they have other weights
		}
		*x.layer = ownLayer(&f.Model.Model.Layers[other])
		return fmt.Sprintf("the weights of model.layers.%d are not its own: with those of model.layers.%d it is right",
			f.Layer, other)
	}
}

// sameModules reports whether two layers have the same modules, but for an indexer.
func sameModules(c *config.Config, a, b int) bool {
	return c.IsMoE(a) == c.IsMoE(b) && c.Hashes(a) == c.Hashes(b) && c.CompressRate(a) == c.CompressRate(b) &&
		c.Overlaps(a) == c.Overlaps(b)
}

// undoNormOffset adds an offset to the weight of the norm.
func undoNormOffset(by float32) func(x *Trial) string {
	return func(x *Trial) string {
		x.Around = func(a bounds.Arithmetic) bounds.Arithmetic { return &normOffset{a, x.failed.Name, by} }
		x.Rounded = bounds.Roundings{strings.TrimSuffix(x.failed.Name, ".output") +
			".weight": bounds.AllRounded("stored off by 1")}
		maps.Copy(x.Rounded, x.failed.Rounded)
		if by > 0 {
			return "the weight is the reference's less 1, as for a norm that multiplies with 1 + weight"
		}
		return "the weight is the reference's plus 1"
	}
}

// normOffset is an arithmetic in which a number is added to the weight of one norm.
type normOffset struct {
	bounds.Arithmetic
	stage string
	by    float32
}

// RMSNorm implements model.Arithmetic. What the weight lost when it was stored off by that
// number is an error of half a unit.
func (o *normOffset) RMSNorm(x *bounds.Value, weight *model.Weight, eps float64) *bounds.Value {
	module := strings.TrimSuffix(o.stage, ".output")
	if weight.Name != module+".weight" {
		return o.Arithmetic.RMSNorm(x, weight, eps)
	}
	stored, _ := weight.Float32s(nil) // loading has checked the dtype
	moved, p := *weight, bounds.PrecisionOf(weight.DType)
	moved.Tensor = vectorOf(stored, func(_ int, w float32) float32 { return w + o.by })
	y := o.Arithmetic.RMSNorm(x, &moved, eps)
	for i, v := range y.Values {
		c := i % y.Width()
		if w := stored[c]; w+o.by != 0 {
			y.Set(i, float64(v), y.Variance(i)+bounds.Sq(float64(v)/float64(w+o.by)*p.Ulp(float64(w))/bounds.Unit)/12)
		}
	}
	return y
}

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

// undoRotated gives each expert the weights that are stored under a number higher by some.
func undoRotated(by int) func(x *Trial) string {
	return func(x *Trial) string {
		was := x.layer.MoE.Experts
		rotated := slices.Concat(was[by:], was[:by])
		x.layer.MoE.Experts = rotated
		off := fmt.Sprintf("%d too high", by)
		if 2*by > len(was) {
			off = fmt.Sprintf("%d too low", len(was)-by)
		}
		return fmt.Sprintf("the experts' numbers are %s, in a circle: expert 0 is stored as %d", off, by)
	}
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

// undoSwapped exchanges two experts.
func undoSwapped(pair [2]int) func(x *Trial) string {
	return func(x *Trial) string {
		a, b := pair[0], pair[1]
		experts := x.layer.MoE.Experts
		experts[a], experts[b] = experts[b], experts[a]
		return fmt.Sprintf("experts %d and %d are exchanged", a, b)
	}
}

// undoExchanged exchanges two projections of equal shape.
func undoExchanged(a, b table.Role) func(x *Trial) string {
	return func(x *Trial) string {
		p, q := x.layer.Projection(a), x.layer.Projection(b)
		if p == nil || q == nil || !slices.Equal(p.Weight.Shape, q.Weight.Shape) {
			return ""
		}
		*p, *q = *q, *p
		return fmt.Sprintf("%s and %s are exchanged", a, b)
	}
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

func undoProjectionScales(proj table.Role) func(x *Trial) string {
	return func(x *Trial) string {
		l := x.layer.Projection(proj)
		if l == nil || !transposeScales(&l.Weight) {
			return ""
		}
		scales := l.Weight.DType.Form().Parts[0]
		return fmt.Sprintf("%s.weight%s is transposed", proj, scales)
	}
}

// undoMLPScales transposes the scales of gate_proj, up_proj or down_proj of every MLP that
// takes part.
func undoMLPScales(parts []bool) func(x *Trial) string {
	return func(x *Trial) string {
		var mlps []*model.DeepseekMLP
		switch moe := x.layer.MoE; {
		case moe == nil:
			mlps = append(mlps, x.layer.MLP)
		case strings.HasPrefix(x.failed.Kind, sharedMLP+"."):
			mlps = append(mlps, moe.SharedExperts)
		default:
			for e := range moe.Experts {
				mlps = append(mlps, &moe.Experts[e])
			}
		}
		changed, scales := map[string]bool{}, ""
		for _, m := range mlps {
			for i, role := range []table.Role{table.GateProj, table.UpProj, table.DownProj} {
				if w := &m.Linear(role).Weight; parts[i] && transposeScales(w) {
					changed[string(role)], scales = true, w.DType.Form().Parts[0]
				}
			}
		}
		if len(changed) == 0 {
			return ""
		}
		return fmt.Sprintf("weight%s is transposed: %s", scales, strings.Join(slices.Sorted(maps.Keys(changed)), ", "))
	}
}

func undoTransposed(proj table.Role) func(x *Trial) string {
	return func(x *Trial) string {
		l := x.layer.Projection(proj)
		if l == nil {
			return ""
		}
		w := &l.Weight
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
		return string(proj) + ".weight is transposed"
	}
}
