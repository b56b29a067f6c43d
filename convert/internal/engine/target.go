package engine

// Where an output appears, and which targets may be replaced.

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"dsmoe/convert/checkpoint"
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
	dst      string                     // path or URL of the directory or the file
	home     string                     // directory that the output's files appear in
	manifest string                     // path of the manifest
	files    func() (source.Dir, error) // opens the home as it is now
	store    *remote.Store              // that the output is written to; nil is the disk
}

// targetOf is the target of a plan.
func targetOf(dst string, p *plan.Plan) (*target, error) {
	switch {
	case remote.Is(dst):
		return storeTarget(dst, p)
	case p.File != "":
		return fileAt(dst), nil
	}
	return directoryAt(dst), nil
}

func directoryAt(dst string) *target {
	return &target{dst: dst, home: dst, manifest: filepath.Join(dst, plan.ManifestName), files: onDisk(dst)}
}

func fileAt(dst string) *target {
	home := filepath.Dir(dst)
	return &target{dst: dst, home: home, manifest: dst + plan.FileManifest, files: onDisk(home)}
}

func onDisk(home string) func() (source.Dir, error) {
	return func() (source.Dir, error) { return source.Disk(home), nil }
}

// storeTarget is the target of a plan in a store.
func storeTarget(dst string, p *plan.Plan) (*target, error) {
	if p.File == "" {
		store, err := remote.OpenStore(dst)
		if err != nil {
			return nil, err
		}
		return &target{dst: dst, home: dst, manifest: store.Path(plan.ManifestName), store: store,
			files: func() (source.Dir, error) {
				return store.Dir("", func(name string) bool { return !strings.HasPrefix(name, hiddenPrefix) })
			}}, nil
	}
	store, err := remote.OpenStore(strings.TrimSuffix(dst, "/"+path.Base(dst)))
	if err != nil {
		return nil, err
	}
	return &target{dst: dst, home: store.Path(""), manifest: dst + plan.FileManifest, store: store,
		files: func() (source.Dir, error) {
			return store.Dir(p.File, func(name string) bool { return name == p.File || name == p.Manifest() })
		}}, nil
}

// hiddenPrefix begins the names of a directory's unfinished files and its journal.
const hiddenPrefix = ".dsmoe."

// inStore reports whether the output is written to an object store.
func (t *target) inStore() bool { return t.store != nil }

// outputAt is the target that a finished output at dst had.
func outputAt(dst string) (*target, error) {
	if remote.Is(dst) {
		return remoteOutputAt(dst)
	}
	if stat, err := os.Stat(dst); (err != nil || !stat.IsDir()) && (plan.Options{}).Into(dst).File != "" {
		return fileAt(dst), nil
	}
	return directoryAt(dst), nil
}

// remoteOutputAt is outputAt for a URL.
func remoteOutputAt(dst string) (*target, error) {
	dst = strings.TrimRight(dst, "/")
	isFile := func(name string) bool { return (plan.Options{}).Into(name).File != "" }
	dir, file, err := remote.Open(dst, isFile, []string{plan.ManifestName, path.Base(dst) + plan.FileManifest})
	if err != nil {
		return nil, err
	}
	t := &target{dst: dst, home: dst, manifest: dir.Path(plan.ManifestName),
		files: func() (source.Dir, error) { return dir, nil }}
	if file != "" {
		t.home, t.manifest = dir.Path(""), dir.Path(file+plan.FileManifest)
	}
	return t, nil
}

// manifestName returns the name of the manifest in the home.
func (t *target) manifestName() string { return filepath.Base(t.manifest) }

// isFile reports whether the output is one file, beside which its directory may hold others.
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

// isOutputOf reports whether the target is, or was, the finished output of the plan.
func (t *target) isOutputOf(p *plan.Plan) bool {
	m, err := t.readManifest(nil)
	return err == nil && m.Plan == p.Hash
}

// fileStates returns the states of the target's files.
func (t *target) fileStates() (map[string]string, error) {
	dir, err := t.files()
	if err != nil {
		return nil, err
	}
	names := []string{filepath.Base(t.dst), t.manifestName()}
	if !t.isFile() {
		if names, err = dir.List(""); err != nil {
			return nil, err
		}
	}
	states := map[string]string{}
	for _, name := range names {
		if states[name], err = dir.State(name); err != nil {
			return nil, err
		}
	}
	return states, nil
}

// holdsAny reports whether the target holds a file that has a problem: of a missing file nothing can be lost.
func (t *target) holdsAny(problems []checkpoint.Problem) bool {
	dir, err := t.files()
	if err != nil {
		return false
	}
	names, _ := dir.List("")
	return slices.ContainsFunc(problems, func(p checkpoint.Problem) bool { return slices.Contains(names, p.File) })
}

// isAnother is the error for a target that is the finished output of another plan.
func (t *target) isAnother(hint string) *checkpoint.Error {
	if t.isFile() {
		return checkpoint.Refusal(t.dst, "is the finished output of another conversion", hint)
	}
	return checkpoint.Refusal(t.dst, "directory is not empty: it holds the finished output of another conversion", hint)
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
