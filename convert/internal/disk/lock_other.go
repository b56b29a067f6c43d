//go:build !(linux || darwin || freebsd)

package disk

import "os"

// tryLock always succeeds: on this system two runs into one target are not detected.
func tryLock(*os.File) (locked bool, err error) { return true, nil }
