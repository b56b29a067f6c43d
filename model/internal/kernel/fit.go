package kernel

import "math"

// The types K of ggml choose the scales of a block's groups of numbers by trying some and taking the
// scale with the least weighted error. A kernel keeps the order of each group's sums. The groups do
// not depend on each other, so eight groups are fitted at once.

// FitGroups is the number of groups that a Fit holds.
const FitGroups = 8

// Fit is eight groups of at most 32 numbers and the scales that fit them. The code of number v is
// nearest(Per·(v - From)), clamped, and stands for Scale·code + Low.
type Fit struct {
	X     [32][FitGroups]float32 // number j of group g at [j][g]
	Scale [FitGroups]float32
	Low   [FitGroups]float32 // at most 0; Symmetric leaves Low and From alone
	Per   [FitGroups]float32 // the inverse scale that gives the codes
	From  [FitGroups]float32

	w, l [32][FitGroups]float32 // weights and codes of one try
}

// Nearest is nearest_int of ggml: v rounded to the nearest integer, half to even, if |v| < 2²²;
// otherwise the low bits of a sum.
func Nearest(v float32) int32 {
	return int32(math.Float32bits(float32(v)+12582912)&0x007fffff) - 0x00400000
}

// Clamp is max(low, min(high, v)).
func Clamp(v, low, high int32) int32 { return max(low, min(high, v)) }

// Minimums is make_qkx2_quants of eight groups of 32 numbers with weights √(Σx²/32) + |x|. It tries
// the inverse scales tries[i]/(max - min), each with the minimum that fits best, and takes the one
// whose codes, 0 … most, have the least weighted sum of squared errors. Later tries count from the
// minimum of the best fit so far. Scale and Per of a group of equal numbers are 0.
func (f *Fit) Minimums(most int, tries []float32) {
	if fit := current().fitMinimums; fit != nil {
		fit(&f.X[0][0], most, &tries[0], len(tries))
		return
	}
	for g := range FitGroups {
		f.minimumsPortable(g, int32(most), tries)
	}
}

// minimumsPortable is Minimums of group g.
func (f *Fit) minimumsPortable(g int, most int32, tries []float32) {
	squares := float32(0)
	for j := range f.X {
		squares += float32(f.X[j][g] * f.X[j][g])
	}
	rms := float32(math.Sqrt(float64(squares / 32)))
	low, high := f.X[0][g], f.X[0][g]
	var sumW, sumX float32
	for j := range f.X {
		v := f.X[j][g]
		w := rms + math.Float32frombits(math.Float32bits(v)&^(1<<31))
		if v < low {
			low = v
		}
		if v > high {
			high = v
		}
		f.w[j][g] = w
		sumW += w
		sumX += float32(w * v)
	}
	if low > 0 {
		low = 0
	}
	f.Scale[g], f.Low[g], f.Per[g], f.From[g] = 0, low, 0, low
	if high == low {
		return
	}
	f.Per[g] = float32(most) / (high - low)
	f.Scale[g] = 1 / f.Per[g]
	best := float32(0)
	for j := range f.X {
		l := float32(Clamp(Nearest(f.Per[g]*(f.X[j][g]-low)), 0, most))
		diff := float32(f.Scale[g]*l) + low - f.X[j][g]
		best += float32(f.w[j][g] * float32(diff*diff))
	}
	for _, try := range tries {
		per := try / (high - low)
		var sumL, sumL2, sumXL float32
		for j := range f.X {
			l := float32(Clamp(Nearest(per*(f.X[j][g]-low)), 0, most))
			f.l[j][g] = l
			wl := float32(f.w[j][g] * l)
			sumL += wl
			sumL2 += float32(wl * l)
			sumXL += float32(wl * f.X[j][g])
		}
		det := float32(sumW*sumL2) - float32(sumL*sumL)
		if !(det > 0) {
			continue
		}
		scale := (float32(sumW*sumXL) - float32(sumX*sumL)) / det
		least := (float32(sumL2*sumX) - float32(sumL*sumXL)) / det
		if least > 0 {
			least, scale = 0, sumXL/sumL2
		}
		sum := float32(0)
		for j := range f.X {
			diff := float32(scale*f.l[j][g]) + least - f.X[j][g]
			sum += float32(f.w[j][g] * float32(diff*diff))
		}
		if sum < best {
			f.Scale[g], f.Low[g], f.Per[g], f.From[g] = scale, least, per, low
			best, low = sum, least
		}
	}
}

// Symmetric is make_qx_quants, with 32 and rmse_type 1, of eight groups of 16 numbers, the first 16
// of X. It tries the inverse scales tries[i]/x_max, x_max the first number of the largest magnitude,
// fits the scale of the codes, -32 … 31, and takes the try with the least sum of squared errors
// weighted with x²; the first one among equals. Scale and Per of a group below LeastGroup are 0.
func (f *Fit) Symmetric(tries []float32) {
	if fit := current().fitSymmetric; fit != nil {
		fit(&f.X[0][0], &tries[0], len(tries))
		return
	}
	for g := range FitGroups {
		f.symmetricPortable(g, tries)
	}
}

// LeastGroup is GROUP_MAX_EPS: a group of numbers below it is all zero.
const LeastGroup = 1e-15

// symmetricPortable is Symmetric of group g.
func (f *Fit) symmetricPortable(g int, tries []float32) {
	largest, top := uint32(0), float32(0)
	for j := range 16 {
		if m := math.Float32bits(f.X[j][g]) &^ (1 << 31); m > largest {
			largest, top = m, f.X[j][g]
		}
	}
	f.Scale[g], f.Per[g] = 0, 0
	if math.Float32frombits(largest) < LeastGroup {
		return
	}
	best := float32(0)
	for i, try := range tries {
		per, lx, l2 := try/top, float32(0), float32(0)
		for j := range 16 {
			v := f.X[j][g]
			l, w := float32(Clamp(Nearest(per*v), -32, 31)), float32(v*v)
			lx += float32(float32(w*v) * l)
			l2 += float32(float32(w*l) * l)
		}
		switch {
		case i == 0:
			f.Per[g] = per
			if l2 != 0 {
				f.Scale[g] = lx / l2
			}
			best = float32(f.Scale[g] * lx)
		case l2 > 0 && float32(lx*lx) > float32(best*l2):
			f.Per[g], f.Scale[g] = per, lx/l2
			best = float32(f.Scale[g] * lx)
		}
	}
}
