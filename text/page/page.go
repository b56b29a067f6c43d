// Package page writes self-contained HTML pages and stand-alone SVG drawings.
//
// A Page is filled from top to bottom (Verdict, Section, Text, Facts, Table, Fold, Figure) and
// written once, by WriteHTML. It holds its own style, for light and dark; it asks for nothing from
// anywhere, which it also forbids itself by a content security policy, and runs no script. Nothing
// on it is wider than the window: tables and drawings scroll in boxes of their own.
//
// A Figure is a drawing: Bars, Heatmap, Lines or Histogram. WriteSVG writes one as a file that
// stands alone.
//
// All text is escaped, here and nowhere else: names may hold anything. Markup is well-formed XML,
// and the same page has the same bytes on every machine.
package page

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"strings"

	"dsmoe/text"
)

// Page is a page that is being filled. The zero value is an empty one.
type Page struct {
	title    string
	sections []section
}

// section is a heading and what stands below it. The first one may have none.
type section struct {
	Title  string
	ID     string
	Blocks []block
}

// block is one of these things.
type block struct {
	Verdict *verdict
	Text    string
	Facts   []Fact
	Table   *text.Sheet
	Summary string // of a table that is folded
	Drawing *drawing
	Caption string
}

type verdict struct{ Tone, Word, Text string }

// Fact is something that has a name; without one it belongs to the fact before it.
type Fact struct{ Name, Value string }

// Tone says how a verdict is meant.
type Tone string

// The tones. Each has a sign of its own beside its colour.
const (
	Good    Tone = "good"
	Bad     Tone = "bad"
	Unclear Tone = "unclear"
)

// New returns a page with a title, which is also its first heading.
func New(title string) *Page { return &Page{title: title} }

// Section begins a section. Pages with more than three have links to all of them at the top.
func (p *Page) Section(title string) {
	p.sections = append(p.sections, section{Title: title, ID: fmt.Sprintf("s%d", len(p.sections))})
}

// add appends to the last section.
func (p *Page) add(b block) {
	if len(p.sections) == 0 {
		p.Section("")
	}
	last := &p.sections[len(p.sections)-1]
	last.Blocks = append(last.Blocks, b)
}

// Verdict adds the answer that the page gives: a word that catches the eye, and a sentence.
func (p *Page) Verdict(tone Tone, word, sentence string) {
	p.add(block{Verdict: &verdict{string(tone), word, sentence}})
}

// Text adds a paragraph.
func (p *Page) Text(format string, args ...any) { p.add(block{Text: fmt.Sprintf(format, args...)}) }

// Facts adds a list of things that have names.
func (p *Page) Facts(facts ...Fact) {
	if len(facts) > 0 {
		p.add(block{Facts: facts})
	}
}

// Table adds a table, as its readers see it: the Shown of each cell.
func (p *Page) Table(s *text.Sheet) { p.add(block{Table: s}) }

// Fold adds a table that is hidden until its summary is opened.
func (p *Page) Fold(summary string, s *text.Sheet) { p.add(block{Table: s, Summary: summary}) }

// Figure adds a drawing with a caption; an empty one is left out.
func (p *Page) Figure(f Figure, caption string) { p.add(block{Drawing: f.draw(), Caption: caption}) }

// WriteHTML writes the page.
func (p *Page) WriteHTML(w io.Writer) error {
	return templates.ExecuteTemplate(w, "page", map[string]any{
		"Title": p.title, "Sections": p.sections, "Linked": len(p.sections) > 3, "Style": template.CSS(pageStyle + drawingStyle()),
	})
}

// templates are those of the page and of drawings. The function line makes foreign text one
// printable line, so that neither XML nor a reader meets what it cannot take.
var templates = template.Must(template.New("").Funcs(template.FuncMap{
	"line":   text.Line,
	"header": func(c text.Column) string { return strings.ReplaceAll(c.Name, "_", " ") },
}).Parse(pageTemplate + drawingTemplate))

//go:embed page.css
var pageStyle string

//go:embed page.tmpl
var pageTemplate string

//go:embed drawing.tmpl
var drawingTemplate string
