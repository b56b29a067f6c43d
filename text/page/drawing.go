package page

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"dsmoe/text"
)

// Figure is a drawing of numbers. NaN is a missing number, and drawn as such.
type Figure interface {
	draw() *drawing
}

// WriteSVG writes a drawing as a separate SVG file, with its own style for light and dark, and its title above it:
// what is drawn, and of what, which may be empty.
func WriteSVG(w io.Writer, f Figure, of string) error {
	d := f.draw()
	d.Style = template.CSS(drawingStyle())
	if of != "" {
		d.Title += ": " + of
	}
	d.Above = titleHeight
	d.Height += titleHeight
	d.Title = first(longestTitle, d.Title)
	d.Width = max(d.Width, length(math.Ceil(1.2*width(d.Title)+24)))
	if err := templates().ExecuteTemplate(w, "drawing", d); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}

// titleHeight is the room that a title takes, longestTitle the most characters of it.
const titleHeight, longestTitle = 28, 160

// drawing is a list of texts and paths, in drawing order.
type drawing struct {
	Title         string
	Width, Height length
	Style         template.CSS // style of a separate file; empty within a page
	Above         length       // room for the title above a separate file's drawing
	Shapes        []shape
}

// shape is a text or, if Text is empty, a path.
type shape struct {
	Class, Text, D, Tip string
	X, Y                length
	Upright             bool   // the text runs upwards
	Wide                length // of a path of lines, their width; 0 for shapes with an inside
}

// length is a length in CSS pixels, written with at most two decimals.
type length float64

// String returns the length in CSS pixels.
func (l length) String() string { return path{}.with("", float64(l)).String() }

// path is the description of a path: commands and lengths.
type path []byte

// with returns the path with a command, or a space, and a length.
func (p path) with(command string, v float64) path {
	return strconv.AppendFloat(append(p, command...), math.Round(100*v)/100+0, 'f', -1, 64)
}

// String returns the text of a path.
func (p path) String() string { return string(p) }

// escaper makes a line of text, as html/template does.
var escaper = strings.NewReplacer(`"`, "&#34;", "&", "&amp;", "'", "&#39;", "+", "&#43;", "<", "&lt;", ">", "&gt;")

// Markup returns the shapes as elements of SVG. A page may have thousands, for each of which a template would take
// several times as long.
func (d *drawing) Markup() template.HTML {
	var b strings.Builder
	for i := range d.Shapes {
		s := &d.Shapes[i]
		name, inside := "path", ""
		if s.Text != "" {
			name, inside = "text", escaper.Replace(text.Line(s.Text))
		}
		joined(&b, "\n<", name, ` class="`, s.Class)
		if s.Text != "" {
			joined(&b, `" x="`, s.X.String(), `" y="`, s.Y.String())
			if s.Upright {
				joined(&b, `" transform="rotate(-90 `, s.X.String(), " ", s.Y.String(), ")")
			}
		} else {
			if s.Wide != 0 {
				joined(&b, `" stroke-width="`, s.Wide.String())
			}
			joined(&b, `" d="`, s.D)
		}
		joined(&b, `">`, inside)
		if s.Tip != "" {
			joined(&b, "<title>", escaper.Replace(text.Line(s.Tip)), "</title>")
		}
		joined(&b, "</", name, ">")
	}
	return template.HTML(b.String())
}

// joined appends parts of markup.
func joined(b *strings.Builder, parts ...string) {
	for _, s := range parts {
		b.WriteString(s)
	}
}

// text adds a text unless it is empty. The text begins, is centred or ends at x, as class says.
func (d *drawing) text(class string, x, y float64, s string) *shape {
	if s == "" {
		return &shape{}
	}
	d.Shapes = append(d.Shapes, shape{Class: class, X: length(x), Y: length(y), Text: s})
	return &d.Shapes[len(d.Shapes)-1]
}

// line adds a line.
func (d *drawing) line(class string, x1, y1, x2, y2 float64) {
	d.path(class, path{}.with("M", x1).with(" ", y1).with("L", x2).with(" ", y2).String(), "")
}

// path adds a path.
func (d *drawing) path(class, description, tip string) {
	d.Shapes = append(d.Shapes, shape{Class: class, D: description, Tip: tip})
}

// box returns the path of a rectangle.
func box(x, y, w, h float64) string {
	return path{}.with("M", x).with(" ", y).with("h", w).with("v", h).with("h", -w).String() + "z"
}

// crossed returns the path of a rectangle with a diagonal, which stands for a missing number.
func crossed(x, y, w, h float64) string {
	return box(x, y, w, h) + path{}.with("M", x).with(" ", y+h).with("l", w).with(" ", -h).String()
}

// em is a generous estimate of the width of a character of labels, fontHeight their height.
const em, fontHeight = 7.4, 13.0

// longest is the most characters shown of a label, widestNumber of the number behind a bar; their
// tips show all characters.
const longest, widestNumber = 44, 80

// label shortens a label.
func label(s string) string { return first(longest, s) }

// first returns s as a line of at most n characters.
func first(n int, s string) string {
	s = text.Line(s)
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n-1]) + "…"
}

// tipFor returns s if label shortens it, else "".
func tipFor(s string) string {
	if label(s) == text.Line(s) {
		return ""
	}
	return s
}

// widest returns the width of the widest label.
func widest(labels []string) (w float64) {
	for _, l := range labels {
		w = max(w, width(label(l)))
	}
	return w
}

// width returns the estimated width of a text.
func width(s string) float64 { return float64(em * float64(utf8.RuneCountInString(s))) }

// shown writes a number for a reader.
func shown(v float64) string {
	switch {
	case math.IsNaN(v):
		return "no value"
	case math.IsInf(v, 0):
		return strings.Replace(fmt.Sprintf("%+v", v), "Inf", "∞", 1)
	}
	return fmt.Sprintf("%.3g", v)
}

//go:embed drawing.css
var drawingRules string

// drawingStyle returns the style of drawings: drawing.css and the colours of the ramps.
func drawingStyle() string {
	var light, dark strings.Builder
	for i := range steps {
		t := (float64(i) + 0.5) / steps
		fmt.Fprintf(&light, ".s%d{fill:%[2]s;color:%[2]s}.d%[1]d{fill:%[3]s;color:%[3]s}.w%[1]d{fill:%[4]s;color:%[4]s}", i,
			viridis.at(t), lightDiverging.at(t), warm.at(t))
		fmt.Fprintf(&dark, ".d%d{fill:%[2]s;color:%[2]s}", i, darkDiverging.at(t))
	}
	return drawingRules + light.String() + "\n@media screen and (prefers-color-scheme: dark) {" + dark.String() +
		"}\n.run{fill:none;stroke:currentColor}\n"
}

// templates returns the templates of pages and drawings. The function line makes foreign text one
// printable line, which XML and readers accept.
var templates = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("").Funcs(template.FuncMap{
		"line":   text.Line,
		"header": func(c text.Column) string { return strings.ReplaceAll(c.Name, "_", " ") },
	}).Parse(pageTemplate + drawingTemplate))
})

//go:embed page.tmpl
var pageTemplate string

//go:embed drawing.tmpl
var drawingTemplate string
