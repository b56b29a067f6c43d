//go:build !unix

package format

const (
	willNeed = iota
	dontNeed
)

// madvise does nothing: this system has no such call.
func madvise([]byte, int) {}
