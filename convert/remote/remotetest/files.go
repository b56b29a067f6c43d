package remotetest

import (
	"bytes"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Files are the files of a store: fs.FS as its clients read them, files that seek, and what its clients write.
type Files interface {
	fs.FS
	// Keep takes bytes in, which the caller may change afterwards.
	Keep(data []byte) (Blob, error)
	// Range takes in the bytes of a file from begin to end.
	Range(name string, begin, end int64) (Blob, error)
	// Write makes a file of blobs, one after the other; it replaces a file of that name.
	Write(name string, blobs ...Blob) error
	// Remove removes a file; without one it does nothing.
	Remove(name string) error
}

// Blob is bytes that Files took in.
type Blob interface {
	io.ReaderAt
	Size() int64
}

// directory is the Files of a directory on the disk.
type directory struct {
	fs.FS
	root string
}

// Directory returns the Files of a directory on the disk.
func Directory(root string) Files { return &directory{os.DirFS(root), root} }

// Keep copies the bytes.
func (d *directory) Keep(data []byte) (Blob, error) { return bytes.NewReader(bytes.Clone(data)), nil }

// Range reads the bytes.
func (d *directory) Range(name string, begin, end int64) (Blob, error) {
	data, err := fs.ReadFile(d.FS, name)
	if err != nil {
		return nil, err
	}
	return bytes.NewReader(data[begin:end]), nil
}

// Write writes a file and makes its directory.
func (d *directory) Write(name string, blobs ...Blob) error {
	var data []byte
	for _, b := range blobs {
		bytes := make([]byte, b.Size())
		if _, err := b.ReadAt(bytes, 0); err != nil && err != io.EOF {
			return err
		}
		data = append(data, bytes...)
	}
	path := filepath.Join(d.root, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o644)
}

// Remove removes a file.
func (d *directory) Remove(name string) error {
	os.Remove(filepath.Join(d.root, filepath.FromSlash(name)))
	return nil
}
