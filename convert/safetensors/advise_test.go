package safetensors

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAdviceLeavesTheBytes: views read the same after their pages were let go, and
// memory that is not the file's is not touched.
func TestAdviceLeavesTheBytes(t *testing.T) {
	f, err := Open(filepath.Join("..", "..", "fixtures", "v1-dense", "checkpoint", "model.safetensors"))
	require.NoError(t, err)
	defer f.Close()
	for i := range f.Tensors() {
		view, err := f.Tensor(i.Name)
		require.NoError(t, err)
		before := string(view.Data)
		require.True(t, f.WillNeed(view.Data))
		require.True(t, f.DontNeed(view.Data))
		require.Equal(t, before, string(view.Data))
	}
	own := []byte{1, 2, 3}
	require.False(t, f.DontNeed(own))
	require.False(t, f.DontNeed(nil))
	require.Equal(t, []byte{1, 2, 3}, own)
}
