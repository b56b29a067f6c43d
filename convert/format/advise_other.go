//go:build !unix

package format

const (
	willNeed = iota
	dontNeed
)

// madvise does nothing where there is no such call.
func madvise([]byte, int) {}
