package diagnose

import (
	"fmt"
	"slices"

	"dsmoe/model/tensor"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
)

// Mistakes of the reference's arithmetic: products of float32 numbers that a GPU, or a setting of torch, rounded to
// fewer bits first, and sums of BF16 or F16 products that it rounded to 16 bits on the way.

// productStages are what a product is first seen at.
var productStages = slices.Concat(pack.MLPOutputs, gateStages, upStages, attendStages,
	[]string{pack.GateLogits, pack.Logits, pack.ExpertOutput, pack.PredictedFrom, pack.PredictedLogits},
	stagesOf(projections...))

// productMistakes are products of TF32 and of BF16 numbers, to nearest or cut off.
func productMistakes(f *Failure) (list []mistake) {
	for _, how := range []bounds.Operands{bounds.Nearest, bounds.CutOff} {
		for _, short := range []struct {
			id      string
			bits    int // significant ones of the operands
			numbers string
		}{
			{"tf32-products", bounds.TF32Bits, "TF32 numbers, of 10 bits of mantissa (allow_tf32, or float32_matmul_precision high)"},
			{"bf16-products", bounds.BF16Bits, "BF16 numbers, of 7 bits of mantissa (float32_matmul_precision medium)"},
		} {
			list = append(list, mistake{id: short.id, kinds: productStages, unless: short.id, undo: func(x *Trial) string {
				if f.Pack.DType != tensor.F32 || f.exceedsRounding() {
					return ""
				}
				x.Around = func(a bounds.Arithmetic) bounds.Arithmetic { return bounds.NewShortProducts(a, short.bits, how) }
				return "the reference ran in float32, but its products are those of " + short.numbers
			}})
		}
	}
	return list
}

// mostRounding is the largest share of a row's size, in root mean square, that rounded products or sums change: thirty
// roundings to BF16 change about a hundredth.
const mostRounding = 0.25

// exceedsRounding reports whether a row of the failed stage differs by more than rounded products or sums explain.
func (f *Failure) exceedsRounding() bool {
	if !slices.Contains(rowStages, f.Kind) && f.Kind != pack.Logits {
		return false
	}
	n := f.Got.Width()
	for first := 0; first < len(f.Want); first += n {
		left, whole := 0.0, 0.0
		for i, want := range f.Want[first : first+n] {
			left, whole = left+bounds.Sq(float64(want)-float64(f.Unrounded[first+i])), whole+bounds.Sq(float64(want))
		}
		if left > mostRounding*mostRounding*whole {
			return true
		}
	}
	return false
}

// sumMistakes are the schedules of sums that are tried, the cheapest first.
func sumMistakes(f *Failure) (list []mistake) {
	add := func(s bounds.Schedule) {
		list = append(list, mistake{id: "reduced-precision-sums", kinds: productStages, unless: "reduced-precision-sums",
			undo: func(x *Trial) string { return x.reduceSums(s) }})
	}
	for _, parts := range []int{2, 3, 4, 6, 8, 12, 16} {
		for _, narrow := range []bool{false, true} {
			add(bounds.Schedule{Parts: parts, Narrow: narrow})
			add(bounds.Schedule{Parts: parts, Narrow: narrow, Even: true})
		}
	}
	for _, terms := range []int{16, 8, 4} {
		add(bounds.Schedule{Terms: terms})
	}
	return list
}

const (
	// leastDecided is the least number of elements of distinct rows that tell a schedule from exact
	// sums. An element does if the two round to different values and the schedule leaves only one.
	// The golden must hold the schedule's value in all of them. A golden that another fault moved
	// does so in an element with a probability of at most 1/2: in 32 elements, under one of the
	// 31 schedules, with 7e-9. In 1671 references with wrong weights it did in at most 43 % of them.
	leastDecided = 32
	// leastMoved is the least share of elements that differ from the golden for a schedule to be
	// tried: a wrong row or element is not worth a trial. Schedules moved 29 to 71 % of the
	// elements of the first products of seven checkpoints.
	leastMoved = 1.0 / 8
	// mostSummed is the largest number of elements of a weight whose parts are copied in memory.
	mostSummed = 1 << 28
	// mostRounded is the largest number of times that accumulators are rounded in one product, for
	// about 4 s.
	mostRounded = 1 << 24
)

// reduceSums has a trial add up all products of a 16-bit reference by the schedule.
func (x *Trial) reduceSums(s bounds.Schedule) string {
	f, d := x.failed, x.failed.Pack.DType
	moved := 1 - bounds.Compare(f.Got.Values, f.Want, f.Got.Width(), f.Got.DType).BitEqual
	if d != tensor.F16 && (d != tensor.BF16 || s.Terms > 0) || moved < leastMoved || f.exceedsRounding() || !f.cutBy(s) {
		return ""
	}
	x.Proves = f.decides
	x.Around = func(a bounds.Arithmetic) bounds.Arithmetic { return bounds.NewReducedSums(a, s) }
	words := fmt.Sprintf("the reference keeps sums in %s: ", d)
	if s.Terms > 0 {
		return words + fmt.Sprintf("an accumulator that is rounded after every %d terms", s.Terms)
	}
	setting, added := "allow_bf16_reduced_precision_reduction", ", added in float32" // the setting of torch
	if d == tensor.F16 {
		setting = "allow_fp16_reduced_precision_reduction"
	}
	switch {
	case s.Parts == 2:
		added = ""
	case s.Narrow:
		added = fmt.Sprintf(", added in %s", d)
	}
	return words + fmt.Sprintf("K in %d parts%s (%s)", s.Parts, added, setting)
}

// cutBy reports whether the schedule cuts a product of the failed stage, and all its weights can be
// cut. A block that a conversion rounded does not hold the reference's 16-bit numbers.
func (f *Failure) cutBy(s bounds.Schedule) (cut bool) {
	for _, name := range f.Weights {
		w := f.Set.Find(name)
		if len(w.Shape) != 2 {
			continue
		}
		size := w.Shape[0] * w.Shape[1]
		if w.DType.Blocked() || size > mostSummed || s.Terms > 0 && len(f.Rows)*size/s.Terms > mostRounded {
			return false
		}
		cut = cut || s.Cuts(w.Shape[1])
	}
	return cut
}

// decides reports whether x, the failed stage's rows from first on in a trial, is the golden in all elements that tell
// the trial from exact sums, and whether these are enough.
func (f *Failure) decides(x *bounds.Value, first int) bool {
	width, decided := x.Width(), 0.0
	for i, want := range f.Want {
		row := i / width
		switch y, only := x.RoundsTo((f.Rows[row]-first)*width + i%width); {
		case !only || y == f.Got.Values[i]:
		case y != want:
			return false
		default:
			decided += f.RowWeights[row]
		}
	}
	return decided >= leastDecided
}
