package convert

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/internal/disk"
	"dsmoe/convert/internal/fixture"
)

// TestDiscardKeepsWhatIsComplete: an output whose files are on their way to their names is not discarded, and neither is
// one that a run holds; the run that continues it ends it.
func TestDiscardKeepsWhatIsComplete(t *testing.T) {
	src, dst := open(t, fixture.Path(t, "v1-dense/checkpoint")), t.TempDir()
	broken := Settings{Disk: &disk.Disk{NoSync: true, Fail: func(call, path string) error {
		if call == "rename" && filepath.Base(path) == "config.json" {
			return errors.New("no power")
		}
		return nil
	}}}
	_, err := Run(t.Context(), dst, src, Options{Settings: broken})
	require.ErrorContains(t, err, "no power")
	r, err := Discard(dst, true, Settings{})
	require.NoError(t, err)
	require.Len(t, r.Unfinished, 1)
	require.Equal(t, dst, r.Unfinished[0].Output)
	_, err = Discard(dst, false, Settings{})
	require.ErrorContains(t, err, "the output is complete")
	require.FileExists(t, filepath.Join(dst, ".dsmoe.journal"))
	done, err := Run(t.Context(), dst, src, Options{})
	require.NoError(t, err)
	require.True(t, done.Verified)
	require.NoFileExists(t, filepath.Join(dst, ".dsmoe.journal"))

	// While a run is at work.
	dst = filepath.Join(t.TempDir(), "out")
	held := Settings{Disk: &disk.Disk{NoSync: true, Fail: func(call, path string) error {
		if call == "mkdir" {
			_, err := Discard(dst, false, Settings{})
			require.ErrorContains(t, err, "another run is writing it")
		}
		return nil
	}}}
	_, err = Run(t.Context(), dst, src, Options{Settings: held})
	require.NoError(t, err)
	_, err = os.Stat(dst)
	require.NoError(t, err)
}
