package inspect

// What reports draw: for each one drawing, of the numbers that its sheet has.

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"dsmoe/model/weights"
	"dsmoe/text"
	"dsmoe/text/page"
)

// cells are numbers that have a row and a column, for a heatmap.
type cells struct {
	unsorted      bool // rows and columns stand in the order in which they come, else in that of names
	rows, columns []string
	row, column   map[string]int
	values        map[[2]int]float64
	marked        map[[2]int]bool
}

func newCells() *cells {
	return &cells{row: map[string]int{}, column: map[string]int{}, values: map[[2]int]float64{}, marked: map[[2]int]bool{}}
}

// at returns the place of a row and a column, and adds them if they are new.
func (c *cells) at(row, column string) [2]int {
	return [2]int{indexOf(row, &c.rows, c.row), indexOf(column, &c.columns, c.column)}
}

// indexOf returns the place of a name, and adds it if it is new.
func indexOf(name string, names *[]string, index map[string]int) int {
	i, ok := index[name]
	if !ok {
		i = len(*names)
		index[name], *names = i, append(*names, name)
	}
	return i
}

// set sets a number; nil is none.
func (c *cells) set(row, column string, v *float64) {
	at := c.at(row, column)
	if v != nil {
		c.values[at] = *v
	}
}

// raise sets a number unless a larger one is there.
func (c *cells) raise(row, column string, v *float64) {
	at := c.at(row, column)
	if old, ok := c.values[at]; v != nil && (!ok || old < *v) {
		c.values[at] = *v
	}
}

// add adds to a number, which is 0 at first.
func (c *cells) add(row, column string, v float64) { c.values[c.at(row, column)] += v }

// mark marks a cell.
func (c *cells) mark(row, column string) { c.marked[c.at(row, column)] = true }

// heatmap fills in the cells of a heatmap; nil if there are none. A linear
// scale that has an end has room for what is above that.
func (c *cells) heatmap(m page.Heatmap) page.Figure {
	if len(c.values)+len(c.marked) == 0 {
		return nil
	}
	if m.Scale == page.Linear && m.Max > 0 {
		for _, v := range c.values {
			m.Max = max(m.Max, v)
		}
	}
	if m.Rows, m.Columns = c.rows, c.columns; !c.unsorted {
		m.Rows, m.Columns = sortedNames(c.rows), sortedNames(c.columns)
	}
	marked := map[[2]int]bool{}
	for i, row := range m.Rows {
		line := make([]float64, len(m.Columns))
		for k, column := range m.Columns {
			at := [2]int{c.row[row], c.column[column]}
			v, ok := c.values[at]
			if line[k] = v; !ok {
				line[k] = math.NaN()
			}
			marked[[2]int{i, k}] = c.marked[at]
		}
		m.Values = append(m.Values, line)
	}
	if m.Marked == nil && len(c.marked) > 0 {
		m.Marked = func(row, col int) bool { return marked[[2]int{row, col}] }
	}
	m.Quiet = m.Quiet || len(m.Rows)*len(m.Columns) > mostTips
	return m
}

// mostTips is the number of cells up to which each tells its number: of 4000, half a megabyte.
const mostTips = 4000

// sortedNames sorts names, numbers by value and before words.
func sortedNames(names []string) []string {
	return slices.SortedFunc(slices.Values(names), text.CompareNames)
}

// The rows and columns of what is in no layer, and of the shared experts.
const (
	outsideRow   = "no layer"
	sharedColumn = "shared"
)

// layerLabel is the row of a layer; -1 is none.
func layerLabel(layer int) string {
	if layer < 0 {
		return outsideRow
	}
	return strconv.Itoa(layer)
}

// expertLabel is the column of an expert; -1 are the shared ones.
func expertLabel(expert int) string {
	if expert < 0 {
		return sharedColumn
	}
	return strconv.Itoa(expert)
}

// Figure draws what the sheet is of: by tensor the largest magnitude in each layer of what names
// alike, by expert standard deviations, else a bar of the standard deviation of each group. It
// returns nil if there are no numbers.
func (r *StatsReport) Figure() page.Figure {
	switch r.By {
	case ByTensor:
		return r.tensorFigure()
	case ByExpert:
		return r.expertFigure()
	}
	bars := page.Bars{Title: "standard deviation of the weights of each " + string(r.By), Name: "standard deviation"}
	for _, g := range r.Groups {
		bars.Rows = append(bars.Rows, page.Bar{Label: g.Name, Value: orNaN(g.Std), Bad: g.NaN+g.Infinite > 0})
	}
	if bars.Rows == nil {
		return nil
	}
	return bars
}

// orNaN is a number that may not be there.
func orNaN(v *float64) float64 {
	if v == nil {
		return math.NaN()
	}
	return *v
}

func (r *StatsReport) expertFigure() page.Figure {
	c := newCells()
	for _, g := range r.Groups {
		at := placeOf(g.Name + ".")
		row, column := layerLabel(at.layer), expertLabel(at.expert)
		c.set(row, column, g.Std)
		if g.NaN+g.Infinite > 0 {
			c.mark(row, column)
		}
	}
	return c.heatmap(page.Heatmap{Title: "standard deviation of each expert's weights", Name: "standard deviation",
		RowName: "layer", ColName: "expert", MarkName: "has numbers that are not finite", NoValue: "no expert, or no finite number"})
}

// maxKinds is how many columns a drawing of tensors has: the names of a checkpoint's own are
// unbounded.
const maxKinds = 40

// otherKinds is the column of the others.
const otherKinds = "(others)"

func (r *StatsReport) tensorFigure() page.Figure {
	c := newCells()
	for _, t := range r.Tensors {
		row, kind := layerLabel(placeOf(t.Name).layer), kindOf(t.Name)
		if _, known := c.column[kind]; !known && len(c.columns) >= maxKinds {
			kind = otherKinds
		}
		c.raise(row, kind, t.AbsMax)
		if t.NaN+t.Infinite > 0 {
			c.mark(row, kind)
		}
	}
	return c.heatmap(page.Heatmap{Title: "largest magnitude in each layer's tensors", Name: "largest magnitude", Scale: page.Log,
		RowName: "layer", ColName: "tensor", MarkName: "has numbers that are not finite", Blank: true})
}

// kindOf is what tensors of other layers and experts share of a name:
// "mlp.experts.*.up_proj".
func kindOf(name string) string {
	if before, _, after, ok := weights.CutExpert(name); ok {
		name = before + "*" + after
	}
	kind := strings.TrimSuffix(strings.TrimPrefix(name, "model."), ".weight")
	if at := placeOf(name); at.layer >= 0 {
		kind = strings.TrimPrefix(kind, fmt.Sprintf("layers.%d.", at.layer))
	}
	return kind
}

// Figure draws the load of each expert in each layer, whatever the rows of the sheet are.
func (r *Routing) Figure() page.Figure {
	c := newCells()
	for _, l := range r.Layers {
		for _, e := range l.Experts {
			c.set(layerLabel(l.Layer), expertLabel(e.Expert), &e.Load)
			if e.Tokens == 0 {
				c.mark(layerLabel(l.Layer), expertLabel(e.Expert))
			}
		}
	}
	return c.heatmap(page.Heatmap{Title: "load of each expert by " + text.Plural(r.Tokens, "token"), Name: "load: 1 is a fair share",
		RowName: "layer", ColName: "expert", Max: 1, MarkName: "none of these tokens"})
}

// Figure draws each module's parameters, and how many of them a token uses.
func (a *Arch) Figure() page.Figure {
	unit, name := parameterUnit(a.Total.Parameters)
	bars := page.Bars{Title: "parameters of each module, and how many of them a token uses", Name: name}
	add := func(label string, n int64) {
		bars.Rows = append(bars.Rows, page.Bar{Label: label, Value: float64(n) / unit, Shown: text.Grouped(n) + ", " + text.Percent(n, a.Total.Parameters)})
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
			bars.Rows = append(bars.Rows, page.Bar{Label: fmt.Sprintf("%s × %d: %s", text.Grouped(m.Context), m.Batch, part.name),
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

func (r *TreeReport) addBars(bars *page.Bars, n *TreeNode, path string, depth int) {
	if len(n.Children) == 0 || r.depth > 0 && depth == r.depth {
		if depth > 0 {
			bars.Rows = append(bars.Rows, page.Bar{Label: strings.TrimSuffix(strings.TrimPrefix(path, "."), ".weight"), Value: float64(n.Parameters), Shown: text.Grouped(n.Parameters)})
		}
		return
	}
	for _, c := range n.Children {
		r.addBars(bars, c, path+"."+c.Name, depth+1)
	}
}
