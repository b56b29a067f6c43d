package stats

// The findings about the values of the weights, and which values were checked.

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"dsmoe/inspect"
	"dsmoe/inspect/diff"
	"dsmoe/inspect/header"
	"dsmoe/model/table"
	"dsmoe/model/weights"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// AuditValues is header.Audit, and reads every weight. What cannot be read is a finding; the error says that ctx
// ended.
func AuditValues(ctx context.Context, c *inspect.Checkpoint, v Values) (*header.AuditReport, error) {
	x := newValueAudit(ctx, c, v)
	for _, w := range x.weights {
		for at, n := range w.Jobs() {
			x.Go(func() error { x.count(w, at, n); return nil })
		}
	}
	for i := range x.sums {
		x.Go(func() error { x.sums[i].err = x.sum(&x.sums[i]); return nil })
	}
	if t := x.tied; t != nil {
		x.Go(func() error {
			walk := weights.Walk{Reading: x.Reading, A: x.Reader, B: x.Reader}
			m, err := diff.Measure(&walk, weights.Pair{A: t.b.Weight, B: t.a.Weight})
			t.different, t.err = m.Unequal(), err
			return nil
		})
	}
	if err := x.Wait(); err != nil {
		return nil, err
	}
	again := weights.NewReading(ctx, v.Threads, nil)
	for _, w := range x.weights {
		if w.Scaled() && w.err == nil && x.hasNumbers(w) {
			again.Go(func() error { w.err = x.multiply(again, w); return nil })
		}
	}
	if err := again.Wait(); err != nil {
		return nil, err
	}
	a := header.Audit(c)
	a.Add(x.findings()...)
	a.Add(x.WrongSides(func(shape *weights.Weight) ([]byte, error) {
		if !x.Selection.Has(shape.Owner()) {
			return nil, nil
		}
		data := make([]byte, shape.Bytes())
		return data, shape.ReadAt(x.Reader, data, 0)
	})...)
	checked, not := x.scope()
	a.Checked, a.NotChecked = append(a.Checked, checked...), append(a.NotChecked[:len(a.NotChecked)-1], not...)
	return a, nil
}

// findings returns what was found: weights in the order of the files, then what concerns several of them.
func (x *valueAudit) findings() (found []inspect.Finding) {
	dead := x.deadExperts()
	for _, w := range x.weights {
		isDead := dead[expertOf(w)]
		found = append(found, x.aboutWeight(w, isDead)...)
		if module, isLast := strings.CutSuffix(w.Name, "."+string(table.DownProj)+".weight"); isDead && isLast {
			found = append(found, inspect.Value.Of(problem.Problem{Tensor: module,
				Cause: "every weight of the expert is zero",
				Hint:  "padding, or an expert that a conversion lost: tokens that are sent to it get nothing"}))
		}
	}
	differs, t := "", x.tied
	switch a, b := x.byName[embedding], x.byName[head]; {
	case t != nil && t.err == nil && t.different > 0:
		differs = fmt.Sprintf("%d of %d values are not those of %s", t.different, t.b.Len(), embedding)
	case x.isTied() && a != nil && b != nil && !slices.Equal(a.Shape, b.Shape):
		differs = fmt.Sprintf("shape %v, but %s has %v", b.Shape, embedding, a.Shape)
	}
	if differs != "" {
		found = append(found, inspect.Value.Of(problem.Problem{File: x.holders[head], Tensor: head,
			Cause: differs + ", though tie_word_embeddings is true",
			Hint:  "readers use the embedding in its place: set tie_word_embeddings to false if this head is meant"}))
	}
	found = append(found, x.aboutFrequencies()...)
	for i := range x.sums {
		p := &x.sums[i]
		f := inspect.Broken.Of(problem.Problem{File: x.Files[p.File].Name, Tensor: p.Tensor,
			Cause: "archive entry " + text.Quote(p.Name)})
		switch {
		case p.err != nil:
			f.Cause += fmt.Sprintf(" cannot be read: %v", p.err)
		case p.actual != p.CRC32:
			f.Cause += fmt.Sprintf(": CRC-32 is %08x, but the archive says %08x", p.actual, p.CRC32)
			f.Hint = "bytes are damaged: fetch the file again; or torch was told to write no checksums"
		default:
			continue
		}
		found = append(found, f)
	}
	return found
}

// aboutFrequencies returns the findings about stored tensors that follow from the config and have other numbers.
func (x *valueAudit) aboutFrequencies() (found []inspect.Finding) {
	for _, w := range x.weights {
		if x.Config == nil || w.err != nil || !table.Follows(x.Config, w.Info) {
			continue
		}
		values, err := weights.NewStream(x.Reader, w.Weight).Part(0, w.Len())
		cause := ""
		if err != nil {
			cause = fmt.Sprintf("cannot be read: %v", err)
		} else if cause = table.Contradiction(x.Config, w.Name, values, w.DType); cause == "" {
			continue
		}
		found = append(found, inspect.Value.Of(problem.Problem{File: x.holders[w.Name], Tensor: w.Name,
			Cause: cause, Hint: "readers derive it from config.json: give that what the weights were trained with"}))
	}
	return found
}

// aboutWeight returns the findings about a weight. It does not say of a dead expert's weight that every value is zero.
func (x *valueAudit) aboutWeight(w *audited, isDead bool) (found []inspect.Finding) {
	n := w.Len()
	add := func(kind inspect.Kind, hint, cause string, args ...any) {
		found = append(found, kind.Of(problem.Problem{File: x.holders[w.Name], Tensor: w.Name,
			Cause: fmt.Sprintf(cause, args...), Hint: hint}))
	}
	if w.err != nil {
		add(inspect.Broken, "what was read of the tensor is counted all the same", "cannot be read: %v", w.err)
	}
	if w.DType.Integer() {
		if w.outside > 0 {
			add(inspect.Value, "the reference fails at such a token, or takes another expert",
				"%d of %d numbers are not experts: 0 to %d", w.outside, n, x.Config.MoE.NRoutedExperts-1)
		}
		return found
	}
	if w.NaN > 0 {
		add(inspect.Value, "", "%d of %d values are NaN", w.NaN, n)
	}
	switch {
	case w.Infinite > 0 && w.Scaled():
		add(inspect.Value, "a float32 cannot hold the product of code and scale",
			"%d of %d values are infinite with their scales", w.Infinite, n)
	case w.Infinite > 0:
		add(inspect.Value, "", "%d of %d values are infinite", w.Infinite, n)
	}
	if w.IsScales() {
		if w.notPositive > 0 {
			add(inspect.Value, fmt.Sprintf("the scales of %s weights are above 0", x.scaledForms()),
				"%d of %d scales are 0 or below", w.notPositive, n)
		}
		return found
	}
	if n > 0 && !w.Nonzero && w.err == nil && !isDead {
		kind, hint := inspect.Value, "lost in a conversion, or never trained"
		if strings.HasSuffix(w.Name, "bias") {
			kind, hint = inspect.Note, "as biases are before training"
		}
		add(kind, hint, "every value is zero")
	}
	if w.wasteful > 0 {
		add(inspect.Value, "no encoder of the type makes such blocks: the numbers were rounded more coarsely than it needs",
			"%d of %d blocks use less than half of the range of their codes: a scale is too large", w.wasteful, w.blocks)
	}
	if w.BeyondF16 > 0 {
		add(inspect.Note, "a cast to F16 makes them infinite", "%d of %d values are beyond the range of F16", w.BeyondF16, n)
	}
	return found
}

// scaledForms returns the names of the stored forms of the weights that have scales.
func (x *valueAudit) scaledForms() string {
	forms := map[string]bool{}
	for _, w := range x.weights {
		if w.Scaled() {
			forms[w.Form().Name] = true
		}
	}
	return strings.Join(slices.Sorted(maps.Keys(forms)), ", ")
}

// expertOf returns the layer and the number of the routed expert that a weight belongs to; -1 outside the experts.
func expertOf(w *audited) [2]int {
	if w.Expert >= 0 && w.Owner() == w.Name {
		return [2]int{w.Layer, w.Expert}
	}
	return [2]int{-1, -1}
}

// matrices is the number of an expert's weights: gate_proj, up_proj and down_proj.
const matrices = 3

// deadExperts returns the routed experts with nothing but zeros in all their weights.
func (x *valueAudit) deadExperts() map[[2]int]bool {
	zero, alive := map[[2]int]int{}, map[[2]int]bool{{-1, -1}: true}
	for _, w := range x.weights {
		expert := expertOf(w)
		zero[expert]++
		alive[expert] = alive[expert] || w.Nonzero || w.err != nil || w.Len() == 0
	}
	dead := map[[2]int]bool{}
	for expert, n := range zero {
		dead[expert] = n == matrices && !alive[expert]
	}
	return dead
}

// tally is how many weights, scales and checksums were checked, or not.
type tally struct {
	weights, scales, sums, tables int
	blocked                       int // weights of block types
	unread, withoutScales, broken int
	bytes                         int64 // of the weights
}

func (x *valueAudit) tally() (t tally) {
	for _, w := range x.weights {
		if w.err != nil {
			t.unread++
			continue
		}
		if w.DType.Integer() {
			t.tables++
			continue
		}
		t.weights++
		t.bytes += w.Bytes()
		if w.IsScales() {
			t.scales++
		}
		if w.blocks > 0 {
			t.blocked++
		}
		if w.Scaled() && !x.hasNumbers(w) {
			t.withoutScales++
		}
	}
	for i := range x.sums {
		if x.sums[i].err != nil {
			t.broken++
		} else {
			t.sums++
		}
	}
	return t
}

// scope returns which values were checked, and which were not.
func (x *valueAudit) scope() (checked, not []string) {
	t := x.tally()
	say := func(list *[]string, is bool, sentence string, args ...any) {
		if is {
			*list = append(*list, fmt.Sprintf(sentence, args...))
		}
	}
	compared := x.tied != nil && x.tied.err == nil
	say(&checked, t.weights > 0, "every value of %s, %s: NaN, infinities, all zero, the range of F16",
		text.Plural(t.weights, "weight"), text.Bytes(t.bytes))
	say(&checked, t.blocked > 0, "the blocks of %s: that they use half of the range of their codes",
		text.Plural(t.blocked, "weight"))
	say(&checked, t.scales > 0, "the scales of %s weights, %s: finite and above 0", x.scaledForms(),
		text.Plural(t.scales, "tensor"))
	say(&checked, t.tables > 0, "every number of %s of experts: that an expert has it", text.Plural(t.tables, "table"))
	say(&checked, compared, "%s against %s, which it is tied to", head, embedding)
	say(&checked, t.sums > 0, "%s of archive entries", text.Plural(t.sums, "CRC-32 checksum"))

	say(&not, t.broken > 0, "%s of archive entries that cannot be read", text.Plural(t.broken, "CRC-32 checksum"))
	say(&not, t.unread > 0, "the values of %s that cannot be read", text.Plural(t.unread, "weight"))
	say(&not, t.withoutScales > 0, "the range of F16 for %s without usable scales",
		text.Plural(t.withoutScales, x.scaledForms()+" weight"))
	say(&not, x.skipped > 0, "the values of %s of dtypes that the model does not compute with",
		text.Plural(x.skipped, "tensor"))
	say(&not, x.duplicates > 0, "the values of %s that a second file holds too, there",
		text.Plural(x.duplicates, "tensor"))
	say(&not, x.unselected > 0, "the values of %s that are not selected", text.Plural(x.unselected, "weight"))
	say(&not, len(x.Parts) > 0 && !x.Selection.All(), "checksums of archive entries: not all weights are selected")
	say(&not, !x.Complete(), "the values in files that cannot be used")
	say(&not, !compared && x.isTied() && x.holders[head] != "" && x.Selection.Has(head) && x.Selection.Has(embedding),
		"%s against %s: they cannot be compared", head, embedding)
	return checked, not
}
