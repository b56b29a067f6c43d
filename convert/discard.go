package convert

import (
	"fmt"
	"io"
	"strings"

	"dsmoe/convert/internal/engine"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// DiscardReport is what Discard found. It is JSON as it stands.
type DiscardReport struct {
	Path       string            `json:"path"`       // as it was given
	Removed    bool              `json:"removed"`    // else it is listed alone
	Unfinished []engine.Leftover `json:"unfinished"` // what was left, beside or in the place of the output
}

// Discard removes what unfinished conversions to dst left. list: it removes nothing, and lists what conversions to other
// outputs in the directory dst left, too.
func Discard(dst string, list bool, s Settings) (*DiscardReport, error) {
	target, err := targetOf(dst)
	if err != nil {
		return nil, err
	}
	r := &DiscardReport{Path: dst, Removed: !list, Unfinished: []engine.Leftover{}}
	find := engine.Discard
	if list {
		find = engine.Leftovers
	}
	found, err := find(target, s)
	if err != nil {
		return nil, problem.In(dst, problem.Of("", err)...)
	}
	r.Unfinished = append(r.Unfinished, found...)
	return r, nil
}

// WriteText writes a line for each unfinished output.
func (r *DiscardReport) WriteText(w io.Writer) error {
	var b strings.Builder
	what := "unfinished"
	if r.Removed {
		what = "removed"
	}
	for _, x := range r.Unfinished {
		fmt.Fprintf(&b, "%s: %s, %s", what, text.Quote(x.Dir), text.Bytes(x.Bytes))
		if x.Uploads > 0 {
			fmt.Fprintf(&b, " and %s", text.Plural(x.Uploads, "upload"))
		}
		fmt.Fprintf(&b, ", of %s\n", text.Quote(x.Output))
	}
	if len(r.Unfinished) == 0 {
		fmt.Fprintf(&b, "%s: nothing unfinished was found\n", text.Quote(r.Path))
	}
	_, err := io.WriteString(w, b.String())
	return err
}
