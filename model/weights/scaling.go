package weights

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/text"
)

// Sides returns the tensors that turn the codes of a weight into numbers, in the order of
// tensor.Scaling: its scales first. nil for other weights.
func (w *Weight) Sides() (sides []*Weight) {
	if w.Scales == nil {
		return nil
	}
	sides = append(sides, w.Scales)
	for _, name := range w.Form().Parts[1:] {
		if part := w.parts[name]; part != nil {
			sides = append(sides, part)
		}
	}
	return sides
}

// Scaling returns how the sides turn its codes into numbers; CheckScales found no fault.
func (w *Weight) Scaling() tensor.Scaling {
	return w.Form().Scaling(w.Scales.DType, w.Blocks(), w.parts[tensor.OrderPart] != nil, w.shapeDType())
}

// shapeDType returns the dtype of the side that has the shape of the weight; Invalid if there is none.
func (w *Weight) shapeDType() tensor.DType {
	if part := w.parts[tensor.ShapePart]; part != nil && slices.Contains(w.Form().Parts, tensor.ShapePart) {
		return part.DType
	}
	return tensor.Invalid
}

// checkParts checks the sides behind the scales, and that no block begins within a byte.
func (w *Weight) checkParts() error {
	f, b := w.Form(), w.Blocks()
	if codes, _ := f.Codes.Block(); b.Cols%codes != 0 || b.BlockCols%codes != 0 {
		return fmt.Errorf("dtype %s, shape %v in blocks of %v: a row or a block does not end with a byte", w.DType, w.Shape,
			w.Block)
	}
	for _, scales := range []string{"_scale", "_scale_inv", "_scale_2", "_global_scale"} {
		if w.parts[scales] != nil && !slices.Contains(f.Parts, scales) {
			return fmt.Errorf("%s and %s are both there: which of them are the weight's scales is not known",
				text.Quote(f.PartName(w.Name, f.Parts[0])), text.Quote(w.parts[scales].Stored))
		}
	}
	if w.parts[tensor.OrderPart] != nil && !slices.Contains(f.Parts, tensor.OrderPart) {
		return fmt.Errorf("%s: columns in an order of their own (activation order) are not read; "+
			"dequantise it with compressed-tensors", text.Quote(f.PartName(w.Name, tensor.OrderPart)))
	}
	if w.shapeDType() == tensor.I32 {
		if err := w.checkPart(tensor.ShapePart, tensor.I32, []int{2}); err != nil {
			return err
		}
	} else if w.shapeDType() != tensor.Invalid {
		if err := w.checkPart(tensor.ShapePart, tensor.I64, []int{2}); err != nil {
			return err
		}
	}
	if f.NeedsOrder() || w.parts[tensor.OrderPart] != nil {
		if err := w.checkPart(tensor.OrderPart, tensor.I32, []int{b.Cols}); err != nil {
			return err
		}
	}
	if f.Second != "" {
		return w.checkPart(f.Parts[1], tensor.F32, nil, []int{1})
	}
	if f.Zeros != tensor.Invalid {
		scaling := w.Scaling()
		d, shape := scaling.ZerosShape()
		return w.checkPart(tensor.ZerosPart, d, shape)
	}
	if w.parts[tensor.ZerosPart] != nil {
		return fmt.Errorf("%s is there, but quantization_config says symmetric", text.Quote(w.Name+tensor.ZerosPart))
	}
	return nil
}

// checkPart checks that a side exists, with this dtype and one of these shapes.
func (w *Weight) checkPart(name string, d tensor.DType, shapes ...[]int) error {
	part := w.parts[name]
	switch {
	case part == nil:
		return fmt.Errorf("dtype %s, but %s is missing", w.DType, text.Quote(w.Form().PartName(w.Name, name)))
	case part.Unread():
		return nil
	case part.DType != d || !slices.ContainsFunc(shapes, func(s []int) bool { return slices.Equal(s, part.Shape) }):
		return fmt.Errorf("%s has dtype %s and shape %v: %s %v is expected",
			text.Quote(w.Form().PartName(w.Name, name)), part.DType, part.Shape, d, shapes[len(shapes)-1])
	}
	return nil
}

// WrongShapes lists the weights whose weight_shape is not the shape of their packed codes. read returns the bytes of a
// weight_shape, nil for one that is left out. Reading the numbers of a weight compares its shape, too.
func (s *Set) WrongShapes(read func(shape *Weight) ([]byte, error)) (wrong []Wrong) {
	for _, w := range s.list {
		if w.Scales == nil || w.shapeDType() == tensor.Invalid || w.CheckScales() != nil {
			continue
		}
		part := w.parts[tensor.ShapePart]
		data, err := read(part)
		if err == nil && data != nil {
			err = w.Blocks().CheckShape(data, part.DType)
		}
		if err != nil {
			wrong = append(wrong, Wrong{Got: w.Info, Want: w.Shape, Cause: err.Error()})
		}
	}
	return wrong
}

// UnequalSeconds lists the gates of experts and MLPs whose second scale is another than that of up_proj beside them: engines
// run both as one matrix, and keep one of the two. read is that of WrongShapes.
func (s *Set) UnequalSeconds(read func(second *Weight) ([]byte, error)) (wrong []Wrong) {
	for _, w := range s.list {
		up := s.byName[strings.TrimSuffix(w.Name, "gate_proj.weight")+"up_proj.weight"]
		if w.Part != "" || w.Form().Second == "" || up == nil || up.Form() != w.Form() || w.CheckScales() != nil || up.CheckScales() != nil {
			continue
		}
		a, errA := read(w.Sides()[1])
		b, errB := read(up.Sides()[1])
		if err := errors.Join(errA, errB); err != nil {
			wrong = append(wrong, Wrong{Got: w.Info, Want: w.Shape, Cause: err.Error()})
		} else if a != nil && b != nil && !bytes.Equal(a, b) {
			number := func(data []byte) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(data)) }
			wrong = append(wrong, Wrong{Got: w.Info, Want: w.Shape, Cause: fmt.Sprintf("%s is %v, but that of %s is %v: "+
				"engines that run both as one matrix keep one of the two", "weight"+w.Form().Parts[1], number(a), table.UpProj, number(b))})
		}
	}
	return wrong
}

// Mapped reads parts of which src has a view, for WrongShapes: others would take a request each.
func Mapped(src Source) func(part *Weight) ([]byte, error) {
	u, unviewed := src.(Unviewed)
	return func(part *Weight) ([]byte, error) {
		if unviewed && !u.HasView(part.Stored) {
			return nil, nil
		}
		t, err := part.View(src)
		return t.Data, err
	}
}

// Grid reads rows first … last of the grid. read returns the bytes begin … end of a side.
func (w *Weight) Grid(first, last int, read func(side *Weight, begin, end int64) ([]byte, error)) (g tensor.Grid,
	err error) {
	scaling, sides := w.Scaling(), w.Sides()
	var data [][]byte
	scaling.Spans(first, last, func(begin, end int64) {
		side := sides[len(data)]
		part, failed := read(side, begin, end)
		if data = append(data, part); failed != nil && err == nil {
			err = fmt.Errorf("%s: %w", text.Quote(side.Name), failed)
		}
	})
	if err != nil {
		return g, err
	}
	return scaling.Grid(data, first)
}
