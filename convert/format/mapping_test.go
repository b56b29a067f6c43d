package format

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"dsmoe/model/tensor"
	"dsmoe/text/problem"
)

// TestAdviceLeavesTheBytes: views read the same after their pages were let go, and
// memory that is not the file's is not touched.
func TestAdviceLeavesTheBytes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, make([]byte, 100_000), 0o600))
	m, err := NewMapping(path)
	require.NoError(t, err)
	info := tensor.Info{Name: "x", DType: tensor.U8, Shape: []int{90_000}}
	view, err := m.View("x", info, 5000, true)
	require.NoError(t, err)
	require.True(t, m.WillNeed(view.Data))
	require.True(t, m.DontNeed(view.Data))
	require.Equal(t, make([]byte, 90_000), view.Data)
	own := []byte{1, 2, 3}
	require.False(t, m.DontNeed(own))
	require.False(t, m.DontNeed(nil))
	require.Equal(t, []byte{1, 2, 3}, own)

	_, err = m.View("y", tensor.Info{}, 0, false)
	require.ErrorContains(t, err, "tensor y: no such tensor in this file")
	require.NoError(t, m.Close())
	require.NoError(t, m.Close())
	_, err = m.View("x", info, 5000, true)
	require.ErrorContains(t, err, "file is closed")
}

// TestRestDuringReads: a read that runs while the file is closed for a while reads its bytes.
func TestRestDuringReads(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, []byte{7}, 0o600))
	m, err := NewMapping(path)
	require.NoError(t, err)
	defer m.Close()
	var readers errgroup.Group
	var reading atomic.Int64
	reading.Store(2)
	for range 2 {
		readers.Go(func() error {
			defer reading.Add(-1)
			for range 5_000 {
				if _, err := m.ReadAt(make([]byte, 1), 0); err != nil {
					return err
				}
				runtime.Gosched()
			}
			return nil
		})
	}
	for reading.Load() > 0 {
		m.Rest()
		runtime.Gosched()
	}
	require.NoError(t, readers.Wait())
}

// TestOpenRegularRefuses all that is no regular file, and names a link's target.
func TestOpenRegularRefuses(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Symlink("nowhere", filepath.Join(dir, "link")))
	for name, want := range map[string]string{
		".":    "is a directory, not a regular file",
		"none": "no such file",
		"link": "is a link to nowhere, which does not exist",
	} {
		_, _, err := OpenRegular(filepath.Join(dir, name))
		var e *problem.Error
		require.ErrorAs(t, err, &e, name)
		require.ErrorContains(t, err, want)
	}
}

// TestFilesThatChange: a file that was cut or put in another's place after its header was
// read is not mapped: its views would be of other bytes, or kill the process.
func TestFilesThatChange(t *testing.T) {
	for want, change := range map[string]func(path string) error{
		"was replaced since its header was read":  func(path string) error { return os.Rename(path+".new", path) },
		"had 100 B when its header was read, and": func(path string) error { return os.Truncate(path, 50) },
		"no such file": func(path string) error { return os.Remove(path) },
	} {
		path := filepath.Join(t.TempDir(), "file")
		require.NoError(t, os.WriteFile(path, make([]byte, 100), 0o600))
		require.NoError(t, os.WriteFile(path+".new", make([]byte, 100), 0o600))
		m, err := NewMapping(path)
		require.NoError(t, err)
		m.Rest()
		require.NoError(t, change(path))
		_, err = m.View("x", tensor.Info{Name: "x", DType: tensor.U8, Shape: []int{10}}, 80, true)
		var e *problem.Error
		require.ErrorAs(t, err, &e)
		require.ErrorContains(t, err, want)
		require.NoError(t, m.Close())
	}
}

// TestAside: bytes that lie aside are those that were put there, in no file that has a name; where no file can be made it
// is an error.
func TestAside(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	data := bytes.Repeat([]byte("aside"), 9999)
	d, view, err := Aside(data)
	if runtime.GOOS == "windows" { // an open file keeps its name
		require.Error(t, err)
		return
	}
	require.NoError(t, err)
	require.True(t, bytes.Equal(data, view))
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
	require.True(t, d.DontNeed(view[10:20]))
	require.False(t, d.DontNeed(data))
	require.True(t, bytes.Equal(data, view))
	require.NoError(t, d.Close())
	t.Setenv("TMPDIR", filepath.Join(dir, "absent"))
	_, _, err = Aside(data)
	require.ErrorIs(t, err, fs.ErrNotExist)
}
