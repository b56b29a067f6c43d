package inspect

import (
	"fmt"
	"io"
	"strings"

	"dsmoe/text"
)

// maxLines is how many lines of findings a report spells out.
const maxLines = 50

// group is findings that differ only in the tensor and, if the config's weights are
// what they are about, in the file.
type group struct {
	Finding
	names []string
}

// groups puts findings together, in the order of the first of each group.
func groups(findings []Finding) []group {
	var all []group
	at := map[Finding]int{}
	for _, f := range findings {
		name := f.Tensor
		f.Tensor = ""
		if f.Kind != Broken && f.Kind != Note {
			f.File = ""
		}
		i, ok := at[f]
		if !ok {
			i = len(all)
			at[f] = i
			all = append(all, group{Finding: f})
		}
		if name != "" {
			all[i].names = append(all[i].names, name)
		}
	}
	return all
}

// line is a line of a report and the hint below it, or none.
type line struct{ text, hint string }

// lines returns a line per pattern of names, "missing: FILE: NAME: cause".
func (g *group) lines() []line {
	prefix := string(g.Kind) + ": "
	if g.File != "" {
		prefix += text.Quote(g.File) + ": "
	}
	if len(g.names) == 0 {
		return []line{{prefix + g.Cause, g.Hint}}
	}
	var lines []line
	for _, p := range fold(g.names) {
		name := p.brief
		if len(p.names) > 1 {
			name += fmt.Sprintf(" (%s)", text.Plural(len(p.names), "tensor"))
		}
		lines = append(lines, line{prefix + name + ": " + g.Cause, g.Hint})
	}
	return lines
}

// writeFindings writes at most limit lines, each hint below the last line it is for.
func writeFindings(w io.Writer, findings []Finding, limit int) error {
	var lines []line
	for _, g := range groups(findings) {
		lines = append(lines, g.lines()...)
	}
	var b strings.Builder
	shown := lines[:min(limit, len(lines))]
	for i, l := range shown {
		fmt.Fprintf(&b, "  %s\n", l.text)
		if last := i+1 == len(shown) || shown[i+1].hint != l.hint; last && l.hint != "" {
			fmt.Fprintf(&b, "    hint: %s\n", l.hint)
		}
	}
	if more := len(lines) - limit; more > 0 {
		fmt.Fprintf(&b, "  … and %d more; --json lists every finding\n", more)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// writeChecked writes what was looked at, and what was not.
func writeChecked(w io.Writer, checked, not []string) error {
	t := text.Table{Align: "ll"}
	for _, what := range checked {
		t.Add("checked", what)
	}
	for _, what := range not {
		t.Add("not checked", what)
	}
	return t.WriteText(w)
}
