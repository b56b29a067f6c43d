package inspect

import (
	"slices"

	"dsmoe/model/tensor"
	"dsmoe/text"
)

// Finite returns v; nil if v is NaN or infinite.
func Finite(v float64) *float64 {
	if !tensor.IsFinite(v) {
		return nil
	}
	return &v
}

// Magnitude returns |v|.
func Magnitude(v float64) float64 { return max(v, -v) }

// Larger returns the number of the larger magnitude. Either may be nil.
func Larger(a, b *float64) *float64 {
	if a == nil || b != nil && Magnitude(*b) > Magnitude(*a) {
		return b
	}
	return a
}

// Spread is the median of a layer's numbers and their distance from it.
type Spread struct {
	Median float64 `json:"median"` // the lower of the two middle values
	MAD    float64 `json:"mad"`    // median of |x - median|, the lower of the two middle values
}

// SpreadOf returns the spread of the values that are not nil; nil without one.
func SpreadOf(values []*float64) *Spread {
	var present []float64
	for _, v := range values {
		if v != nil {
			present = append(present, *v)
		}
	}
	if len(present) == 0 {
		return nil
	}
	s := &Spread{Median: LowerMedian(present)}
	for i, v := range present {
		present[i] = Magnitude(v - s.Median)
	}
	s.MAD = LowerMedian(present)
	return s
}

// LowerMedian sorts values and returns the lower of the two middle values.
func LowerMedian[F float32 | float64](values []F) F {
	slices.Sort(values)
	return values[(len(values)-1)/2]
}

// robustUnit makes the MAD of normal numbers their standard deviation: Φ⁻¹(3/4).
const robustUnit = 0.6745

// Z returns the modified z-score of B. Iglewicz and D. Hoaglin, How to Detect and Handle Outliers, 1993:
// 0.6745·(v - median)/MAD. nil if v is nil or the MAD is 0.
func (s *Spread) Z(v *float64) *float64 {
	if s == nil || v == nil || s.MAD == 0 {
		return nil
	}
	return Finite(robustUnit * (*v - s.Median) / s.MAD)
}

// Cells are the median and the MAD; s may be nil.
func (s *Spread) Cells() []text.Cell {
	if s == nil {
		return []text.Cell{text.Real(nil), text.Real(nil)}
	}
	return []text.Cell{text.Real(&s.Median), text.Real(&s.MAD)}
}
