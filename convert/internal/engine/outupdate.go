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

	"dsmoe/convert/checkpoint"
	"dsmoe/convert/format"
	"dsmoe/convert/internal/digest"
	"dsmoe/convert/internal/manifest"
	"dsmoe/convert/internal/progress"
	"dsmoe/convert/plan"
	"dsmoe/text"
)

// update is the update of a finished output on the disk.
type update struct {
	*diskOutput
	old      *manifest.Manifest
	others   []otherFile          // to be replaced or removed
	heads    []int                // weight files, as plan.Files, with bytes before the weights to be replaced
	blocked  []checkpoint.Problem // files that are neither the old nor the new output's
	replaced []string             // names of files
}

// otherFile is a file without weights of the old or the new output.
type otherFile struct {
	name     string
	old, now string // hashes; empty for a file that the output lacks
	carried  bool
}

// difference says how the file differs between the outputs; empty if it does not.
func (o *otherFile) difference() string {
	switch {
	case o.old == o.now:
		return ""
	case !o.carried:
		return "would have other content"
	case o.old == "":
		return "is new in the source"
	case o.now == "":
		return "is no longer in the source"
	}
	return "is " + o.now + " now, not " + o.old
}

// lockFinished locks the finished output of a plan, whose manifest is old, to update it. Its journal stays empty: it is
// of no unfinished output.
func lockFinished(t *target, p *plan.Plan, s options, old *manifest.Manifest) (u *update, err error) {
	o := newDiskOutput(t, p, s)
	if o.journal, err = progress.LockJournal(o.disk, o.journalPath); err != nil {
		return nil, err
	}
	if progress.Begun(o.journalPath) {
		o.close()
		return nil, checkpoint.Refusal(o.dst, "an unfinished conversion is in "+text.Quote(o.dir),
			"the command that began it continues it")
	}
	if now, err := o.readManifest(nil); err != nil || now.Hash != old.Hash {
		o.close()
		return nil, errors.Join(progress.ErrBusy, err)
	}
	return &update{diskOutput: o, old: old}, nil
}

// unlock removes the journal, and with it the lock.
func (u *update) unlock() error {
	defer u.close()
	return u.disk.Remove(u.journalPath)
}

func (u *update) finalPath(name string) string { return filepath.Join(u.home, name) }

// examine lists the files to be replaced, of these without weights and of those with. A file that is neither the old
// nor the new output's is an error.
func (u *update) examine(ctx context.Context, others []otherFile) error {
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
		err := checkpoint.Refusal(u.dst, "cannot be updated: its files changed since they were written",
			"move the changed files away; --overwrite=changed makes everything anew")
		err.Problems = append(err.Problems, u.blocked...)
		return err
	}
	return checkFree(u.home, need)
}

func (u *update) block(name, found, recorded string) {
	cause := "changed: " + found + ", not " + cmp.Or(recorded, "absent")
	u.blocked = append(u.blocked, checkpoint.Problem{File: name, Cause: cause})
}

// examineHead examines the bytes before the weights of a weight file, an index in plan.Files.
func (u *update) examineHead(ctx context.Context, i int) error {
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
func (u *update) oldStart(i int) int64 {
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

// replace replaces the files that examine listed and, last, the manifest. content is as commit's; the ledger has what
// the old manifest records of the weights.
func (u *update) replace(ctx context.Context, content func(name string) func(io.Writer) error,
	l *progress.Ledger) error {
	for _, o := range u.others {
		if err := u.replaceOther(o.name, content(o.name)); err != nil {
			return err
		}
	}
	for _, i := range u.heads {
		if err := u.replaceHead(ctx, i, l); err != nil {
			return err
		}
	}
	if err := u.disk.ReplaceFile(u.manifest, content(u.manifestName())); err != nil {
		return err
	}
	u.replaced = append(u.replaced, u.manifestName())
	for _, name := range u.plan.FinishOrder() { // what a crash left
		if partial := hidden(u.finalPath(name), "partial"); exists(partial) {
			if err := u.disk.Remove(partial); err != nil {
				return err
			}
		}
	}
	return nil
}

// replaceOther replaces a file without weights or, without content, removes it.
func (u *update) replaceOther(name string, content func(io.Writer) error) error {
	u.replaced = append(u.replaced, name)
	if content != nil {
		return u.disk.ReplaceFile(u.finalPath(name), content)
	}
	if err := u.disk.Remove(u.finalPath(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return u.disk.SyncDir(u.home)
}

// replaceHead replaces the bytes before the weights of a file: in place if the weights stay where
// they are.
func (u *update) replaceHead(ctx context.Context, i int, l *progress.Ledger) error {
	f := u.plan.Files[i]
	u.replaced = append(u.replaced, f.Name)
	header, err := u.plan.Header(i)
	if err != nil {
		return err
	}
	if f.Size == u.old.Files[i].Size {
		return u.overwriteHead(u.finalPath(f.Name), header)
	}
	l.StartPhase("moving weights", f.Size-u.plan.DataStart(f.Name))
	return u.moveWeights(ctx, i, header, l)
}

// withoutHead is the name of a weight file while the bytes before its weights are overwritten.
func withoutHead(path string) string { return hidden(path, "header") }

// overwriteHead overwrites the first bytes of a file, which has another name meanwhile: no file
// with the final name has a part of them.
func (u *update) overwriteHead(path string, header []byte) error {
	if exists(path) {
		if err := u.disk.Rename(path, withoutHead(path)); err != nil {
			return err
		}
		if err := u.disk.SyncDir(u.home); err != nil {
			return err
		}
	}
	f, err := u.disk.Open(withoutHead(path))
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
	if err := u.disk.Rename(withoutHead(path), path); err != nil {
		return err
	}
	return u.disk.SyncDir(u.home)
}

// moveWeights writes a new file with other bytes before the same weights, and demands that these
// have the hashes that the ledger has from the manifest.
func (u *update) moveWeights(ctx context.Context, i int, header []byte, l *progress.Ledger) error {
	f := u.plan.Files[i]
	old, _, err := format.OpenRegular(u.finalPath(f.Name))
	if err != nil {
		return err
	}
	defer old.Close()
	shift := f.Size - u.old.Files[i].Size
	return u.disk.ReplaceFile(u.finalPath(f.Name), func(w io.Writer) error {
		b := bufio.NewWriterSize(w, 1<<20)
		b.Write(header)
		at := int64(len(header))
		for j := range u.plan.Tensors {
			t := &u.plan.Tensors[j]
			if t.File != i {
				continue
			}
			b.Write(make([]byte, t.Offset-at)) // padding
			hash, n, err := digest.Copy(ctx, b, io.NewSectionReader(old, t.Offset-shift, t.Bytes()), l.Advance)
			if err != nil {
				return err
			}
			if hash != l.States[j].Proof.Hash {
				return fmt.Errorf("%s: tensor %s changed since it was written", text.Quote(f.Name), text.Quote(t.Name))
			}
			at = t.Offset + n
		}
		b.Write(make([]byte, f.Size-at))
		return b.Flush()
	})
}
