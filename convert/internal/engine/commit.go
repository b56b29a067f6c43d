package engine

// The files without weights, and the manifest.

import (
	"context"
	"fmt"
	"io"
	"slices"

	"dsmoe/convert/internal/manifest"
	"dsmoe/convert/plan"
	"dsmoe/model/digest"
	"dsmoe/text"
)

// finish writes and proves what is left of the output, or of a part, then adds the files without weights and the
// manifest, and publishes the output; or records that the part is done.
func (e *execution) finish(ctx context.Context) (replaced bool, err error) {
	if err := e.writeAndProve(ctx); err != nil {
		return false, err
	}
	if err := ctx.Err(); err != nil {
		return false, err
	}
	if err := e.checkSource(); err != nil {
		return false, err
	}
	if e.Part.N == 0 {
		e.startCarried("copying other files")
	}
	return e.out.Commit(func(name string) func(io.Writer) error {
		if name == e.plan.Manifest() {
			return e.writeManifest
		}
		i := slices.IndexFunc(e.plan.Others, func(f plan.Other) bool { return f.Name == name })
		if i < 0 {
			return nil
		}
		f := e.plan.Others[i]
		return func(w io.Writer) (err error) {
			if f.Carried {
				e.carried[name], err = e.copyCarried(ctx, w, f)
				return err
			}
			return e.plan.WriteOther(w, f)
		}
	})
}

// startCarried starts the phase that reads the files copied from the source.
func (e *execution) startCarried(phase string) {
	total := int64(0)
	for _, f := range e.plan.Others {
		if f.Carried {
			total += f.Size
		}
	}
	e.StartPhase(phase, total)
}

// copyCarried copies a file to w and returns its hash. The file must be as planned, also
// after it was copied.
func (e *execution) copyCarried(ctx context.Context, w io.Writer, f plan.Other) (hash string, err error) {
	src, err := e.source.OpenOther(f.Name)
	if err != nil {
		return "", err
	}
	defer src.Close()
	hash, n, err := digest.Copy(ctx, w, src, e.Advance)
	if err != nil {
		return "", err
	}
	stat, err := src.Stat()
	if err == nil && (n != f.Size || !stat.ModTime().Equal(f.ModTime)) {
		err = fmt.Errorf("%s: changed while the conversion ran", text.Quote(f.Name))
	}
	return hash, err
}

func (e *execution) writeManifest(w io.Writer) error {
	p := e.plan
	others := slices.Clone(p.Others)
	for i := range others {
		if others[i].Carried {
			others[i].Hash = e.carried[others[i].Name]
		}
	}
	m := manifest.Manifest{Format: manifest.Format, Tool: e.Tool, Plan: p.Hash, Weights: p.Weights, Options: p.Options,
		Verified: !e.Unverified, Origin: e.Origin, Sources: p.Sources, State: e.key, Files: p.Files, Others: others}
	return m.Write(w, len(p.Tensors), func(i int) manifest.Tensor {
		t, s := &p.Tensors[i], &e.States[i]
		m := manifest.Tensor{Name: t.Name, DType: t.DType, Shape: t.Shape, File: p.Files[t.File].Name,
			Hash: s.Proof.Hash, Operations: t.Operations, Sources: make([]manifest.Source, len(t.Segments))}
		if lost := s.Lost.Total(); lost.Any() {
			m.Lost = &lost
		}
		for j, g := range t.Segments {
			m.Sources[j] = manifest.Source{Tensor: g.Tensor, DType: g.DType, Begin: g.Begin, End: g.End,
				Places: g.Places().Codes, View: g.View}
			if s.Proof.Segments != nil && g.Tensor != "" {
				m.Sources[j].Hash = s.Proof.Segments[j]
			}
			for _, side := range g.Sides {
				m.Sources[j].Beside = append(m.Sources[j].Beside, side.Tensor)
			}
		}
		return m
	})
}
