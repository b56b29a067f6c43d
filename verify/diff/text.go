package diff

import (
	"fmt"
	"io"
	"strconv"
	"strings"
)

// group is findings that differ in the number of an expert alone.
type group struct {
	name    string // with {e} for the expert
	first   Finding
	worst   Finding
	experts []int
	count   int
}

// WriteText writes a line per finding, experts of one layer together, and a summary.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	for _, g := range r.groups() {
		fmt.Fprintf(&b, "%s\n", g)
	}
	fmt.Fprintf(&b, "%s: %d tensors compared: %d equal, %d close, %d differ; %d of another dtype, %d of another shape, %d removed, %d added\n",
		r.Verdict, r.Compared, r.Counts[Equal], r.Counts[Close], r.Counts[Differs], r.DTypes, r.Counts[Shape], r.Counts[Removed], r.Counts[Added])
	_, err := io.WriteString(w, b.String())
	return err
}

// groups folds the findings by expert, in the order of their first.
func (r *Report) groups() []*group {
	var groups []*group
	at := map[string]*group{}
	for _, f := range r.Findings {
		name, expert := fold(f.Name)
		key := fmt.Sprint(name, f.Status, text(f.DTypeA), text(f.DTypeB), f.ShapeA, f.ShapeB)
		g := at[key]
		if g == nil {
			g = &group{name: name, first: f, worst: f}
			at[key] = g
			groups = append(groups, g)
		}
		g.count++
		if expert >= 0 {
			g.experts = append(g.experts, expert)
		}
		if f.RelRMS > g.worst.RelRMS || f.NonFinite > g.worst.NonFinite {
			g.worst = f
		}
	}
	return groups
}

func text(d fmt.Stringer) string {
	if s := fmt.Sprint(d); s != "<nil>" {
		return s
	}
	return ""
}

// fold takes the expert's number out of a name; -1 is none.
func fold(name string) (string, int) {
	const mark = ".mlp.experts."
	i := strings.LastIndex(name, mark)
	if i < 0 {
		return name, -1
	}
	digits, rest, _ := strings.Cut(name[i+len(mark):], ".")
	n, err := strconv.Atoi(digits)
	if err != nil {
		return name, -1
	}
	return name[:i+len(mark)] + "{e}." + rest, n
}

// String is the group's line.
func (g *group) String() string {
	name := quote(g.first.Name)
	if g.count > 1 {
		name = strings.Replace(quote(g.name), "{e}", "{"+ranges(g.experts)+"}", 1)
	}
	line := name + ": " + string(g.first.Status)
	switch f := g.worst; g.first.Status {
	case Removed:
		return fmt.Sprintf("%s: %s %v", line, *g.first.DTypeA, g.first.ShapeA)
	case Added:
		return fmt.Sprintf("%s: %s %v", line, *g.first.DTypeB, g.first.ShapeB)
	case Shape:
		return fmt.Sprintf("%s: %v, then %v", line, g.first.ShapeA, g.first.ShapeB)
	default:
		if *f.DTypeA != *f.DTypeB {
			line += fmt.Sprintf(", %s then %s", *f.DTypeA, *f.DTypeB)
		}
		if f.Status == Equal {
			return line
		}
		if g.count > 1 {
			line += ", at worst in " + quote(f.Name)
		}
		return line + fmt.Sprintf(": %d of %d values, rel RMS %.3g, max abs %.3g at %d, %d ulp, cosine %.9f%s",
			f.Different, f.Elements, f.RelRMS, f.MaxAbs, f.Worst, f.MaxULP, f.Cosine, nonFinite(f.NonFinite))
	}
}

func nonFinite(n int64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(", %d not finite", n)
}

// ranges writes ascending numbers as "0-3,7".
func ranges(n []int) string {
	var parts []string
	for len(n) > 0 {
		k := 1
		for k < len(n) && n[k] == n[0]+k {
			k++
		}
		text := strconv.Itoa(n[0])
		if k > 1 {
			text += "-" + strconv.Itoa(n[k-1])
		}
		parts = append(parts, text)
		n = n[k:]
	}
	return strings.Join(parts, ",")
}

// quote makes a name from a file fit for a terminal.
func quote(name string) string {
	q := strconv.Quote(name)
	if q == `"`+name+`"` {
		return name
	}
	return q
}
