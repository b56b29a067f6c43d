package plan

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"dsmoe/text"
)

// WriteText writes the plan for a reader: what would be written, and how.
func (p *Plan) WriteText(w io.Writer) error {
	in, out := p.Bytes()
	var b strings.Builder
	fmt.Fprintf(&b, "plan %s\n", p.Hash)
	fmt.Fprintf(&b, "reads %s of weights from %s, writes %s: %s in %s\n", text.Bytes(in), text.Plural(len(p.Sources), "file"), text.Bytes(out),
		text.Plural(len(p.Tensors), "tensor"), text.Plural(len(p.Files), "file"))
	fmt.Fprintf(&b, "needs %s of disk\n", text.ExactBytes(p.Size()))
	WriteOperations(&b, p.OperationCounts())
	if p.Dropped > 0 {
		fmt.Fprintf(&b, "drops: %s\n", text.Plural(p.Dropped, "tensor"))
	}
	WriteNames(&b, "carries along", p.CarriedNames())
	WriteNames(&b, "leaves behind", p.Left)
	for _, n := range p.Notes {
		fmt.Fprintf(&b, "note: %s\n", n)
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return err
	}
	files := text.Table{Align: "lrr"}
	for _, f := range p.Files {
		files.Add(text.Quote(f.Name), text.Plural(f.Tensors, "tensor"), text.Bytes(f.Size))
	}
	return files.WriteText(w)
}

// WriteOperations writes a line for each operation: how many tensors it is done to.
func WriteOperations(b *strings.Builder, counts map[string]int) {
	for _, op := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(b, "%s: %s\n", op, text.Plural(counts[op], "tensor"))
	}
}

// WriteNames writes one line with the names of files, nothing if there are none.
func WriteNames(b *strings.Builder, what string, names []string) {
	if len(names) == 0 {
		return
	}
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = text.Quote(n)
	}
	fmt.Fprintf(b, "%s: %s\n", what, strings.Join(quoted, ", "))
}
