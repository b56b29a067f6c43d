package weights

import "fmt"

// Pair is a weight in two checkpoints, A and B.
type Pair struct{ A, B *Weight } // nil in a checkpoint that lacks the weight

// Pairs pairs the weights of two checkpoints by their names, in the order of a; weights of b alone come last. Scales
// are part of their weight.
func Pairs(a, b []*Weight) (pairs []Pair) {
	index := make(map[string]int, len(a))
	for _, w := range a {
		if !w.IsScales() {
			index[w.Name] = len(pairs)
			pairs = append(pairs, Pair{A: w})
		}
	}
	for _, w := range b {
		if i, paired := index[w.Name]; paired {
			pairs[i].B = w
		} else if !w.IsScales() {
			pairs = append(pairs, Pair{B: w})
		}
	}
	return pairs
}

// Walk goes through the weights of two checkpoints side by side, a tile of each in memory. It is safe for concurrent
// use.
type Walk struct {
	Reading *Reading
	A, B    ReaderAt
	Other   string // what errors call the checkpoint of B, such as "the original"; "" if they do not name it
}

// Each measures pairs of weights that both checkpoints have, several at once. Errors name the weight.
func (w *Walk) Each(pairs []Pair, measure func(i int, p Pair) error) error {
	for _, p := range pairs {
		w.Reading.Expect(p.A.Bytes())
	}
	for i, p := range pairs {
		w.Reading.Go(func() error { return p.A.Failed(measure(i, p)) })
	}
	return w.Reading.Wait()
}

// Tiles loads both weights of a pair, which have one shape, and calls measure for at most size elements at a time, with
// the index of the first. Only the bytes of A are counted as read.
func (w *Walk) Tiles(p Pair, size int64, measure func(at int64, a, b *Stream) error) error {
	a, b := w.Reading.Stream(w.A, p.A), w.Reading.Stream(w.B, p.B)
	defer w.Reading.Release(a)
	defer w.Reading.Release(b)
	for at, err := range w.Reading.tiles(a, 0, int64(p.A.Len()), size) {
		if err == nil {
			err = w.InB(b.Load(at, a.n))
		}
		if err == nil {
			err = measure(at, a, b)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Numbers is Tiles for the numbers that the models compute with. measure may change them.
func (w *Walk) Numbers(p Pair, size int64, measure func(at int64, a, b []float32)) error {
	return w.Tiles(p, size, func(at int64, a, b *Stream) error {
		x, err := a.Values()
		if err != nil {
			return err
		}
		y, err := b.Values()
		if err == nil {
			measure(at, x, y)
		}
		return w.InB(err)
	})
}

// InB says that an error is about B.
func (w *Walk) InB(err error) error {
	if err == nil || w.Other == "" {
		return err
	}
	return fmt.Errorf("in %s: %w", w.Other, err)
}
