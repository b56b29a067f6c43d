package engine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"

	"dsmoe/convert/internal/manifest"
	"dsmoe/convert/internal/output"
	"dsmoe/convert/source"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// fileSum is a file of an output.
type fileSum struct {
	Name   string // in the output's directory
	SHA256 string // of its bytes, in hexadecimal digits
}

// summed is an output whose files were hashed and then compared with its manifest.
type summed struct {
	*checked
	Manifest *manifest.Manifest // without its tensors
	Files    []fileSum          // all files of the output, the manifest last
}

// Sum takes the SHA-256 of every file of the output at path, then compares the output with its manifest, as Check does.
// A file whose state changes in between is an error. The result has what Check's has, the Manifest without its tensors,
// and Files, with the Name and SHA256 of each.
func Sum(ctx context.Context, path string, s Settings) (*summed, error) {
	s = s.withDefaults()
	t, err := output.At(path, s.Client)
	if err != nil {
		return nil, err
	}
	m, err := t.ReadManifest(nil)
	if err != nil {
		return nil, err
	}
	dir, err := t.Files()
	if err != nil {
		return nil, err
	}
	names := append(m.FileNames(), t.ManifestName())
	states, r := make([]string, len(names)), &summed{Manifest: m}
	for i, name := range names {
		if states[i], err = dir.State(name); err != nil {
			return nil, err
		}
		s.Progress("SHA-256", int64(i), int64(len(names)))
		sum, err := sumFile(ctx, dir, name)
		if err != nil {
			return nil, err
		}
		r.Files = append(r.Files, fileSum{name, sum})
	}
	if r.checked, err = Check(ctx, path, s); err != nil {
		return nil, err
	}
	for i, name := range names {
		if state, err := dir.State(name); err != nil || state != states[i] {
			return nil, errors.Join(err, problem.New(dir.Path(name), "changed while it was read", "run the command again"))
		}
	}
	return r, nil
}

// sumFile returns the SHA-256 of a file.
func sumFile(ctx context.Context, dir source.Dir, name string) (string, error) {
	f, err := dir.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	for {
		n, err := io.CopyN(h, f, 64<<20)
		switch {
		case ctx.Err() != nil:
			return "", ctx.Err()
		case err == io.EOF:
			return hex.EncodeToString(h.Sum(nil)), nil
		case err != nil:
			return "", fmt.Errorf("%s: after %s: %w", text.Quote(dir.Path(name)), text.Bytes(n), err)
		}
	}
}
