//go:build !linux

package disk

import "os"

// directFlag returns zero: this system has no flag that opens a file past the page
// cache.
func directFlag(*os.File) int { return 0 }

// dropCache does nothing: this system cannot be asked.
func dropCache(*os.File) {}
