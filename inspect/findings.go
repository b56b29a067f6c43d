package inspect

import (
	"fmt"
	"io"
	"strings"

	"dsmoe/text"
)

// Finding is one thing that is wrong or odd in a checkpoint, and where.
type Finding struct {
	Kind   Kind   `json:"kind"`             // how the parts of the checkpoint disagree
	File   string `json:"file,omitempty"`   // relative to the checkpoint; empty for all of it
	Tensor string `json:"tensor,omitempty"` // empty if the finding is about no tensor
	Cause  string `json:"cause"`            // what is wrong
	Hint   string `json:"hint,omitempty"`   // where to look, or what to do
}

// Kind says how config, index and files disagree.
type Kind string

// The kinds of findings. All but Note keep the checkpoint from being used.
const (
	Broken     Kind = "broken"     // a file cannot be read, or contradicts the index
	Missing    Kind = "missing"    // the config asks for a tensor that no file holds
	Shape      Kind = "shape"      // a tensor has another shape than the config asks for
	DType      Kind = "dtype"      // the model does not compute with a tensor's dtype, or not without its missing scales
	Unexpected Kind = "unexpected" // the config has no use for a tensor
	Value      Kind = "value"      // numbers that weights cannot be, or that cannot be meant
	Note       Kind = "note"       // odd, but a reader can live with it
)

// Problems counts the findings that are not notes.
func Problems(findings []Finding) (n int) {
	for _, f := range findings {
		if f.Kind != Note {
			n++
		}
	}
	return n
}

// Line is a line of a report and the hint below it, if any.
type Line struct{ Text, Hint string }

// Lines returns the findings as text, "missing: FILE: NAME: cause". Findings that differ only in the numbers of
// the tensor's name share a line, and, unless they are Broken or Note, those in different files.
func Lines(findings []Finding) (lines []Line) {
	var groups []Finding
	names := map[Finding][]string{}
	for _, f := range findings {
		group := f
		group.Tensor = ""
		if f.Kind != Broken && f.Kind != Note {
			group.File = ""
		}
		if _, known := names[group]; !known {
			groups, names[group] = append(groups, group), nil
		}
		if f.Tensor != "" {
			names[group] = append(names[group], f.Tensor)
		}
	}
	for _, g := range groups {
		lines = append(lines, g.lines(names[g])...)
	}
	return lines
}

// lines returns a line per pattern of names.
func (f *Finding) lines(names []string) (lines []Line) {
	prefix := string(f.Kind) + ": "
	if f.File != "" {
		prefix += text.Quote(f.File) + ": "
	}
	if len(names) == 0 {
		return []Line{{prefix + f.Cause, f.Hint}}
	}
	for _, p := range Fold(names) {
		name := p.Brief
		if len(p.Names) > 1 {
			name += fmt.Sprintf(" (%s)", text.Plural(len(p.Names), "tensor"))
		}
		lines = append(lines, Line{prefix + name + ": " + f.Cause, f.Hint})
	}
	return lines
}

// MaxLines is how many lines of findings a report spells out.
const MaxLines = 50

// WriteFindings writes at most limit lines, each hint below the last line that it is for.
func WriteFindings(w io.Writer, findings []Finding, limit int) error {
	var b strings.Builder
	lines := Lines(findings)
	shown := lines[:min(limit, len(lines))]
	for i, l := range shown {
		fmt.Fprintf(&b, "  %s\n", l.Text)
		if last := i+1 == len(shown) || shown[i+1].Hint != l.Hint; last && l.Hint != "" {
			fmt.Fprintf(&b, "    hint: %s\n", l.Hint)
		}
	}
	if more := len(lines) - limit; more > 0 {
		fmt.Fprintf(&b, "  … and %d more; --json lists every finding\n", more)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Observation is something that sets an expert, or a row of a router, apart from those beside it, and the
// number that shows it. A healthy checkpoint has none. An observation says what was measured, and never that
// a weight may be left out.
type Observation struct {
	ID       string   `json:"id"`       // its kind: "duplicate", "zeroed", …
	Layer    int      `json:"layer"`    // of the model
	Experts  []int    `json:"experts"`  // the routed experts that it is about; empty if it is about shared ones
	Tensor   string   `json:"tensor"`   // the tensor, or the module of an expert
	Text     string   `json:"text"`     // a sentence without a full stop
	Value    *float64 `json:"value"`    // the measured number; null if there is none
	Expected *float64 `json:"expected"` // a median, a null value or a bound to compare Value with
}

// WriteObservations writes a line for each, at most MaxLines, and how many there are.
func WriteObservations(w io.Writer, found []Observation) error {
	var b strings.Builder
	if len(found) == 0 {
		b.WriteString("no finding\n")
	} else {
		fmt.Fprintf(&b, "%s\n", text.Plural(len(found), "finding"))
	}
	for _, o := range found[:min(len(found), MaxLines)] {
		fmt.Fprintf(&b, "  %s: %s: %s\n", o.ID, text.Quote(o.Tensor), o.Text)
	}
	if more := len(found) - MaxLines; more > 0 {
		fmt.Fprintf(&b, "  … and %d more; --json lists all\n", more)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteSheet writes a sheet as a table, lines below it, and the tensors that are not counted.
func WriteSheet(w io.Writer, s *text.Sheet, lines []string, not []NotCounted) error {
	if err := s.WriteAs(w, text.AsTable); err != nil {
		return err
	}
	var b strings.Builder
	for _, line := range lines {
		b.WriteString(line + "\n")
	}
	for _, n := range not[:min(len(not), MaxLines)] {
		fmt.Fprintf(&b, "not counted: %s: %s\n", text.Quote(n.Name), n.Cause)
	}
	if more := len(not) - MaxLines; more > 0 {
		fmt.Fprintf(&b, "… and %d more that are not counted; --json lists them\n", more)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteExamination is WriteSheet, with the observations below it.
func WriteExamination(w io.Writer, s *text.Sheet, lines []string, not []NotCounted, found []Observation) error {
	if err := WriteSheet(w, s, lines, not); err != nil {
		return err
	}
	return WriteObservations(w, found)
}

// WriteAudit writes a line about a checkpoint, the findings, and what was checked.
func WriteAudit(w io.Writer, path, verdict string, findings []Finding, checked, not []string) error {
	if _, err := fmt.Fprintf(w, "%s: %s\n", text.Word(path), verdict); err != nil {
		return err
	}
	if err := WriteFindings(w, findings, MaxLines); err != nil {
		return err
	}
	t := text.Table{Align: "ll"}
	for _, what := range checked {
		t.Add("checked", what)
	}
	for _, what := range not {
		t.Add("not checked", what)
	}
	return t.WriteText(w)
}

// List joins the first eight of many numbers or names, and says how many more there are.
func List[T any](all []T) string {
	const most = 8
	var words []string
	for _, x := range all[:min(len(all), most)] {
		words = append(words, fmt.Sprint(x))
	}
	list := strings.Join(words, ", ")
	if more := len(all) - most; more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	return list
}
