// Package operation holds the operations on a tensor's elements between source and output:
// copy, cast, dequantise, quantise, make. An Operation is a value that a plan holds per segment:
// it fills pieces of the output, proves pieces that were read again, and counts losses. Prove
// does not repeat Apply and compare. It decodes the written numbers and checks that they may
// stand for the source, so that a mistake in one shows in the other; the two share only the
// decoding of scales, the processor's instruction that decodes F16, and of FP8 how a scale
// follows from a block's largest magnitude, which the proof of Scales checks. Two operations are computed again by their proof: Make, whose elements
// have no source, and Quantise, whose Apply decodes each block with other code than the
// encoder's and compares it with the source.
package operation

import (
	"fmt"
	"iter"

	"dsmoe/model/tensor"
)

// Operation turns elements of a source tensor into elements of an output tensor. It is
// safe for concurrent use.
type Operation interface {
	// Name is what plans and manifests call it: "cast BF16".
	Name() string
	// Unit is the least that it works on: Elements, of In bytes of the source and Out bytes of the output.
	Unit() unit
	// Apply fills dst with the result of in, and adds its losses to lost. Both are whole units.
	Apply(dst []byte, in Input, lost *tensor.Loss) error
	// Prove checks that out, as it was read again, can be the result of in. An element that
	// cannot be is a *Mismatch.
	Prove(out []byte, in Input) error
}

// sided is an operation that needs tensors beside the source, such as scales.
type sided interface {
	// Sides returns the bytes that n elements from at on need of these tensors, in the plan's order. Elements are
	// counted row by row in the source's matrix.
	Sides(at, n int64) []Span
}

// SidesOf returns what Sides of o returns; nothing for an operation that is not sided.
func SidesOf(o Operation, at, n int64) []Span {
	if s, is := o.(sided); is {
		return s.Sides(at, n)
	}
	return nil
}

// unit is the least number of elements that an operation works on.
type unit struct {
	Elements int // of the source and of the output alike
	In       int // bytes of the source; 0 for synthetic elements
	Out      int // bytes of the output
}

// Span is a run of bytes of a stored tensor.
type Span struct {
	Begin int64 // the first
	End   int64 // the one behind the last
}

// Input is a piece of the source.
type Input struct {
	Data []byte // its bytes
	// At is the first of its elements, counted in the matrix that the source is; of a Blockwise operation, in its output.
	At    int64
	Into  int64    // the first of its elements, counted in the output tensor
	Sides [][]byte // what Sides asked for
	// Runs yields the positions of the elements in the matrix, in Data's order; nil if they
	// are consecutive from At on. No run begins before At.
	Runs iter.Seq[tensor.Run]
	// Largest holds the largest magnitudes of the blocks of the rows that GridRows of a Blockwise
	// operation returns, row by row; a block with an infinity or NaN has that.
	Largest []float32
	// Tables serve piece after piece of one goroutine; nil: they are made anew for this piece.
	Tables *Tables
}

// each calls do for the runs of n elements: where in the matrix each begins, and which of
// the elements it is. The first error ends it.
func (in *Input) each(n int, do func(at int64, from, to int) error) error {
	if in.Runs == nil {
		return do(in.At, 0, n)
	}
	from := 0
	for r := range in.Runs {
		if err := do(r.At, from, from+int(r.N)); err != nil {
			return err
		}
		from += int(r.N)
	}
	if from != n {
		return fmt.Errorf("runs of %d elements, but there are %d", from, n)
	}
	return nil
}

// Copy keeps elements as they are.
type Copy struct {
	DType tensor.DType `json:"dtype"` // of the elements
}

// Name returns "copy".
func (Copy) Name() string { return "copy" }

// Unit returns the fewest elements that fill whole bytes, or a block.
func (c Copy) Unit() unit {
	elements, size := c.DType.Block()
	return unit{elements, size, size}
}

// Apply copies, unless dst is the piece of the source itself.
func (c Copy) Apply(dst []byte, in Input, lost *tensor.Loss) error {
	if len(dst) > 0 && &dst[0] != &in.Data[0] {
		copy(dst, in.Data)
	}
	lost.NotFinite += tensor.NotFinite(dst, c.DType)
	return nil
}

// Prove demands equal bytes.
func (c Copy) Prove(out []byte, in Input) error {
	if string(out) == string(in.Data) {
		return nil
	}
	u := c.Unit()
	for i := 0; i < len(out); i += u.Out {
		if got, want := out[i:i+u.Out], in.Data[i:i+u.In]; string(got) != string(want) {
			return &Mismatch{i / u.Out * u.Elements, hexOf(got), hexOf(want)}
		}
	}
	return nil
}

// Make fills a tensor from nothing but the places of its elements.
type Make struct {
	Rule string      `json:"rule"` // what Name adds: "seed 7"
	Info tensor.Info `json:"-"`    // the tensor

	// Fill writes the tensor's bytes from offset on to dst.
	Fill func(info tensor.Info, dst []byte, offset int64) error `json:"-"`
}

// Name returns "make" and the rule.
func (m Make) Name() string { return "make " + m.Rule }

// Unit returns the fewest elements that fill whole bytes, with no source.
func (m Make) Unit() unit {
	elements, size := m.Info.DType.Block()
	return unit{elements, 0, size}
}

// Apply fills dst.
func (m Make) Apply(dst []byte, in Input, _ *tensor.Loss) error {
	return m.Fill(m.Info, dst, m.Info.DType.Bytes(in.At))
}

// Prove makes the elements once more and demands the same bytes.
func (m Make) Prove(out []byte, in Input) error {
	again := make([]byte, len(out))
	if err := m.Fill(m.Info, again, m.Info.DType.Bytes(in.At)); err != nil {
		return err
	}
	return Copy{m.Info.DType}.Prove(out, Input{Data: again})
}
