//go:build !(linux && (amd64 || arm64))

package convert

import "os"

// dropCache does nothing: this system cannot be asked.
func dropCache(*os.File) {}
