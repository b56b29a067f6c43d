package diff

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"dsmoe/inspect"
	"dsmoe/model/table"
	"dsmoe/text"
	"dsmoe/text/page"
)

// changed is the changes of some weights together.
type changed struct {
	name             string
	layer, expert    int // of the first weight
	weights, changed int
	squares, base    float64
	least, most      *int // ranks of changed matrices that have one
	beyond           bool // a changed matrix has a rank above maxRank
	unmeasured       int  // changed matrices whose rank was not measured
}

// add adds a weight.
func (g *changed) add(w *Change) {
	g.weights++
	g.squares, g.base = g.squares+w.squares, g.base+w.base
	if w.Different == 0 {
		return
	}
	g.changed++
	switch {
	case w.StableRank == nil:
		if w.matrix {
			g.unmeasured++
		}
	case w.Rank == nil:
		g.beyond = true
	default:
		if g.least == nil || *w.Rank < *g.least {
			g.least = w.Rank
		}
		if g.most == nil || *w.Rank > *g.most {
			g.most = w.Rank
		}
	}
}

// relative is √(ΣD² / Σb²); nil if that is no number.
func (g *changed) relative() *float64 {
	if g.base == 0 {
		return nil
	}
	return inspect.Finite(math.Sqrt(g.squares / g.base))
}

// rank is "16", "8 to 16, of 3 not measured", "more than 64"; "-" if no matrix changed.
func (g *changed) rank() string {
	known, beyond := "-", fmt.Sprintf("more than %d", maxRank)
	switch {
	case g.least == nil && g.beyond:
		known = beyond
	case g.least == nil:
	case g.beyond:
		known = fmt.Sprintf("%d to %s", *g.least, beyond)
	case *g.least == *g.most:
		known = fmt.Sprint(*g.least)
	default:
		known = fmt.Sprintf("%d to %d", *g.least, *g.most)
	}
	switch {
	case g.unmeasured == 0:
		return known
	case known == "-":
		return "not measured"
	default:
		return fmt.Sprintf("%s, of %d not measured", known, g.unmeasured)
	}
}

// groups sums up the weights, in the order in which names first come; those without a name are left out.
func (r *Changes) groups(name func(*Change) string) (groups []*changed) {
	index := map[string]*changed{}
	for i := range r.Weights {
		w := &r.Weights[i]
		key := name(w)
		if key == "" {
			continue
		}
		g := index[key]
		if g == nil {
			g = &changed{name: key, layer: w.Layer, expert: w.Expert}
			index[key], groups = g, append(groups, g)
		}
		g.add(w)
	}
	return groups
}

// moduleName names the layer and module of a weight.
func moduleName(w *Change) string {
	if w.Layer < 0 {
		return string(w.Module)
	}
	return fmt.Sprintf("layer %d %s", w.Layer, w.Module)
}

// expertName names the routed expert of a weight.
func expertName(w *Change) string {
	if w.Expert < 0 {
		return ""
	}
	return fmt.Sprintf("layer %d expert %d", w.Layer, w.Expert)
}

// layerName names the layer of a weight.
func layerName(w *Change) string {
	if w.Layer < 0 {
		return ""
	}
	return fmt.Sprintf("layer %d", w.Layer)
}

// Sheet is a row per module of each layer.
func (r *Changes) Sheet() *text.Sheet {
	s := text.NewSheet("module", ">weights", ">changed", ">relative", "rank")
	for _, g := range r.groups(moduleName) {
		s.Row(g.name, g.weights, g.changed, g.relative(), g.rank())
	}
	return s
}

// Experts is a row per routed expert, those that changed most first.
func (r *Changes) Experts() *text.Sheet {
	s := text.NewSheet("expert", ">relative", "rank")
	for _, g := range farthest(r.groups(expertName)) {
		s.Row(g.name, g.relative(), g.rank())
	}
	return s
}

// farthest sorts groups by how far they changed, and leaves out those that did not.
func farthest(groups []*changed) []*changed {
	groups = slices.DeleteFunc(groups, func(g *changed) bool { return g.changed == 0 })
	slices.SortStableFunc(groups, func(a, b *changed) int {
		return cmp.Compare(inspect.OrNaN(b.relative()), inspect.OrNaN(a.relative()))
	})
	return groups
}

// Changed says how many weights changed: "9 of 186 weights changed". It is "" if all are equal.
func (r *Changes) Changed() string {
	changed := 0
	for _, w := range r.Weights {
		if w.Different > 0 {
			changed++
		}
	}
	if changed == 0 {
		return ""
	}
	return fmt.Sprintf("%s of %s changed", text.Grouped(changed), text.Plural(len(r.Weights), "weight"))
}

// mostNamed is how many layers and experts Lines names.
const mostNamed = 5

// Lines say what changed.
func (r *Changes) Lines() (lines []string) {
	all := changed{}
	for i := range r.Weights {
		all.add(&r.Weights[i])
	}
	left := ""
	if n := len(r.NotCompared); n > 0 {
		left = fmt.Sprintf("; %d not compared", n)
	}
	if all.changed == 0 {
		return append(lines, fmt.Sprintf("against %s: %s compared, and all are equal%s", text.Word(r.Base),
			text.Plural(all.weights, "weight"), left))
	}
	lines = append(lines, fmt.Sprintf("against %s: %s, by %s of the base's RMS; rank of the changes: %s%s",
		text.Word(r.Base), r.Changed(), text.Real(all.relative()).Shown, all.rank(), left))
	routers := r.groups(func(w *Change) string {
		if w.Module != table.Router {
			return ""
		}
		return layerName(w)
	})
	for _, x := range []struct {
		what   string
		groups []*changed
	}{{"layers", r.groups(layerName)}, {"experts", r.groups(expertName)}, {"routers", routers}} {
		if most := farthest(x.groups); len(most) > 0 {
			line := x.what + " that changed most:"
			for i, g := range most[:min(len(most), mostNamed)] {
				by := text.Real(g.relative()).Shown
				line += []string{"", ","}[min(i, 1)] + fmt.Sprintf(" %s by %s (rank %s)", g.name, by, g.rank())
			}
			lines = append(lines, line)
		} else if len(x.groups) > 0 {
			lines = append(lines, fmt.Sprintf("no %s changed", x.what[:len(x.what)-1]))
		}
	}
	return lines
}

// Modules draws how far each module of each layer is from the base's; nil if there is none. Modules that did not change
// have no colour.
func (r *Changes) Modules() page.Figure {
	m := page.Heatmap{Title: "how far each module is from the base's", Name: "√(ΣD² / Σb²) of its weights", RowName: "layer",
		Scale: page.Log, NoValue: "not there, or unchanged"}
	groups := slices.DeleteFunc(r.groups(moduleName), func(g *changed) bool { return g.layer < 0 })
	for _, g := range groups {
		row, column := fmt.Sprint(g.layer), strings.TrimPrefix(g.name, fmt.Sprintf("layer %d ", g.layer))
		if !slices.Contains(m.Rows, row) {
			m.Rows = append(m.Rows, row)
		}
		if !slices.Contains(m.Columns, column) {
			m.Columns = append(m.Columns, column)
		}
	}
	for range m.Rows {
		m.Values = append(m.Values, slices.Repeat([]float64{math.NaN()}, len(m.Columns)))
	}
	for _, g := range groups {
		if g.changed > 0 {
			row := slices.Index(m.Rows, fmt.Sprint(g.layer))
			column := slices.Index(m.Columns, strings.TrimPrefix(g.name, fmt.Sprintf("layer %d ", g.layer)))
			if m.Values[row][column] = math.Inf(1); g.relative() != nil {
				m.Values[row][column] = *g.relative()
			}
		}
	}
	if groups == nil {
		return nil
	}
	return m
}

// Figure draws how far each routed expert is from the base's; nil if there is none.
func (r *Changes) Figure() page.Figure {
	groups := r.groups(expertName)
	if groups == nil {
		return nil
	}
	c := inspect.NewCells()
	for _, g := range groups {
		c.SetExpert(g.layer, g.expert, g.relative(), false)
	}
	return c.Experts(page.Heatmap{Title: "how far each expert is from the base's", Name: "√(ΣD² / Σb²) of its matrices",
		NoValue: "not finite"}, nil)
}
