package engine

// Updating a finished output whose weights stay: the files without weights are replaced, and
// the bytes before the weights (GGUF's keys), in place or in a new file with the same data.
// The manifest comes last: after a crash the same update goes on.

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"dsmoe/convert/checkpoint"
	"dsmoe/convert/format"
	"dsmoe/convert/internal/digest"
	"dsmoe/convert/internal/manifest"
	"dsmoe/convert/internal/progress"
	"dsmoe/convert/plan"
	"dsmoe/text"
)

// updateFinished makes dst, the finished output of a plan of the same weights, that of p. Files that are
// neither as the manifest records them nor as p has them stay, and are an error.
func updateFinished(ctx context.Context, dst string, p *plan.Plan, src Source, s Settings) (*Result, error) {
	e, err := newExecution(dst, p, src, s)
	if err != nil {
		return nil, err
	}
	out, onDisk := e.out.(*diskOutput)
	if !onDisk {
		return nil, checkpoint.Refusal(dst, "an output in an object store cannot be updated", "--overwrite makes it anew")
	}
	m, err := out.readManifest(nil)
	if err != nil {
		return nil, fmt.Errorf("cannot be updated, as it is not a finished output: %w", err)
	}
	if edited := m.Edited(); edited != "" {
		return nil, fmt.Errorf("cannot be updated: %s %s", out.manifestName(), edited)
	}
	others, err := e.otherFiles(ctx, m)
	if err != nil {
		return nil, err
	}
	different := e.differences(m, others)
	switch {
	case !e.updates(m):
		return nil, e.another(m, different)
	case len(different) == 0 && m.Plan == p.Hash:
		r, _, err := finished(ctx, dst, p, src, s)
		return r, err
	}
	if err := out.lockFinished(); err != nil {
		return nil, err
	}
	defer out.close()
	if now, err := out.readManifest(nil); err != nil || now.Hash != m.Hash {
		return nil, errors.Join(progress.ErrBusy, err)
	}
	u := &updating{execution: e, out: out, old: m}
	if err = errors.Join(u.run(ctx, others), e.Disk.Remove(out.journalPath)); err != nil {
		return nil, err
	}
	return &Result{Verified: m.Verified, Updated: u.replaced, Outdated: m.State != u.current, Lost: e.lost()}, nil
}

// lockFinished locks a finished output. Its journal stays empty: it is of no unfinished output.
func (o *diskOutput) lockFinished() (err error) {
	if o.journal, err = progress.LockJournal(o.disk, o.journalPath); err != nil {
		return err
	}
	if progress.Begun(o.journalPath) {
		o.close()
		return checkpoint.Refusal(o.dst, "an unfinished conversion is in "+text.Quote(o.dir),
			"the command that began it continues it")
	}
	return nil
}

// updating is the update of a finished output.
type updating struct {
	*execution
	out      *diskOutput
	old      *manifest.Manifest
	current  string               // state of the source: Source.Key
	others   []otherFile          // to be replaced or removed
	heads    []int                // weight files, as plan.Files, with bytes before the weights to be replaced
	blocked  []checkpoint.Problem // files that are neither the old nor the new output's
	replaced []string             // names of files
}

// run examines all files before it replaces the first.
func (u *updating) run(ctx context.Context, others []otherFile) error {
	if err := u.examine(ctx, others); err != nil {
		return err
	}
	if err := u.adopt(); err != nil {
		return err
	}
	for _, o := range u.others {
		if err := u.replaceOther(ctx, o); err != nil {
			return err
		}
	}
	for _, i := range u.heads {
		if err := u.replaceHead(ctx, i); err != nil {
			return err
		}
	}
	if err := u.Disk.ReplaceFile(u.out.manifest, u.writeManifest); err != nil {
		return err
	}
	u.replaced = append(u.replaced, u.out.manifestName())
	for _, name := range u.plan.FinishOrder() { // what a crash left
		if partial := hidden(u.finalPath(name), "partial"); exists(partial) {
			if err := u.Disk.Remove(partial); err != nil {
				return err
			}
		}
	}
	return nil
}

func (u *updating) finalPath(name string) string { return filepath.Join(u.out.home, name) }

// examine lists the files to be replaced. A file that is neither the old nor the new output's is an error.
func (u *updating) examine(ctx context.Context, others []otherFile) error {
	for _, o := range others {
		hash, _, err := hashOf(ctx, u.finalPath(o.name), 1<<62)
		switch {
		case err != nil:
			return err
		case o.difference() == "" || hash == o.now:
			continue
		case hash != "" && hash != o.old:
			u.block(o.name, hash, o.old)
		}
		u.others = append(u.others, o)
	}
	need := int64(0)
	for i, f := range u.plan.Files {
		if f.Header == u.old.Files[i].Header {
			continue
		}
		if err := u.examineHead(ctx, i); err != nil {
			return err
		}
		if f.Size != u.old.Files[i].Size {
			need = max(need, f.Size)
		}
	}
	if u.blocked != nil {
		err := checkpoint.Refusal(u.out.dst, "cannot be updated: its files changed since they were written",
			"move the changed files away; --overwrite=changed makes everything anew")
		err.Problems = append(err.Problems, u.blocked...)
		return err
	}
	return checkFree(u.out.home, need)
}

func (u *updating) block(name, found, recorded string) {
	cause := "changed: " + found + ", not " + cmp.Or(recorded, "absent")
	u.blocked = append(u.blocked, checkpoint.Problem{File: name, Cause: cause})
}

// examineHead examines the bytes before the weights of a weight file, an index in plan.Files.
func (u *updating) examineHead(ctx context.Context, i int) error {
	now, was, path := u.plan.Files[i], u.old.Files[i], u.finalPath(u.plan.Files[i].Name)
	if !exists(path) && now.Size == was.Size {
		path = withoutHead(path) // a crash interrupted the update of the file
		if stat, err := os.Lstat(path); err == nil && stat.Mode().IsRegular() && stat.Size() == now.Size {
			u.heads = append(u.heads, i)
			return nil
		}
	}
	hash, size, err := hashOf(ctx, path, u.plan.DataStart(now.Name))
	if err != nil || hash == now.Header && size == now.Size {
		return err
	}
	if hash, size, err = hashOf(ctx, path, u.oldStart(i)); err != nil {
		return err
	}
	if hash != was.Header || size != was.Size {
		u.block(now.Name, cmp.Or(hash, "missing"), was.Header)
	}
	u.heads = append(u.heads, i)
	return nil
}

// oldStart returns the number of bytes before the weights of a file of the old output, an
// index in plan.Files: all that differs between its size and the new one.
func (u *updating) oldStart(i int) int64 {
	f := u.plan.Files[i]
	return u.plan.DataStart(f.Name) + u.old.Files[i].Size - f.Size
}

// hashOf hashes the first n bytes of a file and returns its size. The hash of a missing file is empty.
func hashOf(ctx context.Context, path string, n int64) (hash string, size int64, err error) {
	stat, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", 0, nil
	case err != nil:
		return "", 0, err
	case !stat.Mode().IsRegular():
		return "not a regular file", 0, nil
	}
	f, size, err := format.OpenRegular(path)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	hash, _, err = digest.Copy(ctx, io.Discard, io.LimitReader(f, n), func(int64) {})
	return hash, size, err
}

// adopt takes over what the old manifest records of the weights.
func (u *updating) adopt() error {
	n, other := 0, errors.New(u.out.manifestName()+" lists other tensors")
	_, err := u.out.readManifest(func(t *manifest.Tensor) error {
		if n == len(u.States) || u.plan.Tensors[n].Name != t.Name || len(u.plan.Tensors[n].Segments) != len(t.Sources) {
			return other
		}
		s := progress.State{Proof: &progress.Proof{Hash: t.Hash}}
		if t.Lost != nil {
			s.Lost = progress.Losses{*t.Lost}
		}
		for _, source := range t.Sources {
			if source.Hash != "" { // of all of them or none
				s.Proof.Segments = append(s.Proof.Segments, source.Hash)
			}
		}
		if len(s.Proof.Segments) != len(t.Sources) {
			s.Proof.Segments = nil
		}
		u.States[n] = s
		n++
		return nil
	})
	if err == nil && n != len(u.States) {
		err = other
	}
	// The weights stay, and so does what is known of them.
	u.current, u.key, u.Unverified = u.key, u.old.State, !u.old.Verified
	return err
}

// replaceOther replaces or removes a file without weights.
func (u *updating) replaceOther(ctx context.Context, o otherFile) error {
	u.replaced = append(u.replaced, o.name)
	i := slices.IndexFunc(u.plan.Others, func(f plan.Other) bool { return f.Name == o.name })
	if i >= 0 {
		return u.Disk.ReplaceFile(u.finalPath(o.name), func(w io.Writer) error {
			return u.writeOther(ctx, w, u.plan.Others[i])
		})
	}
	if err := u.Disk.Remove(u.finalPath(o.name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return u.Disk.SyncDir(u.out.home)
}

// replaceHead replaces the bytes before the weights of a file: in place if the weights stay where
// they are.
func (u *updating) replaceHead(ctx context.Context, i int) error {
	f := u.plan.Files[i]
	u.replaced = append(u.replaced, f.Name)
	header, err := u.plan.Header(i)
	if err != nil {
		return err
	}
	if f.Size == u.old.Files[i].Size {
		return u.overwriteHead(u.finalPath(f.Name), header)
	}
	u.StartPhase("moving weights", f.Size-u.plan.DataStart(f.Name))
	return u.moveWeights(ctx, i, header)
}

// withoutHead is the name of a weight file while the bytes before its weights are overwritten.
func withoutHead(path string) string { return hidden(path, "header") }

// overwriteHead overwrites the first bytes of a file, which has another name meanwhile: no file
// with the final name has a part of them.
func (u *updating) overwriteHead(path string, header []byte) error {
	if exists(path) {
		if err := u.Disk.Rename(path, withoutHead(path)); err != nil {
			return err
		}
		if err := u.Disk.SyncDir(u.out.home); err != nil {
			return err
		}
	}
	f, err := u.Disk.Open(withoutHead(path))
	if err != nil {
		return err
	}
	_, err = f.WriteAt(header, 0)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Finish()); err != nil {
		return err
	}
	if err := u.Disk.Rename(withoutHead(path), path); err != nil {
		return err
	}
	return u.Disk.SyncDir(u.out.home)
}

// moveWeights writes a new file with other bytes before the same weights, and demands that these
// have the hashes of the manifest.
func (u *updating) moveWeights(ctx context.Context, i int, header []byte) error {
	f := u.plan.Files[i]
	old, _, err := format.OpenRegular(u.finalPath(f.Name))
	if err != nil {
		return err
	}
	defer old.Close()
	shift := f.Size - u.old.Files[i].Size
	return u.Disk.ReplaceFile(u.finalPath(f.Name), func(w io.Writer) error {
		b := bufio.NewWriterSize(w, 1<<20)
		b.Write(header)
		at := int64(len(header))
		for j := range u.plan.Tensors {
			t := &u.plan.Tensors[j]
			if t.File != i {
				continue
			}
			b.Write(make([]byte, t.Offset-at)) // padding
			hash, n, err := digest.Copy(ctx, b, io.NewSectionReader(old, t.Offset-shift, t.Bytes()), u.Advance)
			if err != nil {
				return err
			}
			if hash != u.States[j].Proof.Hash {
				return fmt.Errorf("%s: tensor %s changed since it was written", text.Quote(f.Name), text.Quote(t.Name))
			}
			at = t.Offset + n
		}
		b.Write(make([]byte, f.Size-at))
		return b.Flush()
	})
}
