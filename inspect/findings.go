package inspect

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"dsmoe/model/weights"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// Finding is one thing that is wrong or odd in a checkpoint, and where.
type Finding struct {
	Kind Kind `json:"kind"` // how the parts of the checkpoint disagree
	problem.Problem
	Level Level `json:"-"` // in front of its line; empty if all of a list are alike
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

// Of returns the finding of the kind about a problem.
func (k Kind) Of(p problem.Problem) Finding { return Finding{Kind: k, Problem: p} }

// Mismatch returns why the numbers of a pair cannot be compared; kind is "" if they can. The checkpoint of B is called
// other.
func Mismatch(p weights.Pair, other string) (kind Kind, cause string) {
	if p.A == nil {
		return Unexpected, "only " + other + " has it"
	}
	err := Countable(p.A)
	switch {
	case err != nil:
	case p.B == nil:
		return Missing, other + " does not have it"
	case !slices.Equal(p.A.Shape, p.B.Shape):
		return Shape, fmt.Sprintf("%v, but %s's is %v", p.A.Shape, other, p.B.Shape)
	default:
		err = Countable(p.B)
	}
	if err != nil {
		return DType, err.Error()
	}
	return "", ""
}

// Problems counts the findings that are not notes.
func Problems(findings []Finding) (n int) {
	for _, f := range findings {
		if f.Kind != Note {
			n++
		}
	}
	return n
}

// line is a line of a report and the hint below it, if any.
type line struct{ Text, Hint string }

// Lines returns the findings as text, "missing: FILE: NAME: cause". Findings that differ only in the numbers of
// the tensor's name share a line, and, unless they are Broken or Note, those in different files.
func Lines(findings []Finding) (lines []line) {
	var groups []Finding
	names := map[Finding][]string{}
	for _, f := range findings {
		group := f
		group.Tensor, group.Err = "", nil
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
		prefix := string(g.Kind) + ": "
		if g.Level != "" {
			prefix = string(g.Level) + ": " + prefix
		}
		if g.File != "" {
			prefix += text.Quote(g.File) + ": "
		}
		if len(names[g]) == 0 {
			lines = append(lines, line{prefix + g.Cause, g.Hint})
		}
		for _, p := range Fold(names[g]) {
			name := p.Brief
			if len(p.Names) > 1 {
				name += fmt.Sprintf(" (%s)", text.Plural(len(p.Names), "tensor"))
			}
			lines = append(lines, line{prefix + name + ": " + g.Cause, g.Hint})
		}
	}
	return lines
}

// MaxLines is how many lines of findings a report spells out.
const MaxLines = 50

// WriteFindings writes at most limit lines, each hint below the last line that it is for.
func WriteFindings(w io.Writer, findings []Finding, limit int) error {
	lines := Lines(findings)
	shown := lines[:min(limit, len(lines))]
	for i, l := range shown {
		fmt.Fprintf(w, "  %s\n", l.Text)
		if last := i+1 == len(shown) || shown[i+1].Hint != l.Hint; last && l.Hint != "" {
			fmt.Fprintf(w, "    hint: %s\n", l.Hint)
		}
	}
	if more := len(lines) - limit; more > 0 {
		fmt.Fprintf(w, "  … and %d more; --json lists every finding\n", more)
	}
	return nil
}

// Level says how sure it is that a finding is a fault.
type Level string

// The levels of findings, the first the gravest.
const (
	Error  Level = "error"  // no healthy checkpoint has it
	Notice Level = "notice" // odd beside the rest of the model; a healthy checkpoint may have it
)

// levelOf returns the level of the findings of a kind.
func levelOf(id string) Level {
	switch id {
	case "nan", "infinite", "not-finite", "zeroed", "dead-row", "duplicate", "duplicate-matrix", "duplicate-row",
		"duplicate-layer", "head-is-embedding", "not-an-expert":
		return Error
	}
	return Notice
}

// Observation is a finding about weights: something that sets an expert, a row of a router or a tensor apart from
// those beside it, and the number that shows it. An observation says what was measured, and never that a weight may
// be left out.
type Observation struct {
	Level    Level    `json:"level"`    // of its kind
	ID       string   `json:"id"`       // its kind: "duplicate", "zeroed", …
	Layer    int      `json:"layer"`    // of the model; -1 outside the layers
	Experts  []int    `json:"experts"`  // the routed experts of the layer that it is about; may be empty
	Tensor   string   `json:"tensor"`   // the tensor, or the module of an expert
	Text     string   `json:"text"`     // a sentence without a full stop
	Value    *float64 `json:"value"`    // the measured number; null if there is none
	Expected *float64 `json:"expected"` // a median, a null value or a bound to compare Value with
	Members  []Member `json:"members"`  // everything with the same cause, by layer; never empty
}

// Member is one of the places that share the cause of a finding.
type Member struct {
	Layer   int      `json:"layer"`   // of the model; -1 outside the layers
	Experts []int    `json:"experts"` // routed experts; may be empty
	Tensor  string   `json:"tensor"`  // the tensor, or the module of the first expert
	Value   *float64 `json:"value"`   // the measured number; null if there is none
}

// AtLeast reports whether a level is as grave as another.
func (l Level) AtLeast(least Level) bool { return l == least || l == Error && least == Notice }

// CountLevels says how many findings there are of each level: "2 errors, 1 notice".
func CountLevels(levels []Level) string {
	count := map[Level]int{}
	for _, l := range levels {
		count[l]++
	}
	var parts []string
	for _, l := range []Level{Error, Notice} {
		if count[l] > 0 {
			parts = append(parts, text.Plural(count[l], string(l)))
		}
	}
	return cmp.Or(strings.Join(parts, ", "), "no finding")
}

// CodedText says that the numbers of a matrix went through codes of 4 or 8 bits.
func CodedText(bits int) string {
	if bits == 4 {
		return "its numbers went through 4 bits: at most 16 different ones in each group of 32"
	}
	return "its numbers went through 8 bits: multiples of a scale, or 8 significands, in each group of 32"
}

// writeObservations writes how many there are, and a line for each, at most MaxLines.
func writeObservations(w io.Writer, found []Observation) error {
	var levels []Level
	for _, o := range found {
		levels = append(levels, o.Level)
	}
	fmt.Fprintln(w, CountLevels(levels))
	for _, o := range found[:min(len(found), MaxLines)] {
		fmt.Fprintf(w, "  %s: %s: %s: %s\n", o.Level, o.ID, text.Quote(o.Tensor), o.Text)
	}
	if more := len(found) - MaxLines; more > 0 {
		fmt.Fprintf(w, "  … and %d more; --json lists all\n", more)
	}
	return nil
}

// WriteSheet writes a sheet as a table, lines below it, and the tensors that are not counted.
func WriteSheet(w io.Writer, s *text.Sheet, lines []string, not []NotCounted) error {
	s.WriteAs(w, text.AsTable)
	for _, n := range not[:min(len(not), MaxLines)] {
		lines = append(lines, fmt.Sprintf("not counted: %s: %s", text.Quote(n.Name), n.Cause))
	}
	if more := len(not) - MaxLines; more > 0 {
		lines = append(lines, fmt.Sprintf("… and %d more that are not counted; --json lists them", more))
	}
	for _, line := range lines {
		fmt.Fprintln(w, line)
	}
	return nil
}

// WriteAudit writes a line about a checkpoint, the findings, and what was checked.
func WriteAudit(w io.Writer, path, verdict string, findings []Finding, checked, not []string) error {
	fmt.Fprintf(w, "%s: %s\n", text.Word(path), verdict)
	WriteFindings(w, findings, MaxLines)
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
