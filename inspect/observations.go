package inspect

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"dsmoe/text"
)

// Observation is something that sets an expert, or a row of a router, apart from what it
// stands beside, and the number that shows it. A healthy checkpoint has none. It says what
// was measured, and never that a weight may be left out.
type Observation struct {
	ID       string   `json:"id"`       // what kind it is: "duplicate", "zeroed", …
	Layer    int      `json:"layer"`    // of the model
	Experts  []int    `json:"experts"`  // the routed experts that it is about; empty if it is about shared ones
	Tensor   string   `json:"tensor"`   // the tensor, or the module of an expert
	Text     string   `json:"text"`     // a sentence without a full stop
	Value    *float64 `json:"value"`    // what was measured; null if it is no number
	Expected *float64 `json:"expected"` // what it was held against: a median, a null value, a bound
}

// WriteObservations writes a line for each, at most maxLines, and how many there are.
func WriteObservations(w io.Writer, found []Observation) error {
	var b strings.Builder
	if len(found) == 0 {
		b.WriteString("no finding\n")
	} else {
		fmt.Fprintf(&b, "%s\n", text.Plural(len(found), "finding"))
	}
	for i, o := range found {
		if i == maxLines {
			fmt.Fprintf(&b, "  … and %d more; --json lists all\n", len(found)-maxLines)
			break
		}
		fmt.Fprintf(&b, "  %s: %s: %s\n", o.ID, text.Quote(o.Tensor), o.Text)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// finite is a value that is there; one that is not finite is none.
func finite(v float64) *float64 {
	if v-v != 0 {
		return nil
	}
	return &v
}

// Spread is where the numbers of a layer lie.
type Spread struct {
	Median float64 `json:"median"` // the lower one of two
	MAD    float64 `json:"mad"`    // median of |x - median|, the lower one of two
}

// spreadOf returns the spread of what there is among values; nil if there are none.
func spreadOf(values []*float64) *Spread {
	var there []float64
	for _, v := range values {
		if v != nil {
			there = append(there, *v)
		}
	}
	if len(there) == 0 {
		return nil
	}
	s := &Spread{Median: lowerMedian(there)}
	for i, v := range there {
		there[i] = max(v-s.Median, s.Median-v)
	}
	s.MAD = lowerMedian(there)
	return s
}

// lowerMedian sorts values and returns the middle one.
func lowerMedian[F float32 | float64](values []F) F {
	slices.Sort(values)
	return values[(len(values)-1)/2]
}

// robustUnit makes the MAD of normal numbers their standard deviation: Φ⁻¹(3/4).
const robustUnit = 0.6745

// z is the modified z-score of B. Iglewicz and D. Hoaglin, How to Detect and Handle Outliers,
// 1993: 0.6745·(v - median)/MAD. nil if there is none: all others are equal.
func (s *Spread) z(v *float64) *float64 {
	if s == nil || v == nil || s.MAD == 0 {
		return nil
	}
	return finite(robustUnit * (*v - s.Median) / s.MAD)
}

// farZ is the z-score beyond which a number may be called far from the others. Trained weights
// have heavy tails, so that it must also be a given number of times larger or smaller.
const farZ = 8

// far says whether v is far from the others: beyond farZ, and by a factor.
func (s *Spread) far(v *float64, factor float64) bool {
	if s == nil || v == nil || *v == s.Median {
		return false
	}
	off := max(*v-s.Median, s.Median-*v)
	return robustUnit*off >= farZ*s.MAD && (*v >= factor*s.Median || *v*factor <= s.Median)
}
