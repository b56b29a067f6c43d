package diagnose

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
)

// Caches of keys and values that an engine does not declare, or declares wrongly.

// cacheMistakes are caches of every rounding that engines are known to have, and of E4M3 in powers of two that show in the
// first rows, whose queries see one key: the stage is that key's values there.
func cacheMistakes(f *Failure) (list []mistake) {
	caches, c := pack.Roundings(""), f.Model.Config
	if max(c.QKHeadDim(), c.ValueHeadDim()) <= 128 { // blocks are rows there: fp8-token
		caches = slices.DeleteFunc(caches, func(cache string) bool { return cache == "fp8-1x128" })
	}
	alike := map[string]string{} // what the values of the first rows do not tell a cache from
	if f.Layer >= 0 && slices.Contains(attendStages, f.Kind) && f.isFinite() {
		var before []float32
		var smaller string
		for exponent := -10; exponent <= 3; exponent++ {
			step := math.Exp2(float64(exponent))
			theirs, near := f.firstValuesIn(step)
			if !near {
				continue
			}
			cache := strings.TrimSuffix(fmt.Sprintf("fp8:%v", step), ":1")
			if slices.Equal(theirs, before) {
				alike[smaller] = fmt.Sprintf("; the first values are the same in steps of %v", step)
			}
			if before, smaller = theirs, cache; exponent != 0 {
				caches = append(caches, cache)
			}
		}
	}
	for _, cache := range caches {
		list = append(list, mistake{id: "cache-rounded", kinds: attendStages, unless: "cache-rounded",
			undo: func(x *Trial) string {
				how := x.knownRounding()
				how.Cache = cache
				if said := rounded("keys and values", cache, f.How.Cache); said != "" {
					return said + alike[cache]
				}
				return ""
			}})
	}
	return list
}

// firstValuesIn returns the first row of each sequence as it would be in E4M3 with a step, and whether that is nearer than
// ours.
func (f *Failure) firstValuesIn(step float64) (theirs []float32, near bool) {
	codes, _ := bounds.RoundingOf("fp8")
	n, last := f.Got.Width(), -1
	var want, ours []float32
	for i, row := range f.Rows {
		if sequence := row / f.Seq(); sequence != last {
			last = sequence
			for at := i * n; at < (i+1)*n; at++ {
				theirs = append(theirs, float32(step*codes.Code(float64(f.Unrounded[at])/step)))
				want, ours = append(want, f.Want[at]), append(ours, f.Unrounded[at])
			}
		}
	}
	return theirs, isNear(theirs, want, ours, mostLeft)
}
