//go:build !linux

package disk

import "os"

// directFlag returns 0: this system has no flag that bypasses the page cache.
func directFlag(*os.File) int { return 0 }

// DropCache does nothing on this system.
func (f *File) DropCache(at, n int64) {}

// wantLargePages does nothing on this system.
func wantLargePages([]byte) {}

// startWriting does nothing on this system.
func (f *File) startWriting(at, n int64) {}
