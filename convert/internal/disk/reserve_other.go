//go:build !linux

package disk

import "os"

// reserve gives the file its size; its blocks come as they are written.
func reserve(f *os.File, size int64) error { return f.Truncate(size) }
