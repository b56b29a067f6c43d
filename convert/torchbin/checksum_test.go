package torchbin

import (
	"hash/crc32"
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/convert/internal/fixture"
)

// TestChecksums: those of the archive are those of its bytes, and every tensor at the
// beginning of a storage is named.
func TestChecksums(t *testing.T) {
	path := fixture.Path(t, "torch-bin/checkpoint/pytorch_model-00001-of-00002.bin")
	f, err := open(path)
	require.NoError(t, err)
	defer f.Close()
	r, err := os.Open(path)
	require.NoError(t, err)
	defer r.Close()
	sums, err := f.Checksums(r)
	require.NoError(t, err)
	tensors := 0
	for _, s := range sums {
		data, err := io.ReadAll(io.NewSectionReader(r, s.Offset, s.Size))
		require.NoError(t, err)
		assert.Len(t, data, int(s.Size))
		assert.Equal(t, crc32.ChecksumIEEE(data), s.CRC32, s.Name)
		if s.Tensor != "" {
			tensors++
			_, offset, ok := f.Lookup(s.Tensor)
			assert.True(t, ok)
			assert.Equal(t, s.Offset, offset)
		}
	}
	assert.Equal(t, f.Stat().Tensors, tensors)
}
