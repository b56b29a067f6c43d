package checkpoint

// The cache of the Hugging Face hub: models--x--y holds blobs, and under snapshots a
// directory of links for each revision that was downloaded.

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"dsmoe/text"
)

// The parts of a cache.
const (
	hubSnapshots = "snapshots"
	hubBlobs     = "blobs"
	hubRefs      = "refs"
	hubMain      = "main" // in refs: the revision that is used unless another is asked for
)

const snapshotHint = "give the path of a snapshot"

// Snapshot returns the directory of the checkpoint in a hub's cache of a model: the
// snapshot that refs/main names or, without that file, the only one. It returns any other
// path unchanged. The error, of type *Error, explains why it cannot choose a snapshot.
func Snapshot(path string) (string, error) {
	if _, err := os.Stat(filepath.Join(path, ConfigName)); err == nil {
		return path, nil
	}
	if !isCache(path) {
		return path, nil
	}
	snapshots, err := subdirectories(filepath.Join(path, hubSnapshots))
	if err != nil {
		return "", Refusal(path, err.Error(), "")
	}
	main, err := os.ReadFile(filepath.Join(path, hubRefs, hubMain))
	revision := strings.TrimSpace(string(main))
	switch {
	case err == nil && slices.Contains(snapshots, revision):
	case err == nil:
		cause := "refs/main names the snapshot " + text.Quote(revision) + ", which is not there" + listed(snapshots)
		return "", Refusal(path, cause, "download it again, or "+snapshotHint)
	case !errors.Is(err, fs.ErrNotExist):
		return "", Refusal(path, err.Error(), "")
	case len(snapshots) == 1:
		revision = snapshots[0]
	case len(snapshots) == 0:
		return "", Refusal(path, "is a cache of the hub without a snapshot", "download the model")
	default:
		return "", Refusal(path, "is a cache of the hub without refs/main"+listed(snapshots), snapshotHint)
	}
	return filepath.Join(path, hubSnapshots, revision), nil
}

// isCache recognises a cache by its name, or by the directories beside the snapshots.
func isCache(path string) bool {
	beside, _ := subdirectories(path)
	return slices.Contains(beside, hubSnapshots) &&
		(strings.HasPrefix(filepath.Base(path), "models--") || slices.Contains(beside, hubBlobs) ||
			slices.Contains(beside, hubRefs))
}

// listed names snapshots behind a message.
func listed(snapshots []string) string {
	if len(snapshots) == 0 {
		return ""
	}
	quoted := make([]string, len(snapshots))
	for i, s := range snapshots {
		quoted[i] = text.Quote(s)
	}
	return ": there is " + strings.Join(quoted, ", ")
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
