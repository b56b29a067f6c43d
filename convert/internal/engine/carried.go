package engine

// The files without weights that are copied from the source: hashed when they are copied,
// and again when a finished output is asked for.

import (
	"fmt"
	"io"

	"dsmoe/convert/checkpoint"
	"dsmoe/convert/internal/digest"
	"dsmoe/convert/plan"
	"dsmoe/text"
)

// copyCarried copies a file to w and returns its hash. The file must be the one that the
// plan saw, before and after.
func copyCarried(w io.Writer, f plan.Other, from Source) (hash string, err error) {
	src, err := from.OpenOther(f.Name)
	if err != nil {
		return "", err
	}
	defer src.Close()
	hash, n, err := digest.Reader(io.TeeReader(src, w))
	if err != nil {
		return "", err
	}
	stat, err := src.Stat()
	if err == nil && (n != f.Size || !stat.ModTime().Equal(f.ModTime)) {
		err = fmt.Errorf("%s: changed while the conversion ran", text.Quote(f.Name))
	}
	return hash, err
}

// sameCarried compares the source's files with what a finished output holds of them, and
// takes their hashes over. A *checkpoint.Error names all that changed since.
func (e *execution) sameCarried(m *Manifest) error {
	problems := []checkpoint.Problem{{Cause: "is the output of this very conversion, but files that went along changed in the source since",
		Hint: anew}}
	for _, f := range m.Others {
		if !f.Carried {
			continue
		}
		file, err := e.source.OpenOther(f.Name)
		if err != nil {
			return err
		}
		hash, _, err := digest.Reader(file)
		file.Close()
		if err != nil {
			return err
		}
		if hash != f.Hash {
			problems = append(problems, checkpoint.Problem{File: f.Name, Cause: "is " + hash + " now, not " + f.Hash})
		}
		e.carried[f.Name] = f.Hash
	}
	if len(problems) > 1 {
		return &checkpoint.Error{Path: e.dst, Problems: problems}
	}
	return nil
}
