package inspect

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text"
)

// AuditReport says what was checked, what could not be, and everything found.
type AuditReport struct {
	Path       string    `json:"path"`        // of the checkpoint, as it was given
	Clean      bool      `json:"clean"`       // no finding is a problem; there may be notes
	Problems   int       `json:"problems"`    // findings that are not notes
	Checked    []string  `json:"checked"`     // a sentence for each part
	NotChecked []string  `json:"not_checked"` // a sentence for each part, with the reason
	Findings   []Finding `json:"findings"`    // of reading the files, then of the comparison
}

// Audit holds the parts of a checkpoint against each other: the index against the
// shards, as reading them found, and every tensor's name, shape and dtype against
// the weights that the config implies. It goes as far as what could be read allows.
func Audit(c *Checkpoint) *AuditReport {
	found := append([]Finding{}, c.Findings...)
	found = append(found, c.mismatches()...)
	found = append(found, c.quantised()...)
	found = append(found, c.torchDType()...)
	found = append(found, c.absent()...)
	a := &AuditReport{Path: c.Path, Findings: found, Problems: problems(found)}
	a.Clean = a.Problems == 0
	a.Checked, a.NotChecked = c.scope()
	return a
}

// mismatches compares the tensors with the config's weights. If a file could not be
// read, nobody knows what is missing, so nothing is said to be.
func (c *Checkpoint) mismatches() []Finding {
	var e *weights.MismatchError
	if c.Config == nil || !errors.As(weights.Check(c.Config, headers{c}), &e) {
		return nil
	}
	if !c.complete() {
		e.Missing = nil
	}
	files, hint := c.holders(), newHints(c.Config)
	var found []Finding
	for _, m := range e.Missing {
		found = append(found, Finding{Missing, "", m.Name, fmt.Sprintf("the config asks for it, shape %v", m.Shape), hint.of(m.Name)})
	}
	for _, w := range e.Wrong {
		if w.Scales != nil {
			found = append(found, c.wrongScales(w.Scales, files)...)
		} else {
			found = append(found, wrong(w, files[w.Got.Name], hint))
		}
	}
	for _, u := range e.Unexpected {
		found = append(found, Finding{Unexpected, files[u.Name], u.Name, fmt.Sprintf("the config has no use for it, shape %v", u.Shape), hint.of(u.Name)})
	}
	return found
}

// wrong is the finding about a tensor of the table, held by file, whose shape is another,
// that is no weight for a reason of its own, or with which the model cannot compute.
func wrong(w weights.Wrong, file string, hint *hints) Finding {
	switch {
	case w.Cause == "":
		return Finding{Shape, file, w.Got.Name, fmt.Sprintf("%v, the config asks for %v", w.Got.Shape, w.Want), hint.of(w.Got.Name)}
	case w.Want == nil:
		return Finding{Unexpected, file, w.Got.Name, w.Cause, ""}
	}
	return Finding{DType, file, w.Got.Name, w.Cause, ""}
}

// wrongScales is the finding about the scales of an FP8 weight. If a file could not be
// read, it may hold those that are missing.
func (c *Checkpoint) wrongScales(e *weights.ScalesError, files map[string]string) []Finding {
	w, s := e.Weight, e.Weight.Scales
	hint := fmt.Sprintf("without its scales nobody knows the numbers of an %s weight", w.DType.Form().Name)
	switch {
	case !e.Missing() && e.Misshapen():
		return []Finding{{Shape, files[s.Stored], s.Name, fmt.Sprintf("%v, but one scale per block of %v of the %s weight is %v", s.Shape, w.Block, w.DType.Form().Name, e.Want), hint}}
	case !e.Missing():
		return []Finding{{DType, files[s.Stored], s.Name, fmt.Sprintf("dtype %s: scales are F32, F16 or BF16", s.DType), hint}}
	case c.complete():
		return []Finding{{Missing, "", e.Name(), fmt.Sprintf("the %s weight needs these scales, shape %v", w.DType.Form().Name, e.Want), hint}}
	}
	return nil
}

// quantised are the weights that are plain though quantization_config says otherwise.
func (c *Checkpoint) quantised() (found []Finding) {
	if c.Config == nil || c.Config.Quantization.Method == "" {
		return nil
	}
	files := c.holders()
	set := weights.New(c.Config, headers{c})
	for s := range table.FamilyOf(c.Config).Required(c.Config, set.Has) {
		w := set.Find(s.Name)
		form := s.Form(c.Config)
		switch {
		case w == nil:
		case w.DType.Casts() && form != tensor.Plain:
			found = append(found, Finding{DType, files[w.Name], w.Name, fmt.Sprintf("dtype %s, but quantization_config says %s with scales", w.DType, form.Codes),
				"take quantization_config out of config.json, or list the module in its modules_to_not_convert"})
		}
	}
	return found
}

// holders maps each tensor, by its own name and by the table's, to the file that holds it.
func (c *Checkpoint) holders() map[string]string {
	files := map[string]string{}
	for _, t := range c.tensors() {
		files[t.Name] = t.File
	}
	if c.Config != nil {
		for _, w := range weights.New(c.Config, headers{c}).All() {
			files[w.Name] = files[w.Stored]
		}
	}
	return files
}

// complete says whether every weight file that there should be was read.
func (c *Checkpoint) complete() bool {
	for _, f := range c.Findings {
		if f.Kind == Broken && f.File != configFile && !c.read(f.File) {
			return false
		}
	}
	return len(c.Files) > 0
}

// read says whether file is a weight file whose header was read, or the index.
func (c *Checkpoint) read(file string) bool {
	if c.Index != nil && file == c.Index.File {
		return true
	}
	return slices.ContainsFunc(c.Files, func(f File) bool { return f.Name == file })
}

// torchDType notes a torch_dtype that no tensor has.
func (c *Checkpoint) torchDType() []Finding {
	tensors := c.tensors()
	if c.Config == nil || c.Config.TorchDType == "" || len(tensors) == 0 {
		return nil
	}
	want := table.TorchDType(c.Config)
	if slices.ContainsFunc(tensors, func(t Tensor) bool { return t.DType == want }) {
		return nil
	}
	return []Finding{{Note, configFile, "", fmt.Sprintf("torch_dtype is %s, but no tensor is %s", c.Config.TorchDType, want),
		fmt.Sprintf("transformers will convert the weights when it loads them; they are %s", c.dtypes())}}
}

// absent notes what the config announces and no reader needs.
func (c *Checkpoint) absent() (found []Finding) {
	if c.Config == nil || !c.complete() {
		return nil
	}
	for _, note := range weights.Notes(c.Config, headers{c}) {
		found = append(found, Finding{Note, configFile, "", note, "the model computes the same without them, but cannot draft tokens by multi-token prediction"})
	}
	return found
}

// dtypes names the dtypes of the tensors.
func (c *Checkpoint) dtypes() string {
	var names []string
	for _, t := range c.tensors() {
		if name := t.DType.String(); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// scope says what Audit could check of c, and what it could not.
func (c *Checkpoint) scope() (checked, not []string) {
	checked, not = []string{}, []string{}
	tensors := len(c.tensors())
	if c.Index != nil {
		checked = append(checked, fmt.Sprintf("%s: %s in %s", text.Word(c.Index.File), text.Plural(c.Index.Tensors, "name"), text.Plural(c.Index.Shards, "file")))
	}
	if len(c.Files) > 0 {
		checked = append(checked, fmt.Sprintf("headers of %s: %s, %s", text.Plural(len(c.Files), "file"), text.Plural(tensors, "tensor"), text.Bytes(c.bytes())))
	}
	switch {
	case c.Config == nil:
		not = append(not, "the tensors against the config: config.json cannot be used")
	case tensors == 0:
		not = append(not, "the tensors against the config: there are none")
	default:
		checked = append(checked, fmt.Sprintf("names, shapes and dtypes against the %s of config.json", text.Plural(c.required(), "weight")))
	}
	if c.Config != nil && tensors > 0 && !c.complete() {
		not = append(not, "which weights are missing: not every file could be read")
	}
	return checked, append(not, "the values of the weights")
}

// required counts the weights that the checkpoint must hold: those of the decoder, and of
// the prediction layers that it has.
func (c *Checkpoint) required() (n int) {
	set := weights.New(c.Config, headers{c})
	for range table.FamilyOf(c.Config).Required(c.Config, set.Has) {
		n++
	}
	return n
}

// bytes returns the size of all tensors.
func (c *Checkpoint) bytes() (n int64) {
	for _, t := range c.tensors() {
		n += t.Bytes
	}
	return n
}

// WriteText writes the findings, those of a kind that differ only in numbers as
// one, and what was checked.
func (a *AuditReport) WriteText(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "%s: %s\n", text.Word(a.Path), verdict(a.Findings)); err != nil {
		return err
	}
	if err := writeFindings(w, a.Findings, maxLines); err != nil {
		return err
	}
	return writeChecked(w, a.Checked, a.NotChecked)
}

// problems counts the findings that are not notes.
func problems(findings []Finding) (n int) {
	for _, f := range findings {
		if f.Kind != Note {
			n++
		}
	}
	return n
}

// verdict counts findings, notes apart.
func verdict(findings []Finding) string {
	n := problems(findings)
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
