//go:build !(linux || darwin || freebsd)

package disk

import "os"

// tryLock is not known on this system: two runs into one target are not noticed.
func tryLock(*os.File) (locked bool, err error) { return true, nil }
