package engine

// The files without weights that are copied from the source: hashed when they are copied,
// and again when a finished output is asked for.

import (
	"context"
	"fmt"
	"io"

	"dsmoe/convert/checkpoint"
	"dsmoe/convert/internal/digest"
	"dsmoe/convert/plan"
	"dsmoe/text"
)

// follow is a reader that can be interrupted, and tells how much of it was read.
type follow struct {
	io.Reader
	ctx  context.Context
	tell func(n int64)
}

// Read reads unless the context is done.
func (f follow) Read(b []byte) (int, error) {
	if err := f.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := f.Reader.Read(b)
	f.tell(int64(n))
	return n, err
}

// otherFiles begins the work on the files that are copied, which has a progress of its own.
func (e *execution) otherFiles(phase string) {
	e.phase, e.done, e.total = phase, 0, 0
	for _, f := range e.plan.Others {
		if f.Carried {
			e.total += f.Size
		}
	}
}

// copyCarried copies a file to w and returns its hash. The file must be the one that the
// plan saw, before and after.
func (e *execution) copyCarried(ctx context.Context, w io.Writer, f plan.Other) (hash string, err error) {
	src, err := e.source.OpenOther(f.Name)
	if err != nil {
		return "", err
	}
	defer src.Close()
	hash, n, err := digest.Reader(io.TeeReader(follow{src, ctx, e.advance}, w))
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
func (e *execution) sameCarried(ctx context.Context, m *Manifest) error {
	e.otherFiles("comparing other files")
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
		hash, _, err := digest.Reader(follow{file, ctx, e.advance})
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
