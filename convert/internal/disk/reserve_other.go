//go:build !linux

package disk

// Reserve gives the file its size; the file system allocates blocks as they are written.
func (f *File) Reserve(size int64) error {
	return f.disk.call("fallocate", f.Name(), func() error { return f.file.Truncate(size) })
}
