package experts

// How far the experts of a checkpoint are from their originals: what a quantisation cost each.

import (
	"cmp"
	"context"
	"errors"
	"io"
	"math"
	"slices"
	"strings"

	"dsmoe/inspect"
	"dsmoe/inspect/diff"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text"
	"dsmoe/text/page"
	"dsmoe/text/problem"
)

// ErrorReport is how far the experts of a checkpoint are from those of another, their original.
type ErrorReport struct {
	Path    string       `json:"path"`    // of the checkpoint, as the user gave it
	Against string       `json:"against"` // of the original
	Layers  []layerError `json:"layers"`  // layers with a selected expert, in their order
	inspect.Examined

	by inspect.Grouping
}

// layerError is the experts of a layer.
type layerError struct {
	Layer                     int            `json:"layer"`
	Experts                   []expertErrors `json:"experts"` // the routed ones by their numbers, then the shared ones
	Matrices[*inspect.Spread]                // of RelativeRMS over the routed experts
}

// expertErrors is how far an expert is from its original.
type expertErrors struct {
	Expert                 int    `json:"expert"` // its number; -1 for the shared ones
	Module                 string `json:"module"` // "model.layers.3.mlp.experts.17"
	Matrices[*MatrixError]        // null if not selected
}

// MatrixError is how far a matrix a is from its original b.
type MatrixError struct {
	DType       tensor.DType `json:"dtype"`        // of a, as it is stored
	Against     tensor.DType `json:"against"`      // of b
	RelativeRMS *float64     `json:"relative_rms"` // √(Σ(a-b)² / Σb²), in float64; null if only b is zero or not finite
	MaxAbs      *float64     `json:"max_abs"`      // the largest |a-b|, in float64; null if numbers are not finite
	Different   int64        `json:"different"`    // elements that are not equal
	NotFinite   int64        `json:"not_finite"`   // elements that are not equal, with a or b not finite
	Z           *float64     `json:"z"`            // robust z-score of RelativeRMS among the layer's routed experts
}

// errorFactor is how many times its layer's median a relative error must be to be a finding, beside being beyond
// inspect.Peers.Limit.
const errorFactor = 2

// Against compares the selected experts of w with those of their original. Names are per expert, so that either
// may be fused; numbers are those that the model computes with, FP8 times its scales. Each weight of either is
// read once. The error names every matrix without a counterpart of its shape, and every weight that cannot be read.
func Against(ctx context.Context, w, original inspect.Weights, o Options) (*ErrorReport, error) {
	layers, not, err := selected(&w, o.Selection)
	if err != nil {
		return nil, err
	}
	pairs, err := pair(layers, original.List)
	if err != nil {
		return nil, err
	}
	errors := map[*weights.Weight]*MatrixError{}
	for _, p := range pairs {
		errors[p.A] = &MatrixError{DType: p.A.DType, Against: p.B.DType}
	}
	walk := weights.Walk{Reading: w.Reading(ctx), A: w.Reader, B: original.Reader, Other: theOriginal}
	if err := walk.Each(pairs, func(_ int, p weights.Pair) error {
		m := errors[p.A]
		x, err := diff.Measure(&walk, p)
		m.Different, m.NotFinite = x.Unequal(), x.NotFinite()
		if x.AllFinite() {
			if m.MaxAbs, m.RelativeRMS = &x.MaxAbs, inspect.Finite(0); x.SumD > 0 {
				m.RelativeRMS = inspect.Finite(math.Sqrt(x.SumD / x.SumB))
			}
		}
		return err
	}); err != nil {
		return nil, err
	}
	r := &ErrorReport{Path: w.Path, Against: original.Path, Layers: []layerError{}, by: o.By,
		Examined: inspect.Examined{NotCounted: not}}
	for _, l := range layers {
		layer, found := layerErrors(l, errors, len(layers))
		r.Layers, r.Observed = append(r.Layers, layer), append(r.Observed, found...)
	}
	r.Conclude(r.Observed)
	return r, nil
}

// theOriginal is what messages call the other checkpoint.
const theOriginal = "the original"

// pair finds the originals of measurable matrices.
func pair(layers []*layerMLPs, originals []*weights.Weight) (pairs []weights.Pair, err error) {
	var matrices []*weights.Weight
	for _, l := range layers {
		for _, m := range l.all {
			for _, w := range present(&m.weights) {
				matrices = append(matrices, w)
			}
		}
	}
	var problems []inspect.Finding
	for _, p := range weights.Pairs(matrices, originals) {
		kind, cause := inspect.Mismatch(p, theOriginal)
		switch kind {
		case "":
			pairs = append(pairs, p)
			continue
		case inspect.Unexpected: // the original of no selected matrix
			continue
		case inspect.DType:
			cause = "in " + theOriginal + ": " + cause
		}
		problems = append(problems, kind.Of(problem.Problem{Tensor: p.A.Name, Cause: cause}))
	}
	var errs []error
	for _, line := range inspect.Lines(problems) {
		errs = append(errs, errors.New(line.Text))
	}
	return pairs, errors.Join(errs...)
}

// layerErrors sums up a layer, one of so many, and finds the experts whose error is far from the others'.
func layerErrors(l *layerMLPs, errors map[*weights.Weight]*MatrixError, layers int) (r layerError,
	found []inspect.Observation) {
	r.Layer = l.layer
	var relative Matrices[[]*float64]
	for _, m := range l.all {
		e := expertErrors{Expert: m.number, Module: m.module}
		for role, w := range present(&m.weights) {
			*e.Of(role) = errors[w]
			if m.number >= 0 {
				*relative.Of(role) = append(*relative.Of(role), errors[w].RelativeRMS)
			}
		}
		r.Experts = append(r.Experts, e)
	}
	var peers Matrices[*inspect.Peers]
	for role, list := range relative.All() {
		var known []float64
		for _, v := range list {
			known = append(known, inspect.OrNaN(v))
		}
		*r.Of(role), *peers.Of(role) = inspect.SpreadOf(list), inspect.PeersOf(known, layers*len(roles)*len(list))
	}
	for i := range r.Experts {
		e := &Expert{Expert: r.Experts[i].Expert, Module: r.Experts[i].Module}
		for role, m := range present(&r.Experts[i].Matrices) {
			m.Z = (*r.Of(role)).Z(m.RelativeRMS)
			about := func(id string, value, expected *float64, format string, args ...any) {
				found = append(found, observation(l.layer, e, id, role, value, expected, format, args...))
			}
			switch p := *peers.Of(role); {
			case m.NotFinite > 0:
				about("not-finite", inspect.Finite(float64(m.NotFinite)), inspect.Finite(0),
					"%s: not finite, here or in the original, and not the same", text.Plural(m.NotFinite, "number"))
			case m.RelativeRMS == nil && m.MaxAbs != nil && m.Different > 0:
				about("conversion-error", m.MaxAbs, inspect.Finite(0), "the original is all zero, this is up to %.4g", *m.MaxAbs)
			case p != nil && m.RelativeRMS != nil && *m.RelativeRMS > p.Median &&
				p.Odd(*m.RelativeRMS, (errorFactor-1)*p.Median):
				about("conversion-error", m.RelativeRMS, &p.Median, "relative RMS error %.4g, the layer's median is %.4g",
					*m.RelativeRMS, p.Median)
			}
		}
	}
	return r, found
}

// Sheet is a row per expert; with ByLayer a row per layer and matrix: the spread of the routed experts' errors, the
// expert that is farthest from its original, and what differs in all of them.
func (r *ErrorReport) Sheet() *text.Sheet {
	if r.by == inspect.ByLayer {
		s := text.NewSheet("layer", "of", ">rms", ">rms_mad", ">largest", "expert", ">max_abs", ">different", ">not_finite")
		for _, l := range r.Layers {
			for _, role := range roles {
				var largest, most *float64
				farthest := text.Real(nil)
				different, notFinite, known := int64(0), int64(0), false
				for i := range l.Experts {
					m := *l.Experts[i].Of(role)
					if m == nil {
						continue
					}
					known = true
					if m.RelativeRMS != nil && (largest == nil || *m.RelativeRMS > *largest) {
						largest, farthest = m.RelativeRMS, expertCell(l.Experts[i].Expert)
					}
					most = inspect.Larger(most, m.MaxAbs)
					different, notFinite = different+m.Different, notFinite+m.NotFinite
				}
				if known {
					s.Row(l.Layer, string(role), (*l.Of(role)).Cells(), largest, farthest, most, different, notFinite)
				}
			}
		}
		return s
	}
	s := text.NewSheet("layer", "expert", "dtype", "against", ">rms_gate", ">rms_up", ">rms_down", ">z", ">max_abs",
		">different", ">not_finite")
	for _, l := range r.Layers {
		for i := range l.Experts {
			var dtypes, against []string
			var errs []text.Cell
			var z, most *float64
			different, notFinite := int64(0), int64(0)
			for _, m := range l.Experts[i].All() {
				if m == nil {
					errs = append(errs, text.Real(nil))
					continue
				}
				errs = append(errs, text.Real(m.RelativeRMS))
				dtypes, against = append(dtypes, m.DType.String()), append(against, m.Against.String())
				different, notFinite = different+m.Different, notFinite+m.NotFinite
				z, most = inspect.Larger(z, m.Z), inspect.Larger(most, m.MaxAbs)
			}
			s.Row(l.Layer, expertCell(l.Experts[i].Expert), once(dtypes), once(against), errs, z, most, different, notFinite)
		}
	}
	return s
}

// once joins the different ones of words.
func once(words []string) string {
	slices.SortFunc(words, cmp.Compare)
	return strings.Join(slices.Compact(words), ",")
}

// WriteText writes the sheet and the findings.
func (r *ErrorReport) WriteText(w io.Writer) error {
	return r.WriteBelow(w, r.Sheet(), nil)
}

// Figure draws how far each expert is from its original.
func (r *ErrorReport) Figure() page.Figure {
	c := inspect.NewCells()
	for _, l := range r.Layers {
		for i := range l.Experts {
			var most *float64
			for _, m := range present(&l.Experts[i].Matrices) {
				most = inspect.Larger(most, m.RelativeRMS)
			}
			c.SetExpert(l.Layer, l.Experts[i].Expert, most, false)
		}
	}
	return c.Experts(page.Heatmap{Title: "how far each expert is from its original",
		Name:    "largest relative RMS error of its matrices",
		NoValue: "not finite"}, r.Findings)
}
