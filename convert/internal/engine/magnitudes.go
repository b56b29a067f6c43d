package engine

// The largest magnitudes of a matrix's blocks, for operations that need them. A piece of the
// output needs rows of blocks that are larger than the piece: their source is read for it.

import (
	"context"

	"dsmoe/convert/operation"
	"dsmoe/convert/plan"
)

// measure has magnitudes hold the largest magnitudes that a piece of t needs, if its operation needs any. It reads the
// source of each row of blocks, unless that row was the last one that it read. It uses the memory of pieces.
func (w *worker) measure(ctx context.Context, t *plan.Tensor, p piece, proof bool) error {
	op, is := p.segment.Operation.(operation.Blockwise)
	w.magnitudes = w.magnitudes[:0]
	if !is {
		return nil
	}
	if t.Codes != nil {
		t = t.Codes
	}
	first, end := op.GridRows(p.at(), p.size/int64(op.Unit().Out)*int64(op.Unit().Elements))
	r, compare, b := &w.written, op.Magnitudes, op.Grid()
	if proof {
		r, compare = &w.proven, op.MagnitudesByDefinition
	}
	_, width := b.Grid()
	for row := first; row < end; row++ {
		if r.codes != t || r.row != row {
			*r = gridRow{row: row, largest: append(r.largest[:0], make([]float32, width)...)}
			begin, end := int64(row*b.BlockRows)*int64(b.Cols), int64(min((row+1)*b.BlockRows, b.Rows))*int64(b.Cols)
			err := pieces(t, begin, end-begin, func(p piece) error {
				src := w.room(p)
				if err := w.gather(p, src, proof); err != nil {
					return err
				}
				return w.computing(ctx, func() error { compare(r.largest, src, p.at()); return nil })
			})
			if err != nil {
				return err
			}
			r.codes = t
		}
		w.magnitudes = append(w.magnitudes, r.largest...)
	}
	return nil
}

// forgetSource makes the worker read the source anew for the next tensor, or for a proof. Of a source that is not on the
// disk it keeps what was read ahead, since that is read once.
func (w *worker) forgetSource() {
	if w.Origin == "" {
		w.ahead.file = -1
	}
	w.written.codes, w.proven.codes = nil, nil
	for i := range w.matrices {
		w.matrices[i].stored = w.matrices[i].stored[:0]
	}
}
