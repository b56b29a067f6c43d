// Package diff compares two checkpoints: what their configs mean, and their weights,
// tensor by tensor, whatever their dtypes. Compare streams both sides in tiles, so its
// memory does not depend on their size; it never asks how a checkpoint is stored: package
// weights gives the tensors under their per-expert names. Of experts that differ it finds
// out whether the other side holds them under other numbers.
package diff

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"path"
	"slices"

	"dsmoe/config"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text"
)

// Side is one side: its weights in the order of the model, and what reads them.
type Side struct {
	Weights []*weights.Weight // scales among them
	Reader  weights.ReaderAt  // of their bytes
	Config  *config.Config    // of the model; nil leaves the configs out
}

// Status says how a tensor of A stands to that of B.
type Status string

// The statuses, from best to worst. statusEqual: every value is equal, to the bit (of codes with scales, the dequantised
// ones; a NaN of another dtype, and of codes, is equal to any). statusClose: every value of one side is the other side's
// value rounded to its dtype, as a cast leaves it, and finite where the other is finite.
const (
	statusEqual   Status = "equal"
	statusClose   Status = "close"
	statusDiffers Status = "differs"
	statusShape   Status = "shape"   // not comparable
	statusRemoved Status = "removed" // in A alone
	statusAdded   Status = "added"   // in B alone
	statusUnused  Status = "unused"  // on one side alone; the reference computes the same without it
	// of a multi-token prediction layer, of which the other side has none: the reference's forward pass does not run them
	statusPredicts Status = "predicts"
)

// Options are the options of Compare; the zero value is the default.
type Options struct {
	Exact   bool     // another dtype, and values that are only close, make a difference
	Include []string // compare only weights that one of these globs selects: see Selects; empty selects all
	// Progress is called, one call at a time, with the bytes of A that were compared and that will be; it may be nil.
	Progress func(done, total int64)
}

// Selects reports whether a weight of c, or of an adapter if c is nil, is compared: scales go with their weight.
func (o Options) Selects(c *config.Config, w *weights.Weight) bool {
	return len(o.Include) == 0 || slices.ContainsFunc(o.Include, func(glob string) bool {
		if c == nil {
			matches, _ := path.Match(glob, w.Name)
			return matches
		}
		return table.FamilyOf(c).Matches(c, glob, w.Owner())
	})
}

// Report is what Compare found. It is JSON as it stands.
type Report struct {
	A       string `json:"a"`       // path of one side; the caller sets it
	B       string `json:"b"`       // path of the other
	Verdict string `json:"verdict"` // "same" or "differs"
	// A and B are adapters, and Config has differences between their adapter_config.json; absent of checkpoints
	Adapters bool `json:"adapters,omitempty"`
	// globs that selected what was compared; absent where all tensors were
	Include  []string       `json:"include,omitempty"`
	Compared int            `json:"compared"` // tensors on both sides with one shape
	Counts   map[Status]int `json:"counts"`   // tensors of each status
	DTypes   int            `json:"dtypes"`   // tensors whose dtypes are not the same
	Findings []Finding      `json:"findings"` // all that are not equal in value and dtype, in the order of the model

	Config     []config.Difference `json:"config"`     // keys under which the configs differ
	Rearranged []Rearranged        `json:"rearranged"` // what of Findings is the same weights in other places
}

// Finding is one tensor. The numbers are of B against A:
//
//	MaxAbs  max|b - a|
//	RelRMS  rms(b - a) / rms(a), or the largest float64 if that is more, as where a is 0
//	Cosine  Σab / √(Σa² Σb²)
//	MaxULP  the largest number of steps between two values, in the dtype in which it is least
//
// They are over the elements that are finite on both sides, and mean nothing unless
// Measured is set.
type Finding struct {
	Name      string        `json:"name"`              // of the table
	Status    Status        `json:"status"`            // of B's tensor against A's
	DTypeA    *tensor.DType `json:"dtype_a,omitempty"` // as it is stored; nil if A lacks the tensor
	DTypeB    *tensor.DType `json:"dtype_b,omitempty"` // as it is stored; nil if B lacks the tensor
	ShapeA    []int         `json:"shape_a,omitempty"` // nil if A lacks the tensor
	ShapeB    []int         `json:"shape_b,omitempty"` // nil if B lacks the tensor
	Different int64         `json:"different"`         // elements with another value; 0 if dtypes cannot be compared
	Elements  int64         `json:"elements"`          // of either side; 0 unless both have one shape
	Measured  bool          `json:"measured"`          // both sides are floats, whose values were compared
	MaxAbs    float64       `json:"max_abs"`           // see above
	RelRMS    float64       `json:"rel_rms"`           // see above
	Cosine    float64       `json:"cosine"`            // 1 if no finite value differs
	MaxULP    int64         `json:"max_ulp"`           // see above
	NonFinite int64         `json:"non_finite"`        // different elements of which one or both are not finite
	OnlyA     int64         `json:"non_finite_a"`      // elements that are not finite in A alone
	OnlyB     int64         `json:"non_finite_b"`      // elements that are not finite in B alone
	// flat index of MaxAbs, or of the first different element if no finite one differs
	Worst int64 `json:"worst"`
}

// Compare compares the configs, and every tensor of a with that of b. A malformed glob is an error, and so is one that
// selects nothing of either side.
func Compare(ctx context.Context, a, b Side, o Options) (*Report, error) {
	for _, glob := range o.Include {
		if err := text.CheckGlob(glob); err != nil {
			return nil, err
		}
		one, found := Options{Include: []string{glob}}, false
		for _, s := range []Side{a, b} {
			found = found || slices.ContainsFunc(s.Weights, func(w *weights.Weight) bool { return one.Selects(s.Config, w) })
		}
		if !found {
			return nil, fmt.Errorf("the glob \"%s\" matches no tensor; globs are of per-expert names such as "+
				"model.layers.1.mlp.experts.0.up_proj.weight", text.Line(glob))
		}
	}
	total, predicting := int64(0), 0
	for _, s := range []*Side{&a, &b} {
		if slices.ContainsFunc(s.Weights, s.predicts) {
			predicting++
		}
		s.Weights = slices.DeleteFunc(slices.Clone(s.Weights), func(w *weights.Weight) bool { return !o.Selects(s.Config, w) })
	}
	for _, w := range a.Weights {
		total += w.Bytes()
	}
	pairs := weights.Pairs(a.Weights, b.Weights)
	findings := make([]Finding, len(pairs))
	progress := func(done, _ int64) {
		if o.Progress != nil {
			o.Progress(done, total)
		}
	}
	err := each(ctx, a, b, len(pairs), progress, func(w *weights.Walk, i int) (err error) {
		p := pairs[i]
		if findings[i], err = compare(w, p); err != nil || p.A != nil && p.B != nil {
			return err
		}
		s, one := a, p.A
		if one == nil {
			s, one = b, p.B
		}
		if predicting == 1 && s.predicts(one) {
			findings[i].Status = statusPredicts
			return nil
		}
		unused, err := s.isUnused(one)
		if unused {
			findings[i].Status = statusUnused
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	r := summarise(findings, o)
	if a.Config != nil && b.Config != nil {
		r.AddConfig(config.Differences(a.Config, b.Config))
	}
	if r.Rearranged, err = rearranged(ctx, a, b, r.Findings); err != nil {
		return nil, err
	}
	return r, nil
}

// predicts reports whether a weight is of a multi-token prediction layer.
func (s *Side) predicts(w *weights.Weight) bool {
	if s.Config == nil {
		return false
	}
	first := s.Config.NumHiddenLayers
	return table.FamilyOf(s.Config).Leaves(w.Name) || w.Layer >= first && w.Layer < first+s.Config.NumNextNPredictLayers
}

// isUnused reports whether the reference computes the same without a weight: a scale of a cache, or what it derives anew.
func (s *Side) isUnused(w *weights.Weight) (bool, error) {
	switch {
	case w.ScalesActivations():
		return true, nil
	case s.Config == nil || !table.FamilyOf(s.Config).Unused(s.Config, w.Name):
		return false, nil
	case !table.Follows(s.Config, w.Info):
		return true, nil
	}
	values, err := weights.NewStream(s.Reader, w).Part(0, w.Len())
	return err == nil && table.Contradiction(s.Config, w.Name, values, w.DType) == "", err
}

// each calls f for 0 … n-1, several at once, until one fails.
func each(ctx context.Context, a, b Side, n int, progress func(done, total int64),
	f func(w *weights.Walk, i int) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	w := &weights.Walk{Reading: weights.NewReading(ctx, 0, progress), A: a.Reader, B: b.Reader}
	for i := range n {
		w.Reading.Go(func() error {
			if err := f(w, i); err != nil {
				stop(err)
			}
			return nil
		})
	}
	return w.Reading.Wait()
}

// compare measures one pair.
func compare(w *weights.Walk, p weights.Pair) (Finding, error) {
	f := Finding{Name: cmp.Or(p.A, p.B).Name, Status: statusEqual}
	if p.A != nil {
		f.DTypeA, f.ShapeA = &p.A.DType, p.A.Shape
	}
	if p.B != nil {
		f.DTypeB, f.ShapeB = &p.B.DType, p.B.Shape
	}
	switch {
	case p.B == nil:
		f.Status = statusRemoved
	case p.A == nil:
		f.Status = statusAdded
	case !slices.Equal(p.A.Shape, p.B.Shape):
		f.Status = statusShape
	}
	if f.Status != statusEqual {
		return f, nil
	}
	f.Elements = int64(p.A.Len())
	if !decodes(p.A) || !decodes(p.B) {
		return f, p.A.Failed(f.compareBytes(w, p))
	}
	m, err := Measure(w, p)
	f.measured(&m)
	return f, p.A.Failed(err)
}

// measured fills in what was measured.
func (f *Finding) measured(m *Measures) {
	f.Cosine, f.Measured = 1, true
	f.Different, f.NonFinite, f.OnlyA, f.OnlyB = m.different, m.nonFinite, m.onlyA, m.onlyB
	f.MaxAbs, f.MaxULP = m.MaxAbs, m.maxULP
	if m.different > 0 {
		f.Status, f.Worst = statusDiffers, m.first
	}
	if m.MaxAbs > 0 {
		f.Worst = m.worst
	}
	if m.different > 0 && m.rounded == m.different {
		f.Status = statusClose
	}
	if m.SumD > 0 {
		f.RelRMS = math.Sqrt(m.SumD / m.SumA)
		f.Cosine = 0
		if m.SumA > 0 && m.SumB > 0 {
			f.Cosine = m.sumAB / math.Sqrt(m.SumA) / math.Sqrt(m.SumB)
		}
	}
	f.RelRMS = min(f.RelRMS, math.MaxFloat64) // JSON has no infinity
}

// compareBytes compares tensors that are no floats, as integers are, or whose scales are
// unknown: elements are equal or not. Those of two dtypes cannot be compared.
func (f *Finding) compareBytes(w *weights.Walk, p weights.Pair) error {
	d := p.A.DType
	if d != p.B.DType || (p.A.Scales == nil) != (p.B.Scales == nil) {
		f.Status = statusDiffers
		return nil
	}
	return w.Tiles(p, weights.TileElements, func(at int64, a, b *weights.Stream) error {
		n, bits := int(d.Elements(int64(len(a.Raw)))), int(d.Bytes(8)) // eight elements have as many bytes as one has bits
		if bytes.Equal(a.Raw, b.Raw) {
			n = 0
		}
		for i := range n {
			if element(a.Raw, i, bits) == element(b.Raw, i, bits) {
				continue
			}
			if f.Different++; f.Different == 1 {
				f.Status, f.Worst = statusDiffers, at+int64(i)
			}
		}
		return nil
	})
}

// element returns the bits of element i, which do not cross a word of eight bytes from its
// first byte on.
func element(data []byte, i, bits int) uint64 {
	var word [8]byte
	copy(word[:], data[i*bits/8:])
	return binary.LittleEndian.Uint64(word[:]) >> (i * bits % 8) << (64 - bits)
}

// decodes reports whether a weight has numbers between which steps can be counted.
func decodes(w *weights.Weight) bool { return w.NumberType().Casts() }

// summarise counts, and keeps what there is to say.
func summarise(findings []Finding, o Options) *Report {
	r := &Report{Verdict: "same", Include: o.Include, Counts: map[Status]int{}, Findings: []Finding{}, Config: []config.Difference{}}
	for _, f := range findings {
		r.Counts[f.Status]++
		dtypes := f.DTypeA != nil && f.DTypeB != nil && *f.DTypeA != *f.DTypeB
		if dtypes {
			r.DTypes++
		}
		if f.Status == statusEqual || f.Status == statusClose || f.Status == statusDiffers {
			r.Compared++
		}
		alike := f.Status == statusEqual || !o.Exact && (f.Status == statusClose || f.Status == statusUnused || f.Status == statusPredicts)
		if !alike || dtypes && o.Exact {
			r.Verdict = "differs"
		}
		if f.Status != statusEqual || dtypes {
			r.Findings = append(r.Findings, f)
		}
	}
	return r
}

// AddConfig adds differences of the configs.
func (r *Report) AddConfig(list []config.Difference) {
	r.Config = append(r.Config, list...)
	if slices.ContainsFunc(list, func(d config.Difference) bool { return d.Meaning }) {
		r.Verdict = "differs"
	}
}

// Same is the answer.
func (r *Report) Same() bool { return r.Verdict == "same" }
