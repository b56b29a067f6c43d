//go:build !linux

package disk

import "os"

// reserve sets the size; the file system allocates blocks as they are written.
func reserve(f *os.File, size int64) error { return f.Truncate(size) }
