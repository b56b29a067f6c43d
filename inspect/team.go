package inspect

import (
	"context"
	"runtime"
	"sync"

	"golang.org/x/sync/errgroup"
)

// team runs functions at once, as many as there are processors, each with memory for a
// tile.
type team struct {
	group   *errgroup.Group
	ctx     context.Context
	buffers sync.Pool
}

// newTeam returns a team of n; 0 is one for each processor. When ctx ends, functions are
// no longer begun.
func newTeam(ctx context.Context, n int) *team {
	t := &team{buffers: sync.Pool{New: func() any { return new([tileBytes]byte) }}}
	t.group, t.ctx = errgroup.WithContext(ctx)
	if n == 0 {
		n = runtime.GOMAXPROCS(0)
	}
	t.group.SetLimit(n)
	return t
}

// do runs f when somebody is free. It waits for that, so that what is not yet begun takes
// no memory.
func (t *team) do(f func(buffer []byte)) {
	t.group.Go(func() error {
		if err := t.ctx.Err(); err != nil {
			return err
		}
		buffer := t.buffers.Get().(*[tileBytes]byte)
		defer t.buffers.Put(buffer)
		f(buffer[:])
		return t.ctx.Err()
	})
}

// wait waits for all functions, and says whether the context ended.
func (t *team) wait() error { return t.group.Wait() }
