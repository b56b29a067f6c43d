//go:build !(amd64 || arm64) || purego

package kernel

// native lists no assembly.
func native() []*implementation { return nil }
