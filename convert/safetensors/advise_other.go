//go:build !unix

package safetensors

const (
	willNeed = iota
	dontNeed
)

// madvise does nothing where there is no such call.
func madvise([]byte, int) {}
