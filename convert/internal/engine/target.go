package engine

// The target directory: what may be in its place, how an unfinished output is taken up,
// and how a finished one gets its name.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"dsmoe/convert/internal/digest"
	"dsmoe/convert/internal/disk"
	"dsmoe/convert/plan"
	"dsmoe/text"
)

// checkTarget refuses a target that holds anything.
func checkTarget(dst string) error {
	stat, err := os.Lstat(dst)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Stat(filepath.Dir(dst)); errors.Is(err, fs.ErrNotExist) {
			return errors.New("the directory to write it in does not exist")
		}
		return nil
	case err != nil:
		return err
	case !stat.IsDir():
		return errors.New("exists and is not an empty directory")
	}
	entries, err := os.ReadDir(dst)
	if err != nil {
		return err
	}
	if len(entries) > 0 {
		return fmt.Errorf("directory is not empty: it holds %s", text.Quote(entries[0].Name()))
	}
	return nil
}

// begin locks the target, takes up an unfinished output of the same plan, or lays out
// a new one.
func (e *execution) begin() (err error) {
	if err := checkTarget(e.dst); err != nil {
		return err
	}
	if e.journal, err = lockJournal(e.Disk, journalName(e.dst)); err != nil {
		return err
	}
	err = e.resume()
	if err == nil {
		err = checkTarget(e.dst) // another run may have finished meanwhile
	}
	if err != nil {
		e.close()
	}
	return err
}

// close lets go of the files and the lock.
func (e *execution) close() {
	e.closeFiles()
	if e.journal != nil {
		e.journal.f.Close()
	}
}

func (e *execution) closeFiles() {
	for _, f := range e.files {
		if f != nil {
			f.Close()
		}
	}
}

// resume reads the journal and prepares the files.
func (e *execution) resume() error {
	key, err := e.source.Key()
	if err != nil {
		return err
	}
	head := journalHead{journalFormat, e.plan.Hash, key}
	ready := false
	old, err := e.journal.read(func(r record) {
		ready = ready || r.Ready
		e.apply(r)
	})
	if err != nil {
		return err
	}
	if old == nil && !e.journal.isOurs() {
		return fmt.Errorf("%s is no journal of an unfinished conversion: remove it", text.Quote(journalName(e.dst)))
	}
	if old != nil && *old != head && !e.StartOver {
		return old.mismatch(head, e.dst)
	}
	if old != nil && *old == head && !e.StartOver && ready && e.reopen() {
		return nil
	}
	return e.startOver(head, old != nil)
}

// reopen opens the files of the unfinished output, if all are as they should be.
func (e *execution) reopen() bool {
	for _, planned := range e.plan.Files {
		path := filepath.Join(e.dir, planned.Name)
		if stat, err := os.Lstat(path); err != nil || !stat.Mode().IsRegular() || stat.Size() != planned.Size {
			return false
		}
	}
	for i := range e.states {
		if e.Unverified && e.states[i].proof == nil {
			e.states[i] = tensorState{} // it is written, and hashed, from its begin
		}
		e.done += e.states[i].done
	}
	return e.openFiles() == nil
}

func (e *execution) openFiles() error {
	e.closeFiles()
	e.files = make([]*disk.TileFile, len(e.plan.Files))
	for i, planned := range e.plan.Files {
		f, err := e.Disk.OpenTiles(filepath.Join(e.dir, planned.Name))
		if err != nil {
			return err
		}
		e.files[i] = f
	}
	return nil
}

// startOver makes the files anew. What is there is removed only if the journal says
// that a run left it.
func (e *execution) startOver(head journalHead, ours bool) error {
	e.states = make([]tensorState, len(e.plan.Tensors))
	e.done = 0
	if ours {
		if err := e.Disk.RemoveAll(e.dir); err != nil {
			return err
		}
	}
	if err := checkFree(filepath.Dir(e.dir), e.plan.Size()); err != nil {
		e.Disk.Remove(e.journal.f.Name())
		return err
	}
	if err := e.journal.begin(head); err != nil {
		return err
	}
	if err := e.Disk.SyncDir(filepath.Dir(e.dir)); err != nil {
		return err
	}
	if err := e.Disk.Mkdir(e.dir); err != nil {
		if errors.Is(err, fs.ErrExist) {
			e.Disk.Remove(e.journal.f.Name())
			err = fmt.Errorf("%s is there, and no journal says that it was left by a conversion: remove it", text.Quote(e.dir))
		}
		return err
	}
	return e.layOut()
}

// layOut gives every file its size and its header, then tells the journal.
func (e *execution) layOut() error {
	if err := e.openFiles(); err != nil {
		return err
	}
	for i, f := range e.files {
		if err := f.Reserve(e.plan.Files[i].Size); err != nil {
			return err
		}
		header, err := e.plan.Header(i)
		if err != nil {
			return err
		}
		if _, err := f.WriteAt(header, 0); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
	}
	if err := e.Disk.SyncDir(e.dir); err != nil {
		return err
	}
	return e.journal.append(record{Ready: true, Tensor: -1})
}

// checkFree compares what is needed with the free space of the disk.
func checkFree(dir string, need int64) error {
	if free, ok := disk.FreeSpace(dir); ok && free < uint64(need) {
		return fmt.Errorf("needs %d bytes of disk, but only %d are free", need, free)
	}
	return nil
}

// commit adds the files without weights, the index last, and gives the directory
// its name.
func (e *execution) commit(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	for i, f := range e.files {
		e.files[i] = nil
		if err := f.Finish(); err != nil {
			return err
		}
	}
	for _, f := range e.plan.Others {
		if f.Name != e.plan.Index {
			if err := e.writeOther(f); err != nil {
				return err
			}
		}
	}
	if err := e.Disk.WriteFile(filepath.Join(e.dir, plan.ManifestName), e.writeManifest); err != nil {
		return err
	}
	if i := slices.IndexFunc(e.plan.Others, func(f plan.Other) bool { return f.Name == e.plan.Index }); i >= 0 {
		if err := e.writeOther(e.plan.Others[i]); err != nil {
			return err
		}
	}
	return e.publish()
}

// writeOther writes a file without weights; one that is carried must be what the
// plan saw.
func (e *execution) writeOther(f plan.Other) error {
	return e.Disk.WriteFile(filepath.Join(e.dir, f.Name), func(w io.Writer) error {
		if !f.Carried {
			return e.plan.WriteOther(w, f)
		}
		src, err := e.source.OpenOther(f.Name)
		if err != nil {
			return err
		}
		defer src.Close()
		hash, _, err := digest.Reader(io.TeeReader(src, w))
		if err == nil && hash != f.Hash {
			err = fmt.Errorf("%s: changed while the conversion ran", text.Quote(f.Name))
		}
		return err
	})
}

// publish renames the finished directory and removes the journal. An empty
// directory in the target's place is replaced.
func (e *execution) publish() error {
	if err := e.Disk.SyncDir(e.dir); err != nil {
		return err
	}
	if err := checkTarget(e.dst); err != nil {
		return err
	}
	if stat, err := os.Lstat(e.dst); err == nil && stat.IsDir() {
		if err := e.Disk.Remove(e.dst); err != nil {
			return err
		}
	}
	if err := e.Disk.Rename(e.dir, e.dst); err != nil {
		return err
	}
	if err := e.Disk.SyncDir(filepath.Dir(e.dst)); err != nil {
		return err
	}
	return e.Disk.Remove(journalName(e.dst))
}
