//go:build !(linux || darwin || freebsd)

package disk

import "os"

// FreeSpace returns false: the free space is unknown on this system.
func FreeSpace(string) (free uint64, ok bool) { return 0, false }

// allocated returns the size of a file: what it takes on disk is unknown on this system.
func allocated(info os.FileInfo) int64 { return info.Size() }

// SyncDir does nothing: on this system a directory cannot be synced.
func (d *Disk) SyncDir(path string) error { return d.ask("fsync", path) }

// identity is unknown on this system.
func identity(string) (string, error) { return "", nil }
