package engine

// Where an output appears and is assembled, and which targets may be filled or replaced.

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"dsmoe/convert/internal/disk"
	"dsmoe/convert/internal/manifest"
	"dsmoe/convert/plan"
	"dsmoe/convert/remote"
	"dsmoe/convert/source"
	"dsmoe/text"
)

// target is where an output appears: a directory with the manifest in it, or a file with the
// manifest beside it.
type target struct {
	dst      string // path of the directory or the file
	home     string // directory that the output's files appear in
	manifest string // path of the manifest
	// files opens the home as it is now.
	files func() (source.Dir, error)
}

func directoryAt(dst string) target {
	return target{dst, dst, filepath.Join(dst, plan.ManifestName), onDisk(dst)}
}

func fileAt(dst string) target {
	return target{dst, filepath.Dir(dst), dst + plan.FileManifest, onDisk(filepath.Dir(dst))}
}

func onDisk(home string) func() (source.Dir, error) {
	return func() (source.Dir, error) { return source.Disk(home), nil }
}

// targetOf is the target of a plan.
func targetOf(dst string, p *plan.Plan, s Settings) target {
	if s.store != nil {
		return storeTarget(dst, p, s.store)
	}
	return diskTarget(dst, p)
}

func diskTarget(dst string, p *plan.Plan) target {
	if p.File != "" {
		return fileAt(dst)
	}
	return directoryAt(dst)
}

// outputAt is the target that a finished output at dst had.
func outputAt(dst string) (target, error) {
	if remote.Is(dst) {
		return remoteOutputAt(dst)
	}
	if stat, err := os.Stat(dst); (err != nil || !stat.IsDir()) && (plan.Options{}).Into(dst).File != "" {
		return fileAt(dst), nil
	}
	return directoryAt(dst), nil
}

// remoteOutputAt is outputAt for a URL.
func remoteOutputAt(dst string) (target, error) {
	dst = strings.TrimRight(dst, "/")
	isFile := func(name string) bool { return (plan.Options{}).Into(name).File != "" }
	dir, file, err := remote.Open(dst, isFile, []string{plan.ManifestName, path.Base(dst) + plan.FileManifest})
	if err != nil {
		return target{}, err
	}
	t := target{dst, dst, dir.Path(plan.ManifestName), func() (source.Dir, error) { return dir, nil }}
	if file != "" {
		t.home, t.manifest = dir.Path(""), dir.Path(file+plan.FileManifest)
	}
	return t, nil
}

// at returns the target itself, of whatever output it is a part.
func (t *target) at() *target { return t }

func (t *target) manifestName() string { return filepath.Base(t.manifest) }

func (t *target) isFile() bool { return t.home != t.dst }

// readManifest reads the target's manifest, as manifest.Read does. It must be of the target's file.
func (t *target) readManifest(each func(*manifest.Tensor) error) (*manifest.Manifest, error) {
	dir, err := t.files()
	if err != nil {
		return nil, err
	}
	m, err := manifest.Read(dir, t.manifestName(), each)
	if err == nil && t.isFile() && !slices.Equal(m.FileNames(), []string{filepath.Base(t.dst)}) {
		return nil, fmt.Errorf("%s: is the manifest of %s: give the file its name back, or remove the manifest",
			text.Quote(t.manifest), text.Quote(strings.Join(m.FileNames(), ", ")))
	}
	return m, err
}

// place is where an output is assembled: beside the target or, if the target is a directory
// that exists, inside it. An existing directory is filled, not replaced: it may be the root of a
// file system, a working directory or a link, and has an owner and a mode. A file moves into its
// directory as files move into an existing target.
type place struct {
	target
	dir         string // hidden directory in which the output is assembled
	journalPath string
	fills       bool // the files move one by one from dir to home
}

func placeOf(t target) place {
	beside := besideOf(t)
	stat, err := os.Stat(t.dst)
	if err != nil || !stat.IsDir() || t.isFile() || exists(beside.journalPath) || exists(beside.partsDir()) {
		return beside
	}
	return place{t, filepath.Join(t.dst, ".dsmoe.partial"), filepath.Join(t.dst, ".dsmoe.journal"), true}
}

func besideOf(t target) place {
	return place{t, hidden(t.dst, "partial"), hidden(t.dst, "journal"), t.isFile()}
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
	if p.isFile() {
		for _, path := range []string{p.dst, p.manifest} {
			if exists(path) && !slices.Contains(own, filepath.Base(path)) {
				return fmt.Errorf("%s exists already", text.Quote(filepath.Base(path)))
			}
		}
	}
	if p.isFile() || !exists(p.dst) {
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
	return slices.Contains([]string{p.dir, p.journalPath, p.partsDir()}, path) || e.Name() == "lost+found" && e.IsDir()
}

// checkReplaceable demands that the target is an output of this program and, if it is a directory,
// holds nothing else.
func (t *target) checkReplaceable() error {
	if t.isFile() {
		return t.checkReplaceableFile()
	}
	dst := t.dst
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
	m, err := t.readManifest(nil)
	if err != nil {
		return fmt.Errorf("cannot be overwritten, as it is not a finished output: %w", err)
	}
	entries, err := os.ReadDir(dst)
	if err != nil {
		return err
	}
	listed := append(m.FileNames(), plan.ManifestName)
	for _, entry := range entries {
		if !entry.Type().IsRegular() || !slices.Contains(listed, entry.Name()) {
			return fmt.Errorf("cannot be overwritten: it holds %s, which its manifest does not list", text.Quote(entry.Name()))
		}
	}
	return nil
}

// checkReplaceableFile is checkReplaceable for a file.
func (t *target) checkReplaceableFile() error {
	for _, path := range []string{t.dst, t.manifest} {
		stat, err := os.Lstat(path)
		if err == nil && !stat.Mode().IsRegular() {
			err = fmt.Errorf("%s is a link, a directory or a device", text.Quote(filepath.Base(path)))
		}
		if err != nil {
			return fmt.Errorf("cannot be overwritten, as it is not a finished output: %w", err)
		}
	}
	if _, err := t.readManifest(nil); err != nil {
		return fmt.Errorf("cannot be overwritten, as it is not a finished output: %w", err)
	}
	return nil
}

// removeReplaced removes the replaced output, from either place, once dst is complete.
func removeReplaced(d *disk.Disk, dst string) error {
	return errors.Join(d.RemoveAll(hidden(dst, "partial")), d.RemoveAll(replacedName(dst)))
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
	t := directoryAt(dst)
	if err := t.checkReplaceable(); err != nil {
		return fmt.Errorf("an older output is in %s, and %w", text.Quote(aside), err)
	}
	return d.RemoveAll(aside)
}
