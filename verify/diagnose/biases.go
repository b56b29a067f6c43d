package diagnose

import (
	"fmt"
	"math"

	"dsmoe/verify/bounds"
)

// biasOffMistakes is a bias that is not the reference's, read off a failed projection of attention: all rows are off by
// one vector.
func biasOffMistakes(f *Failure) []mistake {
	if f.Want == nil || f.distinctRows() < leastFactorRows || !bounds.AllFinite(f.Want) || !bounds.AllFinite(f.Unrounded) {
		return nil
	}
	off := make([]float32, f.Got.Width())
	for c := range off {
		if !f.sameIn(c, &off[c]) {
			return nil
		}
	}
	return []mistake{{id: "bias-wrong", kinds: []string{f.kind()}, undo: func(x *Trial) string {
		for l, stage := range x.Projections() {
			if stage != f.Name || l.Bias.Name == "" {
				continue
			}
			values, err := l.Bias.Float32s(nil)
			if err != nil {
				return ""
			}
			l.Bias.Tensor = vectorOf(values, func(i int, v float32) float32 { return v + off[i] })
			return fmt.Sprintf("%s is not the reference's: all rows are off by one vector", l.Bias.Name)
		}
		return ""
	}}}
}

// sameIn reports whether all rows of a column are off by one number, and sets off to their mean.
func (f *Failure) sameIn(c int, off *float32) bool {
	width, sum := f.Got.Width(), 0.0
	for i := c; i < len(f.Want); i += width {
		sum += float64(f.Want[i]) - float64(f.Unrounded[i])
	}
	mean := sum / float64(f.Got.Rows())
	for i := c; i < len(f.Want); i += width {
		if math.Abs(float64(f.Want[i])-float64(f.Unrounded[i])-mean) > f.tolerance(i, i) {
			return false
		}
	}
	*off = float32(mean)
	return true
}
