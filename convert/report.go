package convert

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"dsmoe/convert/checkpoint"
	"dsmoe/convert/format"
	"dsmoe/convert/internal/engine"
	"dsmoe/convert/plan"
	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// Report is the result of a conversion. It is JSON as it stands.
type Report struct {
	Path       string              `json:"path"`             // the target, as it was given
	Plan       string              `json:"plan"`             // hash of the plan
	Already    bool                `json:"already_complete"` // the target was already the finished output of this plan
	Replaced   bool                `json:"replaced"`         // the target was an older output, which is gone
	Resumed    int64               `json:"resumed_bytes"`    // that an earlier, interrupted run had written
	Parts      int                 `json:"parts,omitempty"`  // that were joined
	Verified   bool                `json:"verified"`         // read again and compared with the source; of joined parts when each was written
	Tensors    int                 `json:"tensors"`          // that were written
	Bytes      int64               `json:"bytes"`            // of their data
	DTypes     []typeBytes         `json:"dtypes"`           // of their data, most bytes first
	Files      []string            `json:"files"`            // that hold them
	Carried    []string            `json:"carried"`          // files copied from the source's directory
	Left       []string            `json:"left_behind"`      // files neither copied nor read whole
	Dropped    int                 `json:"dropped_tensors"`  // left out on request
	Missing    []plan.Missing      `json:"missing"`          // weights that the output lacks to be a model
	Operations map[string]int      `json:"operations"`       // tensors per operation
	Exact      int                 `json:"exact"`            // tensors whose elements were all found to be finite and the source's values
	Lost       []engine.LostTensor `json:"lost"`             // tensors with elements that changed or are not finite
	Notes      []string            `json:"notes"`            // for the user
	Next       []string            `json:"next"`             // commands that check and run the output
	// Vocabulary is what the files tell programs that read and write texts; null if they hold no tokens.
	Vocabulary *format.Vocabulary `json:"vocabulary"`
}

// typeBytes is the bytes of the tensors of one dtype.
type typeBytes struct {
	DType tensor.DType `json:"dtype"`
	Bytes int64        `json:"bytes"`
}

func newReport(dst string, p *plan.Plan, done *engine.Result) *Report {
	r := &Report{Path: dst, Plan: p.Hash, Already: done.Already, Replaced: done.Replaced,
		Resumed: done.Resumed, Parts: done.Parts, Verified: done.Verified,
		Tensors: len(p.Tensors), Files: []string{}, Carried: p.CarriedNames(), Left: p.Left,
		Dropped: p.Dropped, Missing: p.Missing,
		Operations: p.OperationCounts(), Lost: done.Lost, Notes: p.Notes, Next: []string{}, Vocabulary: p.Vocabulary}
	_, r.Bytes = p.Bytes()
	sizes := map[tensor.DType]int64{}
	for i := range p.Tensors {
		sizes[p.Tensors[i].DType] += p.Tensors[i].Bytes()
	}
	for d, n := range sizes {
		r.DTypes = append(r.DTypes, typeBytes{d, n})
	}
	slices.SortFunc(r.DTypes, func(a, b typeBytes) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.DType, b.DType))
	})
	lossy := map[string]bool{}
	for i := range done.Lost {
		lossy[done.Lost[i].Name] = !done.Lost[i].Exact()
	}
	for i := range p.Tensors {
		if t := &p.Tensors[i]; t.Counted() && !lossy[t.Name] {
			r.Exact++
		}
	}
	for _, f := range p.Files {
		r.Files = append(r.Files, f.Name)
	}
	if r.Lost == nil {
		r.Lost = []engine.LostTensor{}
	}
	return r
}

// WriteText writes the report, one finding per line.
func (r *Report) WriteText(w io.Writer) error {
	state := "not verified"
	if r.Verified {
		state = "verified"
	}
	if r.Verified && r.Parts > 0 && !r.Already {
		state = "verified part by part"
	}
	if r.Already {
		state += ", was complete already, matches its manifest"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s, %s in %s, %s\n", text.Quote(r.Path), text.Plural(r.Tensors, "tensor"), text.Bytes(r.Bytes),
		text.Plural(len(r.Files), "file"), state)
	if len(r.Files) > 0 && filepath.Ext(r.Files[0]) == ".gguf" && filepath.Base(r.Path) != r.Files[0] { // a name that dsmoe made
		plan.WriteNames(&b, text.Noun(len(r.Files), "file"), r.Files)
	}
	var types []string
	for _, t := range r.DTypes {
		types = append(types, fmt.Sprintf("%s %s", t.DType, text.Bytes(t.Bytes)))
	}
	fmt.Fprintf(&b, "dtypes: %s\n", strings.Join(types, ", "))
	plan.WriteVocabulary(&b, r.Vocabulary)
	if r.Replaced {
		b.WriteString("replaced: an older output\n")
	}
	if r.Resumed > 0 {
		fmt.Fprintf(&b, "resumed: %s were there\n", text.Bytes(r.Resumed))
	}
	if r.Parts > 0 && !r.Already {
		fmt.Fprintf(&b, "joined: %s; of each the ends were read again, and convert --check reads everything\n",
			text.Plural(r.Parts, "part"))
	}
	plan.WriteOperations(&b, r.Operations)
	plan.WriteNames(&b, "carried along", r.Carried)
	plan.WriteNames(&b, "left behind", r.Left)
	if r.Dropped > 0 {
		fmt.Fprintf(&b, "dropped: %s\n", text.Plural(r.Dropped, "tensor"))
	}
	plan.WriteMissing(&b, r.Missing)
	if r.Exact+len(r.Lost) > 0 { // not of synth
		fmt.Fprintf(&b, "exact: %s of %s\n", text.Grouped(r.Exact), text.Plural(r.Tensors, "tensor"))
	}
	r.writeLost(&b)
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "note: %s\n", n)
	}
	if len(r.Next) > 0 {
		fmt.Fprintf(&b, "next: %s\n", strings.Join(r.Next, "; "))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// PartReport is the result of a part of a conversion. It is JSON as it stands.
type PartReport struct {
	Path string `json:"path"` // the target, as it was given
	Plan string `json:"plan"` // hash of the plan of the whole output
	plan.Part
	Finished bool                `json:"finished"`      // the target is the output of this plan already: nothing was done
	Already  bool                `json:"already_done"`  // by earlier runs of the part
	Resumed  int64               `json:"resumed_bytes"` // that earlier runs had written
	Verified bool                `json:"verified"`      // the part was read again and compared with the source
	Tensors  int                 `json:"tensors"`       // of which the part has all or some bytes
	Bytes    int64               `json:"bytes"`         // of tensors' data that the part has
	Of       int64               `json:"of_bytes"`      // of all parts
	Lost     []engine.LostTensor `json:"lost"`          // tensors of the part with elements that changed or are not finite
	Notes    []string            `json:"notes"`         // for the user
}

// WriteText writes the report, one finding per line.
func (r *PartReport) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: part %d of %d, ", text.Quote(r.Path), r.I, r.N)
	state := "not verified"
	if r.Verified {
		state = "verified"
	}
	switch {
	case r.Finished:
		b.WriteString("nothing to do: all parts are joined\n")
	case r.Tensors == 0:
		b.WriteString("nothing to do: it is empty, as there are fewer places to cut\n")
	default:
		fmt.Fprintf(&b, "%s of %s, in %s, %s", text.Bytes(r.Bytes), text.Bytes(r.Of), text.Plural(r.Tensors, "tensor"), state)
		if r.Already {
			b.WriteString(", was done already")
		}
		b.WriteByte('\n')
	}
	if r.Resumed > 0 && !r.Already {
		fmt.Fprintf(&b, "resumed: %s were there\n", text.Bytes(r.Resumed))
	}
	(&Report{Lost: r.Lost}).writeLost(&b)
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "note: %s\n", n)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// writeLost writes a line for each kind of elements that changed or are not finite: their
// number, and the tensors with most of them.
func (r *Report) writeLost(w io.Writer) {
	for _, kind := range []struct {
		text  string
		count func(*engine.LostTensor) int64
	}{
		{"elements that were rounded", func(t *engine.LostTensor) int64 { return t.Rounded }},
		{"elements that were rounded to denormal numbers", func(t *engine.LostTensor) int64 { return t.Denormal }},
		{"elements that became infinite", func(t *engine.LostTensor) int64 { return t.Overflow }},
		{"elements that became zero", func(t *engine.LostTensor) int64 { return t.Flushed - flushedBlocks(t) }},
		{"elements that became zero with their whole block", flushedBlocks},
		{"entries of dropped experts that others stand in for", func(t *engine.LostTensor) int64 { return t.Replaced }},
		{"elements that are infinite or NaN in the source", func(t *engine.LostTensor) int64 { return t.NotFinite }},
	} {
		total, having := int64(0), []*engine.LostTensor{}
		for i := range r.Lost {
			if n := kind.count(&r.Lost[i]); n > 0 {
				total += n
				having = append(having, &r.Lost[i])
			}
		}
		slices.SortStableFunc(having, func(a, b *engine.LostTensor) int { return cmp.Compare(kind.count(b), kind.count(a)) })
		var most []string
		for _, t := range having[:min(len(having), 3)] {
			most = append(most, fmt.Sprintf("%s (%s)", text.Quote(t.Name), text.Grouped(kind.count(t))))
		}
		if rest := len(having) - len(most); rest > 0 {
			most = append(most, fmt.Sprintf("and %s more", text.Plural(rest, "tensor")))
		}
		if total > 0 {
			fmt.Fprintf(w, "%s: %s, in %s\n", kind.text, text.Grouped(total), strings.Join(most, ", "))
		}
	}
	r.writeErrors(w)
}

// flushedBlocks is what became zero of a tensor that was quantised. Single zeros of its blocks
// are no more than an error.
func flushedBlocks(t *engine.LostTensor) int64 {
	if t.Squares == 0 {
		return 0
	}
	return t.Flushed
}

// writeErrors writes the relative RMS of the errors of quantising, over all tensors and in the
// worst ones, and the largest error of all.
func (r *Report) writeErrors(w io.Writer) {
	var all engine.LostTensor
	quantised, largest := []*engine.LostTensor{}, ""
	for i := range r.Lost {
		t := &r.Lost[i]
		if t.Squares == 0 {
			continue
		}
		if quantised = append(quantised, t); t.Largest > all.Largest {
			largest = t.Name
		}
		all.Add(t.Loss)
	}
	if all.Errors == 0 {
		return
	}
	slices.SortStableFunc(quantised, func(a, b *engine.LostTensor) int { return cmp.Compare(b.RelRMS(), a.RelRMS()) })
	var most []string
	for _, t := range quantised[:min(len(quantised), 3)] {
		most = append(most, fmt.Sprintf("%s (%.2g %%)", text.Quote(t.Name), 100*t.RelRMS()))
	}
	fmt.Fprintf(w, "quantised weights are off by %.2g %% of their root mean square, most in %s; the largest error is %.2e, "+
		"in %s; dsmoe verify says what that does to the model\n", 100*all.RelRMS(), strings.Join(most, ", "), all.Largest,
		text.Quote(largest))
}

// CheckReport is what Check found. It is JSON as it stands.
type CheckReport struct {
	Path     string            `json:"path"`     // as it was given
	Plan     string            `json:"plan"`     // hash of the plan that it is the output of
	Verified bool              `json:"verified"` // when it was converted
	Tensors  int               `json:"tensors"`  // in the manifest
	Bytes    int64             `json:"bytes"`    // of their data
	Problems []problem.Problem `json:"problems"` // what changed since
}

// Check hashes every byte of the converted checkpoint at path, a directory or one file, and
// compares it with its manifest. The report names whatever changed; an error means that the
// comparison was not possible.
func Check(ctx context.Context, path string, s Settings) (*CheckReport, error) {
	c, err := engine.Check(ctx, path, s)
	if err != nil {
		return nil, err
	}
	return &CheckReport{Path: path, Plan: c.Plan, Verified: c.Verified, Tensors: c.Tensors, Bytes: c.Bytes,
		Problems: c.Problems}, nil
}

// Rounded returns the tensors of the converted checkpoint c that the conversion rounded to
// their dtype, and how, as its manifest records. It omits tensors whose bytes changed since;
// without a manifest it returns nil.
func Rounded(ctx context.Context, c *checkpoint.Checkpoint) (map[string]tensor.Rounding, error) {
	if !c.Source.OnDisk() {
		if _, err := c.Source.Stat(plan.ManifestName); err == nil {
			return nil, fmt.Errorf("%s: a conversion rounded some of its weights, and which is checked on a disk alone: "+
				"download the model", text.Quote(c.Path))
		}
		return nil, nil
	}
	if files := c.Inventory.Files; c.ConfigInside() && len(files) == 1 {
		file := filepath.Join(c.Dir, files[0].Name)
		if _, err := os.Stat(file + plan.FileManifest); err == nil {
			return engine.Rounded(ctx, file, Settings{})
		}
	}
	return engine.Rounded(ctx, c.Dir, Settings{})
}

// WriteText writes what changed, a line each, or that nothing did.
func (r *CheckReport) WriteText(w io.Writer) error {
	var b strings.Builder
	for _, p := range r.Problems {
		fmt.Fprintf(&b, "%s\n", p)
	}
	if len(r.Problems) == 0 {
		fmt.Fprintf(&b, "%s: %s, %s match the manifest\n", text.Quote(r.Path), text.Plural(r.Tensors, "tensor"),
			text.Bytes(r.Bytes))
	}
	_, err := io.WriteString(w, b.String())
	return err
}
