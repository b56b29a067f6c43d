package page

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/text"
)

// hostile is a name that tries to be markup, an attribute, a style and a terminal's command.
const hostile = "<script>alert(1)</script>\"'&]]>--><!-- </title></style></svg>{{.}}\x00\x1b[2J\xff\u202e"

var nan, inf = math.NaN(), math.Inf(1)

// figures are drawings with everything that a drawing can hold, odd numbers among them.
func figures() map[string]Figure {
	return map[string]Figure{
		"bars": Bars{Title: "used of the bounds", Name: "share of the bound", Scale: Log, Limit: 1, Rows: []Bar{
			{Label: "layer 0, mlp", Value: .25}, {Label: hostile, Value: 3e5, Bad: true, Tip: hostile}, {Label: "none", Value: nan}, {Label: "zero", Value: 0}, {Label: "infinite", Value: inf, Bad: true, Shown: "∞"}}},
		"linear bars": Bars{Title: "load", Rows: []Bar{{Label: "expert 0", Value: 12, Shown: "12 tokens"}, {Label: "expert 1"}}},
		"empty bars":  Bars{},
		"heatmap": Heatmap{Title: hostile, Name: hostile, RowName: hostile, ColName: hostile, Rows: []string{"a", hostile}, Columns: []string{hostile, "b", "c"},
			Values: [][]float64{{1, nan, -3}, {0, inf, 2}}, Scale: Diverging, Marked: func(r, c int) bool { return r == c }, MarkName: hostile, NoValue: hostile},
		"log heatmap":   Heatmap{Rows: []string{"0"}, Columns: []string{"0", "1", "2", "3"}, Values: [][]float64{{1e-300, 0, 1e300, nan}}, Scale: Log},
		"empty heatmap": Heatmap{},
		"matrix":        Heatmap{Title: "similarity", Rows: numbers(142), Columns: numbers(142), Values: products(142), Max: 1},
		"lines": Lines{Title: "spectrum", XName: "index", YName: "singular value", XScale: Log, YScale: Log, Series: []Series{
			{"gate_proj", [][2]float64{{1, 10}, {10, 5}, {100, .1}}}, {hostile, [][2]float64{{1, 3}, {nan, nan}, {50, 1}, {100, inf}}}}},
		"empty lines": Lines{},
	}
}

func numbers(n int) (list []string) {
	for i := range n {
		list = append(list, fmt.Sprint(i))
	}
	return list
}

func products(n int) (m [][]float64) {
	for i := range n {
		m = append(m, make([]float64, n))
		for j := range n {
			m[i][j] = float64((i*j)%n) / float64(n)
		}
	}
	return m
}

// full is a page with everything that a page can hold.
func full() *Page {
	p := New(hostile)
	p.Verdict(Bad, "FAIL", hostile)
	for _, title := range []string{"Facts", "Tables", "Drawings", hostile} {
		p.Section(title)
		p.Text("%s", hostile)
	}
	p.Facts(Fact{hostile, hostile}, Fact{"version", "1"})
	p.Facts()
	s := text.NewSheet("name", ">of_limit")
	s.Add(text.Foreign(hostile), text.Whole(1234))
	p.Table(s)
	p.Fold(hostile, s)
	for _, name := range []string{"bars", "heatmap", "lines"} {
		p.Figure(figures()[name], hostile)
	}
	p.Gallery(Captioned{figures()["heatmap"], hostile}, Captioned{figures()["lines"], ""})
	return p
}

// html is a page as it is written.
func html(t *testing.T, p *Page) string {
	t.Helper()
	var b strings.Builder
	require.NoError(t, p.WriteHTML(&b))
	return b.String()
}

// parsed reads XML strictly, and returns its elements, attributes and text.
func parsed(t *testing.T, document string) (elements map[string]int, words []string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(document))
	elements = map[string]int{}
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return elements, words
		}
		require.NoError(t, err)
		switch x := token.(type) {
		case xml.StartElement:
			elements[x.Name.Local]++
			for _, a := range x.Attr {
				assert.NotRegexp(t, "^on|^style$|^(xlink:)?href$", strings.TrimPrefix(a.Name.Local, "href"), a.Name.Local)
				if a.Name.Local == "href" || a.Name.Local == "src" {
					assert.Regexp(t, "^(#|data:,$)", a.Value, "asks for nothing from anywhere")
				}
				words = append(words, a.Value)
			}
		case xml.CharData:
			words = append(words, string(x))
		}
	}
}

// TestPageIsWellFormed: whatever names hold, it stands on the page as text, and only that.
func TestPageIsWellFormed(t *testing.T) {
	page := html(t, full())
	elements, words := parsed(t, page)
	assert.Zero(t, elements["script"])
	assert.Equal(t, map[string]int{"html": 1, "body": 1, "main": 1, "h1": 1, "nav": 1, "section": 5, "figure": 5}, pick(elements, "html", "body", "main", "h1", "nav", "section", "figure"))
	seen := 0
	for _, w := range words {
		if w == text.Line(hostile) {
			seen++
		}
		assert.True(t, text.Printable(strings.NewReplacer("\n", "", "\t", "").Replace(w)), "%q", w)
	}
	assert.Greater(t, seen, 15)
	assert.NotRegexp(t, `https?:|url\(|@import`, strings.ReplaceAll(page, `xmlns="http://www.w3.org/2000/svg"`, ""))
}

// TestLegendOfALimit: its label never lies over those of the ends, and dividers lie between rows.
func TestLegendOfALimit(t *testing.T) {
	d := Heatmap{Rows: numbers(4), Columns: numbers(2), Values: [][]float64{{1, 2}, {3, 4}, {5, 6}, {7, 8}}, Scale: Log, Min: 1,
		Max: 1e9, Limit: 8, LimitName: "8 σ", Dividers: []float64{1.5}}.draw()
	at, dividers := map[string]length{}, 0
	for _, s := range d.Shapes {
		at[s.Text] = s.Y
		if s.Class == "divider" {
			dividers++
		}
	}
	require.Contains(t, at, "1e+09")
	require.Greater(t, float64(at["8 σ"]-at["1e+09"]), fontHeight-1)
	require.LessOrEqual(t, at["8 σ"], d.Height)
	require.Equal(t, 1, dividers)
}

// TestPagesPrint: what is printed is light, and hides nothing.
func TestPagesPrint(t *testing.T) {
	page := html(t, full())
	require.Contains(t, page, "@media print")
	require.Contains(t, page, "details::details-content { content-visibility: visible;")
	require.NotContains(t, page, "@media (prefers-color-scheme")
}

func pick(from map[string]int, keys ...string) map[string]int {
	picked := map[string]int{}
	for _, k := range keys {
		picked[k] = from[k]
	}
	return picked
}

// TestFiguresAreWellFormed: no number is a NaN or an infinity where a place is wanted, every
// drawing stands alone, and its bytes are always the same.
func TestFiguresAreWellFormed(t *testing.T) {
	for name, f := range figures() {
		var svg, again strings.Builder
		require.NoError(t, WriteSVG(&svg, f, hostile))
		require.NoError(t, WriteSVG(&again, figures()[name], hostile))
		assert.Equal(t, svg.String(), again.String())
		elements, words := parsed(t, svg.String())
		assert.Equal(t, map[string]int{"svg": 1, "script": 0, "style": 1}, pick(elements, "svg", "script", "style"), name)
		for _, w := range words {
			assert.NotContains(t, w, "NaN", name)
			assert.NotContains(t, w, "Inf", name)
		}
	}
	assert.Equal(t, html(t, full()), html(t, full()))
}

// svg is a drawing as it is written, without its style.
func svg(t *testing.T, f Figure) string {
	t.Helper()
	var b strings.Builder
	require.NoError(t, WriteSVG(&b, f, "m"))
	_, shapes, ok := strings.Cut(b.String(), `<g transform="translate(0 28)">`) // behind the title
	require.True(t, ok)
	return strings.Replace(shapes, "</g>\n</svg>", "\n</svg>", 1)
}

// TestBars holds a drawing to the letter: where bars end, and the limit.
func TestBars(t *testing.T) {
	assert.Equal(t, `
<text class="soft" x="76.6" y="11">of the bound</text>
<path class="grid" d="M76.6 32L76.6 93"></path>
<text class="soft mid" x="76.6" y="29">0.01</text>
<path class="grid" d="M216.6 32L216.6 93"></path>
<text class="soft mid" x="216.6" y="29">0.1</text>
<path class="grid" d="M356.6 32L356.6 93"></path>
<text class="soft mid" x="356.6" y="29">1</text>
<path class="grid" d="M496.6 32L496.6 93"></path>
<text class="soft mid" x="496.6" y="29">10</text>
<text class="end" x="70.6" y="49">mlp</text>
<path class="bar" d="M76.6 39h140v13h-140z"><title>mlp: 0.1</title></path>
<text class="soft" x="504.6" y="49">0.1</text>
<text class="end" x="70.6" y="68">self_attn</text>
<path class="badbar" d="M76.6 58h420v13h-420z"><title>self_attn: 25</title></path>
<text class="badtext" x="504.6" y="68">✗ 25</text>
<text class="end" x="70.6" y="87">norm</text>
<path class="none" d="M76.6 77h19v13h-19zM76.6 90l19 -13"><title>norm: no value</title></path>
<text class="soft" x="504.6" y="87">no value</text>
<path class="limit" d="M356.6 32L356.6 97"></path>
</svg>
`, svg(t, Bars{Name: "of the bound", Scale: Log, Min: .01, Max: 10, Limit: 1, Rows: []Bar{{Label: "mlp", Value: .1}, {Label: "self_attn", Value: 25, Bad: true}, {Label: "norm", Value: nan}}}))
}

// TestHeatmapColours: colours follow the numbers, and what has none has no colour.
func TestHeatmapColours(t *testing.T) {
	cells := svg(t, Heatmap{Rows: []string{"r"}, Columns: []string{"0", "1", "2", "3"}, Values: [][]float64{{0, 1, .5, nan}}})
	for _, want := range []string{
		`<path class="s0" d="M35 30h26v18h-26z"><title>r, 0: 0</title></path>`,
		`<path class="s31" d="M61 30h26v18h-26z"><title>r, 1: 1</title></path>`,
		`<path class="s16" d="M87 30h26v18h-26z"><title>r, 2: 0.5</title></path>`,
		`<title>r, 3: no value</title>`, `>no value</text>`,
	} {
		assert.Contains(t, cells, want)
	}
	assert.NotContains(t, cells, `marked`)
	diverging := svg(t, Heatmap{Rows: []string{"r"}, Columns: []string{"0", "1"}, Values: [][]float64{{-1, 3}}, Scale: Diverging})
	assert.Contains(t, diverging, `class="d10"`)
	assert.Contains(t, diverging, `>-3</text>`)
	clipped := svg(t, Heatmap{Rows: []string{"r"}, Columns: []string{"0", "1"}, Values: [][]float64{{0, 1e9}}, Scale: Log, Min: 1, Max: 100})
	assert.Contains(t, clipped, `>≤ 1</text>`)
	assert.Contains(t, clipped, `>≥ 100</text>`)
	low := svg(t, Heatmap{Rows: []string{"r"}, Columns: []string{"0", "1"}, Values: [][]float64{{-1, 2}}, Min: 1, Max: 2})
	assert.Contains(t, low, `>≤ 1</text>`)
	assert.Contains(t, low, `>2</text>`, "no number is beyond the end of the scale")
	high := svg(t, Heatmap{Rows: []string{"r"}, Columns: []string{"0", "1"}, Values: [][]float64{{1, 3}}, Min: 1, Max: 2})
	assert.Contains(t, high, `>1</text>`)
	assert.Contains(t, high, `>≥ 2</text>`)
}

// TestLargeMatrixIsSmall: in a large matrix all cells of one colour are one path.
func TestLargeMatrixIsSmall(t *testing.T) {
	cells := svg(t, Heatmap{Rows: numbers(150), Columns: numbers(150), Values: products(150)})
	assert.Less(t, len(cells), 1<<20)
	assert.Less(t, strings.Count(cells, "<path"), 100)
	assert.Equal(t, 150*150*6*6+steps*swatch*swatchHeight, area(t, cells))
	uniform := Heatmap{Rows: numbers(60), Columns: numbers(60), Values: products(60), Scale: Log, Min: 1e6, Max: 1e9, Quiet: true}
	cells = svg(t, uniform)
	assert.Equal(t, 60+steps, runs(cells), "a line for each row of one colour")
	assert.Equal(t, 60*60*15*15+steps*swatch*swatchHeight, area(t, cells))
	assert.NotContains(t, cells, "<title>")
	uniform.Side = 300
	assert.Equal(t, 60*60*5*5+steps*swatch*swatchHeight, area(t, svg(t, uniform)))
	uniform.Marked = func(row, col int) bool { return row == 1 && col == 2 }
	outlined := svg(t, uniform)
	assert.Contains(t, outlined, `d="M51 42h7v7h-7z"`, "around a cell of 5 pixels")
	assert.Contains(t, outlined, ">marked</text>")
	uniform.Marked = nil
	uniform.Values[7][3] = nan
	assert.Equal(t, 59+2+1+steps+1, runs(svg(t, uniform)), "two in the row with a gap, the gap, and what it means")
	uniform.Blank = true
	assert.Equal(t, 59+2+steps, runs(svg(t, uniform)))
	assert.NotContains(t, svg(t, uniform), "no value")
}

// runs counts the rectangles of a drawing, and the lines that stand for some.
func runs(drawing string) (n int) {
	for _, path := range regexp.MustCompile(`stroke-width="[0-9.]+" d="([^"]*)"`).FindAllStringSubmatch(drawing, -1) {
		n += strings.Count(path[1], "h")
	}
	return n + strings.Count(drawing, "z")
}

// area returns the area of all rectangles of a drawing.
func area(t *testing.T, drawing string) (sum float64) {
	t.Helper()
	for _, box := range regexp.MustCompile(`h([0-9.]+)v([0-9.]+)h-`).FindAllStringSubmatch(drawing, -1) {
		w, err := strconv.ParseFloat(box[1], 64)
		require.NoError(t, err)
		h, err := strconv.ParseFloat(box[2], 64)
		require.NoError(t, err)
		sum += w * h
	}
	for _, path := range regexp.MustCompile(`stroke-width="([0-9.]+)" d="([^"]*)"`).FindAllStringSubmatch(drawing, -1) {
		h, err := strconv.ParseFloat(path[1], 64)
		require.NoError(t, err)
		for _, run := range regexp.MustCompile(`h([0-9.]+)`).FindAllStringSubmatch(path[2], -1) {
			w, err := strconv.ParseFloat(run[1], 64)
			require.NoError(t, err)
			sum += w * h
		}
	}
	return sum
}

func TestTicks(t *testing.T) {
	for want, s := range map[string]span{
		"1 2 3":                           {Linear, 1, 3, true, 0},
		"0 20 40 60 80 100":               {Linear, 0, 100, false, 0},
		"-1 -0.5 0 0.5 1":                 {Diverging, -1, 1, false, 0},
		"0.001 0.01 0.1 1 10 100":         {Log, 1e-3, 100, false, 0},
		"1e-12 1e-09 1e-06 0.001 1":       {Log, 1e-12, 100, false, 0},
		"1e+11 1e+12":                     {Log, 1e11, 1e12, false, 0},
		"0 2e-05 4e-05 6e-05":             {Linear, 0, 6.5e-5, false, 0},
		"1e+308":                          {Log, 1e308, 1.5e308, false, 0},
		"-1e+308 -5e+307 0 5e+307 1e+308": {Linear, -math.MaxFloat64 / 1.5, math.MaxFloat64 / 1.5, false, 0},
	} {
		var got []string
		for _, v := range s.ticks(5) {
			got = append(got, tick(v))
		}
		assert.Equal(t, want, strings.Join(got, " "))
	}
}

func TestLabelsAreShort(t *testing.T) {
	assert.Equal(t, "model.norm", label("model.norm"))
	long := strings.Repeat("é", 45)
	assert.Equal(t, strings.Repeat("é", 43)+"…", label(long))
	assert.Equal(t, long, tipFor(long))
	assert.Empty(t, tipFor("model.norm"))
}

// FuzzPage: no name and no number makes a page that is not well-formed.
func FuzzPage(f *testing.F) {
	f.Add(hostile, 1.0, 2.0)
	f.Add("", nan, -inf)
	f.Fuzz(func(t *testing.T, name string, a, b float64) {
		p := New(name)
		p.Verdict(Good, name, name)
		p.Facts(Fact{name, name})
		for _, scale := range []scale{Linear, Log, Diverging} {
			p.Figure(Bars{Title: name, Scale: scale, Rows: []Bar{{Label: name, Value: a}, {Value: b}}}, name)
			p.Figure(Heatmap{Scale: scale, Rows: []string{name}, Columns: []string{name, name}, Values: [][]float64{{a, b}}}, name)
			p.Figure(Lines{XScale: scale, YScale: scale, Series: []Series{{name, [][2]float64{{a, b}, {b, a}}}}}, name)
		}
		_, words := parsed(t, html(t, p))
		for _, w := range words {
			if strings.HasPrefix(w, "M") && !strings.Contains(text.Line(name), w) {
				assert.NotRegexp(t, "NaN|Inf", w)
			}
		}
	})
}

// TestWriteErrorsAreReturned: a full disk is an error.
func TestWriteErrorsAreReturned(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	require.NoError(t, r.Close())
	require.NoError(t, w.Close())
	assert.Error(t, full().WriteHTML(w))
	assert.Error(t, WriteSVG(w, Bars{}, ""))
}

// TestFences: a number far outside takes no colour from the others, and is outlined; few numbers, equal ones and what
// lies within three interquartile ranges keep the whole scale.
func TestFences(t *testing.T) {
	row := []float64{nan, inf}
	for i := range 100 {
		row = append(row, float64(i))
	}
	low, high := Fences(row)
	assert.Equal(t, []float64{25 - 3*49, 74 + 3*49}, []float64{low, high})
	for _, values := range [][]float64{nil, {1, 2, 3, 4, 5, 6, 1e9}, {3, 3, 3, 3, 3, 3, 3, 3, 9}} {
		low, high = Fences(values)
		assert.True(t, math.IsInf(low, -1) && math.IsInf(high, 1), values)
	}

	map3 := func(values ...float64) string {
		d := Heatmap{Rows: []string{"0"}, Columns: numbers(len(values)), Values: [][]float64{values}}.draw()
		var classes []string
		for _, s := range d.Shapes {
			classes = append(classes, s.Class+s.Text)
		}
		return strings.Join(classes, " ")
	}
	assert.NotContains(t, map3(row[2:]...), "far")
	drawn := map3(append(row, 1e6)...)
	assert.Contains(t, drawn, "far")
	assert.Contains(t, drawn, "beyond the ends of the scale")
	assert.Contains(t, drawn, "≥ ")
}

// TestLimitOfAScale: the legend marks the limit where its colour is.
func TestLimitOfAScale(t *testing.T) {
	m := Heatmap{Rows: []string{"0"}, Columns: numbers(2), Values: [][]float64{{1, 100}}, Scale: Log, Min: 1, Max: 100, Limit: 10, LimitName: "10 σ"}
	var at, name *shape
	for _, s := range m.draw().Shapes {
		switch {
		case s.Class == "limit":
			at = &s
		case s.Text == "10 σ":
			name = &s
		}
	}
	require.NotNil(t, at)
	require.NotNil(t, name)
	assert.Contains(t, at.D, fmt.Sprintf("M%s ", name.X))
	g := m.place()
	assert.InDelta(t, g.left+swatch*steps/2, float64(name.X), 1e-9)
}

// TestTitles: a separate drawing says what it shows, and of what; on a page the caption does.
func TestTitles(t *testing.T) {
	f := Bars{Title: "load", Rows: []Bar{{Label: "expert 0", Value: 12}}}
	var b strings.Builder
	require.NoError(t, WriteSVG(&b, f, "model-x"))
	assert.Contains(t, b.String(), "<title>load: model-x</title>")
	assert.Regexp(t, `<text class="title"[^>]*>load: model-x</text>`, b.String())
	p := New("x")
	p.Figure(f, "")
	assert.NotContains(t, html(t, p), `class="title"`)
}

// TestNumbersOfLargeMaps: where cells have no tips, their numbers stand below, escaped.
func TestNumbersOfLargeMaps(t *testing.T) {
	m := Heatmap{Rows: []string{"a", hostile}, Columns: []string{"x", hostile}, Values: [][]float64{{1.23456, nan}, {inf, -2}}, Quiet: true}
	p := New("x")
	p.Figure(m, "")
	page := html(t, p)
	_, words := parsed(t, page)
	assert.Contains(t, strings.Join(words, "|"), "|\tx\t"+text.Line(hostile)+"\na\t1.23\t\n"+text.Line(hostile)+"\t+∞\t-2|")
	assert.NotContains(t, page, "<script>")
	m.Quiet = false
	p = New("x")
	p.Figure(m, "")
	assert.NotContains(t, html(t, p), "<pre>")
}

// TestLargestPages: seven maps of DeepSeek-V3's 58 × 256 experts stay below 2 MB.
func TestLargestPages(t *testing.T) {
	draw, m := rand.New(rand.NewPCG(1, 2)), Heatmap{Rows: numbers(58), Columns: numbers(256), Quiet: true}
	for range 58 {
		row := make([]float64, 256)
		for i := range row {
			row[i] = draw.NormFloat64()
		}
		m.Values = append(m.Values, row)
	}
	p := New("x")
	p.Figure(m, "")
	assert.Less(t, len(html(t, p)), 2_000_000/7)
}

// TestBeyondALimitColoursAreWarm: what lies beyond a limit is never green.
func TestBeyondALimitColoursAreWarm(t *testing.T) {
	s := Heatmap{Values: [][]float64{{1, 1e6}}, Scale: Log, Limit: 8}.span()
	assert.Equal(t, "s0", s.classOf(s.cell(1)))
	assert.Equal(t, "s4", s.classOf(s.cell(6)))
	assert.Equal(t, "w5", s.classOf(s.cell(10)))
	assert.Equal(t, "w31", s.classOf(s.cell(1e6)))
	s.limit = 0
	assert.Equal(t, "s31", s.classOf(s.cell(1e6)))
	for _, colour := range warm {
		assert.Greater(t, colour[0], 1.3*colour[1])
	}
}
