package output

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

	"dsmoe/convert/format"
	"dsmoe/convert/internal/manifest"
	"dsmoe/convert/internal/progress"
	"dsmoe/convert/plan"
	"dsmoe/model/digest"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// Update is the update of a finished output on the disk.
type Update struct {
	Replaced []string // names of the files that were replaced or removed

	out     *diskOutput
	old     *manifest.Manifest
	others  []OtherFile       // to be replaced or removed
	heads   []int             // weight files, as plan.Files, with bytes before the weights to be replaced
	blocked []problem.Problem // files that are neither the old nor the new output's
}

// OtherFile is a file without weights of the old or the new output.
type OtherFile struct {
	Name     string
	Old, Now string // hashes; empty for a file that the output lacks
	Carried  bool   // copied from the source
}

// Difference says how the file differs between the outputs; empty if it does not.
func (o *OtherFile) Difference() string {
	switch {
	case o.Old == o.Now:
		return ""
	case !o.Carried:
		return "would have other content"
	case o.Old == "":
		return "is new in the source"
	case o.Now == "":
		return "is no longer in the source"
	}
	return "is " + o.Now + " now, not " + o.Old
}

// LockFinished locks the finished output at t, whose manifest is old, to make it the output of p. Its journal stays
// empty: it is of no unfinished output.
func LockFinished(t *Target, p *plan.Plan, s Options, old *manifest.Manifest) (u *Update, err error) {
	o := newDiskOutput(t, p, s)
	if o.journal, err = progress.LockJournal(o.Disk, o.journalPath); err != nil {
		return nil, err
	}
	if progress.HasRecords(o.journalPath) {
		o.Close()
		return nil, problem.New(o.Path, "an unfinished conversion is in "+text.Quote(o.dir),
			"the command that began it continues it")
	}
	if now, err := o.ReadManifest(nil); err != nil || now.Hash != old.Hash {
		o.Close()
		return nil, errors.Join(progress.ErrBusy, err)
	}
	return &Update{out: o, old: old}, nil
}

// Unlock removes the journal, and with it the lock.
func (u *Update) Unlock() error {
	defer u.out.Close()
	return u.out.Disk.Remove(u.out.journalPath)
}

func (u *Update) finalPath(name string) string { return filepath.Join(u.out.home, name) }

// Examine lists the files to be replaced: of others, and of the weight files. A file that is neither the old nor the
// new output's is an error.
func (u *Update) Examine(ctx context.Context, others []OtherFile) error {
	for _, o := range others {
		hash, _, err := hashOf(ctx, u.finalPath(o.Name), 1<<62)
		switch {
		case err != nil:
			return err
		case o.Difference() == "" || hash == o.Now:
			continue
		case hash != "" && hash != o.Old:
			u.block(o.Name, hash, o.Old)
		}
		u.others = append(u.others, o)
	}
	need := int64(0)
	for i, f := range u.out.plan.Files {
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
		err := problem.New(u.out.Path, "cannot be updated: its files changed since they were written",
			"move the changed files away; --overwrite=changed makes everything anew")
		err.Problems = append(err.Problems, u.blocked...)
		return err
	}
	return checkFree(u.out.home, need)
}

func (u *Update) block(name, found, recorded string) {
	cause := "changed: " + found + ", not " + cmp.Or(recorded, "absent")
	u.blocked = append(u.blocked, problem.Problem{File: name, Cause: cause})
}

// examineHead examines the bytes before the weights of a weight file, an index in plan.Files.
func (u *Update) examineHead(ctx context.Context, i int) error {
	now, was, path := u.out.plan.Files[i], u.old.Files[i], u.finalPath(u.out.plan.Files[i].Name)
	if !exists(path) && now.Size == was.Size {
		path = withoutHead(path) // a crash interrupted the update of the file
		if stat, err := os.Lstat(path); err == nil && stat.Mode().IsRegular() && stat.Size() == now.Size {
			u.heads = append(u.heads, i)
			return nil
		}
	}
	hash, size, err := hashOf(ctx, path, u.out.plan.DataStart(now.Name))
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
func (u *Update) oldStart(i int) int64 {
	f := u.out.plan.Files[i]
	return u.out.plan.DataStart(f.Name) + u.old.Files[i].Size - f.Size
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

// Replace replaces the files that Examine listed and, last, the manifest. content is as for Output.Commit; the ledger
// has what the old manifest records of the weights.
func (u *Update) Replace(ctx context.Context, content func(name string) func(io.Writer) error,
	l *progress.Ledger) error {
	for _, o := range u.others {
		if err := u.replaceOther(o.Name, content(o.Name)); err != nil {
			return err
		}
	}
	for _, i := range u.heads {
		if err := u.replaceHead(ctx, i, l); err != nil {
			return err
		}
	}
	if err := u.out.Disk.ReplaceFile(u.out.Manifest, content(u.out.ManifestName())); err != nil {
		return err
	}
	u.Replaced = append(u.Replaced, u.out.ManifestName())
	for _, name := range u.out.plan.FinishOrder() { // what a crash left
		if partial := hidden(u.finalPath(name), "partial"); exists(partial) {
			if err := u.out.Disk.Remove(partial); err != nil {
				return err
			}
		}
	}
	return nil
}

// replaceOther replaces a file without weights or, without content, removes it.
func (u *Update) replaceOther(name string, content func(io.Writer) error) error {
	u.Replaced = append(u.Replaced, name)
	if content != nil {
		return u.out.Disk.ReplaceFile(u.finalPath(name), content)
	}
	if err := u.out.Disk.Remove(u.finalPath(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return u.out.Disk.SyncDir(u.out.home)
}

// replaceHead replaces the bytes before the weights of a file: in place if the weights stay where
// they are.
func (u *Update) replaceHead(ctx context.Context, i int, l *progress.Ledger) error {
	f := u.out.plan.Files[i]
	u.Replaced = append(u.Replaced, f.Name)
	header, err := u.out.plan.Header(i)
	if err != nil {
		return err
	}
	if f.Size == u.old.Files[i].Size {
		return u.overwriteHead(u.finalPath(f.Name), header)
	}
	l.StartPhase("moving weights", f.Size-u.out.plan.DataStart(f.Name))
	return u.moveWeights(ctx, i, header, l)
}

// withoutHead is the name of a weight file while the bytes before its weights are overwritten.
func withoutHead(path string) string { return hidden(path, "header") }

// overwriteHead overwrites the first bytes of a file, which has another name meanwhile: no file
// with the final name has a part of them.
func (u *Update) overwriteHead(path string, header []byte) error {
	if exists(path) {
		if err := u.out.Disk.Rename(path, withoutHead(path)); err != nil {
			return err
		}
		if err := u.out.Disk.SyncDir(u.out.home); err != nil {
			return err
		}
	}
	f, err := u.out.Disk.Open(withoutHead(path))
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
	if err := u.out.Disk.Rename(withoutHead(path), path); err != nil {
		return err
	}
	return u.out.Disk.SyncDir(u.out.home)
}

// moveWeights writes a new file with other bytes before the same weights, and demands that these
// have the hashes that the ledger has from the manifest.
func (u *Update) moveWeights(ctx context.Context, i int, header []byte, l *progress.Ledger) error {
	f := u.out.plan.Files[i]
	old, _, err := format.OpenRegular(u.finalPath(f.Name))
	if err != nil {
		return err
	}
	defer old.Close()
	shift := f.Size - u.old.Files[i].Size
	return u.out.Disk.ReplaceFile(u.finalPath(f.Name), func(w io.Writer) error {
		b := bufio.NewWriterSize(w, 1<<20)
		b.Write(header)
		at := int64(len(header))
		for j := range u.out.plan.Tensors {
			t := &u.out.plan.Tensors[j]
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
