package engine

// Where an output is assembled, and which targets may be filled or replaced.

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"dsmoe/convert/internal/disk"
	"dsmoe/convert/plan"
	"dsmoe/text"
)

// place is where an output is assembled: beside the target or, if the target exists, inside
// it. An existing target is filled, not replaced: it may be the root of a file system, a
// working directory or a link, and has an owner and a mode.
type place struct {
	dst         string // absolute path of the target
	dir         string // hidden directory in which the output is assembled
	journalPath string
	inside      bool // dir is in dst
}

func placeOf(dst string) place {
	beside := besideOf(dst)
	stat, err := os.Stat(dst)
	if err != nil || !stat.IsDir() || exists(beside.journalPath) {
		return beside
	}
	return place{dst, filepath.Join(dst, ".dsmoe.partial"), filepath.Join(dst, ".dsmoe.journal"), true}
}

func besideOf(dst string) place {
	return place{dst, hidden(dst, "partial"), hidden(dst, "journal"), false}
}

// replacedName is the directory in which a replaced output waits for its removal.
func replacedName(dst string) string { return hidden(dst, "replaced") }

func hidden(dst, suffix string) string {
	parent, name := filepath.Split(dst)
	return filepath.Join(parent, "."+name+"."+suffix)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// check refuses a target that holds other files than those named own and a run's leftovers.
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
		if !slices.Contains(own, e.Name()) && !p.isLeftover(e) {
			return fmt.Errorf("directory is not empty: it holds %s", text.Quote(e.Name()))
		}
	}
	return nil
}

// isLeftover reports whether a run or a new file system leaves such an entry in the target.
func (p *place) isLeftover(e fs.DirEntry) bool {
	path := filepath.Join(p.dst, e.Name())
	return path == p.dir || path == p.journalPath || e.Name() == "lost+found" && e.IsDir()
}

// checkReplaceable demands that dst is an output of this program and holds nothing else.
func checkReplaceable(dst string) error {
	stat, err := os.Lstat(dst)
	if err != nil {
		return err
	}
	here, err := os.Stat(".")
	switch {
	case stat.Mode()&fs.ModeSymlink != 0:
		return errors.New("cannot be overwritten, as it is a link: give the path of the directory itself")
	case !stat.IsDir():
		return errors.New("cannot be overwritten, as it is not a directory")
	case err == nil && os.SameFile(here, stat):
		return errors.New("cannot be overwritten, as it is the current directory")
	case disk.IsMountPoint(dst):
		return errors.New("cannot be overwritten, as it is a mount point; empty it first")
	}
	m, err := readManifest(filepath.Join(dst, plan.ManifestName), nil)
	if err != nil {
		return fmt.Errorf("cannot be overwritten, as it is not a finished output: %w", err)
	}
	entries, err := os.ReadDir(dst)
	if err != nil {
		return err
	}
	listed := append(m.fileNames(), plan.ManifestName)
	for _, entry := range entries {
		if !entry.Type().IsRegular() || !slices.Contains(listed, entry.Name()) {
			return fmt.Errorf("cannot be overwritten: it holds %s, which its manifest does not list", text.Quote(entry.Name()))
		}
	}
	return nil
}

// removeReplaced removes the replaced output, from either place, once dst is complete.
func removeReplaced(d *disk.Disk, dst string) error {
	return errors.Join(d.RemoveAll(besideOf(dst).dir), d.RemoveAll(replacedName(dst)))
}

// takeBack undoes a replacement that a crash interrupted: the older output beside the target
// gets its name back or, if the new output has it, is removed.
func takeBack(d *disk.Disk, dst string) error {
	aside := replacedName(dst)
	if !exists(aside) {
		return nil
	}
	if _, err := os.Lstat(dst); errors.Is(err, fs.ErrNotExist) {
		return d.Rename(aside, dst)
	}
	if err := checkReplaceable(dst); err != nil {
		return fmt.Errorf("an older output is in %s, and %w", text.Quote(aside), err)
	}
	return d.RemoveAll(aside)
}
