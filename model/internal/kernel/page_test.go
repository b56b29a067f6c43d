//go:build linux

package kernel

import (
	"encoding/binary"
	"math"
	"os"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// atPageEnd returns a copy of data whose end is the end of the readable memory.
func atPageEnd(t *testing.T, data []byte) []byte {
	t.Helper()
	page := os.Getpagesize()
	size := (len(data) + page - 1) / page * page
	memory, err := syscall.Mmap(-1, 0, size+page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	require.NoError(t, err)
	require.NoError(t, syscall.Mprotect(memory[size:], syscall.PROT_NONE))
	t.Cleanup(func() { _ = syscall.Munmap(memory) })
	end := memory[size-len(data) : size : size]
	copy(end, data)
	return end
}

// floatsAtPageEnd is atPageEnd of float32.
func floatsAtPageEnd(t *testing.T, values []float32) []float32 {
	t.Helper()
	var data []byte
	for _, v := range values {
		data = binary.NativeEndian.AppendUint32(data, math.Float32bits(v))
	}
	data = atPageEnd(t, data)
	return unsafe.Slice((*float32)(unsafe.Pointer(&data[0])), len(values))
}
