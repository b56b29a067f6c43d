package engine

// An output against its manifest.

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"dsmoe/convert/internal/manifest"
	"dsmoe/convert/internal/output"
	"dsmoe/convert/plan"
	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// checked is the result of Check.
type checked struct {
	Plan     string            // hash of the output's plan
	Verified bool              // the output was compared with its source
	Tensors  int               // tensors in the manifest
	Bytes    int64             // bytes of their data
	Problems []problem.Problem // differences from the manifest
}

// Check hashes every byte of the output at path and compares it with its manifest, which it
// reads one tensor at a time. An error means that the comparison was not possible. The result has the hash of the Plan,
// whether the output was Verified, its Tensors and Bytes, and Problems: what differs from the manifest.
func Check(ctx context.Context, path string, s Settings) (*checked, error) {
	s = s.withDefaults()
	t, err := output.At(path, s.Client)
	if err != nil {
		return nil, err
	}
	m, err := t.ReadManifest(nil)
	if err != nil {
		return nil, err
	}
	r := &checked{Plan: m.Plan, Verified: m.Verified}
	r.Problems, err = checkManifest(ctx, t, m, nil, s, func(t *manifest.Tensor) {
		r.Tensors++
		r.Bytes += t.Info().Bytes()
	})
	return r, err
}

// checkManifest compares the output at a target with its manifest, as manifest.Output.Compare does.
func checkManifest(ctx context.Context, out *output.Target, m *manifest.Manifest, p *plan.Plan, s Settings,
	each func(*manifest.Tensor)) ([]problem.Problem, error) {
	dir, err := out.Files()
	if err != nil {
		return nil, err
	}
	o := manifest.Output{Dir: dir, Name: out.ManifestName(), Alone: out.IsFile(), Compute: s.Compute, Progress: s.Progress}
	return o.Compare(ctx, m, p, each)
}

// problemsByFile keeps the first problem of the tensors of each file, which counts the others.
func problemsByFile(problems []problem.Problem) (files []problem.Problem) {
	count := map[string]int{}
	for _, p := range problems {
		if p.Tensor != "" {
			count[p.File]++
		}
		if p.Tensor == "" || count[p.File] == 1 {
			files = append(files, p)
		}
	}
	for i := range files {
		if more := count[files[i].File] - 1; files[i].Tensor != "" && more > 0 {
			files[i].Cause += fmt.Sprintf(", and of %s in the file", text.Plural(more, "more tensor"))
		}
	}
	return files
}

// Rounded returns the tensors of the output at path that were rounded to their dtype, and how,
// by its manifest. It omits tensors whose bytes changed; without a manifest it returns nil.
func Rounded(ctx context.Context, path string, s Settings) (map[string]tensor.Rounding, error) {
	s = s.withDefaults()
	out, err := output.At(path, s.Client)
	if err != nil {
		return nil, err
	}
	m, err := out.ReadManifest(nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if edited := m.Edited(); edited != "" {
		return nil, fmt.Errorf("%s: %s", text.Quote(out.Manifest), edited)
	}
	rounded := map[string]tensor.Rounding{}
	problems, err := checkManifest(ctx, out, m, nil, s, func(t *manifest.Tensor) {
		if r := t.Rounds(); r.By != "" {
			rounded[t.Name] = r
		}
	})
	if err != nil {
		return nil, err
	}
	for _, p := range problems {
		delete(rounded, tensor.OwnerOf(p.Tensor)) // scales change their weight
	}
	return rounded, nil
}
