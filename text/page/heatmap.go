package page

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"dsmoe/text"
)

// Heatmap is a drawing of a matrix of numbers as colours, with a legend. Missing numbers (NaN) are
// crossed out.
type Heatmap struct {
	Title             string      // description for screen readers
	Name              string      // name of the numbers, with their unit
	RowName, ColName  string      // what rows and columns are
	Rows, Columns     []string    // labels; crowded labels are thinned out
	Values            [][]float64 // [row][column]
	Scale             scale
	Min, Max          float64                   // ends of the scale; both 0: ends of the values, but see Fences
	Limit             float64                   // a number that the legend marks, and beyond which colours are warm; 0 is none
	LimitName         string                    // what the legend says there
	Dividers          []float64                 // lines across, at so many rows from the top
	Tip               func(row, col int) string // text under the pointer; nil means row, column and number
	Marked            func(row, col int) bool   // reports whether to outline a cell; may be nil
	Blank             bool                      // missing numbers are left blank, not crossed out
	Side              float64                   // approximate width and height in pixels; 0 means 900
	Quiet             bool                      // cells have no tips, which makes the drawing many times smaller
	MarkName, NoValue string                    // the legend's words for marked cells and for missing numbers
}

// mostTips is the most cells that have tips. In larger drawings all cells of one colour are one
// path.
const mostTips = 20_000

// grid is the position and size of the cells.
type grid struct {
	left, top, w, h float64
	upright         bool // labels of columns run upwards
}

// tips reports whether each cell has a tip.
func (m Heatmap) tips() bool { return !m.Quiet && len(m.Rows)*len(m.Columns) <= mostTips }

// numbers returns a line of column names, then one for each row, with tabs between.
func (m Heatmap) numbers() string {
	var b strings.Builder
	for _, column := range m.Columns {
		b.WriteString("\t" + text.Line(column))
	}
	for i, row := range m.Values {
		b.WriteString("\n" + text.Line(m.Rows[i]))
		for _, v := range row {
			b.WriteString("\t")
			if !math.IsNaN(v) {
				b.WriteString(shown(v))
			}
		}
	}
	return b.String()
}

// place chooses the sizes: whole pixels, so that no seams show, and cells of 3 to 26 pixels, so that
// a matrix of usual size needs no scrolling.
func (m Heatmap) place() grid {
	side := cmp.Or(m.Side, 900)
	g := grid{
		left: math.Ceil(widest(m.Rows)) + fontHeight + 14,
		w:    clamp(side/float64(max(1, len(m.Columns))), 3, 26),
		h:    clamp(side/float64(max(1, len(m.Rows))), 3, 18),
	}
	if len(m.Rows) == len(m.Columns) {
		g.w = math.Min(g.w, g.h)
		g.h = g.w
	}
	g.upright = widest(m.Columns) > g.w-2
	g.top = 2*fontHeight + 4
	if g.upright {
		g.top = math.Ceil(widest(m.Columns)) + fontHeight + 10
	}
	return g
}

// clamp returns ⌊v⌋, at least low and at most high.
func clamp(v, low, high float64) float64 { return math.Floor(math.Max(low, math.Min(high, v))) }

// every returns the least distance, in rows, between labels that do not overlap.
func every(step float64) int { return max(1, int(math.Ceil(fontHeight/step))) }

func (m Heatmap) draw() *drawing {
	g := m.place()
	right, bottom := g.left+float64(g.w*float64(len(m.Columns))), g.top+float64(g.h*float64(len(m.Rows)))
	d := &drawing{Title: m.Title}
	s := m.span()
	m.labels(d, g, right, bottom)
	far := m.outliers(s)
	m.cells(d, g, s, far)
	width := m.legend(d, s, len(far) > 0, g.left, bottom+12)
	d.Width = length(math.Ceil(math.Max(right, width) + 12))
	d.Height = length(bottom + 12 + 3*fontHeight + 8)
	if m.Limit != 0 {
		d.Height += fontHeight
	}
	return d
}

// span returns the scale of the cells.
func (m Heatmap) span() span {
	low, high := math.Inf(-1), math.Inf(1)
	if m.Scale != Log {
		low, high = Fences(slices.Concat(m.Values...))
	}
	s := spanOf(m.Scale, m.Min, m.Max, func(yield func(float64)) {
		for _, row := range m.Values {
			for _, v := range row {
				if !math.IsInf(v, 0) {
					yield(math.Max(low, math.Min(high, v)))
				}
			}
		}
	})
	s.limit = m.Limit
	return s
}

// Fences returns the ends that a scale has at most, so that the few numbers far outside do not take all colours: three
// times the interquartile range beyond the quartiles. Few or equal numbers have none: infinities.
func Fences(values []float64) (low, high float64) {
	const few = 8
	values = slices.DeleteFunc(slices.Clone(values), func(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) })
	slices.Sort(values)
	if n := len(values); n >= few {
		if first, third := values[n/4], values[n-1-n/4]; first < third {
			by := float64(3 * (third - first))
			return first - by, third + by
		}
	}
	return math.Inf(-1), math.Inf(1)
}

// labels draws the labels and names of rows and columns.
func (m Heatmap) labels(d *drawing, g grid, right, bottom float64) {
	d.text("soft", g.left, fontHeight-2, label(m.ColName))
	name := d.text("soft mid", fontHeight-2, (g.top+bottom)/2, label(m.RowName))
	name.Upright = true
	for i, by := 0, every(g.h); i < len(m.Rows); i += by {
		d.text("end", g.left-5, g.top+float64(g.h*(float64(i)+.5))+4, label(m.Rows[i])).Tip = tipFor(m.Rows[i])
	}
	by := 1
	if g.upright {
		by = every(g.w)
	}
	for i := 0; i < len(m.Columns); i += by {
		x := g.left + float64(g.w*(float64(i)+.5))
		if !g.upright {
			d.text("mid", x, g.top-5, label(m.Columns[i]))
			continue
		}
		l := d.text("", x+4, g.top-5, label(m.Columns[i]))
		l.Upright, l.Tip = true, tipFor(m.Columns[i])
	}
}

// cells draws the cells, then the dividers, and the outlines of outliers, far, and of marked cells.
func (m Heatmap) cells(d *drawing, g grid, s span, far [][2]int) {
	tips := m.tips()
	var together [steps + 1]trail // by colour, the last for missing numbers
	var marks []string
	for i, row := range m.Values {
		run := 0 // number of cells of the same colour before this one, which share its rectangle
		for j, v := range row {
			x, y := g.left+float64(g.w*float64(j)), g.top+float64(g.h*float64(i))
			line, n := "", s.cell(v)
			switch {
			case n == steps:
				line = crossed(x+.5, y+.5, g.w-1, g.h-1)
			case tips:
				line = box(x, y, g.w, g.h)
			default:
				by := path{}.with("m", x-float64(g.w*float64(run))-together[n].x).with(" ", y+g.h/2-together[n].y)
				line = by.with("h", g.w*float64(run+1)).String()
			}
			switch {
			case tips && (n < steps || !m.Blank):
				tip := "" // the text under the pointer
				if m.Tip != nil {
					tip = m.Tip(i, j)
				} else {
					tip = m.Rows[i] + ", " + m.Columns[j] + ": " + shown(v)
				}
				d.path(s.classOf(n), line, tip)
			case n < steps && j+1 < len(row) && s.cell(row[j+1]) == n:
				run++
			case n < steps || !m.Blank:
				together[n].WriteString(line)
				together[n].x, together[n].y = x+g.w, y+g.h/2
				run = 0
			}
			if m.isMarked(i, j) {
				marks = append(marks, g.outline(x, y))
			}
		}
	}
	for n := range together {
		if together[n].Len() == 0 {
			continue
		}
		d.path(s.classOf(n), together[n].String(), "")
		if n < steps {
			last := &d.Shapes[len(d.Shapes)-1]
			last.Class, last.Wide = last.Class+" run", length(g.h)
		}
	}
	if len(far) > 0 {
		var path strings.Builder
		for _, at := range far {
			path.WriteString(g.outline(g.left+float64(g.w*float64(at[1])), g.top+float64(g.h*float64(at[0]))))
		}
		d.path("far", path.String(), "")
	}
	for _, at := range m.Dividers {
		y := g.top + float64(g.h*at)
		d.line("divider", g.left-6, y, g.left+float64(g.w*float64(len(m.Columns))), y)
	}
	for _, path := range marks {
		d.path("mark", path, "")
	}
}

// trail is a path of lines, and where the last of them ends.
type trail struct {
	strings.Builder
	x, y float64
}

// outliers returns the cells beyond the ends of the scale that are not marked, unless these are many.
func (m Heatmap) outliers(s span) (cells [][2]int) {
	const part = 10 // one in so many is an outlier
	for i, row := range m.Values {
		for j, v := range row {
			if (v < s.min || v > s.max) && !m.isMarked(i, j) {
				cells = append(cells, [2]int{i, j})
			}
		}
	}
	if len(cells) > max(1, len(m.Rows)*len(m.Columns)/part) {
		return nil
	}
	return cells
}

// isMarked reports whether a cell is to be outlined.
func (m Heatmap) isMarked(row, col int) bool { return m.Marked != nil && m.Marked(row, col) }

// outline returns the path around a cell: within the cell, or around a small one.
func (g grid) outline(x, y float64) string {
	by := 1.0
	if math.Min(g.w, g.h) < 8 {
		by = -1
	}
	return box(x+by, y+by, g.w-float64(2*by), g.h-float64(2*by))
}

// The measures of the legend.
const swatch, swatchHeight = 7.0, 12.0

// legend draws the colours with the numbers at their ends, and the signs of missing and marked cells,
// and of outliers if there are any, far. It returns its right end.
func (m Heatmap) legend(d *drawing, s span, far bool, x, y float64) float64 {
	low, high, missing, marked := false, false, false, false
	for i, row := range m.Values {
		for j, v := range row {
			low, high = low || v < s.min, high || v > s.max
			missing = missing || math.IsNaN(v) && !m.Blank
			marked = marked || m.isMarked(i, j)
		}
	}
	d.text("soft", x, y+fontHeight-3, label(m.Name))
	y += fontHeight + 2
	for i := range steps {
		d.path(s.classOf(i), box(x+float64(swatch*float64(i)), y, swatch, swatchHeight), "")
	}
	end := x + swatch*steps
	d.text("soft", x, y+2*fontHeight, beyond("≤ ", low)+shown(s.min))
	if s.scale == Diverging {
		d.text("soft mid", (x+end)/2, y+2*fontHeight, "0")
	}
	d.text("soft end", end, y+2*fontHeight, beyond("≥ ", high)+shown(s.max))
	if at := x + float64(swatch*steps*s.at(m.Limit)); m.Limit != 0 {
		d.line("limit", at, y-2, at, y+2*fontHeight+3) // its label is below those of the ends
		d.text("soft mid", at, y+3*fontHeight, label(m.LimitName))
	}
	add := func(used bool, class, path, name string) {
		if used {
			d.path(class, path, "")
			d.text("soft", end+38, y+10, label(name))
			end += 38 + widest([]string{name})
		}
	}
	add(missing, "none", crossed(end+14.5, y+.5, 18, 11), cmp.Or(m.NoValue, "no value"))
	add(marked, "mark", box(end+15, y+1, 17, 10), cmp.Or(m.MarkName, "marked"))
	add(far, "far", box(end+15, y+1, 17, 10), "beyond the ends of the scale")
	return math.Max(end, x+widest([]string{m.Name}))
}

// beyond returns the sign for numbers beyond the end of the scale.
func beyond(sign string, some bool) string {
	if some {
		return sign
	}
	return ""
}
