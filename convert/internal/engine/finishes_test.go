package engine

import (
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/convert/internal/disk"
	"dsmoe/convert/internal/fixture"
	"dsmoe/convert/internal/progress"
	"dsmoe/convert/plan"
)

// TestFinishesAtOnce_every: of several runs that join the same parts one publishes the output, and the others say that another
// run is writing it, or that it is complete.
func TestFinishesAtOnce_every(t *testing.T) {
	src := open(t, fixture.Path(t, "v3-fp8/checkpoint"))
	p := planned(t, src, crashOptions)
	tries, parts := 1, 30
	if configtest.Every(t) {
		tries, parts = 4, 100
	}
	for try := range tries {
		for _, place := range []string{"beside", "inside"} {
			dst, s := targetPath(t, place), inMemory()
			for i := range parts {
				s.Part = plan.Part{I: i + 1, N: parts}
				_, err := Run(t.Context(), dst, p, src, s)
				require.NoError(t, err)
			}
			s.Part, s.Finish = plan.Part{}, true
			var calls atomic.Int64
			later, first := make(chan struct{}, 12), make(chan struct{}) // the first starts the others as it goes on
			s.Disk = &disk.Disk{NoSync: true, Fail: func(string, string) error {
				if calls.Add(1)%int64(2*try+1) == 0 {
					select {
					case later <- struct{}{}:
					default:
					}
				}
				return nil
			}}
			var finishes sync.WaitGroup
			var published sync.Mutex
			n := 0
			for k := range 12 {
				finishes.Go(func() {
					if k == 0 {
						defer close(first)
					} else {
						select {
						case <-later:
						case <-first:
						}
					}
					r, err := Run(t.Context(), dst, p, src, s)
					if err != nil {
						assert.ErrorIs(t, err, progress.ErrBusy)
					} else if !r.Already {
						published.Lock()
						n++
						published.Unlock()
					}
				})
			}
			finishes.Wait()
			require.Equal(t, 1, n)
			r, err := Run(t.Context(), dst, p, src, s)
			require.NoError(t, err)
			require.True(t, r.Already)
			left, err := filepath.Glob(filepath.Join(dst, ".dsmoe*"))
			require.NoError(t, err)
			require.Empty(t, left)
		}
	}
}
