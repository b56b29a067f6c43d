package diagnose

import (
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/model/tensor"
)

// TestFirstNotFinite: of any rank, a scalar among them.
func TestFirstNotFinite(t *testing.T) {
	nan, one := "\x00\x00\xc0\x7f", "\x00\x00\x80\x3f"
	for _, c := range []struct {
		shape []int
		data  string
		want  int
	}{{nil, nan, 0}, {nil, one, -1}, {[]int{3}, one + nan + one, 1}, {[]int{2, 2}, one + one + nan + one, 2}, {[]int{0, 2}, "", -1}} {
		at, _ := FirstNotFinite(tensor.Tensor{DType: tensor.F32, Shape: c.shape, Data: []byte(c.data)})
		require.Equal(t, c.want, at, "%v", c.shape)
	}
}
