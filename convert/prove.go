package convert

// The proof: the output is read again, each operation's inverse applied, and
// everything hashed.

import (
	"context"
	"fmt"
	"path/filepath"

	"dsmoe/convert/internal/lanes"
	"dsmoe/convert/safetensors"
)

// hasher hashes a tensor and its segments' sources while they pass by.
type hasher struct {
	tensor   *PlannedTensor
	pool     *lanes.Pool
	whole    lanes.Digest
	segment  lanes.Digest
	index    int // of the segment
	segments []string
}

// source takes the source bytes of a piece.
func (h *hasher) source(p piece, src []byte) {
	if h.tensor.isCopy() {
		return // it is the output's hash
	}
	for h.index < p.index { // segments without elements
		h.next()
	}
	h.pool.Write(&h.segment, src)
	if p.to == p.segment.End-p.segment.Begin {
		h.next()
	}
}

func (h *hasher) next() {
	h.segments = append(h.segments, sumOf(&h.segment))
	h.segment = lanes.Digest{}
	h.index++
}

// finish returns the hashes of a tensor that was compared with its source.
func (h *hasher) finish() *proof {
	p := &proof{SHA256: sumOf(&h.whole), Compared: true}
	if h.tensor.isCopy() {
		p.Segments = []string{p.SHA256}
		return p
	}
	for h.index < len(h.tensor.Segments) {
		h.next()
	}
	p.Segments = h.segments
	return p
}

// prove reads every tensor again and compares it with the source. One that differs
// is forgotten, so that the next run writes it anew.
func (e *execution) prove(ctx context.Context) error {
	for _, f := range e.files {
		dropCache(f.File)
	}
	e.phase, e.done = "verifying", 0
	var todo []int
	for i := range e.states {
		if p := e.states[i].proof; p == nil || !p.Compared {
			todo = append(todo, i)
		} else {
			e.done += e.plan.Tensors[i].Bytes()
		}
	}
	return e.journaled(ctx, todo, e.proveTensor)
}

func (e *execution) proveTensor(ctx context.Context, w *worker, i int) error {
	t := &e.plan.Tensors[i]
	h := &hasher{tensor: t, pool: e.pool}
	e.mu.Lock()
	s := e.states[i]
	e.mu.Unlock()
	for at, end := int64(0), int64(0); at < t.Bytes(); at = end {
		if err := ctx.Err(); err != nil {
			return err
		}
		end = e.tileEnd(t, at)
		tile := w.memory.tile(t.Offset+at, t.Offset+end)
		if err := e.files[t.File].readTile(tile, t.Offset+at); err != nil {
			return err
		}
		e.pool.Write(&h.whole, tile)
		if err := w.proveTile(t, h, tile, at); err != nil {
			e.mark(i, tensorState{})
			return fmt.Errorf("%s: %w", safetensors.Quote(filepath.Join(e.dir, e.plan.Files[t.File].Name)), err)
		}
		e.advance(int64(len(tile)))
	}
	s.proof, s.hash = h.finish(), nil
	e.mark(i, s)
	return nil
}

// proveTile compares a tile that was read again, piece by piece.
func (w *worker) proveTile(t *PlannedTensor, h *hasher, tile []byte, offset int64) error {
	return t.pieces(offset, int64(len(tile)), func(p piece) error {
		src, out := w.in[:p.to-p.from], tile[p.at-offset:][:p.size]
		if err := w.load(p, src); err != nil {
			return err
		}
		h.source(p, src)
		if p.segment.copies(t.DType) {
			return proveCopy(out, src)
		}
		return w.prove(t.DType, p, out, src)
	})
}

// proveCopy demands equal bytes.
func proveCopy(out, src []byte) error {
	if string(out) == string(src) {
		return nil
	}
	for i := range out {
		if out[i] != src[i] {
			return disagree(i, fmt.Sprintf("%02x", out[i]), fmt.Sprintf("%02x", src[i]))
		}
	}
	return nil
}
