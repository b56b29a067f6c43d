package diff

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"dsmoe/inspect"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/text"
)

// group is findings of one kind: of weights that differ in the number of a layer or an expert alone, or of
// all weights that are only cast from one dtype to another.
type group struct {
	name    string          // with {l} for the layer and {e} for the expert
	first   Finding         // in the order of the model
	worst   Finding         // see compare
	layers  map[int]bool    // that have the weight; empty for a weight outside the layers
	experts map[int]bool    // that have the weight; empty for a weight outside the experts
	modules map[string]bool // of the weights; the experts of a layer are one
	count   int             // of findings
}

// order is the order of the lines: what really differs, then what is only cast.
var order = []Status{statusDiffers, statusShape, statusRemoved, statusAdded, statusUnused, statusPredicts, statusClose, statusEqual}

// isCast reports whether values are the same but for their dtype.
func (f *Finding) isCast() bool { return f.Status == statusClose || f.Status == statusEqual }

// side returns the side that alone has the weight, and what the weight is there.
func (f *Finding) side() (name string, d tensor.DType, shape []int) {
	if f.DTypeA == nil {
		return "B", *f.DTypeB, f.ShapeB
	}
	return "A", *f.DTypeA, f.ShapeA
}

// compare orders findings by how much differs: by elements that are not finite, then by relative RMS.
func (f *Finding) compare(g *Finding) int {
	return cmp.Or(cmp.Compare(f.NonFinite, g.NonFinite), cmp.Compare(f.RelRMS, g.RelRMS),
		cmp.Compare(f.Different, g.Different))
}

// WriteText writes a line per key of the configs that differs, a line per kind of finding, the largest
// difference first, the weights that are elsewhere, a line per kind of cast, and the verdict with its counts.
func (r *Report) WriteText(w io.Writer) error {
	show := func(v []byte) string { return text.Clip(text.Line(string(v)), maxValue) }
	var lines, casts []string
	meaning, file := 0, "config.json"
	if r.Adapters {
		file = "adapter_config.json"
	}
	for _, d := range r.Config {
		line := fmt.Sprintf("%s: %s: %s, then %s", file, d.Key, show(d.A), show(d.B))
		if d.Meaning {
			meaning++
		} else {
			line += ": does not count as a difference"
		}
		lines = append(lines, line)
	}
	for _, g := range r.groups() {
		if g.first.isCast() {
			casts = append(casts, g.String())
		} else {
			lines = append(lines, g.String())
		}
	}
	for _, x := range r.Rearranged {
		lines = append(lines, x.lines()...)
	}
	last := fmt.Sprintf("%s: %s compared: %d equal, %d close, %d differ; "+
		"%d of another dtype, %d of another shape, %d removed, %d added", r.Verdict, text.Plural(r.Compared, "tensor"),
		r.Counts[statusEqual], r.Counts[statusClose], r.Counts[statusDiffers], r.DTypes, r.Counts[statusShape],
		r.Counts[statusRemoved], r.Counts[statusAdded])
	if n := r.Counts[statusPredicts]; n > 0 {
		last += fmt.Sprintf("; %s of prediction layers on one side alone", text.Grouped(n))
	}
	if meaning > 0 {
		last += "; " + file + " differs in " + text.Plural(meaning, "key")
	}
	for i, glob := range r.Include {
		last += []string{"; compared only what matches ", ", "}[min(i, 1)] + text.Quote(glob)
	}
	_, err := io.WriteString(w, strings.Join(slices.Concat(lines, casts, []string{last}), "\n")+"\n")
	return err
}

// maxValue is how much of a config's value a line shows.
const maxValue = 200

// groups folds the findings by kind, in the order of the lines.
func (r *Report) groups() []*group {
	var groups []*group
	at := map[string]*group{}
	for _, f := range r.Findings {
		name, layer, expert := table.Cut(f.Name)
		key := fmt.Sprint(f.Status, dtype(f.DTypeA), dtype(f.DTypeB))
		switch {
		case f.Status == statusPredicts:
			key = string(f.Status)
		case !f.isCast():
			key = fmt.Sprint(key, name, layer >= 0, expert >= 0, f.ShapeA, f.ShapeB, f.Measured)
		}
		g := at[key]
		if g == nil {
			g = &group{name: name, first: f, worst: f, layers: map[int]bool{}, experts: map[int]bool{},
				modules: map[string]bool{}}
			at[key] = g
			groups = append(groups, g)
		}
		if g.count++; layer >= 0 {
			g.layers[layer] = true
		}
		if expert >= 0 {
			g.experts[expert] = true
		}
		module, _ := table.CutExpert(f.Name)
		g.modules[module[:max(strings.LastIndexByte(module, '.'), 0)]] = true
		if f.compare(&g.worst) > 0 {
			g.worst = f
		}
	}
	slices.SortStableFunc(groups, func(a, b *group) int {
		return cmp.Or(cmp.Compare(slices.Index(order, a.first.Status), slices.Index(order, b.first.Status)),
			b.worst.compare(&a.worst))
	})
	return groups
}

// dtype names a side's dtype; the side that lacks the tensor has none.
func dtype(d *tensor.DType) string {
	if d == nil {
		return "none"
	}
	return d.String()
}

// String is the group's line: "NAME: STATUS", and what there is to say of the status. The name is folded, "3 of NAMES"
// if not every named layer has every named expert in the group.
func (g *group) String() string {
	f, name := &g.first, text.Quote(g.first.Name)
	if f.isCast() || f.Status == statusPredicts {
		if g.count > 1 {
			name = text.Plural(g.count, "weight") + " of " + text.Plural(len(g.modules), "module")
		}
		if side, _, _ := f.side(); f.Status == statusPredicts {
			return fmt.Sprintf("%s: in %s alone: of prediction layers, which transformers drops, and no forward pass of the "+
				"decoder reads", name, side)
		}
		line := fmt.Sprintf("%s: %s in A, %s in B, equal after the cast", name, *f.DTypeA, *f.DTypeB)
		if f.Status == statusClose {
			line += ", which rounds" + g.values()
		}
		return line
	}
	if g.count > 1 {
		name = text.Quote(g.name)
		for hole, set := range map[string]map[int]bool{"{l}": g.layers, "{e}": g.experts} {
			name = strings.Replace(name, hole, text.Set(slices.Sorted(maps.Keys(set)), inspect.AllRuns), 1)
		}
	}
	if g.count < max(len(g.layers), 1)*max(len(g.experts), 1) {
		name = fmt.Sprintf("%s of %s", text.Grouped(g.count), name)
	}
	line := name + ": " + string(f.Status)
	switch f.Status {
	case statusRemoved:
		return fmt.Sprintf("%s: %s %v", line, *f.DTypeA, f.ShapeA)
	case statusAdded:
		return fmt.Sprintf("%s: %s %v", line, *f.DTypeB, f.ShapeB)
	case statusUnused:
		side, d, shape := f.side()
		return fmt.Sprintf("%s: in %s alone, %s %v: the reference computes the same without it", line, side, d, shape)
	case statusShape:
		return fmt.Sprintf("%s: %v, then %v", line, f.ShapeA, f.ShapeB)
	}
	if *f.DTypeA != *f.DTypeB {
		line += fmt.Sprintf(", %s then %s", *f.DTypeA, *f.DTypeB)
	}
	return line + g.values()
}

// values says how the values of the worst of the group differ.
func (g *group) values() string {
	f, line := g.worst, ""
	if g.count > 1 {
		line += ", at worst in " + text.Quote(f.Name)
	}
	if f.Different == 0 && *f.DTypeA == *f.DTypeB {
		return fmt.Sprintf("%s: %s with scales in one only, whose values cannot be compared", line, f.DTypeA.Form().Name)
	} else if f.Different == 0 {
		return line + ": dtypes that cannot be compared"
	}
	line += fmt.Sprintf(": %d of %d values", f.Different, f.Elements)
	switch {
	case !f.Measured:
		line += fmt.Sprintf(", the first at %d", f.Worst)
	case f.Different > f.NonFinite && f.MaxAbs == 0:
		line += ", by the sign of zero alone where they are finite"
	case f.Different > f.NonFinite:
		relative := strconv.FormatFloat(f.RelRMS, 'g', 3, 64)
		if f.RelRMS == math.MaxFloat64 {
			relative = "infinite"
		}
		line += fmt.Sprintf(", rel RMS %s, max abs %.3g at %d, %d ulp, cosine %.9f", relative, f.MaxAbs, f.Worst,
			f.MaxULP, f.Cosine)
	}
	if n := f.OnlyA + f.OnlyB; n > 0 {
		line += fmt.Sprintf(", %s not finite in one only (%d in A, %d in B)", text.Plural(n, "element"), f.OnlyA, f.OnlyB)
	}
	if n := f.NonFinite - f.OnlyA - f.OnlyB; n > 0 {
		line += fmt.Sprintf(", %s not finite in both, but not alike", text.Plural(n, "element"))
	}
	return line
}
