//go:build !amd64 || purego

package lanes

// supported lists crypto/sha256 alone.
func supported() []*implementation { return []*implementation{&standard} }
