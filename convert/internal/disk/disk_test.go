package disk

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEveryCallCanFail: each call that changes the file system asks first, by its name and
// path, and what it is refused it does not do.
func TestEveryCallCanFail(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		call string
		do   func(d *Disk, path string) error
		done func(path string) bool // whether the file system shows it
	}{
		"open": {"open", func(d *Disk, path string) error { _, err := d.Open(path, ReadWrite); return err }, exists},
		"tiles": {"open", func(d *Disk, path string) error {
			_, err := d.OpenTiles(path, ReadWrite)
			return err
		}, exists},
		"mkdir":      {"mkdir", func(d *Disk, path string) error { return d.Mkdir(path) }, exists},
		"rename":     {"rename", func(d *Disk, path string) error { return d.Rename(filepath.Dir(path)+"/file", path) }, exists},
		"remove":     {"remove", func(d *Disk, path string) error { return d.Remove(filepath.Dir(path) + "/file") }, lacks("file")},
		"remove all": {"remove", func(d *Disk, path string) error { return d.RemoveAll(filepath.Dir(path) + "/full") }, lacks("full")},
		"sync":       {"fsync", func(d *Disk, path string) error { return d.SyncDir(filepath.Dir(path)) }, nil},
		"write file": {"write", func(d *Disk, path string) error {
			return d.WriteFile(path, func(w io.Writer) error { _, err := io.WriteString(w, "text"); return err })
		}, holds("text")},
		"close": {"close", func(d *Disk, path string) error {
			return d.WriteFile(path, func(w io.Writer) error { return nil })
		}, nil},
		"durable": {"fsync", func(d *Disk, path string) error {
			return d.WriteFile(path, func(w io.Writer) error { return nil })
		}, nil},
		"size": {"ftruncate", onFile(func(f *File) error { return f.Truncate(4) }), holds("\x00\x00\x00\x00")},
		"room": {"fallocate", onFile(func(f *File) error { return f.Reserve(4) }), holds("\x00\x00\x00\x00")},
		"write at": {"write", onFile(func(f *File) error {
			_, err := f.WriteAt([]byte("text"), 0)
			return err
		}), holds("text")},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
			require.NoError(t, os.MkdirAll(filepath.Join(dir, "full", "sub"), 0o700))
			path := filepath.Join(dir, "new")
			var calls []string
			refusing := &Disk{Fail: func(call, path string) error {
				calls = append(calls, call)
				if call == c.call {
					return syscall.EIO
				}
				return nil
			}}
			err := c.do(refusing, path)
			require.ErrorIs(t, err, syscall.EIO)
			require.ErrorContains(t, err, dir)
			require.Contains(t, calls, c.call)
			if c.done != nil {
				require.False(t, c.done(path), "not done")
			}
			require.NoError(t, c.do(&Disk{}, path))
			if c.done != nil {
				require.True(t, c.done(path), "done")
			}
		})
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func lacks(name string) func(path string) bool {
	return func(path string) bool { return !exists(filepath.Join(filepath.Dir(path), name)) }
}

func holds(content string) func(path string) bool {
	return func(path string) bool {
		data, err := os.ReadFile(path)
		return err == nil && string(data) == content
	}
}

// onFile does something to an open file.
func onFile(do func(f *File) error) func(d *Disk, path string) error {
	return func(d *Disk, path string) error {
		f, err := d.Open(path, ReadWrite)
		if err != nil {
			return err
		}
		return errors.Join(do(f), f.Close())
	}
}

// TestWriteFile: what was there before is gone, also if it was longer, and what fill says
// is the error.
func TestWriteFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	write := func(content string, err error) error {
		return new(Disk).WriteFile(path, func(w io.Writer) error {
			io.WriteString(w, content)
			return err
		})
	}
	require.NoError(t, write("a long text", nil))
	require.NoError(t, write("text", nil))
	require.True(t, holds("text")(path))
	boom := errors.New("boom")
	require.ErrorIs(t, write("half", boom), boom)
	require.ErrorIs(t, new(Disk).WriteFile(filepath.Join(path, "x"), nil), syscall.ENOTDIR)
}

// TestLock: one holder at a time, until the file is closed.
func TestLock(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	open := func() *File {
		f, err := new(Disk).Open(path, ReadWrite)
		require.NoError(t, err)
		return f
	}
	first, second := open(), open()
	locked, err := first.TryLock()
	require.NoError(t, err)
	require.True(t, locked)
	locked, err = second.TryLock()
	require.NoError(t, err)
	require.False(t, locked)
	require.NoError(t, first.Close())
	locked, err = second.TryLock()
	require.NoError(t, err)
	require.True(t, locked)
	require.NoError(t, second.Close())
	_, err = second.TryLock()
	require.Error(t, err)
}

// TestMissing: a directory that is not there is an error, and its disk has no known room.
func TestMissing(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "none")
	require.ErrorIs(t, new(Disk).SyncDir(dir), fs.ErrNotExist)
	require.ErrorIs(t, new(Disk).Mkdir(filepath.Join(dir, "sub")), fs.ErrNotExist)
	_, ok := FreeSpace(dir)
	require.False(t, ok)
	free, ok := FreeSpace(filepath.Dir(dir))
	require.True(t, ok)
	require.Positive(t, free)
}

// TestReserve: the size is what is asked for, also if it was more.
func TestReserve(t *testing.T) {
	t.Parallel()
	f, err := new(Disk).Open(filepath.Join(t.TempDir(), "file"), ReadWrite)
	require.NoError(t, err)
	defer f.Close()
	for _, size := range []int64{100_000, 10, 100_000} {
		require.NoError(t, f.Reserve(size))
		stat, err := f.Stat()
		require.NoError(t, err)
		require.Equal(t, size, stat.Size())
	}
}

// TestTileEnd: a tile ends with its tensor or between blocks, and is never empty.
func TestTileEnd(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ from, n, end, want int64 }{
		{0, Block, Block, Block}, {0, Block, Block + 1, Block}, {0, 4 * Block, 10, 10}, {100, Block, 10 * Block, Block},
		{100, 4 * Block, 10 * Block, 4 * Block}, {Block - 1, Block, 10 * Block, Block}, {3 * Block, 4 * Block, 7 * Block, 7 * Block}, {5, Block, 5, 5},
	} {
		require.Equal(t, c.want, TileEnd(c.from, c.n, c.end), "%+v", c)
	}
}

// TestExchange: two directories take each other's names, or the disk says that it cannot.
func TestExchange(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	require.NoError(t, os.MkdirAll(filepath.Join(a, "was a"), 0o755))
	require.NoError(t, os.Mkdir(b, 0o755))
	d := &Disk{}
	err := d.Exchange(a, b)
	if errors.Is(err, errors.ErrUnsupported) {
		require.DirExists(t, filepath.Join(a, "was a"))
		return
	}
	require.NoError(t, err)
	require.DirExists(t, filepath.Join(b, "was a"))
	require.NoDirExists(t, filepath.Join(a, "was a"))
	require.ErrorIs(t, d.Exchange(a, filepath.Join(dir, "none")), fs.ErrNotExist)
	d.Fail = func(call, path string) error {
		require.Equal(t, []string{"exchange", b}, []string{call, path})
		return fs.ErrPermission
	}
	require.ErrorIs(t, d.Exchange(a, b), fs.ErrPermission)
	require.DirExists(t, filepath.Join(b, "was a"))
}
