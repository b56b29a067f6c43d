package header

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"

	"dsmoe/inspect"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// AuditReport says what was checked, what could not be, and everything found.
type AuditReport struct {
	Path       string            `json:"path"`        // of the checkpoint, as the user gave it
	Clean      bool              `json:"clean"`       // no finding is a problem; there may be notes
	Problems   int               `json:"problems"`    // findings that are not notes
	Checked    []string          `json:"checked"`     // a sentence for each part
	NotChecked []string          `json:"not_checked"` // a sentence for each part, with the reason
	Findings   []inspect.Finding `json:"findings"`    // of reading the files, then of the comparison
}

// valuesNotChecked is the last sentence of Audit's NotChecked.
const valuesNotChecked = "the values of the weights"

// Audit compares the parts of a checkpoint: the index with the shards, as reading them found, and every
// tensor's name, shape and dtype with the weights that the config implies. It goes as far as the readable
// files allow.
func Audit(c *inspect.Checkpoint) *AuditReport {
	a := &AuditReport{Path: c.Path, Findings: []inspect.Finding{}}
	a.Add(c.Findings...)
	set := c.Weights()
	var x *auditor
	if set != nil {
		x = &auditor{c, set, sync.OnceValue(func() map[string]string { return c.Holders(set) }),
			&hints{c.Config, table.FamilyOf(c.Config), set, map[*table.Row]string{}}, map[string]bool{}}
		for _, p := range problem.Of(inspect.ConfigFile, problem.In("", c.Config.Quantization.Unread...)) {
			p.Cause = "not read: " + p.Cause
			a.Add(inspect.Note.Of(p))
		}
		a.Add(x.mismatches()...)
		a.Add(x.unquantised()...)
		a.Add(x.otherExperts()...)
		isGGUF := func(f inspect.File) bool { return strings.HasSuffix(f.Name, ".gguf") } // its experts lie together
		if w := set.Unfound(c.Config); w != nil && !slices.ContainsFunc(c.Files, isGGUF) {
			a.Add(inspect.Missing.Of(problem.Problem{Tensor: w.Stored, Cause: "transformers " + table.Unfound,
				Hint: "dsmoe convert --experts fused writes them together, --names published each apart"}))
		}
		a.Add(x.withoutInputScales()...)
		want, dtypes := table.TorchDType(c.Config), []string{}
		for t := range c.Tensors() {
			dtypes = append(dtypes, t.DType.String())
		}
		if c.Config.TorchDType != "" && len(dtypes) > 0 && !slices.Contains(dtypes, want.String()) {
			slices.Sort(dtypes)
			a.Add(inspect.Note.Of(problem.Problem{File: inspect.ConfigFile,
				Cause: fmt.Sprintf("torch_dtype is %s, but no tensor is %s", c.Config.TorchDType, want),
				Hint: "transformers will convert the weights when it loads them; they are " +
					strings.Join(slices.Compact(dtypes), ", ")}))
		}
		if c.Complete() { // what the config announces and no reader needs
			for _, note := range table.FamilyOf(c.Config).Notes(c.Config, set.Has) {
				a.Add(inspect.Note.Of(problem.Problem{File: inspect.ConfigFile, Cause: note,
					Hint: "the model computes the same without them, but cannot draft tokens by multi-token prediction"}))
			}
		}
	}
	a.Checked, a.NotChecked = scope(c, set)
	if x != nil && len(x.unread) > 0 {
		names := slices.Sorted(maps.Keys(x.unread))
		a.NotChecked = slices.Insert(a.NotChecked, 0, fmt.Sprintf("%s in a stored form that is not read, the first is %s",
			text.Plural(len(names), "weight"), text.Quote(names[0])))
	}
	return a
}

// Add adds findings.
func (a *AuditReport) Add(found ...inspect.Finding) {
	a.Findings = append(a.Findings, found...)
	a.Problems = inspect.Problems(a.Findings)
	a.Clean = a.Problems == 0
}

// auditor is a checkpoint with a config.
type auditor struct {
	*inspect.Checkpoint
	weights *weights.Set
	files   func() map[string]string // Checkpoint.Holders, once there is a finding
	hints   *hints
	unread  map[string]bool // modules whose weights are stored in a form that is not read
}

// mismatches compares the tensors with the config's weights. If a file could not be read, no weight is called
// missing.
func (x *auditor) mismatches() (found []inspect.Finding) {
	var e *weights.MismatchError
	if !errors.As(x.weights.Check(x.Config), &e) {
		return nil
	}
	if !x.Complete() {
		e.Missing = nil
	}
	if x.Config.Quantization.Unread != nil {
		x.leaveUnread(e)
	}
	for _, m := range e.Missing {
		cause := "the config asks for it"
		if m.Row.Shape != nil {
			cause += fmt.Sprintf(", shape %v", m.Shape)
		}
		found = append(found, inspect.Missing.Of(problem.Problem{Tensor: m.Name, Cause: cause, Hint: x.hints.hint(m.Name)}))
	}
	for _, w := range e.Wrong {
		if w.Scales != nil {
			found = append(found, x.wrongScales(w.Scales)...)
			continue
		}
		f := inspect.DType.Of(problem.Problem{File: x.files()[w.Got.Name], Tensor: w.Got.Name, Cause: w.Cause})
		switch {
		case w.Cause == "":
			f.Kind, f.Hint = inspect.Shape, x.hints.hint(w.Got.Name)
			f.Cause = fmt.Sprintf("%v, the config asks for %v", w.Got.Shape, w.Want)
		case w.Want == nil:
			f.Kind = inspect.Unexpected
		case slices.Equal(w.Got.Shape, []int{0}):
			f.Kind = inspect.Shape
		}
		found = append(found, f)
	}
	for _, u := range e.Unexpected {
		found = append(found, inspect.Unexpected.Of(problem.Problem{File: x.files()[u.Name], Tensor: u.Name,
			Cause: fmt.Sprintf("the config has no use for it, shape %v", u.Shape), Hint: x.hints.hint(u.Name)}))
	}
	return found
}

// leaveUnread takes out of e what may be so in a stored form that is not read: tensors of a weight's module that are no
// numbers, or have other names, and the weight that they stand for.
func (x *auditor) leaveUnread(e *weights.MismatchError) {
	f, inModule := table.FamilyOf(x.Config), map[string]bool{}
	e.Unexpected = slices.DeleteFunc(e.Unexpected, func(u tensor.Info) bool {
		for module := u.Name; strings.Contains(module, "."); {
			module = module[:strings.LastIndexByte(module, '.')]
			name := strings.TrimSuffix(module, ".weight") + ".weight"
			if f.Place(name).Row != nil {
				x.unread[name], inModule[name] = true, true
				return true
			}
		}
		return false
	})
	e.Missing = slices.DeleteFunc(e.Missing, func(m table.Slot) bool { return inModule[m.Name] })
	e.Wrong = slices.DeleteFunc(e.Wrong, func(w weights.Wrong) bool {
		if !w.Got.DType.Casts() {
			x.unread[w.Got.Name] = true
		}
		return !w.Got.DType.Casts()
	})
}

// wrongScales returns the finding about the scales of a weight. A file that could not be read may hold the
// missing ones.
func (x *auditor) wrongScales(e *weights.ScalesError) []inspect.Finding {
	w, s := e.Weight, e.Weight.Scales
	form := w.Form().Name
	var f inspect.Finding
	f.Hint = fmt.Sprintf("without its scales nobody knows the numbers of an %s weight", form)
	switch {
	case !e.Missing() && e.Misshapen():
		f.Kind, f.Cause = inspect.Shape, fmt.Sprintf("%v, but one scale per block of %v of the %s weight is %v", s.Shape,
			w.Block, form, e.Want)
	case !e.Missing():
		f.Kind, f.Cause = inspect.DType, fmt.Sprintf("dtype %s: scales are F32, F16, BF16 or F8_E8M0", s.DType)
	case x.Complete():
		f.Kind, f.Tensor = inspect.Missing, x.weights.StoredName(x.Config, e.Name())
		f.Cause = fmt.Sprintf("the %s weight needs these scales, shape %v", form, e.Want)
		return []inspect.Finding{f}
	default:
		return nil
	}
	f.File, f.Tensor = x.files()[s.Stored], x.weights.StoredName(x.Config, s.Name)
	return []inspect.Finding{f}
}

// unquantised finds the weights that are plain though quantization_config says otherwise.
func (x *auditor) unquantised() (found []inspect.Finding) {
	if q := x.Config.Quantization; !q.Announced() || q.Unread != nil || q.Unclear {
		return nil
	}
	for s := range table.FamilyOf(x.Config).Required(x.Config, x.weights.Has) {
		if s.Row.Shape == nil {
			return nil
		}
		form := s.Form(x.Config)
		if w := x.weights.Find(s.Name); w != nil && w.DType.Casts() && form != tensor.Plain {
			found = append(found, inspect.DType.Of(problem.Problem{File: x.files()[w.Name],
				Tensor: x.weights.StoredName(x.Config, w.Name),
				Cause:  fmt.Sprintf("dtype %s, but quantization_config says %s with scales", w.DType, form.Codes),
				Hint: "take quantization_config out of config.json, or list the module in its " +
					x.Config.Quantization.ExceptKey()}))
		}
	}
	return found
}

// withoutInputScales finds the weights that lack the scale of their inputs, which others of their role and form have: an
// engine that quantises activations takes it for 1, or does not load them.
func (x *auditor) withoutInputScales() (found []inspect.Finding) {
	type kind struct {
		row  *table.Row
		form *tensor.Form
	}
	with, without := map[kind]string{}, []*weights.Weight{}
	for _, w := range x.weights.All() {
		if !w.Scaled() || w.Row == nil || !x.Complete() {
			continue
		}
		if input := w.Input(); input != nil {
			with[kind{w.Row, w.Form()}] = input.Stored
		} else {
			without = append(without, w)
		}
	}
	for _, w := range without {
		if like := with[kind{w.Row, w.Form()}]; like != "" {
			found = append(found, inspect.Missing.Of(problem.Problem{File: x.files()[w.Name],
				Tensor: x.weights.StoredName(x.Config, w.Name), Hint: "calibrate it, or take the scale of a like weight",
				Cause: fmt.Sprintf("has no scale of its inputs, but other %s weights have one, such as %s", w.Form().Name, text.Quote(like))}))
		}
	}
	return found
}

// otherExperts finds the experts of DeepSeek-V4 that are stored otherwise than expert_dtype says: which codes one-byte
// tensors hold, readers know from there. Without it transformers takes them for fp8.
func (x *auditor) otherExperts() (found []inspect.Finding) {
	q := x.Config.Quantization
	if !x.Config.Windowed() || q.Method != "fp8" {
		return nil
	}
	for _, w := range x.weights.All() {
		is := map[*tensor.Form]string{tensor.FP4: "fp4", tensor.FP8: "fp8"}[w.Form()]
		if w.Module() != table.RoutedExperts || w.Part != "" || is == "" || is == cmp.Or(q.Experts, "fp8") {
			continue
		}
		cause := fmt.Sprintf("is %s, but expert_dtype is %q", strings.ToUpper(is), q.Experts)
		if q.Experts == "" {
			cause = fmt.Sprintf("is %s, but without expert_dtype transformers takes experts for fp8", strings.ToUpper(is))
		}
		found = append(found, inspect.DType.Of(problem.Problem{File: x.files()[w.Name],
			Tensor: x.weights.StoredName(x.Config, w.Name), Cause: cause,
			Hint: fmt.Sprintf("set expert_dtype to %q", is)}))
	}
	return found
}

// scope returns what Audit could check of c, and what it could not. set is its weights.
func scope(c *inspect.Checkpoint, set *weights.Set) (checked, not []string) {
	checked, not = []string{}, []string{}
	tensors := inspect.TensorsIn(c.Files)
	if x := c.Index; x != nil {
		checked = append(checked, fmt.Sprintf("%s: %s in %s", text.Word(x.File), text.Plural(x.Tensors, "name"),
			text.Plural(x.Shards, "file")))
	}
	if len(c.Files) > 0 {
		size := int64(0)
		for _, f := range c.Files {
			size += f.Size
		}
		checked = append(checked, fmt.Sprintf("headers of %s: %s, %s", text.Plural(len(c.Files), "file"),
			text.Plural(len(tensors), "tensor"), bytesIn(bytesOf(tensors), size)))
	}
	switch {
	case c.Config == nil:
		not = append(not, "the tensors against the config: config.json cannot be used")
	case len(tensors) == 0:
		not = append(not, "the tensors against the config: there are none")
	case table.FamilyOf(c.Config).Unknown != nil:
		checked = append(checked, fmt.Sprintf("names against the %s of config.json", text.Plural(required(c, set), "weight")))
		not = append(not, fmt.Sprintf("shapes and dtypes, and %s whose names are not known to be right (%s)",
			text.Plural(unknown(c, set), "tensor"), strings.Join(table.FamilyOf(c.Config).Unknown, ", ")))
	default:
		checked = append(checked, fmt.Sprintf("names, shapes and dtypes against the %s of config.json",
			text.Plural(required(c, set), "weight")))
		if parts := table.FamilyOf(c.Config).Opaque; parts != nil {
			not = append(not, fmt.Sprintf("%s of parts that are not computed for %s (%s): their names and shapes, and whether all are present",
				text.Plural(unknown(c, set), "tensor"), c.Config.ModelType, strings.Join(parts, ", ")))
		}
		if beside := weights.Beside(c.Config, set.All()); beside != "" {
			not = append(not, "names and shapes of "+beside)
		}
	}
	if c.Config != nil && table.FamilyOf(c.Config).CarriesMTP {
		n := 0
		for _, w := range set.All() {
			if w.Layer >= c.Config.NumHiddenLayers {
				n++
			}
		}
		if n > 0 {
			not = append(not, fmt.Sprintf("what the %s of prediction layers compute: "+
				"the reference leaves them out of the model", text.Plural(n, "tensor")))
		}
	}
	if c.Config != nil && len(tensors) > 0 && !c.Complete() {
		not = append(not, "which weights are missing: not every file can be used")
	}
	return checked, append(not, valuesNotChecked)
}

// required counts the weights that the checkpoint must hold: those of the decoder, and of the prediction layers
// that it has.
func required(c *inspect.Checkpoint, set *weights.Set) (n int) {
	for range table.FamilyOf(c.Config).Required(c.Config, set.Has) {
		n++
	}
	return n
}

// unknown counts the tensors of which the table knows parts of names alone.
func unknown(c *inspect.Checkpoint, set *weights.Set) (n int) {
	for _, w := range set.All() {
		if table.FamilyOf(c.Config).HasUnknown(w.Stored) {
			n++
		}
	}
	return n
}

// bytesOf adds up the sizes of tensors.
func bytesOf(tensors []inspect.Tensor) (n int64) {
	for _, t := range tensors {
		n += t.Bytes
	}
	return n
}

// bytesIn are the bytes of tensors in words, behind those of their files where these hold blocks that decode to more.
func bytesIn(n, files int64) string {
	if n > files {
		return fmt.Sprintf("%s (%s once decoded)", text.Bytes(files), text.Bytes(n))
	}
	return text.Bytes(n)
}

// Passes reports whether there are no problems.
func (a *AuditReport) Passes(inspect.Level) bool { return a.Clean }

// WriteText writes the findings, and what was checked. Findings of a kind that differ only in numbers share a line.
func (a *AuditReport) WriteText(w io.Writer) error {
	return inspect.WriteAudit(w, a.Path, verdict(a.Findings), a.Findings, a.Checked, a.NotChecked)
}

// verdict counts findings, notes apart.
func verdict(findings []inspect.Finding) string {
	n := inspect.Problems(findings)
	notes := len(findings) - n
	switch {
	case len(findings) == 0:
		return "clean"
	case notes == 0:
		return text.Plural(n, "problem")
	case n == 0:
		return "no problems, " + text.Plural(notes, "note")
	default:
		return text.Plural(n, "problem") + ", " + text.Plural(notes, "note")
	}
}
