//go:build !(linux || darwin || freebsd)

package convert

// freeSpace is not known on this system.
func freeSpace(string) (free uint64, ok bool) { return 0, false }

// syncDir does nothing: on this system a directory cannot be synced.
func syncDir(string) error { return nil }
