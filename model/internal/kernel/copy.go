//go:build (amd64 || arm64) && !purego

package kernel

import "unsafe"

// copyIn widens F32, whose bytes have the order of the processor's float32.
func copyIn(dst *float32, src *byte, n int) {
	copy(unsafe.Slice((*byte)(unsafe.Pointer(dst)), 4*n), unsafe.Slice(src, 4*n))
}

// copyOut narrows to F32.
func copyOut(dst *byte, src *float32, n int) {
	copy(unsafe.Slice(dst, 4*n), unsafe.Slice((*byte)(unsafe.Pointer(src)), 4*n))
}
