package bounds

import (
	"math"
	"slices"

	"dsmoe/model"
	"dsmoe/model/tensor"
)

// Arithmetic is one of values with variances.
type Arithmetic = model.Arithmetic[*Value]

// Analysis is the arithmetic of running error analysis: Plain's values, and beside each a
// variance. Formulas in its comments are in units of u² for variances.
//
// An operation's last rounding is put off until its result is used: a trace sees what was
// computed before it, with its variance.
type Analysis struct {
	plain     *model.Plain // computes values, unrounded
	errors    *model.Plain // computes variances, in float32
	chain     bool         // the reference sums in one chain, not in blocks
	serial    bool         // sums of norms are one chain of float32, in order
	reference Reference
	noise     float64    // factor on the variance of products: 2 if our own sums are float32
	t         *precision // of the compute dtype
	points    Points     // where the reference, or an engine, rounds
	last      string     // the operation of the last product's weight
	// lastWeight is that weight.
	lastWeight *model.Weight
	layer      int // of the last weight that was read
	// rounded are weights that the reference had before they were rounded.
	rounded Roundings
	// Decoded returns the half steps of a weight that was decoded from a rounded dtype; nil if
	// it was not. It is nil if there is none.
	Decoded func(name string) []float32
}

// NewAnalysis returns an arithmetic for one pass of a reference of dtype o.DType, with
// weights some of which were rounded since.
func NewAnalysis(o model.Options, rounded Roundings) *Analysis {
	a := &Analysis{t: PrecisionOf(o.DType), plain: model.NewPlain(o), chain: o.DType == tensor.F16, reference: Reference{Threads: 1}, noise: 1, rounded: rounded}
	if o.Accumulate == model.Float32 {
		a.noise = 2
	}
	o.Accumulate = model.Float32
	a.errors = model.NewPlain(o)
	return a
}

// Reference is how the reference computes products, as far as that is known of it.
type Reference struct {
	Threads int  // of a CPU
	OneDNN  bool // may compute products in float32, as it does on a CPU with the float32_matmul_precision "medium"
	Fused   bool // attention is, as sdpa is: it may leave out roundings of scores and probabilities
	GPU     bool
	TF32    bool // the GPU rounds the operands of float32 products to TF32
}

// SetReference sets how the reference computes products.
func (a *Analysis) SetReference(r Reference) { a.reference = r }

// SetPoints sets where the reference, or an engine, rounds.
func (a *Analysis) SetPoints(p Points) { a.points = p }

// Close takes all memory back. Nothing that the arithmetic gave must be used any more.
func (a *Analysis) Close() {
	a.plain.Close(nil)
	a.errors.Close(nil)
}

// sums is how the reference adds up the terms of a sum, as far as its rounding errors depend on that.
type sums struct {
	least   float64 // variance of what partial sums lose because numbers are denormal
	kappa   float64 // κ: variance of terms in random order, over Σ(w·x)² + y²
	ordered float64 // variance of terms in natural order, over the squares of the powers of two below partial sums
	plans   []int   // lengths of the chains in which libraries add such terms, one of which the reference's has
}

// sums are the sums of K terms.
func (a *Analysis) sums(k int) *sums { return newSums(k, a.kappa(k), a.noise, a.chain) }

// newSums are the sums of K terms with this κ, in blocks or in one chain, too.
func newSums(k int, kappa, noise float64, oneChain bool) *sums {
	return &sums{denormal * float64(k) / 12, kappa, noise / 3, plans(k, oneChain)}
}

// kappa is κ of sums of K terms. One chain rounds K partial sums, each with variance 1/6 of its square;
// blocks have at most 512, and K/64 totals:
//
//	κ(K) = (min(K, 512) + K/64)/6, of one chain K/6
func (a *Analysis) kappa(k int) float64 {
	terms := float64(k)
	if !a.chain {
		terms = min(terms, 512) + terms/64
	}
	return a.noise * terms / 6
}

// gemm are the sums of K terms of a product of matrices of dtype d. oneDNN adds up to 544 terms in one chain, chains of
// 512 up to 1055, and of 1024 beyond, as was found of torch 2.8 and 2.15; it computes all products in BF16. Terms in
// random order have no more variance in these than κ says. Processors' products of BF16 numbers (AVX512_BF16, AMX) turn
// denormal sums into 0: K partial sums lose less than the least normal number each, a quarter of which is a deviation.
//
// A GPU adds float32 terms in one chain. Its tensor cores, which compute products of 16 bits and of TF32, add L terms or
// more to a sum S at a time and cut it off toward zero: half a spacing is lost on average, u·r with r = power(S), with the
// sign of S each time. The square of what K/L partial sums lose is a variance:
//
//	(Σ u·r)² ≤ K/L · Σ (u·r)² = K/L² · u²·Σ r² of the partial sums of one chain of K terms, an L-th of which is there
//
// L is 4, in Volta, or more. Products of F16 and TF32 numbers have 22 bits and are cut off, too: terms of one sign lose
// then what L = 2 says.
func (a *Analysis) gemm(d tensor.DType, k int) *sums {
	s := a.sums(k)
	if d == tensor.BF16 {
		s.least = Sq(float64(k) * leastNormal / 4 / Unit)
	}
	switch {
	case a.reference.GPU:
		s.kappa, s.plans = max(s.kappa, a.noise*float64(k)/6), plans(k, true)
		switch {
		case d == tensor.BF16:
			s.ordered = max(s.ordered, a.noise*float64(k)/(4*4))
		case d == tensor.F16 || a.reference.TF32:
			s.ordered = max(s.ordered, a.noise*float64(k)/(2*2))
		}
	case k <= 512:
	case d == tensor.BF16:
		s.plans = []int{512, 1024}
	case d == tensor.F32 && a.reference.OneDNN:
		s.plans = append(s.plans, 1024)
	}
	return s
}

// linear are the sums of a product of x with a weight of so many outputs. MKL computes few rows or outputs without
// blocks, in four sums of every fourth term.
func (a *Analysis) linear(x *Value, outputs int) *sums {
	s, k := a.gemm(x.DType, x.Width()), x.Width()
	if a.few(x.Rows(), outputs) && !a.chain {
		s.kappa, s.plans = max(s.kappa, a.noise*float64(k)/4/6), plans(k, true)
	}
	return s
}

// few reports whether MKL computes a product of so many rows and outputs, or some of it, without blocks: up to 3 rows
// for each thread, or up to 11 outputs. 4 threads and more share the outputs in 16, of which as few may remain. Found
// of torch 2.8 and 2.15, for 256 to 7168 terms, by which terms are lost beside two large ones that cancel.
func (a *Analysis) few(rows, outputs int) bool {
	const fewRows, fewOutputs, shared = 3, 11, 16
	remain := outputs % shared
	return rows <= fewRows*a.reference.Threads || outputs <= fewOutputs ||
		a.reference.Threads >= 4 && outputs < 256 && remain > 0 && remain <= fewOutputs
}

// plans returns the lengths of chains in which libraries add up k terms: torch 2.8, whose MKL was reproduced
// to the bit, up to 192, two halves up to 384, chains of 192 beyond; others 512, which is one chain up to
// 512 terms. oneChain adds all terms in one chain for more of them, too. A half is rounded up
// to a multiple of 4, as the kernels need it.
func plans(k int, oneChain bool) []int {
	const short, long = 192, 512
	half := (k + 7) / 8 * 4
	switch {
	case k <= short:
		return []int{max(k, 1)}
	case half < short:
		return []int{k, short, half}
	case k <= long:
		return []int{k, short}
	case oneChain:
		return []int{k, short, long}
	}
	return []int{short, long}
}

// variance of a sum y is the variance of rounding its partial sums, the larger of two estimates:
//
//	v_κ = κ·(squares + y²)   of terms in random order, whose squares have this sum
//	v_B = Σ r²/3             of terms in natural order, the largest of the plans': partial = Σ r², r = power(S), of
//	                         the partial sums S of chains, and of the totals of the chains
//
// squares and partial are sums over numbers of 8 bits (see model.Partial). A float32 S is rounded to a multiple of
// 2u·r, or next to it, with variance (2u·r)²/12. Its mean over a binade is (u·S)²/6, but sums of alike rows lie at one
// place of a binade. Measured of terms of one sign and size per head, or of two signs one after the other, the worst
// that was found: RMS of z up to 1.06 with 128 terms and more, 1.10 with 32.
func (s *sums) variance(y, partial, squares float64) float64 {
	random, ordered := float64(s.kappa*(squares+Sq(y))), s.ordered*partial
	if squares == 0 && ordered == 0 {
		return 0 // a sum of zeros
	}
	if ordered > random || ordered != ordered { // faster than max
		return s.least + ordered
	}
	return s.least + random
}

// power is the largest power of two that is at most |x|; 0 of 0.
func power(x float64) float64 {
	return math.Float64frombits(math.Float64bits(x) & 0x7ff0000000000000)
}

// addition is a sum whose terms are added in their natural order, in one chain.
type addition struct{ y, v, partial, squares float64 }

// add returns the sum with a term y of variance v more. By value it stays in registers.
func (s addition) add(y, v float64) addition {
	s.y += y
	return addition{s.y, s.v + v, s.partial + Sq(power(s.y)), s.squares + Sq(y)}
}

// variance is the variance of the sum, that of its terms included.
func (s addition) variance(of *sums) float64 {
	return s.v + of.variance(s.y, s.partial+Sq(power(s.y)), s.squares)
}

// lanes are 8 float32 sums of every eighth of many numbers of one sign: a compiled sum with AVX2, whose partial sums
// are at least those of more lanes, and of the shorter chains of torch's own sums. Their errors are not small beside
// one massive number, nor independent: each partial sum is a multiple of its spacing, so that what is lost of a term is
// what the term has beyond that. Of squares of BF16 numbers it has one sign: an odd number's square is 1 more than a
// multiple of 8, and a tie goes down where the partial sum is even.
type lanes struct {
	sum     [8]float64
	v, lost float64
}

// add adds number i.
func (l *lanes) add(i int, term float64) {
	if term == 0 {
		return
	}
	s := &l.sum[i%len(l.sum)]
	if *s += term; *s == term { // exact
		return
	}
	v, lost := rounding(*s, term)
	l.v, l.lost = l.v+v, l.lost+lost
}

// addSquares adds the squares of a row. Sums that are not in memory wait less for each other.
func (l *lanes) addSquares(row []float32) {
	v, lost := l.v, l.lost
	for i, x := range row {
		if x == 0 {
			continue
		}
		s, term := &l.sum[i%len(l.sum)], Sq(float64(x))
		if *s += term; *s != term {
			vs, losts := rounding(*s, term)
			v, lost = v+vs, lost+losts
		}
	}
	l.v, l.lost = v, lost
}

// rounding returns the variance of rounding a partial sum s to float32, and what is lost of its last term.
func rounding(s, term float64) (v, lost float64) {
	r := power(s)
	c := 0x1.8p52 * 2 * Unit * r // sums of this size are multiples of the spacing
	return Sq(r) * (1.0 / 3), (term - (term + c - c)) / Unit
}

// total returns the sum, and the variance that rounding gives it:
//
//	v = Σ r²/3 of the partial sums of the lanes, and twice of the totals of lanes + (Σ lost)²
func (l *lanes) total() (sum, v float64) {
	v = l.v + Sq(l.lost)
	for i, s := range l.sum {
		if sum += s; i > 0 {
			v += 2 * Sq(power(sum)) / 3
		}
	}
	return sum, v
}

// result returns a value whose elements are to be set.
func (a *Analysis) result(d tensor.DType, shape ...int) *Value {
	return &Value{Activation: a.plain.Make(d, shape...), sigma: a.errors.Make(tensor.F32, shape...), roundLater: true}
}

// computed is what Plain computed in float32, as a value of dtype d whose variances are to
// be set.
func (a *Analysis) computed(y *model.Activation, d tensor.DType) *Value {
	y.DType = d
	return &Value{Activation: y, sigma: a.errors.Make(tensor.F32, y.Shape...), roundLater: true}
}

// settle applies x's last rounding if it is still due, and distributes the errors that its rows share.
func (a *Analysis) settle(x *Value) *Value {
	if x.roundLater && x.DType != tensor.F32 {
		a.round(x)
	}
	x.DistributeShared()
	x.roundLater = false
	return x
}

// round makes each element of x a rounding point, with the errors that its row shares.
func (a *Analysis) round(x *Value) {
	p := PrecisionOf(x.DType)
	if x.sigma == nil {
		for i, y := range x.Values {
			x.Values[i] = tensor.Rounded(y, x.DType)
		}
		return
	}
	a.plain.Each(x.Rows(), 4*len(x.Values), func(t int) {
		if x.shared != nil {
			x.distributeShared(t)
		}
		values, sigmas := x.Row(t), x.sigma.Row(t)
		for i, y := range values {
			v := Sq(float64(sigmas[i]))
			if r, room, usual := p.nearest(y); usual && within(v, room) || y == 0 && v <= denormal {
				values[i], sigmas[i] = r, 0
			} else {
				r, v := p.point(float64(y), v)
				x.Set(t*x.Width()+i, r, v)
			}
		}
	})
	x.shared = nil
}

// point is a rounding point inside an operation on values of precision p; in float32, where it is inlined, there is
// nothing to round.
func point(p *precision, y, v float64) (float64, float64) {
	if p == f32 {
		return y, v
	}
	return p.point(y, v)
}

// Scope implements model.Arithmetic. It keeps no reference to x while f runs.
func (a *Analysis) Scope(x *Value, f func(x *Value) *Value) *Value {
	values, errors := a.plain.Enter(x.Activation), a.errors.Enter(x.sigma)
	y := f(x)
	for i, p := range y.Products {
		y.Products[i].hidden, y.Products[i].common = slices.Clone(p.hidden), slices.Clone(p.common)
	}
	if n := y.Float32Scores; n != nil {
		n.Activation, n.sigma = copied(n.Activation), copied(n.sigma)
	}
	errors.Leave(y.sigma)
	values.Leave(y.Activation)
	return y
}

// Try runs f, and takes back what it made.
func (a *Analysis) Try(f func()) {
	a.plain.Scope(&model.Activation{}, func(nothing *model.Activation) *model.Activation {
		a.scratch(func() *model.Activation {
			f()
			return nothing
		})
		return nothing
	})
}

// scratch returns what f made, and takes back what else f took from a.errors.
func (a *Analysis) scratch(f func() *model.Activation) *model.Activation {
	return a.errors.Scope(&model.Activation{}, func(*model.Activation) *model.Activation { return f() })
}

// perRow are the variances v of x's elements y, or with a factor (y²/u² + v)·factor, in units of the largest of each
// row, so that small ones do not vanish.
func (a *Analysis) perRow(x *Value, factor float64) (terms []float32, units []float64) {
	all := a.errors.Make(tensor.F32, x.Shape...)
	units = make([]float64, x.Rows())
	a.plain.Each(x.Rows(), 2*len(x.Values), func(t int) {
		term := func(i int) float64 {
			v := x.Variance(i)
			if factor > 0 {
				v = (Sq(float64(x.Values[i])/Unit) + v) * factor
			}
			return v
		}
		from, to, most := t*x.Width(), (t+1)*x.Width(), uint64(0)
		for i := from; i < to; i++ {
			most = max(most, math.Float64bits(term(i))) // as of numbers, which are not negative; of NaN more than all
		}
		if units[t] = math.Float64frombits(most); most == 0 {
			units[t] = 1
		}
		for i := from; i < to; i++ {
			all.Values[i] = float32(term(i) / units[t])
		}
	})
	return all.Values, units
}

// Roundings are the weights that a conversion rounded to the dtype they are stored in, and how.
type Roundings map[string]tensor.Rounding

// AllRounded says that all elements of a weight were rounded by an operation.
func AllRounded(by string) tensor.Rounding { return tensor.Rounding{By: by} }

// partialSums is the variance of rounding the sums of 2 … n-1 of a sum's n terms, in any order:
//
//	Σ_j ulp(|y|·j/n + √(j/n·Σ term²))²/12
func (p *precision) partialSums(of addition, n int) (v float64) {
	for j := 2; j < n; j++ {
		part := float64(j) / float64(n)
		v += Sq(p.Ulp(math.Abs(of.y)*part+math.Sqrt(part*of.squares))/Unit) / 12
	}
	return v
}
