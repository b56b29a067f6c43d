package digest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWhole: messages of all lengths around those that are hashed at once, written in parts of any size, have the names
// that the library gives them, and so do their beginnings.
func TestWhole(t *testing.T) {
	data := make([]byte, 9*atOnce+5)
	for i := range data {
		data[i] = byte(i*i>>8 ^ i%251)
	}
	h := New()
	for _, n := range []int{0, 1, 1024, 1025, 2048, 5000, atOnce - 1, atOnce, atOnce + 1, atOnce + 1024, 2*atOnce - 1, 2 * atOnce, 3*atOnce + 7,
		4 * atOnce, 8 * atOnce, 9 * atOnce, len(data)} {
		for _, size := range []int{100, 1000, 1024, atOnce, atOnce + 1, 3 * atOnce, len(data)} {
			h.Reset()
			for at := 0; at < n; at += size {
				end := min(at+size, n)
				h.Write(data[at:end])
				if at == 0 {
					require.Equal(t, Of(data[:end]), h.Name())
				}
			}
			require.Equal(t, Of(data[:n]), h.Name(), "%d bytes in parts of %d", n, size)
		}
	}
}
