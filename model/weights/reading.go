package weights

import (
	"context"
	"errors"
	"iter"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"dsmoe/model/tensor"
)

// The sizes of the parts of a weight that a worker takes on at a time, and of the tiles that it reads at a
// time, which stay in the processor's cache.
const (
	jobBytes     = 8 << 20
	TileBytes    = 256 << 10     // of a tile as it is stored
	TileElements = TileBytes / 4 // of a tile of float32
)

// Reading reads weights with several workers, counts the bytes and stops when its context ends. Its memory
// is a tile for each worker, and a matrix that lies in another order whole.
type Reading struct {
	ctx      context.Context
	workers  errgroup.Group
	streams  sync.Pool
	progress func(done, total int64)

	mu          sync.Mutex // guards the fields below
	done, total int64
	errs        []error // of the functions, in the order of Go
}

// NewReading returns a reading with so many workers; 0 is one for each processor. progress is called, one
// call at a time, with the bytes read so far and the bytes expected; it may be nil.
func NewReading(ctx context.Context, workers int, progress func(done, total int64)) *Reading {
	if workers == 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	r := &Reading{ctx: ctx, progress: progress, streams: sync.Pool{New: func() any { return &Stream{} }}}
	r.workers.SetLimit(workers)
	return r
}

// Expect adds n bytes to those that will be read.
func (r *Reading) Expect(n int64) { r.total += n }

// Done counts n bytes as read.
func (r *Reading) Done(n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done += n; r.progress != nil {
		r.progress(r.done, r.total)
	}
}

// Ended reports whether the reading's context has ended.
func (r *Reading) Ended() bool { return r.ctx.Err() != nil }

// Go runs f on the next free worker, and waits until there is one. After the context has ended, f is not run.
func (r *Reading) Go(f func() error) {
	r.mu.Lock()
	i := len(r.errs)
	r.errs = append(r.errs, nil)
	r.mu.Unlock()
	r.workers.Go(func() error {
		if r.Ended() {
			return nil
		}
		err := f()
		r.mu.Lock()
		defer r.mu.Unlock()
		r.errs[i] = err
		return nil
	})
}

// Wait waits for all functions, and returns why the context ended, or else their errors in the order of Go.
func (r *Reading) Wait() error {
	r.workers.Wait()
	errs := r.errs
	r.errs = nil
	if r.Ended() {
		return context.Cause(r.ctx)
	}
	return errors.Join(errs...)
}

// Jobs yields the parts of w that a worker takes on at a time, each by its first element and its length. An
// empty weight is one part, and so is one that lies in another order: each part would read it whole.
func (w *Weight) Jobs() iter.Seq2[int64, int64] {
	return func(yield func(int64, int64) bool) {
		n, most := int64(w.Len()), max(w.DType.Elements(jobBytes), 1)
		if w.Places != nil {
			most = max(n, 1)
		}
		for at := int64(0); at == 0 || at < n; at += most {
			if !yield(at, min(most, n-at)) {
				return
			}
		}
	}
}

// tiles loads n elements from at on, at most size at a time, and yields the index of each tile's first element. It
// ends after an error, and when the context ends.
func (r *Reading) tiles(s *Stream, at, n, size int64) iter.Seq2[int64, error] {
	return func(yield func(int64, error) bool) {
		for i := at; i < at+n && !r.Ended(); i += size {
			err := s.Load(i, int(min(size, at+n-i)))
			if !yield(i, err) || err != nil {
				return
			}
			r.Done(s.w.DType.Bytes(int64(s.n)))
		}
	}
}

// Bytes yields n elements of w from at on in tiles, as they are stored.
func (r *Reading) Bytes(src ReaderAt, w *Weight, at, n int64) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		s := r.Stream(src, w)
		defer r.Release(s)
		for _, err := range r.tiles(s, at, n, w.DType.Elements(TileBytes)) {
			if !yield(s.Raw, err) {
				return
			}
		}
	}
}

// Numbers yields n elements of w from at on in tiles, as the numbers that the model computes with. After
// the context has ended, it yields no more.
func (r *Reading) Numbers(src ReaderAt, w *Weight, at, n int64) iter.Seq2[[]float32, error] {
	return func(yield func([]float32, error) bool) {
		s := r.Stream(src, w)
		defer r.Release(s)
		for _, err := range r.tiles(s, at, n, TileElements) {
			var values []float32
			if err == nil {
				values, err = s.Values()
			}
			if !yield(values, err) || err != nil {
				return
			}
		}
	}
}

// All reads all numbers of w into the memory of dst. After the context has ended, the rest of them are
// undefined.
func (r *Reading) All(src ReaderAt, w *Weight, dst []float32) ([]float32, error) {
	dst = slices.Grow(dst[:0], w.Len())
	for values, err := range r.Numbers(src, w, 0, int64(w.Len())) {
		if err != nil {
			return nil, w.Failed(err)
		}
		dst = append(dst, values...)
	}
	return dst[:w.Len()], nil
}

// Stored reads w as it is stored into the memory of dst, and its whole grid; of forms without scales that is empty. After
// the context has ended, the rest of the bytes is undefined.
func (r *Reading) Stored(src ReaderAt, w *Weight, dst []byte) (data []byte, grid tensor.Grid, err error) {
	s := r.Stream(src, w)
	defer r.Release(s)
	dst = sized(dst, int(w.Bytes()))
	own := s.Raw
	defer func() { s.Raw = own }()
	s.Raw = dst
	for at, err := range r.tiles(s, 0, int64(w.Len()), w.DType.Elements(jobBytes)) {
		if err != nil {
			return nil, grid, w.Failed(err)
		}
		s.Raw = dst[w.DType.Bytes(at)+int64(len(s.Raw)):]
	}
	if w.Scales == nil {
		return dst, grid, nil
	}
	rows, _ := w.Scaling().Blocks.Grid()
	grid, err = w.Grid(0, rows-1, s.side)
	return dst, grid, w.Failed(err)
}

// Stream returns a stream of w in the memory of one that was released.
func (r *Reading) Stream(src ReaderAt, w *Weight) *Stream {
	s := r.streams.Get().(*Stream)
	s.src, s.w, s.stored, s.grid = src, w, nil, nil
	return s
}

// Release takes a stream back, whose slices must not be used any more.
func (r *Reading) Release(s *Stream) { r.streams.Put(s) }
