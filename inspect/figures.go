package inspect

import (
	"maps"
	"math"
	"slices"
	"strconv"

	"dsmoe/text"
	"dsmoe/text/page"
)

// cells are numbers that have a row and a column, for a heatmap.
type cells struct {
	Unsorted bool // rows and columns keep the order in which they came; otherwise they are in the order of names

	rows, columns []string
	values        map[[2]string]float64
	marked        map[[2]string]bool
}

// NewCells returns no cells.
func NewCells() *cells { return &cells{values: map[[2]string]float64{}, marked: map[[2]string]bool{}} }

// at returns the key of a row and a column, and adds them if they are new.
func (c *cells) at(row, column string) [2]string {
	if !slices.Contains(c.rows, row) {
		c.rows = append(c.rows, row)
	}
	c.AddColumn(column)
	return [2]string{row, column}
}

// AddColumn adds a column if it is new.
func (c *cells) AddColumn(name string) {
	if !slices.Contains(c.columns, name) {
		c.columns = append(c.columns, name)
	}
}

// Columns returns how many columns there are, and whether one of them has that name.
func (c *cells) Columns(name string) (n int, known bool) {
	return len(c.columns), slices.Contains(c.columns, name)
}

// Raise sets a number unless a larger one is there; nil only adds the row and the column.
func (c *cells) Raise(row, column string, v *float64) {
	at := c.at(row, column)
	if old, ok := c.values[at]; v != nil && (!ok || old < *v) {
		c.values[at] = *v
	}
}

// Add adds to a number, which is 0 at first.
func (c *cells) Add(row, column string, v float64) { c.values[c.at(row, column)] += v }

// Mark marks a cell.
func (c *cells) Mark(row, column string) { c.marked[c.at(row, column)] = true }

// SetExpert sets the number of an expert, and marks the expert; expert -1 is the shared ones, and nil is no number.
func (c *cells) SetExpert(layer, expert int, v *float64, mark bool) {
	column := "shared"
	if expert >= 0 {
		column = strconv.Itoa(expert)
	}
	at := c.at(LayerLabel(layer), column)
	if v != nil {
		c.values[at] = *v
	}
	if mark {
		c.marked[at] = true
	}
}

// outsideRow is the row of tensors outside the layers.
const outsideRow = "no layer"

// LayerLabel returns the name of a layer's row; -1 stands for no layer.
func LayerLabel(layer int) string {
	if layer < 0 {
		return outsideRow
	}
	return strconv.Itoa(layer)
}

// FoundMark is what a legend says of cells that findings name.
const FoundMark = "named by a finding"

// FromZero ends a scale that begins at 0, wherever the numbers end.
const FromZero = 1e-30

// Experts draws a number of each expert of each layer, and marks the experts that findings name.
func (c *cells) Experts(m page.Heatmap, found []Observation) page.Figure {
	for _, o := range found {
		for _, at := range o.Members {
			for _, e := range at.Experts {
				c.SetExpert(at.Layer, e, nil, true)
			}
		}
	}
	m.RowName, m.ColName = "layer", "expert"
	if m.MarkName == "" {
		m.MarkName = FoundMark
	}
	return c.Heatmap(m)
}

// mostTips is the number of cells up to which each shows its number as a tip: 4000 of them take half a megabyte.
const mostTips = 4000

// Heatmap fills in the cells of a heatmap; nil without a cell. A linear scale with an end grows to the numbers above it,
// but not to outliers: see page.Fences.
func (c *cells) Heatmap(m page.Heatmap) page.Figure {
	if len(c.values)+len(c.marked) == 0 {
		return nil
	}
	if m.Scale == page.Linear && m.Max > 0 {
		most := m.Max
		for _, v := range c.values {
			most = max(most, v)
		}
		_, fence := page.Fences(slices.Collect(maps.Values(c.values)))
		m.Max = max(m.Max, min(most, fence))
	}
	if m.Rows, m.Columns = slices.Clone(c.rows), slices.Clone(c.columns); !c.Unsorted {
		slices.SortFunc(m.Rows, text.CompareNames)
		slices.SortFunc(m.Columns, text.CompareNames)
	}
	for _, row := range m.Rows {
		line := make([]float64, len(m.Columns))
		for k, column := range m.Columns {
			v, ok := c.values[[2]string{row, column}]
			if line[k] = v; !ok {
				line[k] = math.NaN()
			}
		}
		m.Values = append(m.Values, line)
	}
	if len(c.marked) > 0 {
		m.Marked = func(row, col int) bool { return c.marked[[2]string{m.Rows[row], m.Columns[col]}] }
	}
	m.Quiet = m.Quiet || len(m.Rows)*len(m.Columns) > mostTips
	return m
}

// OrNaN returns the number; NaN for nil.
func OrNaN(v *float64) float64 {
	if v == nil {
		return math.NaN()
	}
	return *v
}
