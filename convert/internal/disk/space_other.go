//go:build !(linux || darwin || freebsd)

package disk

// FreeSpace returns false: the free space is unknown on this system.
func FreeSpace(string) (free uint64, ok bool) { return 0, false }

// syncDir does nothing: on this system a directory cannot be synced.
func syncDir(string) error { return nil }

// identity is unknown on this system.
func identity(string) (string, error) { return "", nil }
