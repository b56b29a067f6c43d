package engine

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/convert/checkpoint"
	"dsmoe/convert/internal/disk"
	"dsmoe/convert/internal/fixture"
	"dsmoe/convert/plan"
	"dsmoe/model/tensor"
)

// newer and older are the options of an output and of the one that it replaces: few
// tensors, two shards.
var (
	newer = plan.Options{MaxShardBytes: 200_000}
	older = plan.Options{DType: tensor.F32}
)

// works is a disk on which every call succeeds.
func works(_, _ string) error { return nil }

// noExchange is a disk on which two names cannot be exchanged.
func noExchange(call, _ string) error {
	if call == "exchange" {
		return errors.ErrUnsupported
	}
	return nil
}

// olderOutput writes an output to replace.
func olderOutput(t *testing.T, src *checkpoint.Checkpoint, o plan.Options) (dst string) {
	return converted(t, src.Path, o, inMemory())
}

// TestOverwrite replaces an output by that of other options, and of the same after a
// change, whatever the system can; nothing is left beside it.
func TestOverwrite(t *testing.T) {
	t.Parallel()
	src := open(t, fixture.Path(t, "v1-dense/checkpoint"))
	want := fixture.Sums(t, converted(t, src.Path, newer, inMemory()))
	for name, fail := range map[string]func(call, path string) error{"exchange": works, "two renames": noExchange} {
		s := Settings{Overwrite: true, Disk: &disk.Disk{NoSync: true, Fail: fail}}
		dst := olderOutput(t, src, older)
		require.NoError(t, os.Chmod(dst, 0o750))
		r, err := convert(t.Context(), t, dst, src, newer, s)
		require.NoError(t, err, name)
		stat, err := os.Stat(dst)
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o750), stat.Mode().Perm())
		require.True(t, r.Replaced)
		require.Equal(t, want, fixture.Sums(t, dst))
		fixture.RequireEntries(t, filepath.Dir(dst), "out")

		r, err = convert(t.Context(), t, dst, src, newer, s)
		require.NoError(t, err)
		require.True(t, r.Already, "there is nothing to replace")
		require.False(t, r.Replaced)

		fixture.Write(t, dst, checkpoint.ConfigName, "{}")
		_, err = convert(t.Context(), t, dst, src, newer, inMemory())
		require.ErrorContains(t, err, "was changed since")
		_, err = convert(t.Context(), t, dst, src, newer, s)
		require.ErrorContains(t, err, "was changed since")
		require.Equal(t, "{}", fixture.Read(t, dst, checkpoint.ConfigName))
		s.OverwriteChanged = true
		r, err = convert(t.Context(), t, dst, src, newer, s)
		require.NoError(t, err)
		require.True(t, r.Replaced)
		require.Equal(t, want, fixture.Sums(t, dst))
		fixture.RequireEntries(t, filepath.Dir(dst), "out")
	}
}

// TestOverwriteSparesChanges: what a user changed in a finished output is refused by name before
// anything is written, whatever the plan; a missing file is no loss; OverwriteChanged replaces all.
func TestOverwriteSparesChanges(t *testing.T) {
	t.Parallel()
	src := open(t, fixture.Path(t, "v1-dense/checkpoint"))
	made := olderOutput(t, src, older)
	tried := func(dst string, o plan.Options, s Settings) error {
		s.Overwrite, s.Disk = true, &disk.Disk{NoSync: true}
		_, err := convert(t.Context(), t, dst, src, o, s)
		return err
	}
	for _, o := range []plan.Options{newer, older} {
		for _, s := range []Settings{{}, {StartOver: true}} {
			dst := filepath.Join(t.TempDir(), "out")
			require.NoError(t, os.CopyFS(dst, os.DirFS(made)))
			fixture.Write(t, dst, checkpoint.ConfigName, "{}")
			flipLast(t, filepath.Join(dst, "model.safetensors"))
			sums := fixture.Sums(t, dst)
			err := tried(dst, o, s)
			require.ErrorContains(t, err, "config.json: changed: ")
			require.ErrorContains(t, err, "model.safetensors: tensor model.norm.weight: the data changed: ")
			require.Equal(t, sums, fixture.Sums(t, dst))
			fixture.RequireEntries(t, filepath.Dir(dst), "out")
			require.NoError(t, tried(dst, o, Settings{OverwriteChanged: true, StartOver: s.StartOver}))
			requireChecked(t, dst)

			fixture.Remove(t, dst, checkpoint.ConfigName)
			require.NoError(t, tried(dst, o, s))
			requireChecked(t, dst)
		}
	}
}

// TestOverwriteSparesLateChanges: a file that changes after it was hashed is noticed before it is
// replaced; one whose state alone changes is not mistaken for it.
func TestOverwriteSparesLateChanges(t *testing.T) {
	t.Parallel()
	src := open(t, fixture.Path(t, "v1-dense/checkpoint"))
	for _, changes := range []bool{true, false} {
		dst := olderOutput(t, src, older)
		var once sync.Once
		s := Settings{Overwrite: true, Disk: &disk.Disk{NoSync: true, Fail: func(call, path string) error {
			if filepath.Base(path) == plan.ManifestName {
				once.Do(func() {
					config := fixture.Read(t, dst, checkpoint.ConfigName)
					if changes {
						config += "\n"
					}
					fixture.Write(t, dst, checkpoint.ConfigName, config)
				})
			}
			return nil
		}}}
		_, err := convert(t.Context(), t, dst, src, newer, s)
		if changes {
			require.ErrorContains(t, err, "config.json: changed: ")
			s.OverwriteChanged = true
			r, err := convert(t.Context(), t, dst, src, newer, s)
			require.NoError(t, err)
			require.NotZero(t, r.Resumed)
		} else {
			require.NoError(t, err)
		}
		requireChecked(t, dst)
	}
}

// TestOverwriteSpares: what is no finished output, or holds anything else, stays.
func TestOverwriteSpares(t *testing.T) {
	t.Parallel()
	src := open(t, fixture.Path(t, "v1-dense/checkpoint"))
	s := inMemory()
	s.Overwrite = true
	for want, spoil := range map[string]func(dst string){
		"it holds notes.txt":         func(dst string) { fixture.Write(t, dst, "notes.txt", "mine") },
		"it holds sub":               func(dst string) { require.NoError(t, os.Mkdir(filepath.Join(dst, "sub"), 0o755)) },
		"it holds config.json":       func(dst string) { relink(t, dst) },
		"is not a finished output: ": func(dst string) { require.NoError(t, os.Remove(filepath.Join(dst, plan.ManifestName))) },
		"not a manifest":             func(dst string) { fixture.Write(t, dst, plan.ManifestName, "[]") },
	} {
		dst := olderOutput(t, src, older)
		spoil(dst)
		before, err := os.ReadDir(dst)
		require.NoError(t, err)
		_, err = convert(t.Context(), t, dst, src, newer, s)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "cannot be overwritten")
		after, err := os.ReadDir(dst)
		require.NoError(t, err)
		require.Equal(t, len(before), len(after))
		fixture.RequireEntries(t, filepath.Dir(dst), "out")
	}
}

// relink puts a link in the place of a file.
func relink(t *testing.T, dst string) {
	path := filepath.Join(dst, checkpoint.ConfigName)
	elsewhere := filepath.Join(t.TempDir(), "config")
	require.NoError(t, os.Rename(path, elsewhere))
	require.NoError(t, os.Symlink(elsewhere, path))
}

// TestOverwriteCrashes_every stops the disk at calls all along a replacement, and at every one
// from the manifest on: the old output or the new one is whole under its name, and the same command
// ends with the new one. Where the system cannot exchange names, the old one may wait beside.
func TestOverwriteCrashes_every(t *testing.T) {
	t.Parallel()
	src := open(t, fixture.Path(t, "v1-dense/checkpoint"))
	want := fixture.Sums(t, converted(t, src.Path, newer, inMemory()))
	made := olderOutput(t, src, older)
	for way, fail := range map[string]func(call, path string) error{"exchange": works, "two renames": noExchange} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			requireOverwriteSurvives(t, src, made, fail, want)
		})
	}
}

func requireOverwriteSurvives(t *testing.T, src *checkpoint.Checkpoint, made string, fail func(call, path string) error, want map[string][32]byte) {
	old := fixture.Sums(t, made)
	boom := errors.New("boom")
	attempt := func(n int64, late bool) (dst string, calls int64, err error) {
		dst = filepath.Join(t.TempDir(), "out")
		require.NoError(t, os.CopyFS(dst, os.DirFS(made)))
		var count atomic.Int64
		var counts atomic.Bool
		counts.Store(!late)
		_, err = convert(t.Context(), t, dst, src, newer, Settings{Overwrite: true, IO: 2, Disk: &disk.Disk{NoSync: true, Fail: func(call, path string) error {
			if filepath.Base(path) == plan.ManifestName {
				counts.Store(true)
			}
			if counts.Load() && count.Add(1) > n {
				return boom
			}
			return fail(call, path)
		}}})
		return dst, count.Load(), err
	}
	seen := map[string]bool{}
	crash := func(n int64, late bool) {
		dst, _, err := attempt(n, late)
		if err == nil {
			return // how often the journal is told, and so the number of calls, varies
		}
		require.ErrorIs(t, err, boom, "call %d", n)
		seen[requireWhole(t, dst, old, want)] = true
		_, err = convert(t.Context(), t, dst, src, newer, Settings{Overwrite: true, Disk: &disk.Disk{NoSync: true, Fail: fail}})
		require.NoError(t, err, "call %d", n)
		require.Equal(t, want, fixture.Sums(t, dst), "call %d", n)
		fixture.RequireEntries(t, filepath.Dir(dst), "out")
	}
	for _, late := range []bool{false, true} {
		_, all, err := attempt(1<<60, late)
		require.NoError(t, err)
		step := int64(1)
		if !late && !configtest.Every(t) {
			step = all / 3
		}
		for n := int64(0); n < all; n += step {
			if late && n%8 > 0 && n < all-8 && !configtest.Every(t) {
				continue // the outputs change their names at the end
			}
			crash(n, late)
		}
	}
	require.True(t, seen["old"] && seen["new"])
	require.Equal(t, fail("exchange", "") != nil, seen["old, beside"])
}

// requireWhole demands that the old or the new output is there, and says which.
func requireWhole(t *testing.T, dst string, old, want map[string][32]byte) string {
	if _, err := os.Stat(dst); errors.Is(err, fs.ErrNotExist) {
		require.Equal(t, old, fixture.Sums(t, beside(dst, "replaced")))
		return "old, beside"
	}
	sums := fixture.Sums(t, dst)
	if _, err := os.Stat(beside(dst, "replaced")); err != nil && len(sums) == len(old) && sums[plan.ManifestName] == old[plan.ManifestName] && sums[checkpoint.ConfigName] == old[checkpoint.ConfigName] {
		require.Equal(t, old, sums)
		return "old"
	}
	require.Equal(t, want, sums)
	return "new"
}

// TestOverwriteOneFault: one call fails, those after it work; the old or the new output is
// there, and the same command ends well.
func TestOverwriteOneFault(t *testing.T) {
	t.Parallel()
	src := open(t, fixture.Path(t, "v1-dense/checkpoint"))
	want := fixture.Sums(t, converted(t, src.Path, newer, inMemory()))
	made := olderOutput(t, src, older)
	old := fixture.Sums(t, made)
	for way, base := range map[string]func(call, path string) error{"exchange": works, "two renames": noExchange} {
		for _, call := range []string{"exchange", "rename", "remove"} {
			for n := int64(1); ; n++ {
				dst := filepath.Join(t.TempDir(), "out")
				require.NoError(t, os.CopyFS(dst, os.DirFS(made)))
				var count atomic.Int64
				_, err := convert(t.Context(), t, dst, src, newer, Settings{Overwrite: true, Disk: &disk.Disk{NoSync: true, Fail: func(c, path string) error {
					if c == call && count.Add(1) == n {
						return syscall.EIO
					}
					return base(c, path)
				}}})
				if count.Load() < n {
					break
				}
				require.ErrorIs(t, err, syscall.EIO, "%s: %s %d", way, call, n)
				require.NotEqual(t, "old, beside", requireWhole(t, dst, old, want), "%s: %s %d", way, call, n)
				_, err = convert(t.Context(), t, dst, src, newer, Settings{Overwrite: true, Disk: &disk.Disk{NoSync: true, Fail: base}})
				require.NoError(t, err)
				require.Equal(t, want, fixture.Sums(t, dst))
				fixture.RequireEntries(t, filepath.Dir(dst), "out")
			}
		}
	}
}

// TestOverwriteResumesNothingOld: a run that ended between the replacement and the removal
// of the old output leaves that where unfinished ones lie; its bytes are not taken for those
// of the new one, though the plan is the same.
func TestOverwriteResumesNothingOld(t *testing.T) {
	t.Parallel()
	src := open(t, fixture.Path(t, "v1-dense/checkpoint"))
	dst := converted(t, src.Path, newer, inMemory())
	want := fixture.Sums(t, dst)
	weights := filepath.Join(dst, "model-00001-of-00002.safetensors")
	data, err := os.ReadFile(weights)
	require.NoError(t, err)
	data[len(data)-1] ^= 1
	require.NoError(t, os.WriteFile(weights, data, 0o666))
	s := inMemory()
	s.Overwrite, s.OverwriteChanged = true, true
	s.Disk.Fail = func(call, _ string) error {
		if call == "remove" {
			return syscall.EIO
		}
		return nil
	}
	_, err = convert(t.Context(), t, dst, src, newer, s)
	require.ErrorIs(t, err, syscall.EIO)
	require.Equal(t, want, fixture.Sums(t, dst))
	fixture.Write(t, dst, checkpoint.ConfigName, "{}")
	s.Disk.Fail = nil
	_, err = convert(t.Context(), t, dst, src, newer, s)
	require.NoError(t, err)
	require.Equal(t, want, fixture.Sums(t, dst))
	fixture.RequireEntries(t, filepath.Dir(dst), "out")
}
