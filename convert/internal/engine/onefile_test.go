package engine

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/convert/checkpoint"
	"dsmoe/convert/internal/disk"
	"dsmoe/convert/internal/fixture"
	"dsmoe/convert/plan"
	"dsmoe/model/tensor"
)

const oneFile = "x.gguf"

// intoFile converts into the file x.gguf of dir.
func intoFile(t *testing.T, dir string, src *checkpoint.Checkpoint, d tensor.DType, s Settings) (*Result, error) {
	dst := filepath.Join(dir, oneFile)
	return convert(t.Context(), t, dst, src, plan.Options{DType: d, NoVocab: true, Exclude: []string{"*.mlp.*"}}.Into(dst), s)
}

// TestOneFile_every: an output that is one file lies beside its manifest and beside other files. Of a
// crash at any call the file is absent, or the old one, or the new one; the same call ends with the
// same bytes and leaves nothing beside.
func TestOneFile_every(t *testing.T) {
	t.Parallel()
	src := open(t, fixture.Path(t, "v1-dense/checkpoint"))
	written := func(d tensor.DType) (sums map[string][32]byte, manifest string) {
		dir := t.TempDir()
		fixture.Write(t, dir, "other.gguf", "mine")
		_, err := intoFile(t, dir, src, d, inMemory())
		require.NoError(t, err)
		requireChecked(t, filepath.Join(dir, oneFile))
		fixture.RequireEntries(t, dir, "other.gguf", oneFile, oneFile+plan.FileManifest)
		return fixture.Sums(t, dir), fixture.Read(t, dir, oneFile+plan.FileManifest)
	}
	want, _ := written(tensor.BF16)
	old, oldManifest := written(tensor.F32)
	boom := errors.New("boom")
	apart, least := int64(16), 3
	if configtest.Every(t) {
		apart, least = 1, 10
	}
	for _, overwrite := range []bool{false, true} {
		seen := map[bool]int{}
		run := func(n int64) (dir string, s Settings, calls *atomic.Int64, err error) {
			dir = t.TempDir()
			fixture.Write(t, dir, "other.gguf", "mine")
			if overwrite {
				_, err = intoFile(t, dir, src, tensor.F32, inMemory())
				require.NoError(t, err)
			}
			s = Settings{Overwrite: overwrite, IO: 2}
			s.Disk, calls = crash(n, boom)
			_, err = intoFile(t, dir, src, tensor.BF16, s)
			return dir, s, calls, err
		}
		_, _, calls, err := run(math.MaxInt64)
		require.NoError(t, err)
		for n, crashed := int64(0), true; crashed; n++ { // above all at the end, where the old file goes
			if n%apart > 0 && n < calls.Load()-6 {
				continue
			}
			dir, s, _, err := run(n)
			crashed = err != nil
			if _, gone := os.Stat(filepath.Join(dir, oneFile)); gone != nil {
				require.False(t, overwrite, "call %d: the old file is gone", n)
			} else if sum := fixture.Sums(t, dir)[oneFile]; sum != want[oneFile] {
				require.Equal(t, old[oneFile], sum, "call %d", n)
			}
			if crashed {
				require.ErrorIs(t, err, boom)
				seen[fixture.Sums(t, dir)[oneFile] == want[oneFile]]++
			}
			s.Disk = &disk.Disk{NoSync: true}
			r, err := intoFile(t, dir, src, tensor.BF16, s)
			require.NoError(t, err, "call %d", n)
			require.True(t, r.Verified)
			require.Equal(t, want, fixture.Sums(t, dir), "call %d", n)
			fixture.RequireEntries(t, dir, "other.gguf", oneFile, oneFile+plan.FileManifest)
		}
		require.Greater(t, seen[false], least)
		require.Positive(t, seen[true])
	}
	require.Contains(t, oldManifest, `"file": "x.gguf"`)
}

// TestOneFileStartsOver: a run that crashed between the renames of the manifest and of the file
// leaves the old file; starting over leaves it too until the new file is complete.
func TestOneFileStartsOver(t *testing.T) {
	t.Parallel()
	src := open(t, fixture.Path(t, "v1-dense/checkpoint"))
	dir := t.TempDir()
	_, err := intoFile(t, dir, src, tensor.F32, inMemory())
	require.NoError(t, err)
	old := fixture.Sums(t, dir)
	boom := errors.New("boom")
	failing := func(to string) Settings {
		return Settings{Overwrite: true, Disk: &disk.Disk{NoSync: true, Fail: func(call, path string) error {
			if call == "rename" && filepath.Base(path) == to {
				return boom
			}
			return nil
		}}}
	}
	_, err = intoFile(t, dir, src, tensor.BF16, failing(oneFile))
	require.ErrorIs(t, err, boom)
	require.NotEqual(t, old[oneFile+plan.FileManifest], fixture.Sums(t, dir)[oneFile+plan.FileManifest])
	s := failing(oneFile + plan.FileManifest)
	s.StartOver = true
	_, err = intoFile(t, dir, src, tensor.BF16, s)
	require.Error(t, err)
	require.Equal(t, old[oneFile], fixture.Sums(t, dir)[oneFile])
	s = inMemory()
	s.Overwrite, s.StartOver = true, true
	_, err = intoFile(t, dir, src, tensor.BF16, s)
	require.ErrorContains(t, err, "cannot be overwritten: its files changed since they were written")
	s.OverwriteChanged = true
	_, err = intoFile(t, dir, src, tensor.BF16, s)
	require.NoError(t, err)
	requireChecked(t, filepath.Join(dir, oneFile))
}

// TestOneFileSpares: a file that is not a finished output stays, with and without Overwrite.
func TestOneFileSpares(t *testing.T) {
	t.Parallel()
	src := open(t, fixture.Path(t, "v1-dense/checkpoint"))
	for want, spoil := range map[string]func(dir string){
		"no such file":   func(dir string) { fixture.Remove(t, dir, oneFile+plan.FileManifest) },
		"not a manifest": func(dir string) { fixture.Write(t, dir, oneFile+plan.FileManifest, "[]") },
		"is the manifest of y.gguf": func(dir string) {
			fixture.Replace(t, dir, oneFile+plan.FileManifest, `"file": "x.gguf"`, `"file": "y.gguf"`)
		},
		"a link, a directory or a device": func(dir string) {
			require.NoError(t, os.Rename(filepath.Join(dir, oneFile), filepath.Join(dir, "z")))
			fixture.Link(t, "z", filepath.Join(dir, oneFile))
		},
	} {
		dir := t.TempDir()
		_, err := intoFile(t, dir, src, tensor.F32, inMemory())
		require.NoError(t, err)
		_, err = intoFile(t, dir, src, tensor.BF16, inMemory())
		require.ErrorContains(t, err, "is the finished output of another conversion")
		spoil(dir)
		before := fixture.Sums(t, dir)
		_, err = intoFile(t, dir, src, tensor.BF16, inMemory())
		require.ErrorContains(t, err, "x.gguf exists already")
		s := inMemory()
		s.Overwrite = true
		_, err = intoFile(t, dir, src, tensor.BF16, s)
		require.ErrorContains(t, err, "cannot be overwritten")
		require.ErrorContains(t, err, want)
		require.Equal(t, before, fixture.Sums(t, dir))
	}
}
