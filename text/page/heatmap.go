package page

import (
	"cmp"
	"math"
	"strings"
)

// Heatmap is a matrix of numbers as colours, with a legend. Numbers that are not there (NaN) are
// crossed out.
type Heatmap struct {
	Title             string      // what is shown, for who does not see it
	Name              string      // of the numbers, with their unit
	RowName, ColName  string      // what rows and columns are
	Rows, Columns     []string    // their labels; of many, some are shown
	Values            [][]float64 // [row][column]
	Scale             Scale
	Min, Max          float64                   // ends of the scale; both 0: those of the values
	Tip               func(row, col int) string // where the pointer rests; nil is row, column and number
	Marked            func(row, col int) bool   // outlined; may be nil
	MarkName, NoValue string                    // what the legend says of marked cells, and of those without a number
}

// mostTips is the number of cells up to which each has a tip. Of more, those of one colour are
// one path.
const mostTips = 20_000

// grid is where the cells are.
type grid struct {
	left, top, w, h float64
	upright         bool // labels of columns
}

// place decides on sizes: cells between 3 and 26 pixels wide, so that a matrix of usual size is
// seen without scrolling.
func (m Heatmap) place() grid {
	g := grid{left: widest(m.Rows) + fontHeight + 14, w: clamp(900/float64(max(1, len(m.Columns))), 3, 26), h: clamp(900/float64(max(1, len(m.Rows))), 3, 18)}
	if len(m.Rows) == len(m.Columns) {
		g.w = math.Min(g.w, g.h)
		g.h = g.w
	}
	g.upright = widest(m.Columns) > g.w-2
	g.top = 2*fontHeight + 4
	if g.upright {
		g.top = widest(m.Columns) + fontHeight + 10
	}
	return g
}

func clamp(v, low, high float64) float64 { return math.Floor(math.Max(low, math.Min(high, v))) }

// every is the distance between labels that have room.
func every(step float64) int { return max(1, int(math.Ceil(fontHeight/step))) }

func (m Heatmap) draw() *drawing {
	g := m.place()
	right, bottom := g.left+float64(g.w*float64(len(m.Columns))), g.top+float64(g.h*float64(len(m.Rows)))
	d := &drawing{Title: m.Title}
	s := spanOf(m.Scale, m.Min, m.Max, func(yield func(float64)) {
		for _, row := range m.Values {
			for _, v := range row {
				yield(v)
			}
		}
	})
	m.labels(d, g, right, bottom)
	m.cells(d, g, s)
	width := m.legend(d, s, g.left, bottom+12)
	d.Width = length(math.Ceil(math.Max(right, width) + 12))
	d.Height = length(bottom + 12 + 3*fontHeight + 8)
	return d
}

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

// cells draws them, and then outlines those that are marked.
func (m Heatmap) cells(d *drawing, g grid, s span) {
	tips := len(m.Rows)*len(m.Columns) <= mostTips
	var together [steps + 1]strings.Builder // paths by colour, the last that of numbers that are not there
	var marks []string
	for i, row := range m.Values {
		for j, v := range row {
			x, y := g.left+float64(g.w*float64(j)), g.top+float64(g.h*float64(i))
			path, n := crossed(x+.5, y+.5, g.w-1, g.h-1), steps
			if !math.IsNaN(v) {
				path, n = box(x, y, g.w, g.h), s.step(v)
			}
			if tips {
				d.path(s.classOf(n), path, m.tip(i, j))
			} else {
				together[n].WriteString(path)
			}
			if m.Marked != nil && m.Marked(i, j) {
				marks = append(marks, box(x+1, y+1, g.w-2, g.h-2))
			}
		}
	}
	for n := range together {
		if together[n].Len() > 0 {
			d.path(s.classOf(n), together[n].String(), "")
		}
	}
	for _, path := range marks {
		d.path("mark", path, "")
	}
}

func (m Heatmap) tip(i, j int) string {
	if m.Tip != nil {
		return m.Tip(i, j)
	}
	return m.Rows[i] + ", " + m.Columns[j] + ": " + shown(m.Values[i][j])
}

// The measures of the legend.
const swatch, swatchHeight = 7.0, 12.0

// legend draws the colours with the numbers at their ends, and what else cells may be. It returns
// where it ends.
func (m Heatmap) legend(d *drawing, s span, x, y float64) float64 {
	low, high, missing, marked := false, false, false, false
	for i, row := range m.Values {
		for j, v := range row {
			low, high, missing = low || v < s.min, high || v > s.max, missing || math.IsNaN(v)
			marked = marked || m.Marked != nil && m.Marked(i, j)
		}
	}
	d.text("soft", x, y+fontHeight-3, label(m.Name))
	y += fontHeight + 2
	for i := range steps {
		d.rect(s.classOf(i), x+float64(swatch*float64(i)), y, swatch, swatchHeight, "")
	}
	end := x + swatch*steps
	d.text("soft", x, y+2*fontHeight, beyond("≤ ", low)+tick(s.min))
	if s.Scale == Diverging {
		d.text("soft mid", (x+end)/2, y+2*fontHeight, "0")
	}
	d.text("soft end", end, y+2*fontHeight, beyond("≥ ", high)+tick(s.max))
	add := func(there bool, class, path, name string) {
		if there {
			d.path(class, path, "")
			d.text("soft", end+38, y+10, label(name))
			end += 38 + widest([]string{name})
		}
	}
	add(missing, "none", crossed(end+14.5, y+.5, 18, 11), cmp.Or(m.NoValue, "no value"))
	add(marked, "mark", box(end+15, y+1, 17, 10), cmp.Or(m.MarkName, "marked"))
	return math.Max(end, x+widest([]string{m.Name}))
}

func beyond(sign string, some bool) string {
	if some {
		return sign
	}
	return ""
}
