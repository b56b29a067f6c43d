package checkpoint

// The cache of the Hugging Face hub: models--x--y holds blobs, and under snapshots a
// directory of links for each revision that was downloaded.

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"dsmoe/convert/remote"
	"dsmoe/convert/source"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// The parts of a cache.
const (
	hubModels = "models--" // begins the cache's name
	hubRefs   = "refs"
	hubMain   = "main" // in refs: the revision that is used unless another is asked for
)

const snapshotHint = "give the path of a snapshot"

// Snapshot returns the directory of the checkpoint in a hub's cache of a model: the
// snapshot that refs/main names or, without that file, the only one. A path that does not
// exist and has the form ORG/NAME stands for the cache of that model. Snapshot returns any
// other path unchanged. The error, of type *problem.Error, explains why it cannot choose a snapshot.
func Snapshot(path string) (string, error) {
	for _, config := range []string{ConfigName, mistral.Config} {
		if _, err := os.Stat(filepath.Join(path, config)); err == nil {
			return path, nil
		}
	}
	path, err := downloaded(path)
	if err != nil {
		return "", err
	}
	if !isCache(path) {
		return path, nil
	}
	snapshots, err := subdirectories(filepath.Join(path, source.HubSnapshots))
	if err != nil {
		return "", problem.New(path, err.Error(), "")
	}
	main, err := os.ReadFile(filepath.Join(path, hubRefs, hubMain))
	revision := strings.TrimSpace(string(main))
	switch {
	case err == nil && slices.Contains(snapshots, revision):
	case err == nil:
		cause := "refs/main names the snapshot " + text.Quote(revision) + ", which is not there" + listed(snapshots)
		return "", problem.New(path, cause, "download it again, or "+snapshotHint)
	case !errors.Is(err, fs.ErrNotExist):
		return "", problem.New(path, err.Error(), "")
	case len(snapshots) == 1:
		revision = snapshots[0]
	case len(snapshots) == 0:
		return "", problem.New(path, "is a cache of the hub without a snapshot", "download the model")
	default:
		return "", problem.New(path, "is a cache of the hub without refs/main"+listed(snapshots), snapshotHint)
	}
	return filepath.Join(path, source.HubSnapshots, revision), nil
}

// Repository returns the name, without the owner's, of the model that a snapshot in the hub's
// cache is of; empty if dir is no such directory.
func Repository(dir string) string {
	name, is := strings.CutPrefix(filepath.Base(filepath.Join(dir, "..", "..")), hubModels)
	if !is || filepath.Base(filepath.Dir(dir)) != source.HubSnapshots {
		return ""
	}
	if _, after, owned := strings.Cut(name, "--"); owned {
		return after
	}
	return name
}

// repository is the form of a model's name in the hub.
var repository = regexp.MustCompile(`^([A-Za-z0-9][\w.-]*)/([A-Za-z0-9][\w.-]*)$`)

// downloaded returns the cache of the model that path names in the hub. It returns a path
// that exists, or is no such name, unchanged. A model that was not downloaded is an error,
// of type *problem.Error.
func downloaded(path string) (string, error) {
	name := repository.FindStringSubmatch(path)
	if _, err := os.Lstat(path); err == nil || name == nil || FormatOf(name[2]) != nil || IsIndex(name[2]) {
		return path, nil
	}
	hub := cmp.Or(os.Getenv("HF_HUB_CACHE"), filepath.Join(remote.HubHome(), "hub"))
	cache := filepath.Join(hub, hubModels+name[1]+"--"+name[2])
	if isCache(cache) {
		return cache, nil
	}
	if _, err := os.Stat(name[1]); err == nil {
		return path, nil // a directory: the path is a mistyped one
	}
	return "", problem.New(path, "no such file or directory, and the hub's cache "+text.Quote(hub)+" has no model of this "+
		"name",
		"hf://"+path+" is the model in the hub; `hf download` fetches it")
}

// isCache recognises a cache by its name, or by the directories beside the snapshots.
func isCache(path string) bool {
	beside, _ := subdirectories(path)
	return slices.Contains(beside, source.HubSnapshots) &&
		(strings.HasPrefix(filepath.Base(path), hubModels) || slices.Contains(beside, source.HubBlobs) ||
			slices.Contains(beside, hubRefs))
}

// listed names snapshots behind a message.
func listed(snapshots []string) string {
	if len(snapshots) == 0 {
		return ""
	}
	return ": there is " + strings.Join(quoteAll(snapshots), ", ")
}

// subdirectories lists the directories in dir, sorted.
func subdirectories(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if stat, err := os.Stat(filepath.Join(dir, e.Name())); err == nil && stat.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, err
}
