package kernel

import (
	"math"
	"unsafe"
)

// The types K of ggml choose the scales of a block's groups of numbers by trying some and taking the
// scale with the least weighted error. A kernel keeps the order of each group's sums. The groups do
// not depend on each other, so 16 groups are fitted at once.

// FitGroups is the number of groups that a Fit holds.
const FitGroups = 16

// Fit is 16 groups of at most 32 numbers and the scales that fit them. The code of number v is
// nearest(Per·(v - From)), clamped, and stands for Scale·code + Low; Stepwise stores its codes in L.
type Fit struct {
	X     [32][FitGroups]float32 // number j of group g at [j][g]
	Scale [FitGroups]float32
	Low   [FitGroups]float32 // at most 0; Symmetric leaves Low and From alone
	Per   [FitGroups]float32 // the inverse scale that gives the codes
	From  [FitGroups]float32
	W     [32][FitGroups]float32 // weight of each number
	L     [32][FitGroups]float32 // codes of Stepwise; of other fits undefined
}

// SetNumbers sets the first n numbers of each group, n being 16 or 32, to x, which holds one group after the other. Groups
// behind the end of x become 0.
func (f *Fit) SetNumbers(x []float32, n int) { setGroups(&f.X, x, n) }

// SetWeights sets the weights as SetNumbers sets the numbers.
func (f *Fit) SetWeights(w []float32, n int) { setGroups(&f.W, w, n) }

// setGroups sets number j of group g of dst to x[g·n+j].
func setGroups(dst *[32][FitGroups]float32, x []float32, n int) {
	if len(x) < FitGroups*n {
		var all [FitGroups * 32]float32
		copy(all[:], x)
		x = all[:]
	}
	if set := current().fitGroups; set != nil {
		set(&dst[0][0], &x[0], n)
		return
	}
	for g := range FitGroups {
		for j, v := range x[n*g:][:n] {
			dst[j][g] = v
		}
	}
}

// Weigh sets the weights of the first n numbers of each group, 16 or 32, to |x|, or with rms to √(Σx²/n) + |x|.
func (f *Fit) Weigh(n int, rms bool) {
	if weigh := current().fitWeights; weigh != nil {
		share := float32(0)
		if rms {
			share = 1 / float32(n)
		}
		weigh(&f.X[0][0], n, share)
		return
	}
	f.weighPortable(n, rms)
}

// WeighSquares sets the weights of the first n numbers of each group to x².
func (f *Fit) WeighSquares(n int) {
	squareAll(unsafe.Slice(&f.W[0][0], n*FitGroups), unsafe.Slice(&f.X[0][0], n*FitGroups))
}

// weighPortable is Weigh in portable Go.
func (f *Fit) weighPortable(n int, rms bool) {
	var root [FitGroups]float32
	if rms {
		for j := range n {
			for g, v := range &f.X[j] {
				root[g] += float32(v * v)
			}
		}
		for g, squares := range root {
			root[g] = float32(math.Sqrt(float64(squares / float32(n))))
		}
	}
	for j := range n {
		for g, v := range &f.X[j] {
			f.W[j][g] = root[g] + math.Float32frombits(math.Float32bits(v)&^(1<<31))
		}
	}
}

// Minimums is make_qkx2_quants and make_qkx3_quants of the first n numbers of 16 groups, n being
// 16 or 32, with the weights W. It tries the inverse scales tries[i]/(max - min), each with the
// minimum that fits best, and takes the one whose codes, 0 … most, have the least weighted sum of
// squared errors, or of absolute errors. Later tries count from the minimum of the best fit so far.
// Scale and Per of a group of equal numbers are 0.
func (f *Fit) Minimums(n, most int, tries []float32, absolute bool) {
	fit := current().fitMinimums
	if absolute {
		fit = current().fitAbsolute
	}
	if fit != nil {
		fit(&f.X[0][0], n, most, &tries[0], len(tries))
		return
	}
	for g := range FitGroups {
		f.minimumsPortable(g, n, int32(most), tries, absolute)
	}
}

// loss is the weighted error of a number: weight·diff², or weight·|diff|.
func loss(weight, diff float32, absolute bool) float32 {
	if absolute {
		return weight * math.Float32frombits(math.Float32bits(diff)&^(1<<31))
	}
	return weight * float32(diff*diff)
}

// minimumsPortable is Minimums of group g.
func (f *Fit) minimumsPortable(g, n int, most int32, tries []float32, absolute bool) {
	low, high := f.X[0][g], f.X[0][g]
	var sumW, sumX float32
	for j := range n {
		v, w := f.X[j][g], f.W[j][g]
		if v < low {
			low = v
		}
		if v > high {
			high = v
		}
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
	for j := range n {
		l := float32(Clamp(Nearest(f.Per[g]*(f.X[j][g]-low)), 0, most))
		best += loss(f.W[j][g], float32(f.Scale[g]*l)+low-f.X[j][g], absolute)
	}
	for _, try := range tries {
		per := try / (high - low)
		var sumL, sumL2, sumXL float32
		for j := range n {
			l := float32(Clamp(Nearest(per*(f.X[j][g]-low)), 0, most))
			f.L[j][g] = l
			wl := float32(f.W[j][g] * l)
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
		for j := range n {
			sum += loss(f.W[j][g], float32(scale*f.L[j][g])+least-f.X[j][g], absolute)
		}
		if sum < best {
			f.Scale[g], f.Low[g], f.Per[g], f.From[g] = scale, least, per, low
			best, low = sum, least
		}
	}
}

// Symmetric is make_qx_quants of the first n numbers of 16 groups, n being 16 or 32, with the
// weights W. It tries the inverse scales tries[i]/x_max, x_max the first number of the largest magnitude,
// fits the scale of the codes, -most … most-1, and takes the try with the least weighted sum of
// squared errors; the first one among equals. Scale and Per of a group below LeastGroup are 0.
func (f *Fit) Symmetric(n, most int, tries []float32) {
	if fit := current().fitSymmetric; fit != nil {
		fit(&f.X[0][0], n, most, &tries[0], len(tries))
		return
	}
	for g := range FitGroups {
		f.symmetricPortable(g, n, int32(most), tries)
	}
}

// LeastGroup is GROUP_MAX_EPS: a group of numbers below it is all zero.
const LeastGroup = 1e-15

// top returns the first number of the largest magnitude of n, or 0 if that is below LeastGroup.
func (f *Fit) top(g, n int) (top float32) {
	largest := uint32(0)
	for j := range n {
		if m := math.Float32bits(f.X[j][g]) &^ (1 << 31); m > largest {
			largest, top = m, f.X[j][g]
		}
	}
	if math.Float32frombits(largest) < LeastGroup {
		return 0
	}
	return top
}

// symmetricPortable is Symmetric of group g.
func (f *Fit) symmetricPortable(g, n int, most int32, tries []float32) {
	top := f.top(g, n)
	f.Scale[g], f.Per[g] = 0, 0
	if top == 0 {
		return
	}
	best := float32(0)
	for i, try := range tries {
		per, lx, l2 := try/top, float32(0), float32(0)
		for j := range n {
			v := f.X[j][g]
			l, w := float32(Clamp(Nearest(per*v), -most, most-1)), f.W[j][g]
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

// Stepwise is make_q3_quants, with 4 and do_rmse, of 16 groups of 16 numbers, the first 16 of
// each. It starts with the codes nearest(-4·x/x_max), -4 … 3, and goes at most five times through the
// numbers: a number takes the code nearest under the scale that fits the others, if that lowers the
// sum of squared errors weighted with x². Scale is 0, and all codes are -4, in a group below
// LeastGroup.
func (f *Fit) Stepwise() {
	if fit := current().fitStepwise; fit != nil {
		fit(&f.X[0][0])
		return
	}
	for g := range FitGroups {
		f.stepwisePortable(g)
	}
}

// stepwisePortable is Stepwise of group g.
func (f *Fit) stepwisePortable(g int) {
	top := f.top(g, 16)
	f.Scale[g] = 0
	if top == 0 {
		for j := range 16 {
			f.L[j][g] = -4
		}
		return
	}
	per := -4 / top
	var lx, l2 float32
	for j := range 16 {
		v := f.X[j][g]
		w, l := float32(v*v), float32(Clamp(Nearest(per*v), -4, 3))
		f.L[j][g] = l
		lx += float32(float32(w*v) * l)
		l2 += float32(float32(w*l) * l)
	}
	for changed, turn := true, 0; changed && turn < 5; turn++ {
		changed = false
		for j := range 16 {
			v, l := f.X[j][g], f.L[j][g]
			w := float32(v * v)
			wv := float32(w * v)
			x := lx - float32(wv*l)
			if !(x > 0) {
				continue
			}
			s := l2 - float32(float32(w*l)*l)
			next := float32(Clamp(Nearest(float32(v*s)/x), -4, 3))
			x += float32(wv * next)
			s += float32(float32(w*next) * next)
			if next != l && s > 0 && float32(float32(x*x)*l2) > float32(float32(lx*lx)*s) {
				f.L[j][g], lx, l2, changed = next, x, s, true
			}
		}
	}
	if l2 > 0 {
		f.Scale[g] = lx / l2
	}
}
