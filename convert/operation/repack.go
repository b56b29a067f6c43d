package operation

import (
	"fmt"
	"math"

	"dsmoe/model/tensor"
)

// Repack puts codes of four bits with a scale into blocks of ggml that stand for the same numbers: INT4
// into Q4_0, FP4 into MXFP4. A scale that a block cannot hold is refused. ggml has no -0: it becomes 0.
type Repack struct {
	From tensor.DType `json:"from"` // dtype of the codes
	To   tensor.DType `json:"to"`   // dtype of the output
	tensor.Scaling
}

// RepackTo returns the block type that holds codes of dtype from with such scales; Invalid if none does.
func RepackTo(from tensor.DType, s tensor.Scaling) tensor.DType {
	switch {
	case s.Zeros != tensor.Invalid || s.Second != "" || s.Blocks.Cols%repacked != 0 || s.Blocks.BlockCols%repacked != 0:
	case from == tensor.INT4:
		return tensor.Q4_0
	case from == tensor.F4 && s.Scales == tensor.F8E8M0:
		return tensor.MXFP4
	}
	return tensor.Invalid
}

// repacked is the elements of a block of Q4_0 and MXFP4.
const repacked = 32

// scaleError refuses a scale that no block holds.
type scaleError struct {
	Scale float32      // the first
	To    tensor.DType // that has no such scale
}

// Error names the scale.
func (e *scaleError) Error() string {
	return fmt.Sprintf("the scale %v is not one that a block of %s can have; --type bf16 decodes the codes", e.Scale, e.To)
}

// Name returns "repack" and the dtype of the output.
func (r *Repack) Name() string { return "repack " + r.To.String() }

// Unit returns a block.
func (r *Repack) Unit() unit {
	_, size := r.To.Block()
	return unit{repacked, int(r.From.Bytes(repacked)), size}
}

// Sides returns the rows of the scales that the elements need.
func (r *Repack) Sides(at, n int64) []Span { return (&Dequantise{Scaling: r.Scaling}).Sides(at, n) }

// eachBlock calls do for every block: which it is of the piece, and which block of grid has its scale.
func (r *Repack) eachBlock(in Input, do func(i int, grid tensor.Grid) error) error {
	d := &Dequantise{Scaling: r.Scaling}
	grid, err := d.grid(in)
	if err != nil {
		return err
	}
	return in.each(int(r.From.Elements(int64(len(in.Data)))), func(at int64, from, to int) error {
		top := r.Blocks.GridRow(in.At)
		_, width := r.Blocks.Grid()
		for i := from; i < to; i, at = i+repacked, at+repacked {
			block := (r.Blocks.GridRow(at)-top)*width + int(at)%r.Blocks.Cols/r.Blocks.BlockCols
			if err := do(i/repacked, grid.From(block)); err != nil {
				return err
			}
		}
		return nil
	})
}

// Apply writes every block.
func (r *Repack) Apply(dst []byte, in Input, _ *tensor.Loss) error {
	u := r.Unit()
	return r.eachBlock(in, func(i int, grid tensor.Grid) error {
		block, codes := dst[i*u.Out:(i+1)*u.Out], in.Data[i*u.In:]
		scale, fits := grid.Scales[0], false // the block begins with it
		if r.To == tensor.MXFP4 {
			block[0] = byte(math.Float32bits(scale) >> 23) // 2^-127, denormal, is 0
			fits = scale > 0 && scale <= math.MaxFloat32/6 // the largest code is 6
		} else {
			tensor.PutF16(block, scale)
			fits = isFinite(scale) && f16(block) == scale
		}
		if !fits {
			return &scaleError{scale, r.To}
		}
		halves := block[u.Out-u.In:]
		for k := range u.In {
			low, high := codes[k/2]>>(k%2*4)&15, codes[(k+u.In)/2]>>(k%2*4)&15
			halves[k] = low | high<<4
		}
		return nil
	})
}

// Prove decodes every element by the definition of the block and demands the number that the codes stand
// for, exactly.
func (r *Repack) Prove(out []byte, in Input) error {
	u, form := r.Unit(), r.From.Form()
	return r.eachBlock(in, func(i int, grid tensor.Grid) error {
		var got [repacked]float32
		var codes [repacked]float64
		blockValues(got[:], out[i*u.Out:(i+1)*u.Out], r.To)
		form.Values(codes[:], in.Data, i*repacked)
		for k, code := range codes {
			if want := grid.Value(0, code); float64(got[k]) != want {
				return &Mismatch{i*repacked + k, fmt.Sprint(got[k]), fmt.Sprint(want)}
			}
		}
		return nil
	})
}
