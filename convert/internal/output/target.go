package output

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

	"dsmoe/convert/internal/disk"
	"dsmoe/convert/internal/manifest"
	"dsmoe/convert/plan"
	"dsmoe/convert/remote"
	"dsmoe/convert/source"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// Target is where an output appears: a directory with the manifest in it, or a file with the
// manifest beside it.
type Target struct {
	Path     string                     // path or URL of the directory or the file
	Manifest string                     // path of the manifest
	Files    func() (source.Dir, error) // opens the home as it is now
	home     string                     // directory that the output's files appear in
	client   *remote.Client             // of the store
	store    *remote.Store              // that the output is written to; nil is the disk
}

// TargetOf returns the target of a plan whose output goes to dst; c is the client of a store.
func TargetOf(dst string, p *plan.Plan, c *remote.Client) (*Target, error) {
	switch {
	case remote.Is(dst):
		return storeTarget(dst, p, c)
	case p.File != "":
		return fileAt(dst), nil
	}
	return directoryAt(dst), nil
}

func directoryAt(dst string) *Target {
	return &Target{Path: dst, home: dst, Manifest: filepath.Join(dst, plan.ManifestName), Files: onDisk(dst)}
}

func fileAt(dst string) *Target {
	home := filepath.Dir(dst)
	return &Target{Path: dst, home: home, Manifest: dst + plan.FileManifest, Files: onDisk(home)}
}

func onDisk(home string) func() (source.Dir, error) {
	return func() (source.Dir, error) { return source.Disk(home), nil }
}

// storeTarget is the target of a plan in a store.
func storeTarget(dst string, p *plan.Plan, c *remote.Client) (*Target, error) {
	home := dst
	if p.File != "" {
		home = strings.TrimSuffix(dst, "/"+path.Base(dst))
	}
	store, err := c.OpenStore(home)
	if err != nil {
		return nil, err
	}
	t := &Target{Path: dst, home: dst, Manifest: store.Path(plan.ManifestName), client: c, store: store}
	own := func(name string) bool { return !strings.HasPrefix(name, hiddenPrefix) }
	if p.File != "" {
		t.home, t.Manifest = store.Path(""), dst+plan.FileManifest
		own = func(name string) bool { return name == p.File || name == p.Manifest() }
	}
	t.Files = func() (source.Dir, error) { return store.Dir(p.File, own) }
	return t, nil
}

// hiddenPrefix begins the names of a directory's unfinished files and its journal.
const hiddenPrefix = ".dsmoe."

// InStore reports whether the output is written to an object store.
func (t *Target) InStore() bool { return t.store != nil }

// At returns the target that a finished output at dst had; c is the client of a URL.
func At(dst string, c *remote.Client) (*Target, error) {
	namesFile := func(name string) bool { return (plan.Options{}).Into(name).File != "" }
	if !remote.Is(dst) {
		if stat, err := os.Stat(dst); (err != nil || !stat.IsDir()) && namesFile(dst) {
			return fileAt(dst), nil
		}
		return directoryAt(dst), nil
	}
	scheme, below, _ := strings.Cut(dst, "://")
	dst = scheme + "://" + strings.TrimRight(below, "/")
	dir, file, err := c.Open(dst, namesFile, []string{plan.ManifestName, path.Base(dst) + plan.FileManifest})
	if err != nil {
		return nil, err
	}
	t := &Target{Path: dst, home: dst, Manifest: dir.Path(plan.ManifestName),
		Files: func() (source.Dir, error) { return dir, nil }}
	if file != "" {
		t.home, t.Manifest = dir.Path(""), dir.Path(file+plan.FileManifest)
	}
	return t, nil
}

// ManifestName returns the name of the manifest in the home.
func (t *Target) ManifestName() string { return filepath.Base(t.Manifest) }

// IsFile reports whether the output is one file, beside which its directory may hold others.
func (t *Target) IsFile() bool { return t.home != t.Path }

// ReadManifest reads the target's manifest, as manifest.Read does. It must be of the target's file.
func (t *Target) ReadManifest(each func(*manifest.Tensor) error) (*manifest.Manifest, error) {
	dir, err := t.Files()
	if err != nil {
		return nil, err
	}
	m, err := manifest.Read(dir, t.ManifestName(), each)
	if err == nil && t.IsFile() && !slices.Equal(m.FileNames(), []string{filepath.Base(t.Path)}) {
		return nil, fmt.Errorf("%s: is the manifest of %s: give the file its name back, or remove the manifest",
			text.Quote(t.Manifest), text.Quote(strings.Join(m.FileNames(), ", ")))
	}
	return m, err
}

// IsOutputOf reports whether the target is, or was, the finished output of the plan.
func (t *Target) IsOutputOf(p *plan.Plan) bool {
	m, err := t.ReadManifest(nil)
	return err == nil && m.Plan == p.Hash
}

// LostFile returns the error for an output that is one file and is gone, while its manifest is there; else nil.
func (t *Target) LostFile() error {
	dir, err := t.Files()
	if err != nil || !t.IsFile() {
		return nil
	}
	name := filepath.Base(t.Path)
	_, err = dir.Stat(t.ManifestName())
	if _, missing := dir.Stat(name); err != nil || !errors.Is(missing, fs.ErrNotExist) {
		return nil
	}
	return problem.New(t.Manifest, "describes "+text.Quote(name)+", which is gone", "remove it to convert again")
}

// FileStates returns the states of the target's files. A file that another run removes meanwhile is left out.
func (t *Target) FileStates() (map[string]string, error) {
	dir, err := t.Files()
	if err != nil {
		return nil, err
	}
	names := []string{filepath.Base(t.Path), t.ManifestName()}
	if !t.IsFile() {
		if names, err = dir.List(""); err != nil {
			return nil, err
		}
	}
	states := map[string]string{}
	for _, name := range names {
		switch state, err := dir.State(name); {
		case err == nil:
			states[name] = state
		case !errors.Is(err, fs.ErrNotExist):
			return nil, err
		}
	}
	return states, nil
}

// HoldsAny reports whether the target holds a file that has a problem: of a missing file nothing can be lost.
func (t *Target) HoldsAny(problems []problem.Problem) bool {
	dir, err := t.Files()
	if err != nil {
		return false
	}
	names, _ := dir.List("")
	return slices.ContainsFunc(problems, func(p problem.Problem) bool { return slices.Contains(names, p.File) })
}

// AnotherOutput is the error for a target that is the finished output of another plan.
func (t *Target) AnotherOutput(hint string) *problem.Error {
	if t.IsFile() {
		return problem.New(t.Path, "is the finished output of another conversion", hint)
	}
	return problem.New(t.Path, "directory is not empty: it holds the finished output of another conversion", hint)
}

// CheckReplaceable demands that the target is an output of this program and, if it is a directory,
// holds nothing else.
func (t *Target) CheckReplaceable() error {
	const unfinished = "cannot be overwritten, as it is not a finished output: %w"
	if t.IsFile() {
		for _, path := range []string{t.Path, t.Manifest} {
			stat, err := os.Lstat(path)
			if err == nil && !stat.Mode().IsRegular() {
				err = fmt.Errorf("%s is a link, a directory or a device", text.Quote(filepath.Base(path)))
			}
			if err != nil {
				return fmt.Errorf(unfinished, err)
			}
		}
		if _, err := t.ReadManifest(nil); err != nil {
			return fmt.Errorf(unfinished, err)
		}
		return nil
	}
	dst := t.Path
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
	m, err := t.ReadManifest(nil)
	if err != nil {
		return fmt.Errorf(unfinished, err)
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
