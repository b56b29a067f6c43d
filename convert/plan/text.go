package plan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"dsmoe/convert/format"
	"dsmoe/text"
)

// WriteText writes the plan for a reader: what would be written, and how.
func (p *Plan) WriteText(w io.Writer) error {
	in, out := p.Bytes()
	var b strings.Builder
	fmt.Fprintf(&b, "plan %s\n", p.Hash)
	fmt.Fprintf(&b, "reads %s of weights from %s, writes %s: %s in %s\n", text.Bytes(in),
		text.Plural(len(p.Sources), "file"), text.Bytes(out),
		text.Plural(len(p.Tensors), "tensor"), text.Plural(len(p.Files), "file"))
	fmt.Fprintf(&b, "needs %s of disk\n", text.ExactBytes(p.Size()))
	WriteOperations(&b, p.OperationCounts())
	if p.Dropped > 0 {
		fmt.Fprintf(&b, "drops: %s\n", text.Plural(p.Dropped, "tensor"))
	}
	WriteMissing(&b, p.Missing)
	WriteNames(&b, "carries along", p.CarriedNames())
	WriteNames(&b, "leaves behind", p.Left)
	WriteVocabulary(&b, p.Vocabulary)
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

// WriteJSON writes the plan as JSON, indented by two spaces, a tensor at a time.
func (p *Plan) WriteJSON(w io.Writer) error {
	head := *p
	head.Tensors, head.Others = []Tensor{}, append([]Other{}, p.Others...) // no list is null
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(head); err != nil {
		return err
	}
	const end = "]\n}\n" // of the list of tensors, which comes last
	b.Truncate(b.Len() - len(end))
	e.SetIndent("    ", "  ")
	for i := range p.Tensors {
		if i > 0 {
			b.Truncate(b.Len() - len("\n"))
			b.WriteByte(',')
		}
		b.WriteString("\n    ")
		if err := e.Encode(&p.Tensors[i]); err != nil {
			return err
		}
		if _, err := w.Write(b.Next(b.Len() - len("\n"))); err != nil {
			return err
		}
	}
	if len(p.Tensors) > 0 {
		b.WriteString("  ")
	}
	b.WriteString(end)
	_, err := b.WriteTo(w)
	return err
}

// WriteOperations writes a line for each operation: how many tensors it is done to.
func WriteOperations(b *strings.Builder, counts map[string]int) {
	for _, op := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(b, "%s: %s\n", op, text.Plural(counts[op], "tensor"))
	}
}

// WriteMissing writes one line that counts the weights that the output lacks; nothing for a
// whole model.
func WriteMissing(b *strings.Builder, missing []Missing) {
	if len(missing) == 0 {
		return
	}
	sum, parts := 0, make([]string, len(missing))
	for i, m := range missing {
		sum += m.Tensors
		parts[i] = fmt.Sprintf("%s %s", m.Module, text.Grouped(m.Tensors))
	}
	fmt.Fprintf(b, "not a whole model: %s that config.json implies are not there (%s); it will not load as one\n",
		text.Plural(sum, "weight"), strings.Join(parts, ", "))
}

// WriteVocabulary writes one line about the tokens of the files, and which of them have a meaning; nothing without tokens.
func WriteVocabulary(b *strings.Builder, v *format.Vocabulary) {
	if v == nil {
		return
	}
	word := func(t format.Token) string { return fmt.Sprintf("%d %s", t.ID, text.Quote(t.Text)) }
	parts := []string{fmt.Sprintf("vocabulary: %s from %s", text.Plural(v.Tokens, "token"), v.From), "no pre-tokenizer", "no BOS",
		"no EOS", "no chat template"}
	if v.Pre != "" {
		parts[1] = "pre-tokenizer " + text.Quote(v.Pre)
	}
	if v.Begin != nil {
		parts[2] = "BOS " + word(*v.Begin)
	}
	for i, end := range v.Ends {
		if i == 0 {
			parts[3] = "EOS " + word(end)
		} else {
			parts[3] += " or " + word(end)
		}
	}
	if v.Template {
		parts[4] = "a chat template"
	}
	fmt.Fprintln(b, strings.Join(parts, ", "))
}

// WriteNames writes one line with the names of files; nothing for an empty list.
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
