package diff

// What a fine-tune changed: each weight of a checkpoint against the same weight of its base, and the ranks of the
// differences.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"dsmoe/inspect"
	"dsmoe/inspect/matrix"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text"
)

// Changes is how far the weights of a checkpoint are from those of its base.
type Changes struct {
	Path        string               `json:"path"`         // of the checkpoint, as the user gave it
	Base        string               `json:"base"`         // of its base
	Weights     []Change             `json:"weights"`      // in the order of the model
	NotCompared []inspect.NotCounted `json:"not_compared"` // selected weights of one of the two alone, or without numbers
}

// Change is a weight a of the checkpoint and the same weight b of the base, D = a - b.
type Change struct {
	Name      string       `json:"name"`
	Layer     int          `json:"layer"`      // -1 outside the layers
	Expert    int          `json:"expert"`     // -1 outside the routed experts
	Module    table.Module `json:"module"`     // "mlp.experts"
	DType     tensor.DType `json:"dtype"`      // of a, as it is stored
	BaseDType tensor.DType `json:"base_dtype"` // of b
	Elements  int64        `json:"elements"`
	Different int64        `json:"different"` // elements that are not equal, or not finite
	Relative  *float64     `json:"relative"`  // √(ΣD² / Σb²), in float64; null if b is zero or a number is not finite
	// Rank is how many singular values of D are beyond what rounding a and b to their dtypes gives:
	// 1.1·s·(√rows + √columns), s² the mean variance of that rounding, and beyond 10⁻⁵ of the largest. A merged LoRA of
	// rank r has r. It is null if there are more than maxRank, and of what is no matrix of plain or FP8 numbers; 0 if
	// rounding explains D.
	Rank *int `json:"rank"`
	// StableRank is ‖D‖² / σ₁², the effective rank; null where Rank was not measured, or D is zero.
	StableRank *float64 `json:"stable_rank"`

	squares, base float64 // ΣD², Σb²
	matrix        bool
}

// Against compares the selected weights of w with those of base, each read at most three times. Memory is a few MiB for
// each worker, and 0.6 kB for each row of its matrix and twice as much for each column. The numbers do not depend on
// the number of workers.
func Against(ctx context.Context, w, base inspect.Weights, s inspect.Selection) (*Changes, error) {
	picked, err := w.Pick(s)
	if err != nil {
		return nil, err
	}
	r := &Changes{Path: w.Path, Base: base.Path, Weights: []Change{}, NotCompared: []inspect.NotCounted{}}
	others := slices.DeleteFunc(slices.Clone(base.List), func(b *weights.Weight) bool { return !s.Has(b.Name) })
	var pairs []weights.Pair
	for _, p := range weights.Pairs(picked, others) {
		kind, cause := inspect.Mismatch(p, "the base")
		switch kind {
		case "":
			pairs = append(pairs, p)
			continue
		case inspect.Shape:
			cause = "shape " + cause
		}
		r.NotCompared = append(r.NotCompared, inspect.Skip(cmp.Or(p.A, p.B), errors.New(cause)))
	}
	if len(pairs) == 0 {
		return nil, fmt.Errorf("%s: no selected weight of %s has a counterpart of its shape", text.Quote(base.Path),
			text.Quote(w.Path))
	}
	c := &comparer{Walk: weights.Walk{Reading: w.Reading(ctx), A: w.Reader, B: base.Reader},
		arithmetic: sync.Pool{New: func() any { return matrix.Arithmetic() }}}
	c.again = c.Walk
	c.again.Reading = weights.NewReading(ctx, w.Threads, nil)
	r.Weights = make([]Change, len(pairs))
	return r, c.Each(pairs, func(i int, p weights.Pair) error {
		m, err := Measure(&c.Walk, p)
		x := &r.Weights[i]
		*x = Change{Name: p.A.Name, Layer: p.A.Layer, Expert: p.A.Expert, Module: p.A.Module(), DType: p.A.DType,
			BaseDType: p.B.DType, Elements: int64(p.A.Len()), Different: m.Unequal() + m.nans + m.alike,
			squares: m.SumD, base: m.SumB, matrix: len(p.A.Shape) == 2}
		switch {
		case !m.AllFinite():
			x.squares = math.NaN()
		case m.SumB > 0:
			x.Relative = inspect.Finite(math.Sqrt(m.SumD / m.SumB))
		}
		if err == nil && x.squares > 0 && x.Relative != nil && x.matrix {
			return c.rank(x, p, stepOf(p.A), stepOf(p.B))
		}
		return err
	})
}

// comparer compares weights. It is safe for concurrent use.
type comparer struct {
	weights.Walk
	again      weights.Walk // for a second time, whose bytes are not counted
	arithmetic sync.Pool    // of *model.Plain
}

// tileSize returns how many elements of either weight are in memory at once: of a matrix whole rows.
func tileSize(w *weights.Weight) int64 {
	const most = 1 << 18
	if len(w.Shape) != 2 {
		return most
	}
	cols := max(1, w.Shape[1])
	return int64(max(1, most/cols) * cols)
}

// step is what rounding to a dtype does to numbers.
type step struct {
	known bool
	unit  float64 // distance of neighbours over the power of two below a number
	sure  bool    // of a number times a scale: that distance is at most unit times the number
}

// stepOf returns what rounding to a weight's dtype does.
func stepOf(w *weights.Weight) step {
	switch w.DType {
	case tensor.F64, tensor.F32:
		return step{known: true, unit: 0x1p-23}
	case tensor.BF16:
		return step{known: true, unit: 0x1p-7}
	case tensor.F16:
		return step{known: true, unit: 0x1p-10}
	}
	return step{known: w.Scaled(), unit: 0x1p-3, sure: true} // E4M3
}

// variance returns that of the error of a number that was rounded: a twelfth of the square of its step.
func (s step) variance(v float32) float64 {
	below := math.Abs(float64(v))
	if !s.sure {
		below = float64(math.Float32frombits(math.Float32bits(v) & 0x7f800000))
	}
	return s.unit * s.unit / 12 * below * below
}
