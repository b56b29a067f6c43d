package remote_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/remote/remotetest"
)

// TestNoResponseIsCut: tensors are read in tiles with their scales between them, one tensor after the other and all in
// turn. No response is closed before its end, and nearly nothing is sent twice.
func TestNoResponseIsCut(t *testing.T) {
	const tensors, tiles, tile, scales = 20, 38, 64 << 10, 3000
	const size = tiles * tile
	dir := t.TempDir()
	data := make([]byte, tensors*(size+scales))
	var ends []int64
	for i := range data {
		data[i] = byte(i * i >> 9)
	}
	for i := range int64(tensors) {
		ends = append(ends, i*(size+scales)+size, (i+1)*(size+scales))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "large.bin"), data, 0o600))
	for order, at := range map[string]func(step int) (tensor, tile int){
		"one after the other": func(step int) (int, int) { return step / tiles, step % tiles },
		"in turn":             func(step int) (int, int) { return step % tensors, step / tensors },
	} {
		hub := remotetest.Start(t, map[string]string{"model": dir})
		f, err := open(t, hub.Client, "hf://org/model").Data("large.bin")
		require.NoError(t, err)
		f.(interface{ Rest() }).Rest()
		f.(interface{ TensorsEnd(at []int64) }).TensorsEnd(ends)
		hub.Forget()
		read := func(from, n int) {
			got := make([]byte, n)
			_, err := f.ReadAt(got, int64(from))
			require.NoError(t, err)
			require.True(t, string(data[from:from+n]) == string(got), "%s: bytes %d and %d more", order, from, n)
		}
		for step := range tensors * tiles {
			i, n := at(step)
			start := i * (size + scales)
			read(start+n*tile, tile)
			read(start+size+n*70, 70)
		}
		require.NoError(t, f.Close())
		requests, cut, sent := hub.Traffic()
		received, _ := hub.Client.Traffic()
		require.Greater(t, received, sent, "headers count")
		require.Less(t, received, sent+int64(1000*requests))
		require.Zero(t, cut, order)
		require.LessOrEqual(t, sent, int64(len(data))*105/100, order)
		if order != "in turn" {
			require.LessOrEqual(t, requests, 4*tensors, "%s: %q", order, hub.Requests())
		}
	}
}
