package header

import (
	"fmt"
	"slices"
	"strings"

	"dsmoe/text"
	"dsmoe/text/page"
)

// Figure draws each module's parameters, and how many of them a token uses.
func (a *Arch) Figure() page.Figure {
	unit, name := parameterUnit(a.Total.Parameters)
	bars := page.Bars{Title: "parameters of each module, and how many of them a token uses", Name: name}
	add := func(label string, n int64) {
		bars.Rows = append(bars.Rows, page.Bar{Label: label, Value: float64(n) / unit,
			Shown: text.Grouped(n) + ", " + text.Percent(n, a.Total.Parameters)})
	}
	for _, m := range append(slices.Clone(a.Modules), a.Total) {
		add(m.Module, m.Parameters)
		if m.Activated != m.Parameters {
			add(m.Module+", used by a token", m.Activated)
		}
	}
	return bars
}

// Figure draws how many sets of experts a token can get.
func (c *Comparison) Figure() page.Figure {
	bars := page.Bars{Title: "sets of experts that a token can get", Name: "log₂ of the number of sets of experts"}
	for _, l := range c.Layers {
		bars.Rows = append(bars.Rows, page.Bar{Label: l.Name, Value: l.Log2, Shown: fmt.Sprintf("%.1f", l.Log2)})
	}
	return bars
}

// Figure draws what the memory of each context and batch is made of.
func (r *MemoryReport) Figure() page.Figure {
	bars := page.Bars{Title: "memory by context and batch", Name: "GiB"}
	for _, m := range r.Rows {
		for _, part := range []struct {
			name  string
			bytes int64
		}{{"weights", m.Weights}, {"KV cache", m.KVCache}, {"prefill", m.Prefill}, {"total", m.Total}} {
			if r.LeftOut != "" && part.name == "KV cache" {
				continue
			}
			bars.Rows = append(bars.Rows, page.Bar{Label: fmt.Sprintf("%s × %d: %s", text.Grouped(m.Context), m.Batch,
				part.name),
				Value: float64(part.bytes) / (1 << 30), Shown: text.Bytes(part.bytes)})
		}
	}
	return bars
}

// maxBars is how many bars a drawing of modules has.
const maxBars = 60

// Figure draws the parameters of the nodes that have none below them, or none that are shown: the
// largest, in the order of the tree.
func (r *TreeReport) Figure() page.Figure {
	unit, name := parameterUnit(r.Tree.Parameters)
	bars := page.Bars{Title: "parameters by module", Name: name}
	r.addBars(&bars, r.Tree, "", 0)
	if n := len(bars.Rows); n > maxBars {
		sizes := make([]float64, 0, n)
		for _, b := range bars.Rows {
			sizes = append(sizes, b.Value)
		}
		slices.Sort(sizes)
		least := sizes[n-maxBars]
		bars.Rows = slices.DeleteFunc(bars.Rows, func(b page.Bar) bool { return b.Value < least })
		bars.Rows = bars.Rows[:min(maxBars, len(bars.Rows))]
		bars.Name = fmt.Sprintf(name+": the %d largest of %s modules and tensors", maxBars, text.Grouped(n))
	}
	if bars.Rows == nil {
		return nil
	}
	for i := range bars.Rows {
		bars.Rows[i].Value /= unit
	}
	return bars
}

// parameterUnit is what a drawing counts parameters in.
func parameterUnit(most int64) (unit float64, name string) {
	switch {
	case most >= 1e10:
		return 1e9, "billion parameters"
	case most >= 1e7:
		return 1e6, "million parameters"
	}
	return 1, "parameters"
}

func (r *TreeReport) addBars(bars *page.Bars, n *treeNode, path string, depth int) {
	if len(n.Children) == 0 || r.depth > 0 && depth == r.depth {
		if depth > 0 {
			bars.Rows = append(bars.Rows, page.Bar{Label: strings.TrimSuffix(strings.TrimPrefix(path, "."), ".weight"),
				Value: float64(n.Parameters), Shown: text.Grouped(n.Parameters)})
		}
		return
	}
	for _, c := range n.Children {
		r.addBars(bars, c, path+"."+c.Name, depth+1)
	}
}
