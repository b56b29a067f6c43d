// Package source is where the files of a checkpoint lie: a Dir is a directory on the disk, or a place
// that is read by ranges. It knows no format, and which file is what is for its callers to decide.
package source

import (
	"io/fs"
	"os"
	"path/filepath"

	"dsmoe/convert/format"
	"dsmoe/convert/internal/disk"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// Dir is a directory whose files can be read. It is safe for concurrent use. Errors about a file are
// of type *problem.Error, and wrap fs.ErrNotExist if it is missing.
type Dir interface {
	// Path is what the file is called in messages; "" is the directory itself.
	Path(name string) string
	// OnDisk reports whether Path is a path on the disk.
	OnDisk() bool
	// List returns the names in the directory below this one, "" for itself, sorted.
	List(below string) ([]string, error)
	// Stat describes a file, a link's target for a link.
	Stat(name string) (fs.FileInfo, error)
	// Open opens a regular file to be read from its begin.
	Open(name string) (fs.File, error)
	// Data opens a weight file.
	Data(name string) (format.Data, error)
	// State names the state of a file without reading it, as cheaply as it can be told: another
	// state may mean other bytes. One that begins with Unknown is another whenever the directory is opened.
	State(name string) (string, error)
	// CheckInside refuses a file whose bytes lie outside of the directory.
	CheckInside(name string) error
}

// Unknown begins the state of a file whose server gives no identity: other bytes may have the same state.
const Unknown = "unknown "

// Disk is a directory on the disk, by its path.
type Disk string

// Path returns the path of the file.
func (d Disk) Path(name string) string {
	if name == "" {
		return string(d)
	}
	return filepath.Join(string(d), name)
}

// OnDisk returns true.
func (d Disk) OnDisk() bool { return true }

// List reads the directory.
func (d Disk) List(below string) (names []string, err error) {
	entries, err := os.ReadDir(d.Path(below))
	if err != nil {
		return nil, problem.System(d.Path(below), "", err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}

// Stat describes the file.
func (d Disk) Stat(name string) (fs.FileInfo, error) { return os.Stat(d.Path(name)) }

// Open opens the file.
func (d Disk) Open(name string) (fs.File, error) {
	f, _, err := format.OpenRegular(d.Path(name))
	if err != nil {
		return nil, err // a nil *os.File would not be a nil fs.File
	}
	return f, nil
}

// Data returns the file, which is mapped when it is viewed.
func (d Disk) Data(name string) (format.Data, error) {
	m, err := format.NewMapping(d.Path(name))
	if err != nil {
		return nil, err
	}
	return m, nil
}

// State names the file's size, time and place on the disk.
func (d Disk) State(name string) (string, error) { return disk.State(d.Path(name)) }

// The directories of the hub's cache: a snapshot's links lead to blobs.
const (
	HubSnapshots = "snapshots"
	HubBlobs     = "blobs"
)

// CheckInside refuses a link to a place outside of the directory, other than the blobs of the hub's
// cache that the directory is a snapshot of, or to nothing.
func (d Disk) CheckInside(name string) error {
	dir, err := filepath.Abs(string(d))
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	path := filepath.Join(dir, name)
	if err != nil {
		return problem.System(path, "", err)
	}
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		f, _, err := format.OpenRegular(path) // words the error
		if err == nil {
			f.Close()
		}
		return err
	}
	if isIn(dir, target) || filepath.Base(filepath.Dir(dir)) == HubSnapshots &&
		isIn(filepath.Join(dir, "..", "..", HubBlobs), target) {
		return nil
	}
	return problem.New(path, "is a link to "+text.Quote(target)+", outside the checkpoint",
		"if the file belongs to the checkpoint, put a copy in the link's place")
}

// isIn reports whether the file at path is in dir or below it.
func isIn(dir, path string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && filepath.IsLocal(rel)
}
