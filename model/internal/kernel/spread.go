package kernel

import "math"

// Extremes are the least and the largest of some numbers.
type Extremes struct {
	Least, Most float32 // undefined if Largest is infinite or NaN
	Largest     float32 // the largest magnitude: +0 of no numbers, infinite or NaN if one of them is
	Zeros       uint32  // how many are 0 or -0
}

// ExtremesOf returns the extremes of fewer than 2³² numbers; Least and Most of none are 0.
func ExtremesOf(x []float32) (e Extremes) {
	if len(x) == 0 {
		return e
	}
	done := 0
	e.Least, e.Most = x[0], x[0]
	if f := current().extremes; f != nil {
		done = inChunks(len(x), func(i, n int) {
			var part Extremes
			f(&part.Least, &x[i], n)
			e.add(part)
		})
	}
	if done < len(x) {
		e.add(extremesPortable(x[done:]))
	}
	return e
}

// add adds the extremes of other numbers.
func (e *Extremes) add(o Extremes) {
	e.Least, e.Most = min(e.Least, o.Least), max(e.Most, o.Most)
	e.Largest = math.Float32frombits(max(math.Float32bits(e.Largest), math.Float32bits(o.Largest)))
	e.Zeros += o.Zeros
}

// extremesPortable is ExtremesOf in portable Go, of a number or more.
func extremesPortable(x []float32) Extremes {
	e, largest := Extremes{Least: x[0], Most: x[0]}, uint32(0)
	for _, v := range x {
		e.Least, e.Most = min(e.Least, v), max(e.Most, v)
		largest = max(largest, math.Float32bits(v)&^(1<<31))
		if v == 0 {
			e.Zeros++
		}
	}
	e.Largest = math.Float32frombits(largest)
	return e
}

// Runs is how many runs of numbers Moments and Powers add up side by side.
const Runs = 8

// Moments sets means and squares to those of the Runs runs of n numbers that x consists of, in float64, each sum
// in the order of its numbers:
//
//	mean = Σ x / n,    squares = Σ (x - mean)²
//
// Moments panics if x is not Runs runs of one length.
func Moments(means, squares *[Runs]float64, x []float32) {
	im, n := forRuns(x)
	if im.runSums == nil {
		momentsPortable(means, squares, x)
		return
	}
	im.runSums(&means[0], &x[0], n)
	for i := range means {
		means[i] /= float64(n)
	}
	im.runSquares(&squares[0], &means[0], &x[0], n)
}

// longestRun is how long runs may be for the kernels: a call takes less than 50 µs.
const longestRun = 2 * chunk / Runs

// forRuns returns the implementation that adds up the Runs runs of n numbers that x consists of. It panics if x is not Runs runs of one
// length.
func forRuns(x []float32) (im *implementation, n int) {
	n = len(x) / Runs
	if n == 0 || len(x)%Runs != 0 {
		panic("kernel: runs: lengths do not fit")
	}
	if im = current(); n%4 != 0 || n > longestRun {
		im = &portable
	}
	return im, n
}

// Powers sets squares to Σ x² of each of the Runs runs of numbers that x consists of, in float64, in the order of the
// numbers, and fourths to Σ of the squares of x², rounded to float32. It leaves x² in x. It panics as Moments does.
func Powers(squares, fourths *[Runs]float64, x []float32) {
	im, n := forRuns(x)
	for _, sums := range []*[Runs]float64{squares, fourths} {
		var zeros [Runs]float64
		if im.runSquares != nil {
			im.runSquares(&sums[0], &zeros[0], &x[0], n)
		} else {
			squaresPortable(sums, &zeros, x)
		}
		if sums == squares {
			squareAll(x, x)
		}
	}
}

// momentsPortable is Moments in portable Go.
func momentsPortable(means, squares *[Runs]float64, x []float32) {
	n := len(x) / Runs
	for i := range means {
		sum := 0.0
		for _, v := range x[i*n:][:n] {
			sum += float64(v)
		}
		means[i] = sum / float64(n)
	}
	squaresPortable(squares, means, x)
}

// squaresPortable is the squares of Moments, of any means, in portable Go.
func squaresPortable(squares, means *[Runs]float64, x []float32) {
	n := len(x) / Runs
	for i, mean := range means {
		square := 0.0
		for _, v := range x[i*n:][:n] {
			d := float64(v) - mean
			square += float64(d * d)
		}
		squares[i] = square
	}
}
