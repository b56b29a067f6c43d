// Package page writes self-contained HTML pages and stand-alone SVG drawings.
//
// Callers fill a Page from top to bottom (Verdict, Section, Text, Facts, Table, Fold, Figure,
// Gallery) and write it once, with WriteHTML. A page holds its own style, for light and dark. It
// loads nothing, as its content security policy demands, and runs no script. Tables and drawings
// wider than the window scroll in boxes. A number that a heatmap draws has a tip, or stands in a folded table below.
//
// A Figure is a drawing: Bars, Heatmap or Lines. WriteSVG writes a drawing as a separate file.
//
// This package alone escapes text: names may hold anything. Markup is well-formed XML, and the
// same page has the same bytes on every machine.
package page

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"

	"dsmoe/text"
)

// Page is an HTML page in the making. The zero value is an empty page.
type Page struct {
	title    string
	sections []section
}

// section is a heading and its blocks. The first section may have no heading.
type section struct {
	Title  string
	ID     string
	Blocks []block
}

// block is an element of a page: one field, or a table with its summary, is set.
type block struct {
	Verdict *verdict
	Text    string
	Facts   []Fact
	Table   *text.Sheet
	Summary string // summary of a folded table
	Gallery []*picture
}

// picture is a drawing and its caption.
type picture struct {
	Drawing *drawing
	Caption string
	Numbers string // lines of what it draws, if its cells have no tips
}

// verdict is the answer of a page.
type verdict struct{ Tone, Word, Text string }

// Fact is a value with a name. A fact without a name belongs to the fact before it.
type Fact struct{ Name, Value string }

// Tone is the kind of a verdict.
type Tone string

// The tones. Each has its own sign and colour.
const (
	Good    Tone = "good"
	Bad     Tone = "bad"
	Unclear Tone = "unclear"
)

// New returns a page with a title, which is also its first heading.
func New(title string) *Page { return &Page{title: title} }

// Section begins a section. A page with more than three sections links to them at the top.
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

// Verdict adds the answer of the page: a conspicuous word, and a sentence.
func (p *Page) Verdict(tone Tone, word, sentence string) {
	p.add(block{Verdict: &verdict{string(tone), word, sentence}})
}

// Text adds a paragraph.
func (p *Page) Text(format string, args ...any) { p.add(block{Text: fmt.Sprintf(format, args...)}) }

// Facts adds a list of facts; an empty list is left out.
func (p *Page) Facts(facts ...Fact) {
	if len(facts) > 0 {
		p.add(block{Facts: facts})
	}
}

// Table adds a table for readers: the Shown of each cell.
func (p *Page) Table(s *text.Sheet) { p.add(block{Table: s}) }

// Fold adds a table that is hidden until the reader opens its summary.
func (p *Page) Fold(summary string, s *text.Sheet) { p.add(block{Table: s, Summary: summary}) }

// Figure adds a drawing with a caption; an empty caption is left out.
func (p *Page) Figure(f Figure, caption string) { p.Gallery(Captioned{f, caption}) }

// Captioned is a drawing with a caption; an empty caption is left out.
type Captioned struct {
	Figure
	Caption string
}

// Gallery adds small drawings side by side, as many in a line as fit.
func (p *Page) Gallery(figures ...Captioned) {
	var b block
	for _, f := range figures {
		numbers := ""
		if m, ok := f.Figure.(Heatmap); ok && !m.tips() {
			numbers = m.numbers()
		}
		b.Gallery = append(b.Gallery, &picture{f.draw(), f.Caption, numbers})
	}
	p.add(b)
}

// WriteHTML writes the page.
func (p *Page) WriteHTML(w io.Writer) error {
	return templates().ExecuteTemplate(w, "page", map[string]any{
		"Title": p.title, "Sections": p.sections, "Linked": len(p.sections) > 3,
		"Style": template.CSS(pageStyle + drawingStyle()),
	})
}

//go:embed page.css
var pageStyle string
