package inspect

// How far the experts of a checkpoint are from their originals: what a quantisation cost each.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text"
)

// ExpertsErrorReport is how far the experts of a checkpoint are from those of another, their
// original.
type ExpertsErrorReport struct {
	Path       string              `json:"path"`        // of the checkpoint, as it was given
	Against    string              `json:"against"`     // of the original
	Layers     []LayerExpertsError `json:"layers"`      // those of which an expert is selected, in their order
	Findings   []Observation       `json:"findings"`    // in the order of the layers, then of the experts
	NotCounted []NotCounted        `json:"not_counted"` // weights that are selected and have no numbers
}

// LayerExpertsError is the experts of a layer.
type LayerExpertsError struct {
	Layer   int           `json:"layer"`
	Experts []ExpertError `json:"experts"` // the routed ones by their numbers, then the shared ones
	Gate    *Spread       `json:"gate"`    // of RelativeRMS over the routed experts
	Up      *Spread       `json:"up"`
	Down    *Spread       `json:"down"`
}

// ExpertError is how far an expert is from its original.
type ExpertError struct {
	Expert int          `json:"expert"` // its number; -1 of the shared ones
	Module string       `json:"module"` // "model.layers.3.mlp.experts.17"
	Gate   *MatrixError `json:"gate"`   // null if it is not selected
	Up     *MatrixError `json:"up"`
	Down   *MatrixError `json:"down"`
}

// MatrixError is how far a matrix a is from its original b.
type MatrixError struct {
	DType       tensor.DType `json:"dtype"`        // of a, as it is stored
	Against     tensor.DType `json:"against"`      // of b
	RelativeRMS *float64     `json:"relative_rms"` // √(Σ(a-b)² / Σb²), in float64; null if Σb² is 0 and a is not b, or numbers are not finite
	MaxAbs      *float64     `json:"max_abs"`      // the largest |a-b|, in float64; null if numbers are not finite
	Different   int64        `json:"different"`    // elements that are not equal
	NotFinite   int64        `json:"not_finite"`   // elements that are not equal, and of which one, or both, are not finite
	Z           *float64     `json:"z"`            // robust z-score of RelativeRMS among the layer's routed experts
}

func (e *ExpertError) matrices() [projections]*MatrixError {
	return [projections]*MatrixError{e.Gate, e.Up, e.Down}
}

// errorFactor is how many times its layer's median a relative error must be to be told of.
const errorFactor = 2

// ExpertsAgainst compares the selected experts of w with those of their original. Names are per
// expert, so that either may be fused; numbers are those that the model computes with, FP8 times
// its scales. Each weight of either is read once. What has no counterpart of its shape, and what
// cannot be read, is an error that names all of it.
func ExpertsAgainst(ctx context.Context, w, original Weights, s Selection) (*ExpertsErrorReport, error) {
	layers, not, err := selectedExperts(&w, s)
	if err != nil {
		return nil, err
	}
	c := &contrast{Reading: w.reading(ctx), a: w, b: original}
	r := &ExpertsErrorReport{Path: w.Path, Against: original.Path, Layers: []LayerExpertsError{}, Findings: []Observation{}, NotCounted: not}
	if err := c.pair(layers); err != nil {
		return nil, err
	}
	if err := c.run(); err != nil {
		return nil, err
	}
	for _, l := range layers {
		r.Layers = append(r.Layers, c.layer(l))
	}
	for i := range r.Layers {
		r.Findings = append(r.Findings, r.Layers[i].observe()...)
	}
	return r, nil
}

// contrast is two checkpoints while their experts are compared.
type contrast struct {
	*weights.Reading
	a, b  Weights
	pairs []*contrasted
	of    map[*weights.Weight]*contrasted
}

// contrasted is a matrix and its original.
type contrasted struct {
	a, b *weights.Weight
	MatrixError
}

// pair finds the originals.
func (c *contrast) pair(layers []*layerMLPs) error {
	originals := map[string]*weights.Weight{}
	for _, w := range c.b.List {
		originals[w.Name] = w
	}
	c.of = map[*weights.Weight]*contrasted{}
	var problems []Finding
	for _, l := range layers {
		for _, m := range l.all {
			for _, a := range m.weights {
				if a == nil {
					continue
				}
				b := originals[a.Name]
				if kind, cause := comparable(a, b); kind != "" {
					problems = append(problems, Finding{Kind: kind, Tensor: a.Name, Cause: cause})
					continue
				}
				x := &contrasted{a: a, b: b, MatrixError: MatrixError{DType: a.DType, Against: b.DType}}
				c.pairs, c.of[a] = append(c.pairs, x), x
				c.Expect(a.Bytes())
			}
		}
	}
	var errs []error
	for _, g := range groups(problems) {
		for _, l := range g.lines() {
			errs = append(errs, errors.New(l.text))
		}
	}
	return errors.Join(errs...)
}

// comparable says why a weight cannot be compared with its original; "" if it can.
func comparable(a, b *weights.Weight) (kind Kind, cause string) {
	switch {
	case b == nil:
		return Missing, "the original does not have it"
	case !slices.Equal(a.Shape, b.Shape):
		return Shape, fmt.Sprintf("%v, but the original's is %v", a.Shape, b.Shape)
	}
	if err := countable(b); err != nil {
		return DType, "in the original: " + err.Error()
	}
	return "", ""
}

// run compares all pairs, each in one piece.
func (c *contrast) run() error {
	for _, x := range c.pairs {
		c.Go(func() error { return x.a.Failed(c.compare(x)) })
	}
	return c.Wait()
}

// compare goes through both weights in tiles.
func (c *contrast) compare(x *contrasted) error {
	a, b := weights.NewStream(c.a.Reader, x.a), weights.NewStream(c.b.Reader, x.b)
	n := int64(x.a.Len())
	var squares, errorSquares, most float64
	for at, err := range c.Tiles(0, n, weights.TileElements, a) {
		if err != nil {
			return err
		}
		left, err := a.Values()
		if err != nil {
			return err
		}
		if err := b.Load(at, len(left)); err != nil {
			return fmt.Errorf("in the original: %w", err)
		}
		right, err := b.Values()
		if err != nil {
			return fmt.Errorf("in the original: %w", err)
		}
		tile, errorTile := 0.0, 0.0
		for i, v := range right {
			d := float64(left[i]) - float64(v)
			if d != 0 && left[i] != v && (left[i] == left[i] || v == v) {
				x.Different++
				if d-d != 0 {
					x.NotFinite++
				}
			}
			most = max(most, d, -d)
			tile += float64(v) * float64(v)
			errorTile += float64(d * d)
		}
		squares, errorSquares = squares+tile, errorSquares+errorTile
	}
	x.MaxAbs = finite(most)
	switch {
	case errorSquares == 0:
		x.RelativeRMS = finite(0)
	default:
		x.RelativeRMS = finite(math.Sqrt(errorSquares / squares))
	}
	return nil
}

// layer sums up a layer.
func (c *contrast) layer(l *layerMLPs) LayerExpertsError {
	r := LayerExpertsError{Layer: l.layer}
	var errs [projections][]*float64
	for _, m := range l.all {
		e := ExpertError{Expert: m.number, Module: m.module}
		for p, to := range []**MatrixError{&e.Gate, &e.Up, &e.Down} {
			if x := c.of[m.weights[p]]; x != nil {
				*to = &x.MatrixError
				if m.number >= 0 {
					errs[p] = append(errs[p], x.RelativeRMS)
				}
			}
		}
		r.Experts = append(r.Experts, e)
	}
	for p, to := range []**Spread{&r.Gate, &r.Up, &r.Down} {
		*to = spreadOf(errs[p])
		for i := range r.Experts {
			if m := r.Experts[i].matrices()[p]; m != nil {
				m.Z = (*to).z(m.RelativeRMS)
			}
		}
	}
	return r
}

// observe names the experts that are far from what the others of their layer are off.
func (l *LayerExpertsError) observe() (found []Observation) {
	for i := range l.Experts {
		e := &l.Experts[i]
		for p, m := range e.matrices() {
			if m == nil {
				continue
			}
			if o := l.about(m, []*Spread{l.Gate, l.Up, l.Down}[p]); o != nil {
				o.Layer, o.Experts, o.Tensor = l.Layer, []int{}, e.Module+"."+projectionNames[p]+".weight"
				if e.Expert >= 0 {
					o.Experts = append(o.Experts, e.Expert)
				}
				found = append(found, *o)
			}
		}
	}
	return found
}

// routed is the number of routed experts.
func (l *LayerExpertsError) routed() (n int) {
	for i := range l.Experts {
		if l.Experts[i].Expert >= 0 {
			n++
		}
	}
	return n
}

// about says what is odd about the error of a matrix; nil if nothing is.
func (l *LayerExpertsError) about(m *MatrixError, layer *Spread) *Observation {
	switch {
	case m.NotFinite > 0:
		return &Observation{ID: "not-finite", Value: finite(float64(m.NotFinite)), Expected: finite(0),
			Text: text.Plural(m.NotFinite, "number") + ": not finite, here or in the original, and not the same"}
	case m.RelativeRMS == nil && m.MaxAbs != nil && m.Different > 0:
		return &Observation{ID: "error", Value: m.MaxAbs, Expected: finite(0), Text: fmt.Sprintf("the original is all zero, this is up to %.4g", *m.MaxAbs)}
	case l.routed() >= leastPeers && layer.far(m.RelativeRMS, errorFactor) && *m.RelativeRMS > layer.Median:
		return &Observation{ID: "error", Value: m.RelativeRMS, Expected: &layer.Median,
			Text: fmt.Sprintf("relative RMS error %.4g, the layer's median is %.4g", *m.RelativeRMS, layer.Median)}
	}
	return nil
}

// Sheet is a row per expert.
func (r *ExpertsErrorReport) Sheet() *text.Sheet {
	s := text.NewSheet("layer", "expert", "dtype", "against", ">rms_gate", ">rms_up", ">rms_down", ">z", ">max_abs", ">different", ">not_finite")
	for _, l := range r.Layers {
		for i := range l.Experts {
			s.Add(l.Experts[i].cells(l.Layer)...)
		}
	}
	return s
}

func (e *ExpertError) cells(layer int) []text.Cell {
	name := text.Whole(e.Expert)
	if e.Expert < 0 {
		name = text.Plain("shared")
	}
	var dtypes, against []string
	var errs []text.Cell
	var z, most *float64
	different, notFinite := int64(0), int64(0)
	for _, m := range e.matrices() {
		if m == nil {
			errs = append(errs, text.Real(nil))
			continue
		}
		errs = append(errs, text.Real(m.RelativeRMS))
		dtypes, against = append(dtypes, m.DType.String()), append(against, m.Against.String())
		different, notFinite = different+m.Different, notFinite+m.NotFinite
		z, most = larger(z, m.Z), larger(most, m.MaxAbs)
	}
	cells := append([]text.Cell{text.Whole(layer), name, text.Plain(once(dtypes)), text.Plain(once(against))}, errs...)
	return append(cells, text.Real(z), text.Real(most), text.Whole(different), text.Whole(notFinite))
}

// larger returns the number of the larger magnitude; nil is none.
func larger(a, b *float64) *float64 {
	if a == nil || b != nil && magnitude(*b) > magnitude(*a) {
		return b
	}
	return a
}

// once joins words, each of which is named once.
func once(words []string) string {
	slices.SortFunc(words, cmp.Compare)
	return strings.Join(slices.Compact(words), ",")
}

// WriteText writes the sheet and the findings.
func (r *ExpertsErrorReport) WriteText(w io.Writer) error {
	var b strings.Builder
	if err := r.Sheet().WriteAs(&b, text.AsTable); err != nil {
		return err
	}
	writeNotCounted(&b, r.NotCounted)
	if err := WriteObservations(&b, r.Findings); err != nil {
		return err
	}
	_, err := io.WriteString(w, b.String())
	return err
}
