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

	"dsmoe/convert/checkpoint"
	"dsmoe/convert/internal/disk"
	"dsmoe/convert/plan"
	"dsmoe/text"
)

// place says where a target is assembled: beside it, or in it, if it is there. A directory
// that is there may be the root of a file system, somebody's working directory or a link,
// and it has an owner and a mode: it is filled, not replaced.
type place struct {
	dst     string // the target, an absolute path
	dir     string // the hidden directory in which it is assembled
	journal string // the path of the journal
	inside  bool   // dir is in dst
}

func placeOf(dst string) place {
	beside := besideOf(dst)
	stat, err := os.Stat(dst)
	if err != nil || !stat.IsDir() || exists(beside.journal) {
		return beside
	}
	return place{dst, filepath.Join(dst, ".dsmoe.partial"), filepath.Join(dst, ".dsmoe.journal"), true}
}

func besideOf(dst string) place {
	parent, name := filepath.Split(dst)
	return place{dst, filepath.Join(parent, "."+name+".partial"), filepath.Join(parent, "."+name+".journal"), false}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// check refuses a target that holds anything but the files named own, and what a run
// leaves in it.
func (p *place) check(own []string) error {
	if !exists(p.dst) {
		if _, err := os.Stat(filepath.Dir(p.dst)); errors.Is(err, fs.ErrNotExist) {
			return errors.New("the directory to write it in does not exist")
		}
		return nil
	}
	stat, err := os.Stat(p.dst)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errors.New("is a link to a place that does not exist")
	case err != nil:
		return err
	case !stat.IsDir():
		return errors.New("exists and is not an empty directory")
	}
	entries, err := os.ReadDir(p.dst)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !slices.Contains(own, e.Name()) && !p.leaves(e) {
			return fmt.Errorf("directory is not empty: it holds %s", text.Quote(e.Name()))
		}
	}
	return nil
}

// leaves says whether an entry of the target is what a run or a new file system leaves
// there.
func (p *place) leaves(e fs.DirEntry) bool {
	path := filepath.Join(p.dst, e.Name())
	return path == p.dir || path == p.journal || e.Name() == "lost+found" && e.IsDir()
}

// begin locks the target, takes up an unfinished output of the same plan, or lays out
// a new one.
func (e *execution) begin() (err error) {
	var own []string
	if exists(e.place.journal) {
		own = e.names()
	}
	if err := e.checkTarget(own); err != nil {
		return err
	}
	if e.journal, err = lockJournal(e.Disk, e.place.journal); err != nil {
		return err
	}
	err = e.resume()
	if err == nil {
		err = e.checkTarget(e.published) // another run may have finished meanwhile
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
	head := journalHead{journalFormat, e.plan.Hash, e.key}
	ready := false
	old, err := e.journal.read(func(r record) {
		ready = (ready || r.Ready) && !r.Void
		if r.Published != nil {
			e.published = r.Published
		}
		e.apply(r)
	})
	if err != nil {
		return err
	}
	if old == nil && !e.journal.isOurs() {
		return fmt.Errorf("%s is no journal of an unfinished conversion: remove it", text.Quote(e.place.journal))
	}
	if old != nil && !e.place.inside {
		if err := takeBack(e.Disk, e.dst); err != nil {
			return err
		}
	}
	if old != nil && *old != head && !e.StartOver {
		return old.mismatch(head, &e.place)
	}
	if old != nil && *old == head && !e.StartOver && ready && (e.published != nil || e.reopen()) {
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
		if e.hashesWriting(&e.plan.Tensors[i]) && e.states[i].proof == nil {
			e.states[i] = tensorState{} // it is written, and hashed, from its begin
		}
		s := &e.states[i]
		e.resumed += s.done
		if s.proof != nil && s.proof.Compared {
			e.done += s.done
		}
	}
	e.done += e.resumed
	return e.openFiles(e.Disk.OpenTiles) == nil
}

// openFiles opens the weight files of the output by open.
func (e *execution) openFiles(open func(path string) (*disk.TileFile, error)) error {
	e.closeFiles()
	e.files = make([]*disk.TileFile, len(e.plan.Files))
	for i, planned := range e.plan.Files {
		f, err := open(filepath.Join(e.dir, planned.Name))
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
	if ours {
		if err := e.discard(); err != nil {
			return err
		}
	}
	e.states, e.published = make([]tensorState, len(e.plan.Tensors)), nil
	e.done, e.resumed = 0, 0
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

// discard removes what a run left.
func (e *execution) discard() error {
	for _, name := range e.published {
		if err := e.Disk.Remove(filepath.Join(e.dst, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return e.Disk.RemoveAll(e.dir)
}

// layOut gives every file its size and its header, then tells the journal.
func (e *execution) layOut() error {
	if err := e.openFiles(e.Disk.OpenTiles); err != nil {
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
		return fmt.Errorf("needs %s of disk, but only %s are free", text.ExactBytes(need), text.ExactBytes(int64(free)))
	}
	return nil
}

// commit adds the files without weights and the manifest, and gives the output its name.
func (e *execution) commit(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := e.unmoved(); err != nil {
		return err
	}
	for i, f := range e.files {
		e.files[i] = nil
		if err := f.Finish(); err != nil {
			return err
		}
	}
	e.otherFiles("copying other files")
	for _, name := range e.names() {
		if err := e.writeSmall(ctx, name); err != nil {
			return err
		}
	}
	if err := e.Disk.SyncDir(e.dir); err != nil {
		return err
	}
	if err := e.checkTarget(nil); err != nil {
		return err
	}
	return e.publish()
}

// unmoved refuses what was made of a source whose weights changed meanwhile: a part may be
// of the old ones.
func (e *execution) unmoved() error {
	key, err := e.source.Key()
	if err == nil && key != e.key {
		err = errors.New("the source's weight files changed while the conversion ran")
	}
	return err
}

// writeSmall writes a file that holds no weights; those that do are written.
func (e *execution) writeSmall(ctx context.Context, name string) error {
	if name == plan.ManifestName {
		return e.Disk.WriteFile(filepath.Join(e.dir, name), e.writeManifest)
	}
	for _, f := range e.plan.Others {
		if f.Name == name {
			return e.writeOther(ctx, f)
		}
	}
	return nil
}

// writeOther writes a file without weights, and notes what was written for the manifest.
func (e *execution) writeOther(ctx context.Context, f plan.Other) error {
	return e.Disk.WriteFile(filepath.Join(e.dir, f.Name), func(w io.Writer) (err error) {
		if f.Carried {
			e.carried[f.Name], err = e.copyCarried(ctx, w, f)
			return err
		}
		return e.plan.WriteOther(w, f)
	})
}

// names lists the files of the output in the order in which they are finished and, in a
// directory that is filled, appear: config.json and the index last, without which nothing
// takes the others for a checkpoint; of a format that has its config inside, the first file.
func (e *execution) names() (names []string) {
	last := []string{checkpoint.ConfigName, e.plan.Index}
	has := map[string]bool{}
	for _, f := range e.plan.Others {
		has[f.Name] = true
		if !slices.Contains(last, f.Name) {
			names = append(names, f.Name)
		}
	}
	var files []string
	for _, f := range e.plan.Files {
		files = append(files, f.Name)
	}
	if !has[checkpoint.ConfigName] {
		slices.Reverse(files)
		return append(append(names, plan.ManifestName), files...)
	}
	names = append(append(names, files...), plan.ManifestName, checkpoint.ConfigName)
	if e.plan.Index != "" {
		names = append(names, e.plan.Index)
	}
	return names
}

// publish gives the finished output its name and removes the journal.
func (e *execution) publish() error {
	appear := e.rename
	switch {
	case e.replaces:
		appear = e.replace
	case e.place.inside:
		appear = e.fill
	}
	if err := appear(); err != nil {
		return err
	}
	return e.Disk.Remove(e.place.journal)
}

// rename gives the directory that was assembled beside the target the target's name. An
// empty directory in its place is replaced.
func (e *execution) rename() error {
	if exists(e.dst) {
		if err := e.Disk.Remove(e.dst); err != nil {
			return err
		}
	}
	if err := e.Disk.Rename(e.dir, e.dst); err != nil {
		return err
	}
	return e.Disk.SyncDir(filepath.Dir(e.dst))
}

// fill moves the files from the hidden directory into the target around it. The journal
// is told first: a run that finds it so goes on here.
func (e *execution) fill() error {
	if e.published == nil {
		e.published = e.names()
		if err := e.journal.append(record{Published: e.published, Tensor: -1}); err != nil {
			return err
		}
	}
	for i, name := range e.published {
		if i == len(e.published)-1 {
			if err := e.Disk.SyncDir(e.dst); err != nil {
				return err
			}
		}
		err := e.Disk.Rename(filepath.Join(e.dir, name), filepath.Join(e.dst, name))
		if err != nil && !(errors.Is(err, fs.ErrNotExist) && exists(filepath.Join(e.dst, name))) {
			return err
		}
	}
	if err := e.Disk.SyncDir(e.dst); err != nil {
		return err
	}
	if err := e.Disk.Remove(e.dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return e.Disk.SyncDir(e.dst)
}
