package convert

import (
	"context"
	"fmt"
	"io"
	"strings"

	"dsmoe/convert/checkpoint"
	"dsmoe/convert/internal/engine"
	"dsmoe/convert/plan"
	"dsmoe/text"
)

// Report is what a conversion did. It is JSON as it stands.
type Report struct {
	Path       string              `json:"path"`             // the target, as it was given
	Plan       string              `json:"plan"`             // hash of the plan
	Already    bool                `json:"already_complete"` // the target was the finished output of this plan, and still is
	Resumed    int64               `json:"resumed_bytes"`    // that an earlier, interrupted run had written
	Verified   bool                `json:"verified"`         // read again and compared with the source
	Tensors    int                 `json:"tensors"`          // that were written
	Bytes      int64               `json:"bytes"`            // of their data
	Files      []string            `json:"files"`            // that hold them
	Carried    []string            `json:"carried"`          // files copied from the source's directory
	Left       []string            `json:"left_behind"`      // files neither read nor copied
	Dropped    int                 `json:"dropped_tensors"`  // left out on request
	Missing    []plan.Missing      `json:"missing"`          // weights that the output lacks to be a model
	Operations map[string]int      `json:"operations"`       // tensors per operation
	Lost       []engine.LostTensor `json:"lost"`             // tensors that a cast could not keep whole
	Notes      []string            `json:"notes"`            // what the user should know
}

func newReport(dst string, p *plan.Plan, done *engine.Result, s Settings) *Report {
	r := &Report{Path: dst, Plan: p.Hash, Already: done.Already, Resumed: done.Resumed, Verified: !s.Unverified,
		Tensors: len(p.Tensors), Files: []string{}, Carried: p.CarriedNames(), Left: p.Left, Dropped: p.Dropped, Missing: p.Missing,
		Operations: p.OperationCounts(), Lost: done.Lost, Notes: p.Notes}
	_, r.Bytes = p.Bytes()
	for _, f := range p.Files {
		r.Files = append(r.Files, f.Name)
	}
	if r.Lost == nil {
		r.Lost = []engine.LostTensor{}
	}
	return r
}

// WriteText writes what was done, a finding a line.
func (r *Report) WriteText(w io.Writer) error {
	state := "not verified"
	if r.Verified {
		state = "verified"
	}
	if r.Already {
		state = "was complete already, matches its manifest"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d tensors, %d bytes in %s, %s\n", text.Quote(r.Path), r.Tensors, r.Bytes, text.Plural(len(r.Files), "file"), state)
	if r.Resumed > 0 {
		fmt.Fprintf(&b, "resumed: %d bytes were there\n", r.Resumed)
	}
	plan.WriteOperations(&b, r.Operations)
	plan.WriteNames(&b, "carried along", r.Carried)
	plan.WriteNames(&b, "left behind", r.Left)
	if r.Dropped > 0 {
		fmt.Fprintf(&b, "dropped: %s\n", text.Plural(r.Dropped, "tensor"))
	}
	plan.WriteMissing(&b, r.Missing)
	for _, t := range r.Lost {
		fmt.Fprintf(&b, "lost: %s: %d elements became infinite, %d zero\n", text.Quote(t.Name), t.Overflow, t.Flushed)
	}
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "note: %s\n", n)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// CheckReport is what Check found. It is JSON as it stands.
type CheckReport struct {
	Path     string               `json:"path"`     // as it was given
	Plan     string               `json:"plan"`     // hash of the plan that it is the output of
	Verified bool                 `json:"verified"` // when it was converted
	Tensors  int                  `json:"tensors"`  // in the manifest
	Bytes    int64                `json:"bytes"`    // of their data
	Problems []checkpoint.Problem `json:"problems"` // what changed since
}

// Check hashes every byte of the converted checkpoint in dir and compares it with
// its manifest. Whatever changed is named in the report; an error means that it
// could not be told.
func Check(ctx context.Context, dir string, s Settings) (*CheckReport, error) {
	m, problems, err := engine.Check(ctx, dir, s)
	if err != nil {
		return nil, err
	}
	r := &CheckReport{Path: dir, Plan: m.Plan, Verified: m.Verified, Tensors: len(m.Tensors), Problems: problems}
	for _, t := range m.Tensors {
		r.Bytes += t.Info().Bytes()
	}
	return r, nil
}

// WriteText writes what changed, a line each, or that nothing did.
func (r *CheckReport) WriteText(w io.Writer) error {
	var b strings.Builder
	for _, p := range r.Problems {
		fmt.Fprintf(&b, "%s\n", p)
	}
	if len(r.Problems) == 0 {
		fmt.Fprintf(&b, "%s: %s, %d bytes match the manifest\n", text.Quote(r.Path), text.Plural(r.Tensors, "tensor"), r.Bytes)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
