package verify

import (
	"context"
	"fmt"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"

	"dsmoe/model/weights"
)

// scan looks for NaNs and infinities in the weights that were not multiplied with, or not
// all of: experts that no token reached, rows of the embedding, layers outside the forward
// pass. In the others they would show.
func (t *tracer) scan(ctx context.Context) error {
	all := t.set.All()
	found := make([]string, len(all))
	g, ctx := errgroup.WithContext(ctx)
	if g.SetLimit(t.o.Parallelism); t.o.Parallelism == 0 {
		g.SetLimit(runtime.GOMAXPROCS(0))
	}
	for i, w := range all {
		if _, used := t.used[w.Name]; used && w.Name != t.m.Model.EmbedTokens.Name {
			continue
		}
		g.Go(func() (err error) {
			if err := ctx.Err(); err != nil {
				return err
			}
			found[i], err = t.notFiniteIn(w)
			return err
		})
	}
	err := g.Wait()
	t.notFinite = slices.DeleteFunc(found, func(where string) bool { return where == "" })
	return err
}

// notFiniteIn says where a weight holds a NaN or an infinity, "" if it does not.
func (t *tracer) notFiniteIn(w *weights.Weight) (where string, err error) {
	x, err := w.View(t.src)
	if err != nil {
		return "", err
	}
	if !x.Finite() {
		i, v := firstNotFinite(x)
		where = fmt.Sprintf("%s holds %s at %v", w.Name, number(v), unflatten(i, x.Shape))
	}
	if t.o.Pages != nil && len(x.Data) > 0 {
		t.o.Pages.DontNeed(x.Data)
	}
	return where, nil
}
