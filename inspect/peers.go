package inspect

import (
	"dsmoe/model/tensor"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat/distuv"
)

// falseAlarms is how often a healthy model may have a finding of one kind. There are fewer than ten kinds with a
// limit from Peers, so that one healthy model in a thousand has a finding.
const falseAlarms = 1e-4

// LeastPeers is the number of values below which none of them is the odd one: the spread of fewer is not known well
// enough for any limit.
const LeastPeers = 8

// Peers are values that should be alike, and how far they are from their median.
type Peers struct {
	Median float64 // the lower of the two middle values
	Unit   float64 // standard deviation, from the three quarters of the values that are nearest to the median
	Limit  float64 // distance from the median, in units, that chance exceeds at the rate falseAlarms
}

// nearestRMS is the RMS of the three quarters of normal numbers that are nearest to 0: those within q = 1.1503, where
// it is √(1 - 2qφ(q)/0.75).
const nearestRMS = 0.607

// PeersOf returns the peers of the values that are numbers, when a model has so many of the kind; nil below LeastPeers.
//
// The limit is the quantile of Student's t with 0.75·(n - 1.5) degrees of freedom, about as many as the quarter that
// is left out leaves. For normal numbers, n from 8 to 64 and rates down to 10⁻⁵, simulation gives at most 1.1 times
// the rate. A quarter of the values may be odd without hiding each other.
func PeersOf(values []float64, tests int) *Peers {
	finite := slices.DeleteFunc(slices.Clone(values), func(v float64) bool { return !tensor.IsFinite(v) })
	n := len(finite)
	if n < LeastPeers {
		return nil
	}
	p := &Peers{Median: LowerMedian(finite)}
	for i, v := range finite {
		finite[i] = Magnitude(v - p.Median)
	}
	slices.Sort(finite)
	squares, kept := 0.0, 3*n/4
	for _, d := range finite[:kept] {
		squares += float64(d * d)
	}
	p.Unit = math.Sqrt(squares/float64(kept-1)) / nearestRMS
	t := distuv.StudentsT{Sigma: 1, Nu: 0.75 * (float64(n) - 1.5)}
	p.Limit = -t.Quantile(falseAlarms / 2 / float64(max(tests, n)))
	return p
}

// The slope of a tail is measured between the distances that these shares of the values exceed. The second share is at
// least ten values.
const (
	tailFrom = 0.1
	tailTo   = 0.005
)

// TailedPeersOf is PeersOf for many values of unknown distribution. Their tail is continued as that of an exponential
// distribution, heavier than the normal one, from the distances that tailFrom and tailTo of the values exceed.
func TailedPeersOf(values []float64, tests int) *Peers {
	p := PeersOf(values, tests)
	if p == nil || p.Unit == 0 {
		return p
	}
	var off []float64
	for _, v := range values {
		if tensor.IsFinite(v) {
			off = append(off, Magnitude(v-p.Median))
		}
	}
	slices.Sort(off)
	n := float64(len(off))
	to := max(tailTo, 10/n)
	if to > tailFrom/4 { // too few values
		return p
	}
	near, far := off[int(n*(1-tailFrom))], off[int(n*(1-to))]
	slope := (far - near) / math.Log(tailFrom/to)
	limit := far + slope*math.Log(to*float64(max(tests, len(off)))/falseAlarms)
	p.Limit = max(p.Limit, limit/p.Unit)
	return p
}

// Z is how many units v is from the median.
func (p *Peers) Z(v float64) float64 { return (v - p.Median) / p.Unit }

// Odd reports whether v is beyond the limit, and at least so far from the median. p may be nil; no NaN is odd.
func (p *Peers) Odd(v, least float64) bool {
	return p != nil && tensor.IsFinite(v) && Magnitude(v-p.Median) >= max(least, p.Limit*p.Unit)
}
