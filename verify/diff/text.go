package diff

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"dsmoe/config"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/text"
)

// group is findings that differ in the number of an expert alone.
type group struct {
	name    string  // with {e} for the expert
	first   Finding // in the order of the model
	worst   Finding // by elements that are not finite, then by relative RMS
	experts []int   // ascending; empty for a tensor outside the experts
	count   int     // of findings
}

// WriteText writes a line per key of the configs that differs, a line per finding, experts
// of one layer together, what of that is the same weights elsewhere, and a summary.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	meaning := 0
	for _, d := range r.Config {
		fmt.Fprintf(&b, "config.json: %s\n", configLine(d))
		if d.Meaning {
			meaning++
		}
	}
	for _, g := range r.groups() {
		fmt.Fprintf(&b, "%s\n", g)
	}
	for _, x := range r.Rearranged {
		for _, line := range x.lines() {
			fmt.Fprintf(&b, "%s\n", line)
		}
	}
	fmt.Fprintf(&b, "%s: %s compared: %d equal, %d close, %d differ; %d of another dtype, %d of another shape, %d removed, %d added",
		r.Verdict, text.Plural(r.Compared, "tensor"), r.Counts[Equal], r.Counts[Close], r.Counts[Differs], r.DTypes, r.Counts[Shape], r.Counts[Removed], r.Counts[Added])
	if meaning > 0 {
		fmt.Fprintf(&b, "; config.json differs in %s", text.Plural(meaning, "key"))
	}
	_, err := io.WriteString(w, b.String()+"\n")
	return err
}

// maxValue is how much of a config's value a line shows.
const maxValue = 200

// configLine says what both configs hold under a key, and whether that matters.
func configLine(d config.Difference) string {
	show := func(v []byte) string { return text.Clip(text.Line(string(v)), maxValue) }
	line := fmt.Sprintf("%s: %s, then %s", d.Key, show(d.A), show(d.B))
	if !d.Meaning {
		line += ": does not count as a difference"
	}
	return line
}

// groups folds the findings by expert, in the order of their first.
func (r *Report) groups() []*group {
	var groups []*group
	at := map[string]*group{}
	for _, f := range r.Findings {
		name, expert := table.CutExpert(f.Name)
		key := fmt.Sprint(name, f.Status, dtype(f.DTypeA), dtype(f.DTypeB), f.ShapeA, f.ShapeB)
		g := at[key]
		if g == nil {
			g = &group{name: name, first: f, worst: f}
			at[key] = g
			groups = append(groups, g)
		}
		g.add(f, expert)
	}
	return groups
}

// dtype names a side's dtype; the side that lacks the tensor has none.
func dtype(d *tensor.DType) string {
	if d == nil {
		return "none"
	}
	return d.String()
}

// add counts f, which is about an expert or, if that is -1, about none.
func (g *group) add(f Finding, expert int) {
	g.count++
	if expert >= 0 {
		g.experts = append(g.experts, expert)
	}
	if cmp.Or(cmp.Compare(f.NonFinite, g.worst.NonFinite), cmp.Compare(f.RelRMS, g.worst.RelRMS), cmp.Compare(f.Different, g.worst.Different)) > 0 {
		g.worst = f
	}
}

// String is the group's line: "NAME: STATUS", and what there is to say of the status.
func (g *group) String() string {
	name := text.Quote(g.first.Name)
	if g.count > 1 {
		experts := strings.ReplaceAll(text.Ranges(g.experts), " ", "") // the name stays one word
		name = strings.Replace(text.Quote(g.name), "{e}", "{"+experts+"}", 1)
	}
	line := name + ": " + string(g.first.Status)
	switch g.first.Status {
	case Removed:
		return fmt.Sprintf("%s: %s %v", line, *g.first.DTypeA, g.first.ShapeA)
	case Added:
		return fmt.Sprintf("%s: %s %v", line, *g.first.DTypeB, g.first.ShapeB)
	case Shape:
		return fmt.Sprintf("%s: %v, then %v", line, g.first.ShapeA, g.first.ShapeB)
	}
	return line + g.values()
}

// values says how the values of the worst of the group differ.
func (g *group) values() string {
	f, line := g.worst, ""
	if *f.DTypeA != *f.DTypeB {
		line = fmt.Sprintf(", %s then %s", *f.DTypeA, *f.DTypeB)
	}
	if f.Status == Equal {
		return line
	}
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
		line += fmt.Sprintf(", rel RMS %s, max abs %.3g at %d, %d ulp, cosine %.9f", relative, f.MaxAbs, f.Worst, f.MaxULP, f.Cosine)
	}
	return line + f.notFinite()
}

// notFinite says how many elements are infinite or NaN, on which side.
func (f *Finding) notFinite() (line string) {
	if n := f.OnlyA + f.OnlyB; n > 0 {
		line = fmt.Sprintf(", %s not finite in one only (%d in A, %d in B)", text.Plural(n, "element"), f.OnlyA, f.OnlyB)
	}
	if n := f.NonFinite - f.OnlyA - f.OnlyB; n > 0 {
		line += fmt.Sprintf(", %s not finite in both, but not alike", text.Plural(n, "element"))
	}
	return line
}
