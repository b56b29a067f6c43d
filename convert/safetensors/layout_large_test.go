//go:build !386 && !arm

package safetensors

import (
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/model/tensor"
)

// petabytes makes n tensors of 2^60 bytes.
func petabytes(n int) (infos []tensor.Info) {
	for i := range n {
		infos = append(infos, tensor.Info{Name: string(rune('a' + i)), DType: tensor.U8, Shape: []int{1 << 40, 1 << 20}})
	}
	return infos
}

// TestLayoutRefusesTheLarge: dimensions, tensors and files that only 64 bits can count.
func TestLayoutRefusesTheLarge(t *testing.T) {
	for want, infos := range map[string][]tensor.Info{
		"dimension 2199023255552 exceeds the limit": {{Name: "w", DType: tensor.F32, Shape: []int{1 << 41}}},
		"overflows":                              {{Name: "w", DType: tensor.F32, Shape: []int{1 << 40, 1 << 40}}},
		"tensor e: file would exceed 2^62 bytes": petabytes(5),
	} {
		_, err := NewLayout(infos, nil)
		require.ErrorContains(t, err, want)
	}
}
