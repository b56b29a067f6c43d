package stats

// What reading the values of the weights has found, and what of them was looked at.

import (
	"fmt"
	"slices"
	"strings"

	"dsmoe/inspect"
	"dsmoe/model/table"
	"dsmoe/text"
)

// findings returns what was found: weights in the order of the files, then what concerns several of them.
func (r *valueAudit) findings() (found []inspect.Finding) {
	dead := r.deadExperts()
	for _, w := range r.weights {
		silent := dead[expertOf(w)]
		found = append(found, r.about(w, silent)...)
		if module, isLast := strings.CutSuffix(w.Name, "."+string(table.DownProj)+".weight"); silent && isLast {
			found = append(found, inspect.Finding{Kind: inspect.Value, Tensor: module,
				Cause: "every weight of the expert is zero",
				Hint:  "padding, or an expert that a conversion lost: tokens that are sent to it get nothing"})
		}
	}
	found = append(found, r.aboutHead()...)
	for _, p := range r.parts {
		found = append(found, r.aboutPart(p)...)
	}
	return found
}

// aboutHead says how a stored head differs from the embedding that it is said to be.
func (r *valueAudit) aboutHead() []inspect.Finding {
	differs, t := "", r.tied
	switch a, b := r.byName[embedding], r.byName[head]; {
	case t != nil && t.err == nil && t.different > 0:
		differs = fmt.Sprintf("%d of %d values are not those of %s", t.different, t.b.Len(), embedding)
	case r.isTied() && a != nil && b != nil && !slices.Equal(a.Shape, b.Shape):
		differs = fmt.Sprintf("shape %v, but %s has %v", b.Shape, embedding, a.Shape)
	default:
		return nil
	}
	return []inspect.Finding{{Kind: inspect.Value, File: r.files[head], Tensor: head,
		Cause: differs + ", though tie_word_embeddings is true",
		Hint:  "readers use the embedding in its place: set tie_word_embeddings to false if this head is meant"}}
}

// about says what was found in a weight; silent leaves out that all of it is zero.
func (r *valueAudit) about(w *read, silent bool) (found []inspect.Finding) {
	add := func(kind inspect.Kind, hint, cause string, args ...any) {
		found = append(found, inspect.Finding{Kind: kind, File: r.files[w.Name], Tensor: w.Name,
			Cause: fmt.Sprintf(cause, args...), Hint: hint})
	}
	a, n := &w.found, w.Len()
	if w.err != nil {
		add(inspect.Broken, "what was read of the tensor is counted all the same", "cannot be read: %v", w.err)
	}
	if a.NaN > 0 {
		add(inspect.Value, "", "%d of %d values are NaN", a.NaN, n)
	}
	switch {
	case a.Infinite > 0 && w.DType.Scaled():
		add(inspect.Value, "a float32 cannot hold the product of code and scale",
			"%d of %d values are infinite with their scales", a.Infinite, n)
	case a.Infinite > 0:
		add(inspect.Value, "", "%d of %d values are infinite", a.Infinite, n)
	}
	switch {
	case w.IsScales():
		if w.notPositive > 0 {
			add(inspect.Value, fmt.Sprintf("the scales of %s weights are above 0", r.scaledForm()),
				"%d of %d scales are 0 or below", w.notPositive, n)
		}
		return found
	case n > 0 && !a.Nonzero && w.err == nil && !silent:
		kind, hint := inspect.Value, "lost in a conversion, or never trained"
		if strings.HasSuffix(w.Name, "bias") {
			kind, hint = inspect.Note, "as biases are before training"
		}
		add(kind, hint, "every value is zero")
	}
	if a.BeyondF16 > 0 {
		add(inspect.Note, "a cast to F16 makes them infinite", "%d of %d values are beyond the range of F16", a.BeyondF16, n)
	}
	return found
}

// aboutPart returns what was found in a part of a file.
func (r *valueAudit) aboutPart(p checkedPart) []inspect.Finding {
	f := inspect.Finding{Kind: inspect.Broken, File: r.c.Files[p.File].Name, Tensor: p.Tensor,
		Cause: "archive entry " + text.Quote(p.Name)}
	switch {
	case p.err != nil:
		f.Cause += fmt.Sprintf(" cannot be read: %v", p.err)
	case p.got != p.CRC32:
		f.Cause += fmt.Sprintf(": CRC-32 is %08x, but the archive says %08x", p.got, p.CRC32)
		f.Hint = "bytes are damaged: fetch the file again; or torch was told to write no checksums"
	default:
		return nil
	}
	return []inspect.Finding{f}
}

// expertOf returns the layer and the number of the routed expert that a weight belongs to; -1 if it is none's.
func expertOf(w *read) (expert [2]int) {
	if w.Expert >= 0 && w.Owner() == w.Name {
		return [2]int{w.Layer, w.Expert}
	}
	return [2]int{-1, -1}
}

// deadExperts returns the routed experts all of whose weights were read and are zero.
func (r *valueAudit) deadExperts() map[[2]int]bool {
	zero, alive := map[[2]int]int{}, map[[2]int]bool{{-1, -1}: true}
	for _, w := range r.weights {
		expert := expertOf(w)
		zero[expert]++
		alive[expert] = alive[expert] || w.found.Nonzero || w.err != nil || w.Len() == 0
	}
	dead := map[[2]int]bool{}
	for expert, n := range zero {
		dead[expert] = n == matrices && !alive[expert]
	}
	return dead
}

// matrices is the number of an expert's weights: gate_proj, up_proj and down_proj.
const matrices = 3

// scope says what was looked at, and what was not.
func (r *valueAudit) scope() (checked, not []string) {
	t := r.tally()
	say := func(list *[]string, n int, sentence string, args ...any) {
		if n > 0 {
			*list = append(*list, fmt.Sprintf(sentence, args...))
		}
	}
	say(&checked, t.weights, "every value of %s, %s: NaN, infinities, all zero, the range of F16",
		text.Plural(t.weights, "weight"), text.Bytes(t.bytes))
	say(&checked, t.scales, "the scales of %s weights, %s: finite and above 0", r.scaledForm(),
		text.Plural(t.scales, "tensor"))
	say(&checked, t.tied, "%s against %s, which it is tied to", head, embedding)
	say(&checked, t.parts, "%s of archive entries", text.Plural(t.parts, "CRC-32 checksum"))

	say(&not, t.damaged, "%s of archive entries that cannot be read", text.Plural(t.damaged, "CRC-32 checksum"))
	say(&not, t.unread, "the values of %s that cannot be read", text.Plural(t.unread, "weight"))
	say(&not, t.codes, "the range of F16 for %s without usable scales", text.Plural(t.codes, r.scaledForm()+" weight"))
	say(&not, len(r.skipped), "the values of %s of dtypes that the model does not compute with",
		text.Plural(len(r.skipped), "tensor"))
	say(&not, r.twice, "the values of %s that a second file holds too, there", text.Plural(r.twice, "tensor"))
	say(&not, r.left, "the values of %s that are not selected", text.Plural(r.left, "weight"))
	if !r.v.Selection.All() {
		say(&not, len(r.v.Parts), "checksums of archive entries: not all weights are selected")
	}
	say(&not, t.hidden, "the values in files whose headers cannot be read")
	say(&not, t.untied, "%s against %s: they cannot be compared", head, embedding)
	return checked, not
}

// tally is how many of each were looked at, or not.
type tally struct {
	weights, scales, tied, parts           int
	damaged, unread, codes, hidden, untied int
	bytes                                  int64 // of the weights
}

// scaledForm returns the name of the stored form of the weights that have scales; "" if none has.
func (r *valueAudit) scaledForm() string {
	for _, w := range r.weights {
		if w.DType.Scaled() {
			return w.DType.Form().Name
		}
	}
	return ""
}

func (r *valueAudit) tally() (t tally) {
	for _, w := range r.weights {
		if w.err != nil {
			t.unread++
			continue
		}
		t.weights++
		t.bytes += w.Bytes()
		if w.IsScales() {
			t.scales++
		}
		if w.DType.Scaled() && !r.scaled(w) {
			t.codes++
		}
	}
	for _, p := range r.parts {
		if p.err != nil {
			t.damaged++
		} else {
			t.parts++
		}
	}
	if r.tied != nil && r.tied.err == nil {
		t.tied = 1
	} else if r.isTied() && r.files[head] != "" && r.v.Selection.Has(head) && r.v.Selection.Has(embedding) {
		t.untied = 1
	}
	if !r.c.Complete() {
		t.hidden = 1
	}
	return t
}
