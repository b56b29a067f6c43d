//go:build (amd64 || arm64) && !purego

package kernel

import "unsafe"

// copyIn and copyOut widen and narrow F32 where memory has the order of the format.

func copyIn(dst *float32, src *byte, n int) {
	copy(unsafe.Slice((*byte)(unsafe.Pointer(dst)), 4*n), unsafe.Slice(src, 4*n))
}

func copyOut(dst *byte, src *float32, n int) {
	copy(unsafe.Slice(dst, 4*n), unsafe.Slice((*byte)(unsafe.Pointer(src)), 4*n))
}
