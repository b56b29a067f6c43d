package convert

// Reports as text.

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"dsmoe/convert/safetensors"
)

// WriteText writes what was done, a finding a line.
func (r *Report) WriteText(w io.Writer) error {
	path := safetensors.Quote(r.Path)
	state := "not verified"
	if r.Verified {
		state = "verified"
	}
	if r.Already {
		state = "was complete already, matches its manifest"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d tensors, %d bytes in %s, %s\n", path, r.Tensors, r.Bytes, plural(len(r.Files), "file"), state)
	if r.Resumed > 0 {
		fmt.Fprintf(&b, "resumed: %d bytes were there\n", r.Resumed)
	}
	writeOperations(&b, r.Operations)
	writeList(&b, "carried along", r.Carried)
	writeList(&b, "left behind", r.Left)
	if r.Dropped > 0 {
		fmt.Fprintf(&b, "dropped: %s\n", plural(r.Dropped, "tensor"))
	}
	for _, t := range r.Lost {
		fmt.Fprintf(&b, "lost: %s: %d elements became infinite, %d zero\n", safetensors.Quote(t.Name), t.Overflow, t.Flushed)
	}
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "note: %s\n", n)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func writeOperations(b *strings.Builder, operations map[string]int) {
	for _, op := range slices.Sorted(maps.Keys(operations)) {
		fmt.Fprintf(b, "%s: %s\n", op, plural(operations[op], "tensor"))
	}
}

func writeList(b *strings.Builder, what string, names []string) {
	if len(names) == 0 {
		return
	}
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = safetensors.Quote(n)
	}
	fmt.Fprintf(b, "%s: %s\n", what, strings.Join(quoted, ", "))
}

func plural(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// WriteText writes the plan for a reader: what would be written, and how.
func (p *Plan) WriteText(w io.Writer) error {
	in, out := p.Bytes()
	var b strings.Builder
	fmt.Fprintf(&b, "plan %s\n", p.Hash)
	fmt.Fprintf(&b, "reads %d bytes of weights from %s, writes %d bytes: %s in %s\n", in, plural(len(p.Sources), "file"), out,
		plural(len(p.Tensors), "tensor"), plural(len(p.Files), "file"))
	fmt.Fprintf(&b, "needs %d bytes of disk\n", p.Size())
	operations := map[string]int{}
	for _, t := range p.Tensors {
		for _, op := range t.Operations {
			operations[op]++
		}
	}
	writeOperations(&b, operations)
	if p.Dropped > 0 {
		fmt.Fprintf(&b, "drops: %s\n", plural(p.Dropped, "tensor"))
	}
	var carried []string
	for _, f := range p.Others {
		if f.Carried {
			carried = append(carried, f.Name)
		}
	}
	writeList(&b, "carries along", carried)
	writeList(&b, "leaves behind", p.Left)
	for _, n := range p.Notes {
		fmt.Fprintf(&b, "note: %s\n", n)
	}
	for _, f := range p.Files {
		fmt.Fprintf(&b, "%s\t%s\t%d bytes\n", safetensors.Quote(f.Name), plural(f.Tensors, "tensor"), f.Size)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteText writes what changed, a line each, or that nothing did.
func (r *CheckReport) WriteText(w io.Writer) error {
	var b strings.Builder
	for _, p := range r.Problems {
		fmt.Fprintf(&b, "%s\n", p)
	}
	if len(r.Problems) == 0 {
		fmt.Fprintf(&b, "%s: %s, %d bytes match the manifest\n", safetensors.Quote(r.Path), plural(r.Tensors, "tensor"), r.Bytes)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
