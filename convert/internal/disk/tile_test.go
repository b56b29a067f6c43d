package disk

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// tensorsOf cuts n bytes into tensors of odd sizes: single bytes, some that share a
// block with their neighbours, some of many blocks.
func tensorsOf(n int64) (ends []int64) {
	r := rand.New(rand.NewPCG(1, 2))
	for at := int64(0); at < n; ends = append(ends, at) {
		at = min(n, at+[]int64{1, r.Int64N(100), r.Int64N(3 * Block), Block, r.Int64N(20 * Block)}[r.IntN(5)])
	}
	return ends
}

// TestTilesPassTheCacheBy: whatever the system refuses, and when, the bytes are the
// same, written and read.
func TestTilesPassTheCacheBy(t *testing.T) {
	const size, before = 60*Block + 12345, 1001 // before is a header
	want := make([]byte, size)
	for i, r := 0, rand.NewChaCha8([32]byte{}); i < size; i++ {
		want[i] = byte(r.Uint64())
	}
	for _, allowed := range []int64{-1, 0, 1, 5, 1 << 60} {
		t.Run(fmt.Sprintf("%d direct calls", allowed), func(t *testing.T) {
			flag := ReadWrite | os.O_SYNC
			if allowed < 0 { // a file of this process alone
				flag = ReadWrite
			}
			var calls atomic.Int64
			d := &Disk{Fail: func(call, _ string) error {
				if call == "direct" && calls.Add(1) > allowed {
					return syscall.EINVAL
				}
				return nil
			}}
			f, err := d.OpenTiles(filepath.Join(t.TempDir(), "weights"), flag)
			require.NoError(t, err)
			defer f.Close()
			require.NoError(t, f.Reserve(size))
			_, err = f.WriteAt(want[:before], 0)
			require.NoError(t, err)
			eachTile(t, before, size, func(tile []byte, at int64) error {
				copy(tile, want[at:])
				return f.WriteTile(tile, at)
			})
			require.Equal(t, f.direct != nil && allowed < 1<<60, f.refused.Load())
			require.False(t, allowed < 0 && f.direct != nil)
			written, err := os.ReadFile(f.Name())
			require.NoError(t, err)
			require.Equal(t, string(want), string(written))
			eachTile(t, before, size, func(tile []byte, at int64) error {
				err := f.ReadTile(tile, at)
				if string(tile) != string(want[at:][:len(tile)]) {
					t.Errorf("the tile at %d is read as something else", at)
				}
				return err
			})
			require.NoError(t, f.Finish())
		})
	}
}

// eachTile calls do for the tiles of tensors in the bytes begin, …, end-1 of a
// file, several tensors at once.
func eachTile(t *testing.T, begin, end int64, do func(tile []byte, at int64) error) {
	const most = 4 * Block
	var wait sync.WaitGroup
	defer wait.Wait()
	from := begin
	for _, n := range tensorsOf(end - begin) {
		to := begin + n
		at := from
		from = to
		wait.Go(func() {
			m := NewTileMemories(3, most)[1]
			for at < to {
				next := TileEnd(at, most, to)
				if err := do(m.Tile(at, next), at); err != nil {
					t.Error(err)
				}
				at = next
			}
		})
	}
}
