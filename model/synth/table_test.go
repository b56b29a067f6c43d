package synth

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/model/tensor"
)

// TestTablesOfExperts: every row has different experts, and every expert has rows.
func TestTablesOfExperts(t *testing.T) {
	for _, x := range [][2]uint64{{1, 1}, {1, 3}, {2, 2}, {2, 5}, {4, 4}, {3, 6}, {6, 8}, {6, 256}} {
		k, n, seen := x[0], x[1], map[uint64]bool{}
		data := make([]byte, 2000*k*8)
		generator{key: 7}.fillTable(data, 0, k, n)
		for ; len(data) > 0; data = data[k*8:] {
			var row []uint64
			for j := range k {
				row = append(row, binary.LittleEndian.Uint64(data[j*8:]))
				seen[row[j]] = true
				require.Less(t, row[j], n)
			}
			slices.Sort(row)
			require.Len(t, slices.Compact(row), int(k), "%d of %d", k, n)
		}
		require.Len(t, seen, int(n))
	}
}

// TestPartsOfV4: integers and F32 begin and end anywhere; F32 are BF16 numbers.
func TestPartsOfV4(t *testing.T) {
	s := New(configtest.Fixture(t, "v4-128/checkpoint"), 3)
	wide := 0
	for info := range s.Tensors() {
		whole, err := s.Tensor(info.Name)
		require.NoError(t, err)
		for _, size := range []int{1, 3, 8, 11} {
			var parts []byte
			for at := 0; at < len(whole.Data); at += size {
				part := make([]byte, min(size, len(whole.Data)-at))
				require.NoError(t, s.Fill(info, part, int64(at)))
				parts = append(parts, part...)
			}
			require.Equal(t, whole.Data, parts, fmt.Sprint(info.Name, " ", size))
		}
		if info.DType == tensor.F32 {
			wide++
			require.Zero(t, binary.LittleEndian.Uint16(whole.Data))
			require.NotZero(t, binary.LittleEndian.Uint16(whole.Data[2:]))
		}
	}
	require.Greater(t, wide, 10)
}
