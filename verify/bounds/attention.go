package bounds

import (
	"math"
	"slices"

	"dsmoe/model"
	"dsmoe/model/tensor"
)

// Tables implements model.Arithmetic. They may be off by one float32 unit each, v = cos²,
// sin²; where the reference may have another inv_freq, by its angle's distance d, too: v += sin²·d²
// of the cosine, and of the sine likewise; where a table is cast, that is a rounding point.
func (a *Analysis) Tables(r *model.Rotary) (cos, sin *Value) {
	shape, d := []int{len(r.Angles) / r.Half, r.Half}, r.DType
	if a.way(RoPETables) == InF32 {
		d = tensor.F32
	}
	cos, sin = a.result(d, shape...), a.result(d, shape...)
	for i, angle := range r.Angles {
		s, c := math.Sincos(float64(angle))
		s, c = float64(float32(s)*r.Factor), float64(float32(c)*r.Factor)
		turned := Sq((float64(r.Others[i]) - float64(angle)) / Unit)
		cos.Set(i, c, Sq(c)+float64(Sq(s)*turned))
		sin.Set(i, s, Sq(s)+float64(Sq(c)*turned))
	}
	return cos, sin
}

// RoPE implements model.Arithmetic: four products and two sums, all exact.
func (a *Analysis) RoPE(x, cosines, sines *Value, r *model.Rotary) *Value {
	x, cosines, sines = a.settle(x), a.settle(cosines), a.settle(sines)
	y := a.result(x.DType, x.Shape...)
	y.roundLater, y.ColumnsShare = false, x.sigma != nil
	p := PrecisionOf(x.DType)
	inner := p
	if inner = rounds(p, a.way(RoPE), Once); r.Whole {
		inner = f32
	}
	width, seq := x.Width(), x.Shape[2]
	from, _ := r.Part(width)
	a.plain.Each(x.Rows(), 16*width, func(t int) {
		copy(y.Row(t), x.Row(t))
		y.copyDeviations(x, t*width, (t+1)*width)
		first, table := t*width+from, t%seq*r.Half
		for i := range r.Half {
			ia, ib := r.Pair(i)
			ia, ib = first+ia, first+ib
			xa, xb, cos, sin := x.element(ia), x.element(ib), cosines.element(table+i), sines.element(table+i)
			y.rotate(ia, p, inner, xa, cos, uncertain{-xb.y, xb.v}, sin)
			y.rotate(ib, p, inner, xb, cos, xa, sin)
		}
	})
	return y
}

// rotate sets element i to a·cos + b·sin, with a sum of precision p and products of precision inner.
func (x *Value) rotate(i int, p, inner *precision, a, cos, b, sin uncertain) {
	ac, va := times(a.y, a.v, cos.y, cos.v)
	bs, vb := times(b.y, b.v, sin.y, sin.v)
	ac, va = point(inner, ac, va)
	bs, vb = point(inner, bs, vb)
	sum := float64(float32(ac + bs))
	sum, v := point(p, sum, exactly(sum, va+vb))
	x.Set(i, sum, v)
}

// Scores implements model.Arithmetic, of queries and keys of n dims:
//
//	s = q·k:  v = Σ v_q·k² + Σ q²·v_k + sums.variance, a rounding point
//	scale, exact, a rounding point; masked ones are exact
//
// If attention is fused both roundings may happen or not; in Float32Scores they do not.
func (a *Analysis) Scores(q, k *Value, first, n int, s *model.Scoring) *Value {
	p := PrecisionOf(q.DType)
	if a.reference.Fused && p != f32 {
		y := a.scores(q, k, first, n, &scoring{s, f32, p.mayRound, p.mayRound})
		y.Float32Scores = a.scores(q, k, first, n, &scoring{s, f32, f32.keep, f32.keep})
		return y
	}
	switch a.way(Scores) {
	case Unknown:
		return a.scores(q, k, first, n, &scoring{s, f32, p.mayRound, p.mayRound})
	case InF32:
		return a.scores(q, k, first, n, &scoring{s, f32, f32.keep, f32.keep})
	case "R,f32":
		return a.scores(q, k, first, n, &scoring{s, f32, p.point, f32.keep})
	case "R":
		return a.scores(q, k, first, n, &scoring{s, f32, f32.keep, p.point})
	}
	return a.scores(q, k, first, n, &scoring{s, p, p.point, p.point})
}

// keep is y and v: no rounding.
func (p *precision) keep(y, v float64) (float64, float64) { return y, v }

// scoring is a Scoring whose results are rounded twice, each time to certain or to float32.
type scoring struct {
	*model.Scoring
	certain *precision // where both roundings are point, to a dtype of 16 bits
	// product and scaled round a product of a query and a key, and the same with the scale.
	product, score func(y, v float64) (float64, float64)
}

// scores are Scores with the roundings of s.
func (a *Analysis) scores(q, k *Value, first, n int, s *scoring) *Value {
	q, k = a.settle(q), a.settle(k)
	y := &Value{Activation: a.plain.Scores(q.wide(), k.wide(), first, n, &model.Scoring{By: 1})}
	y.DType = q.DType
	sums := a.gemm(q.DType, q.Width())
	y.sigma = a.errors.Make(tensor.F32, y.Shape...)
	var units []float64
	a.scratch(func() *model.Activation {
		var squares *model.Activation
		squares, units = a.doubled(q, k, first, n)
		a.errors.ScoresSquares(y.sigma, squares, k.squared, first, s.Mask)
		return y.sigma
	})
	a.plain.ScoresPartial(q.Activation, k.Activation, first, n, s.Mask, sums.plans, func(at int, partial, squares []float64) {
		y.add(sums, at, units[at/y.Width()], partial, squares)
	})
	heads, seq := q.Shape[1], k.Shape[2]
	a.plain.Each(q.Shape[0]*heads*n, 16*seq, func(t int) {
		batch, query := t/(heads*n), first+t%n
		visible := s.Mask.Reach(query, seq)
		for key := range visible {
			if i := t*seq + key; s.Mask.Masked(batch, query, key) {
				y.mask(i, i+1, s)
			} else {
				y.score(i, units[t], s)
			}
		}
		y.mask(t*seq+visible, (t+1)*seq, s)
	})
	if q.DType != tensor.F32 && q.sigma != nil {
		y.queries = &queries{q, k, first, n, s.scaled(1)}
	}
	return y.inherit(q, k)
}

// addTo adds to row t of the contexts y = probs·V what an error of one element d of a query does through all keys at
// once: it moves each score by its key, so that contexts move by what the keys' element and the values have in common:
//
//	v += Σ_d v_q·(Σ_j p_j·(k_jd - Σ p·k_d)·V_j)²
//
// Beside it the errors of single scores vanish with the root of the number of keys: of two elements that were rounded
// the other way z was 5.9 at token 2,635. In float32, where all elements of a query have errors, those of sums and
// exponentials are larger: for 32,768 tokens and keys and values that are random images of the same 512 numbers, or
// more, this would make deviations at most 1.12 times as large.
func (s *queries) addTo(y, probs, vT *Value, t int) {
	keys, width, dim := probs.Width(), y.Width(), s.q.Width()
	row := (t/s.n)*s.q.Shape[2] + s.first + t%s.n
	k, values, p := s.k.matrixAt(groupOf(t/s.n, s.q, s.k)), vT.matrixAt(groupOf(t/s.n, probs, vT)), probs.Row(t)
	for len(p) > 0 && p[len(p)-1] == 0 { // later keys
		p = p[:len(p)-1]
	}
	var moves []float64
	column := func(c int) []float32 { return values.y[c*keys:][:len(p)] }
	add := func(c int, v, sum float64) {
		i := t*width + c
		y.Set(i, float64(y.Values[i]), y.Variance(i)+float64(v*Sq(sum*s.by)))
	}
	for d := range dim {
		v := s.q.Variance(row*dim + d)
		if q := float64(s.q.Values[row*dim+d]); v <= Sq(64*q) { // exact, or of float32: a flip of 16 bits is larger
			continue
		}
		mean := 0.0
		for j, pj := range p {
			mean += float64(float64(pj) * float64(k.y[j*dim+d]))
		}
		moves = moves[:0]
		for j, pj := range p {
			moves = append(moves, float64(pj)*(float64(k.y[j*dim+d])-mean))
		}
		c := 0
		for ; c+4 <= width; c += 4 { // four sums at a time, as each addition waits for the one before
			of0, of1, of2, of3 := column(c), column(c+1), column(c+2), column(c+3)
			var sum0, sum1, sum2, sum3 float64
			for j, m := range moves {
				sum0 += float64(m * float64(of0[j]))
				sum1 += float64(m * float64(of1[j]))
				sum2 += float64(m * float64(of2[j]))
				sum3 += float64(m * float64(of3[j]))
			}
			add(c, v, sum0)
			add(c+1, v, sum1)
			add(c+2, v, sum2)
			add(c+3, v, sum3)
		}
		for ; c < width; c++ {
			sum := 0.0
			for j, of := range column(c) {
				sum += float64(moves[j] * float64(of))
			}
			add(c, v, sum)
		}
	}
}

// add adds the variance of sums s to the variances of y's elements, in this unit, from element at on.
func (y *Value) add(s *sums, at int, unit float64, partial, squares []float64) {
	values, variances, squares := y.Values[at:at+len(partial)], y.sigma.Values[at:at+len(partial)], squares[:len(partial)]
	for i, p := range partial {
		variances[i] += float32(s.variance(float64(values[i]), p, squares[i]) / unit)
	}
}

// mask turns the elements from one to another, products of queries and keys, into scores that the mask hides.
func (x *Value) mask(from, to int, s *scoring) {
	if from == to {
		return
	}
	lowest, by := s.Mask.Lowest, max(s.By, 1)
	clear(x.sigma.Values[from:to])
	for i, y := range x.Values[from:to] {
		if lowest+4*y*by != lowest { // else it is the lowest, whatever the roundings are
			x.score(from+i, 0, s)
			lower := tensor.Rounded(x.Values[from+i]+lowest, x.DType)
			x.Values[from+i], x.sigma.Values[from+i] = lower, 0
		} else {
			x.Values[from+i] = lowest
		}
	}
}

// score turns element i, a product of a query and a key beside its variance in this unit, into a score.
func (x *Value) score(i int, unit float64, s *scoring) {
	single := x.Values[i]
	y, v := float64(single), float64(float64(x.sigma.Values[i])*unit)
	v = roughly(y, v)
	if r, room, usual := s.certain.nearest(single); usual && within(v, room) {
		x.Values[i], x.sigma.Values[i] = tensor.Rounded(float32(s.scaled(float64(r))), x.DType), 0
		return
	}
	if x.DType != tensor.F32 {
		y, v = s.product(y, v)
	}
	y = float64(float32(s.scaled(y)))
	if s.Divides {
		v /= Sq(float64(s.By))
	} else {
		v *= Sq(float64(s.By))
	}
	if v = exactly(y, v); x.DType != tensor.F32 {
		y, v = s.score(y, v)
	}
	x.Set(i, y, v)
}

// scaled is y with the scale.
func (s *scoring) scaled(y float64) float64 {
	if s.Divides {
		return y / float64(s.By)
	}
	return y * float64(s.By)
}

// doubled is [v_x, x²] of the rows first … first+n-1 of each matrix of x [batch, heads, rows, width], beside which
// other.squared is [z², v_z] of each row of other, settled keys or values. Units are those of the rows' products with
// the latter.
func (a *Analysis) doubled(x, other *Value, first, n int) (both *model.Activation, units []float64) {
	if other.squared == nil {
		other.squared = &model.Activation{Shape: slices.Concat(other.Shape[:3], []int{2 * other.Width()}),
			Values: make([]float32, 2*len(other.Values)), DType: tensor.F32}
		other.squaredUnit = Sq(other.scale(0, len(other.Values)))
		a.plain.Each(other.squared.Rows(), 2*len(other.squared.Values), func(t int) {
			row := other.squared.Row(t)
			other.squares(row[:other.Width()], row[other.Width():], t, other.squaredUnit)
		})
	}
	both = a.errors.Make(tensor.F32, x.Shape[0], x.Shape[1], n, 2*x.Width())
	units = make([]float64, both.Rows())
	a.plain.Each(both.Rows(), 2*len(both.Values), func(t int) {
		row, from := both.Row(t), t/n*x.Shape[2]+first+t%n
		unit := Sq(x.scale(from*x.Width(), (from+1)*x.Width()))
		x.squares(row[x.Width():], row[:x.Width()], from, unit)
		units[t] = unit * other.squaredUnit
	})
	return both, units
}

// scale returns a power of two near the largest of the numbers and deviations from … to-1, so that their squares
// neither vanish nor overflow: 1 if all are 0.
func (x *Value) scale(from, to int) float64 {
	most := largest(x.Values[from:to])
	if x.sigma != nil {
		most = max(most, largest(x.sigma.Values[from:to]))
	}
	if p := power(float64(most)); p > 0 && tensor.IsFinite(p) {
		return p
	}
	return 1
}

// squares sets the squares and the variances of row t of x, in this unit.
func (x *Value) squares(squares, variances []float32, t int, unit float64) {
	for i, y := range x.Row(t) {
		squares[i] = float32(Sq(float64(y)) / unit)
	}
	if x.sigma == nil {
		clear(variances)
		return
	}
	for i, s := range x.sigma.Row(t) {
		variances[i] = float32(Sq(float64(s)) / unit)
	}
}

// Context implements model.Arithmetic. With p's own variance v_p and what its row shares, c:
//
//	ctx = p·V:  v = Σ v_p·V² + Σ (Σ p)²·v_V + ctx²·c + sums.variance
//
// where the inner sum is over keys whose values are alike, as those of equal tokens are: their errors
// are the same, and so may be those that their scores have from queries and keys. In BF16 and F16 p is a
// rounding point first, or one that may not happen. The natural order of the sum is that of the keys. In BF16 and F16 a
// query's errors are added once more, as they move all keys: see queries.
func (a *Analysis) Context(probs, vT *Value) *Value {
	c, vT := probs.shared, a.settle(vT)
	if c == nil { // they are exact
		c = make([]float64, probs.Rows())
	}
	switch {
	case probs.DType == tensor.F32, a.way(Probs) == InF32:
		probs.roundLater = false
	case probs.sigma == nil: // golden ones, and those that are rounded to a cache's dtype, are rounded
		a.settle(probs)
	case a.way(Probs) == ofExponentials:
		probs.roundExponentials()
	case a.reference.Fused || a.way(Probs) == Unknown:
		probs.roundLater = false
		for i, p := range probs.Values {
			y, v := PrecisionOf(probs.DType).mayRound(float64(p), probs.Variance(i))
			probs.Set(i, y, v)
		}
	default:
		a.settle(probs)
	}
	y := &Value{Activation: a.plain.Context(probs.wide(), vT.wide()), roundLater: true}
	y.DType = probs.DType
	sums := a.gemm(probs.DType, probs.Width())
	var units []float64
	y.sigma = a.scratch(func() *model.Activation {
		var squares *model.Activation
		squares, units = a.doubled(probs, vT, 0, probs.Shape[2])
		y.ColumnsShare = a.gatherAlike(squares, probs, vT)
		return a.errors.Context(squares, vT.squared)
	})
	width := y.Width()
	a.plain.ContextPartial(probs.Activation, vT.Activation, sums.plans, func(at int, partial, squares []float64) {
		y.add(sums, at, units[at/width], partial, squares)
	})
	a.plain.Each(y.Rows(), len(y.Values), func(t int) {
		for i := t * width; i < (t+1)*width; i++ {
			ctx := float64(y.Values[i])
			y.sigma.Values[i] = deviation(roughly(ctx, float64(float64(y.sigma.Values[i])*units[t])+float64(Sq(ctx)*c[t])))
		}
	})
	if probs.queries != nil {
		a.plain.Each(y.Rows(), len(probs.Values), func(t int) { probs.queries.addTo(y, probs, vT, t) })
	}
	if probs.Float32Scores != nil {
		y.Float32Scores = a.Context(probs.Float32Scores, vT)
	}
	return y.inherit(vT)
}

// roundExponentials rounds probabilities p as their exponentials p/m are, where m is the largest of a row, whose score
// all exponentials are of:
//
//	p/m:  v = (v_p + (p/m)²·v_m)/m², a rounding point;  · m, exact
func (x *Value) roundExponentials() {
	x.roundLater = false
	p := PrecisionOf(x.DType)
	for t := range x.Rows() {
		row, from := x.Row(t), t*x.Width()
		top := 0
		for i, y := range row {
			if y > row[top] {
				top = i
			}
		}
		most, unsure := float64(row[top]), x.Variance(from+top)
		for i, y := range row {
			if share := float64(y) / most; i == top {
				x.Set(from+i, most, 0)
			} else {
				share, v := p.point(share, (x.Variance(from+i)+float64(Sq(share)*unsure))/Sq(most))
				x.Set(from+i, share*most, v*Sq(most))
			}
		}
	}
}

// gatherAlike sums the errors of keys whose values are alike. Rows of squares are [v_p, p²]: of these
// keys the first takes the square of the sum of p, and that of √v_p where errors of queries or keys
// are in the scores. It reports whether it found such keys; if all operands are exact it looks for none.
func (a *Analysis) gatherAlike(squares *model.Activation, probs, vT *Value) bool {
	if vT.sigma == nil && !probs.ColumnsShare {
		return false
	}
	if vT.alike == nil {
		vT.alike = make([][][]int, vT.Shape[0]*vT.Shape[1])
		for i := range vT.alike {
			values := vT.matrixAt(i).transposed()
			vT.alike[i] = slices.DeleteFunc(alikeGroups(values.rows, func(key int) []float32 { return values.part(key, 1).y }),
				func(group []int) bool { return len(group) == 1 })
		}
	}
	n, keys, alike := probs.Shape[2], probs.Width(), vT.alike
	a.plain.Each(probs.Rows(), len(probs.Values), func(t int) {
		for _, group := range alike[groupOf(t/n, probs, vT)] {
			if probs.ColumnsShare {
				gather(squares.Row(t)[:keys], group)
			}
			gather(squares.Row(t)[keys:], group)
		}
	})
	return slices.ContainsFunc(alike, func(groups [][]int) bool { return len(groups) > 0 })
}

// gather puts the square of the sum of a group's roots in the place of its first square, and 0 in
// that of the others.
func gather(squares []float32, group []int) {
	sum := 0.0
	for _, i := range group {
		sum += math.Sqrt(float64(squares[i]))
		squares[i] = 0
	}
	squares[group[0]] = float32(Sq(sum))
}

// groupOf returns which matrix of shared belongs to matrix i of x.
func groupOf(i int, x, shared *Value) int { return i / (x.Shape[1] / shared.Shape[1]) }
