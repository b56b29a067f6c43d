package bounds

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/tensor"
)

// An Engine is how an engine computes where that is not as the reference does. Of what its fields do not name it
// rounds nothing. RoundingOf has the roundings.
type Engine struct {
	// Inputs returns what the input of a product is rounded to: of an absorbed weight that of the product that gives
	// keys, and of the one that gives values, else both are the same.
	Inputs func(w *model.Weight) (keys, values *Rounding)
	// Cache is what keys and values are rounded to, and with them queries and probabilities; to E4M3 keys and values alone.
	Cache *Rounding
	// Latents returns, of the weight that makes keys and values of latents, what latents are rounded to, and the key's part
	// with RoPE behind so many columns, as a cache of latents holds them. It is nil if nothing is.
	Latents func(w *model.Weight) (latents, rotated *Rounding, columns int)
	// Flash says that probabilities are not rounded, as there are none; queries are if the cache is of blocks, or with
	// Narrow, which says that the sum over keys is kept in F16.
	Flash, Narrow bool
	// Serial says that the sums of norms are one chain of float32, in order.
	Serial bool
	// Given returns the output of a product that need not be computed, with as many elements; nil of others. It is nil if all
	// are computed.
	Given func(w *model.Weight) []float32
	// Seen has the products of earlier runs, and gets this one's; nil if there are no other runs.
	Seen *Seen
	// Absorbs returns of the weight that gives keys and values of a latent, kv_b_proj, the rows of a head: keys, then
	// values. It returns 0, 0 of other weights, and is nil if none is absorbed.
	Absorbs func(w *model.Weight) (keys, values int)
}

// Rounding is what an engine rounds numbers to, before it multiplies them. Numbers of a block are codes times a step,
// the largest over the largest code.
type Rounding struct {
	to    *precision // of numbers, or of codes
	block int        // numbers of a block; 0 for numbers by themselves, -1 for all numbers of a tensor
	most  float64    // the largest code
	half  bool       // steps are stored in F16
	each  float64    // what numbers by themselves are codes of; 0 is 1
	// quotient is a number divided by each as float32 computes it; nil if that is not known.
	quotient func(x, each float32) float32
	sums     bool // the sum of a block's codes times the step is stored in F16, too, for weights with a minimum
}

// mostE4M3 is the largest number of E4M3.
const mostE4M3 = 448

// isE4M3 reports whether codes are of E4M3.
func (r *Rounding) isE4M3() bool { return r != nil && r.most == mostE4M3 }

// RoundingOf returns the rounding of that name, nil for f32; known is false if there is none:
//
//	f32         none
//	bf16, f16   to nearest, ties to even
//	q8_0        blocks of 32, codes of 8 bits to nearest, d = max/127 stored in F16
//	q8_1        the same, and the block's sum d·Σ codes stored in F16, which the minimum of a block of weights is multiplied with
//	q8_k        blocks of 256, d in float32
//	fp8-1x128   E4M3 times max/448, blocks of 128
//	fp8-tensor  the same of a whole tensor
//	fp8-token   the same of each row
//	fp8         E4M3
//	fp8:STEP    E4M3 times a step; in trials fp8/STEP, of numbers divided by it, and fp8*STEP, multiplied with its reciprocal
//
// Numbers beyond the largest of E4M3, 448, become 448.
func RoundingOf(name string) (r *Rounding, known bool) {
	const integer = 127 // no code is larger
	codes, fp8 := newPrecision(8, 7, math.MaxFloat32), newPrecision(4, -6, math.MaxFloat32)
	known = true
	switch name {
	case "f32":
	case "bf16":
		r = &Rounding{to: bf16}
	case "f16":
		r = &Rounding{to: f16}
	case "q8_0":
		r = &Rounding{to: codes, block: 32, most: integer, half: true}
	case "q8_1":
		r = &Rounding{to: codes, block: 32, most: integer, half: true, sums: true}
	case "q8_k":
		r = &Rounding{to: codes, block: 256, most: integer}
	case "fp8":
		r = &Rounding{to: fp8, most: mostE4M3}
	case "fp8-1x128":
		r = &Rounding{to: fp8, block: 128, most: mostE4M3}
	case "fp8-tensor":
		r = &Rounding{to: fp8, block: -1, most: mostE4M3}
	case "fp8-token":
		r = &Rounding{to: fp8, block: math.MaxInt32, most: mostE4M3}
	default:
		step, of := strings.CutPrefix(name, "fp8")
		how, step := step[:min(1, len(step))], step[min(1, len(step)):]
		each, err := strconv.ParseFloat(step, 32)
		if known = of && strings.Contains(":/*", how) && err == nil && each > 0; known {
			r = &Rounding{to: fp8, most: mostE4M3, each: each}
		}
		switch {
		case known && how == "/":
			r.quotient = func(x, each float32) float32 { return x / each }
		case known && how == "*":
			r.quotient = func(x, each float32) float32 { return x * (1 / each) }
		}
	}
	return r, known
}

// engine is an Engine's arithmetic.
type engine struct {
	*Analysis
	*Engine
	latent *Value        // what the last absorbed weight multiplied
	up     *model.Linear // that weight

	rotated *Rounding // of the key's part with RoPE, see Latents
	columns int       // of a key, before that part

	seenQ, seenV *Value // operands of the last scores and context
	q, k, v      *Value // the same as the engine has them
}

// NewEngine returns the arithmetic of an engine.
func NewEngine(a *Analysis, e *Engine) Arithmetic {
	a.serial = e.Serial
	return &engine{Analysis: a, Engine: e}
}

// Linear rounds x.
func (e *engine) Linear(x *Value, l *model.Linear) *Value {
	x = e.keepLatent(x, l)
	e.last, e.lastWeight = e.operation(&l.Weight), &l.Weight
	if e.Given != nil {
		shape := slices.Concat(x.Shape[:len(x.Shape)-1], l.Weight.Shape[:1])
		if y := e.Given(&l.Weight); len(y) == x.Rows()*shape[len(shape)-1] {
			return Exact(&model.Activation{Shape: shape, Values: y, DType: x.DType})
		}
	}
	to, _ := e.Inputs(&l.Weight)
	rounded := e.rounded(x, to)
	seen := e.Seen
	if e.last == Ranks { // its sums are rounded in the way of this run
		seen = nil
	}
	y := seen.product(l.Weight.Name, rounded, func() *Value { return e.Analysis.Linear(rounded, l) })
	if to != nil && to.sums {
		addSums(y, to.blockSums(x, rounded), &l.Weight)
	}
	return y
}

// keepLatent keeps x for scores and contexts, if l makes keys and values of it, and returns it as a cache holds it.
func (e *engine) keepLatent(x *Value, l *model.Linear) *Value {
	if e.Latents != nil {
		if latents, rotated, n := e.Latents(&l.Weight); n > 0 {
			x, e.rotated, e.columns = e.kept(x, latents), rotated, n
		}
	}
	if e.Absorbs != nil {
		if keys, _ := e.Absorbs(&l.Weight); keys > 0 {
			e.latent, e.up = x, l
		}
	}
	return x
}

// Seen holds products for runs of an engine that differ in where they round: what one run multiplied, another run with
// equal numbers need not. The weights of all runs are the same.
type Seen struct{ products map[seenProduct]*Value }

// seenProduct is a weight, or a part of one, and the SHA-256 of what it was multiplied with.
type seenProduct struct {
	weight string
	input  [sha256.Size]byte
}

// product returns the product of a weight with x, which compute computes if no run has.
func (s *Seen) product(weight string, x *Value, compute func() *Value) *Value {
	if s == nil || x.common != nil || x.shared != nil {
		return compute()
	}
	of, _ := binary.Append(fmt.Appendln(nil, x.Shape, x.DType, x.roundLater, x.ColumnsShare, x.sigma != nil), binary.LittleEndian,
		x.Values)
	of, _ = binary.Append(of, binary.LittleEndian, x.deviations())
	key := seenProduct{weight, sha256.Sum256(of)}
	if s.products == nil {
		s.products = map[seenProduct]*Value{}
	}
	if s.products[key] == nil {
		s.products[key] = compute().kept()
	}
	return s.products[key].kept()
}

// kept is a product in memory of its own.
func (x *Value) kept() *Value {
	y := *x
	y.Activation, y.sigma = copied(x.Activation), copied(x.sigma)
	y.Products = slices.Clone(x.Products)
	for i, p := range y.Products {
		y.Products[i].hidden, y.Products[i].common = slices.Clone(p.hidden), slices.Clone(p.common)
	}
	return &y
}

// Tables are of angles that engines make of the first pair's by a product for each pair, with a factor that is rounded
// itself, or by powers: of pair i with a relative variance of (1 + i + i²)·u².
func (e *engine) Tables(r *model.Rotary) (cos, sin *Value) {
	made := *r
	made.Others = make([]float32, len(r.Angles))
	for i, angle := range r.Angles {
		pair := float64(i % r.Half)
		made.Others[i] = float32(float64(angle) * (1 + Unit*math.Sqrt(1+pair+pair*pair)))
	}
	return e.Analysis.Tables(&made)
}

// Scores rounds queries and keys, which absorbed weights make of latents: all heads have one key for each token, the
// latent behind its part with RoPE, and queries are multiplied with the weights of the keys.
func (e *engine) Scores(q, k *Value, first, n int, s *model.Scoring) *Value {
	if e.latent != nil && k.Shape[1] < q.Shape[1] { // an indexer's
		return e.Analysis.Scores(q, k, first, n, s)
	}
	if e.seenQ != q {
		if e.rotated != nil {
			k = beside(columns(k, 0, e.columns), e.kept(columns(k, e.columns, k.Width()), e.rotated))
		}
		e.seenQ, e.seenV, e.q, e.k = q, nil, q, k
		if e.latent != nil {
			e.q, e.k = e.absorbedQueries(q), e.latentKeys(k)
		}
		if e.Cache.isE4M3() {
			e.k = e.kept(e.k, e.Cache)
		} else if e.k = e.rounded(e.k, e.Cache); !e.Flash || e.Narrow || e.Cache != nil && e.Cache.block != 0 {
			e.q = e.rounded(e.q, e.Cache)
		}
		if e.Cache != nil && e.k.sigma != nil { // all queries have the same other roundings of a key
			e.k.ColumnsShare = true
		}
	}
	y := e.Analysis.Scores(e.q, e.k, first, n, s)
	if e.Cache != nil && e.q.sigma != nil { // some numbers of queries may be rounded to others
		y.queries = &queries{e.q, e.k, first, n, (&scoring{Scoring: s}).scaled(1)}
	}
	return y
}

// Context rounds probabilities and values. Of absorbed weights it is the context of latents, times the weights of the
// values.
func (e *engine) Context(probs, vT *Value) *Value {
	if e.seenV != vT {
		switch e.seenV = vT; {
		case e.latent != nil:
			e.v = turned(columns(e.k, e.k.Width()-e.latent.Width(), e.k.Width()))
		case e.Cache.isE4M3():
			e.v = turned(e.kept(turned(e.settle(vT)), e.Cache))
		default:
			e.v = turned(e.rounded(turned(e.settle(vT)), e.Cache))
		}
	}
	if !e.Flash && !e.Cache.isE4M3() {
		moved := probs.queries
		probs = e.rounded(probs, e.Cache)
		probs.queries = moved
	}
	y := e.Analysis.Context(probs, e.v)
	if e.Flash && e.Narrow { // what sums in F16 may do, those of one chain: u² times that of sums in float32
		p, v := *probs, *e.v
		p.sigma, p.shared, v.sigma, v.squared = nil, nil, nil, nil
		k := probs.Width()
		chain := newSums(k, float64(k)/6, 1, true)
		wide := Sq(0x1p-11 / Unit)
		e.plain.ContextPartial(p.Activation, v.Activation, chain.plans, func(at int, partial, squares []float64) {
			for i := range partial {
				more := wide * chain.variance(float64(y.Values[at+i]), partial[i], squares[i])
				y.Set(at+i, float64(y.Values[at+i]), y.Variance(at+i)+more)
			}
		})
	}
	if e.latent != nil {
		y = e.values(y)
	}
	return y
}

// Combine adds up in an order that is not known if it computes in float32.
func (e *engine) Combine(weight *Value, parts []model.Part[*Value], order config.RoutedSum) *Value {
	if parts[0].Out.DType == tensor.F32 {
		order = config.ByChoice
	}
	return e.Analysis.Combine(weight, parts, order)
}

// absorbedQueries are the parts of queries with RoPE, then those without times the weights of the keys: [batch, heads,
// seq, rope + rank].
func (e *engine) absorbedQueries(q *Value) *Value {
	keys, each := e.rows()
	rank := e.latent.Width()
	q = e.settle(q)
	rotated := columns(q, keys, q.Width())
	weights := e.weights()
	to, _ := e.Inputs(&e.up.Weight)
	absorbed := e.perHead(columns(q, 0, keys), to, rank, func(head int) []float32 {
		return matrix{rows: keys, cols: rank, y: weights[head*each*rank : (head*each+keys)*rank]}.transposed().y
	})
	absorbed.roundLater = true
	return beside(rotated, e.between(absorbed, AbsorbedQuery))
}

// latentKeys are the part of keys with RoPE, of which all heads have the same, and the latent: [batch, 1, seq, rope +
// rank].
func (e *engine) latentKeys(k *Value) *Value {
	keys, _ := e.rows()
	k = e.settle(k)
	n := k.Shape[2] * k.Shape[3]
	first := moved(k, []int{k.Shape[0], 1, k.Shape[2], k.Shape[3]}, func(i int) int { return i/n*n*k.Shape[1] + i%n })
	rotated := columns(first, keys, k.Width())
	latent := *e.settle(e.latent)
	a := *latent.Activation
	a.Shape = []int{k.Shape[0], 1, k.Shape[2], latent.Width()}
	latent.Activation = &a
	return beside(rotated, &latent)
}

// values are contexts of latents times the weights of the values: [batch, heads, n, value].
func (e *engine) values(context *Value) *Value {
	keys, each := e.rows()
	rank := e.latent.Width()
	weights := e.weights()
	_, to := e.Inputs(&e.up.Weight)
	context = e.between(context, AbsorbedContext)
	y := e.perHead(context, to, each-keys, func(head int) []float32 {
		return weights[(head*each+keys)*rank : (head+1)*each*rank]
	})
	y.roundLater = true
	return y.inherit(context)
}

// between is x, which an absorbed weight made or is about to multiply, rounded in the operation's way.
func (e *engine) between(x *Value, operation string) *Value {
	switch d := x.DType; e.way(operation) {
	case InF32:
		return x.unrounded()
	case Unknown:
		x = e.mayRound(x, d)
		x.DType = d
		return x
	}
	return e.settle(x)
}

// rows are the rows of a head of the absorbed weight: those of keys, and all.
func (e *engine) rows() (keys, each int) {
	keys, values := e.Absorbs(&e.up.Weight)
	return keys, keys + values
}

// weights are the elements of the absorbed weight.
func (e *engine) weights() []float32 {
	return model.NewPlain(model.Options{DType: tensor.F32}).Values(&e.up.Weight)
}

// perHead multiplies each head of x [batch, heads, n, width], rounded, with a matrix [out, width] of its own.
func (e *engine) perHead(x *Value, to *Rounding, out int, weights func(head int) []float32) *Value {
	var sums []blockSum
	unrounded, seen := x, e.Seen
	if x = e.rounded(x, to); to != nil && to.sums {
		sums, seen = to.blockSums(unrounded, x), nil // they need the weight
	}
	batch, heads, n, width := x.Shape[0], x.Shape[1], x.Shape[2], x.Width()
	y := made(x.DType, true, batch, heads, n, out)
	for i := range batch * heads {
		from, to := i*n*width, (i+1)*n*width
		rows := &Value{Activation: &model.Activation{Shape: []int{n, width}, Values: x.Values[from:to], DType: x.DType}}
		if x.sigma != nil {
			rows.sigma = &model.Activation{Shape: rows.Shape, Values: x.sigma.Values[from:to]}
		}
		e.Try(func() {
			w := model.Weight{Tensor: tensor.Tensor{DType: tensor.F32, Shape: []int{out, width}}}
			part := seen.product(fmt.Sprintf("%s, %d values of head %d", e.up.Weight.Name, out, i%heads), rows, func() *Value {
				for _, v := range weights(i % heads) {
					w.Data = binary.LittleEndian.AppendUint32(w.Data, math.Float32bits(v))
				}
				return e.Analysis.Linear(rows, &model.Linear{Weight: w})
			})
			if each := len(sums) / (batch * heads); each > 0 {
				addSums(part, sums[i*each:(i+1)*each], &w)
			}
			copy(y.Values[i*n*out:], part.Values)
			copy(y.sigma.Values[i*n*out:], part.deviations())
		})
	}
	return y.inherit(x)
}

// made is a value with memory of its own.
func made(d tensor.DType, uncertain bool, shape ...int) *Value {
	n := (tensor.Tensor{Shape: shape}).Len()
	x := Exact(&model.Activation{Shape: shape, Values: make([]float32, n), DType: d})
	if uncertain {
		x.sigma = &model.Activation{Shape: shape, Values: make([]float32, n)}
	}
	return x
}

// moved is a value of that shape whose element i is x's element from(i).
func moved(x *Value, shape []int, from func(i int) int) *Value {
	y := made(x.DType, x.sigma != nil, shape...)
	for i := range y.Values {
		at := from(i)
		if y.Values[i] = x.Values[at]; x.sigma != nil {
			y.sigma.Values[i] = x.sigma.Values[at]
		}
	}
	return y.inherit(x)
}

// columns are the columns first … last-1 of x.
func columns(x *Value, first, last int) *Value {
	shape, n := slices.Clone(x.Shape), last-first
	shape[len(shape)-1] = n
	return moved(x, shape, func(i int) int { return i/n*x.Width() + first + i%n })
}

// turned is x with its last two axes exchanged.
func turned(x *Value) *Value {
	shape := slices.Clone(x.Shape)
	rows, cols := shape[len(shape)-2], shape[len(shape)-1]
	shape[len(shape)-2], shape[len(shape)-1] = cols, rows
	return moved(x, shape, func(i int) int { return i/(rows*cols)*rows*cols + i%rows*cols + i/rows%cols })
}

// beside has the rows of a and of b side by side.
func beside(a, b *Value) *Value {
	shape, n := slices.Clone(a.Shape), a.Width()+b.Width()
	shape[len(shape)-1] = n
	y := made(a.DType, a.sigma != nil || b.sigma != nil, shape...)
	for t := range y.Rows() {
		for _, part := range []struct {
			at int
			x  *Value
		}{{t * n, a}, {t*n + a.Width(), b}} {
			copy(y.Values[part.at:], part.x.Row(t))
			if part.x.sigma != nil {
				copy(y.sigma.Values[part.at:], part.x.sigma.Row(t))
			}
		}
	}
	return y.inherit(a, b)
}

// rounded is x with its numbers rounded, in the blocks of each row or of the whole tensor.
func (e *engine) rounded(x *Value, to *Rounding) *Value {
	if to == nil {
		return x
	}
	x = e.settle(x)
	y, exact, row := made(x.DType, true, x.Shape...), true, x.Width()
	if to.block < 0 {
		row = len(x.Values)
	}
	for first := 0; first < len(x.Values); first += row {
		n := to.block
		if n <= 0 {
			n = row
		}
		for from := first; from < first+row; from += n {
			exact = to.roundBlock(y, x, from, min(from+n, first+row)) && exact
		}
	}
	if exact {
		y.sigma = nil
	}
	return y.inherit(x)
}

// kept is x as a cache gives it back: rounded, and cast to x's dtype.
func (e *engine) kept(x *Value, to *Rounding) *Value {
	if to == nil {
		return x
	}
	y := *e.rounded(x, to)
	y.roundLater = true
	return e.settle(&y)
}

// tieUlps is within how many spacings of float32 of a tie a code may be either one, as builds compute it by a division,
// or by a product with a rounded reciprocal.
const tieUlps = 4

// roundBlock sets y to the rounded elements from … to-1 of x, and reports whether all are certain.
func (r *Rounding) roundBlock(y, x *Value, from, to int) (exact bool) {
	step, unsure := 1.0, 0.0 // what codes are of, and its relative standard deviation
	stored, off := 1.0, 0.0  // what they are multiplied with, and how far it may be off
	inexact := r.block != 0  // codes are quotients that float32 rounds
	if r.each > 0 {
		step, stored = r.each, r.each
		mantissa, _ := math.Frexp(step)
		inexact = mantissa != .5 && r.quotient == nil
	}
	if r.block != 0 {
		step, unsure = r.step(x, from, to)
		if stored, off = step, step*unsure; r.half {
			stored, off = f16.either(step, step*unsure, 0)
		}
		if step == 0 || stored == 0 {
			return true // all are 0
		}
	}
	exact = true
	for i := from; i < to; i++ {
		code := float64(x.Values[i]) / step
		if r.quotient != nil {
			code = float64(r.quotient(x.Values[i], float32(step)))
		}
		code = r.within(code)
		s, tie := Unit*math.Sqrt(x.Variance(i))/step, 0.0
		if inexact {
			s, tie = math.Hypot(s, math.Abs(code)*unsure), tieUlps*f32.Ulp(code)
		}
		c, of := r.to.either(code, s, tie)
		v := Sq(of*stored/Unit) + sameBlock*Sq(c*off/Unit)
		y.Set(i, c*stored, v)
		exact = exact && v == 0
	}
	return exact
}

// within is a code, the largest one in the place of larger ones of numbers by themselves.
func (r *Rounding) within(code float64) float64 {
	if r.block != 0 || r.most == 0 {
		return code
	}
	return max(-r.most, min(code, r.most))
}

// Code returns the code that a number in steps is rounded to, if each number is by itself.
func (r *Rounding) Code(number float64) float64 { return r.to.Round(r.within(number)) }

// A blockSum is the sum of a block's rounded numbers as it is stored, and how much more that is than their sum, with
// the variance of both.
type blockSum struct{ stored, more, v float64 }

// blockSums are the sums of x's blocks, of which rounded has the rounded numbers.
func (r *Rounding) blockSums(x, rounded *Value) (all []blockSum) {
	for row := 0; row < len(x.Values); row += x.Width() {
		for from := row; from < row+x.Width(); from += r.block {
			to := min(from+r.block, row+x.Width())
			step, unsure := r.step(x, from, to)
			if f16.Round(step) == 0 {
				all = append(all, blockSum{})
				continue
			}
			sum, v := 0.0, 0.0
			for i := from; i < to; i++ {
				sum += float64(rounded.Values[i])
				v += rounded.Variance(i)
			}
			s := sum / f16.Round(step) * step
			stored, off := f16.either(s, math.Hypot(Unit*math.Sqrt(v), s*unsure), tieUlps*f32.Ulp(s))
			off = min(off, f16.Ulp(s)/math.Sqrt2) // the errors of the numbers are in the product
			all = append(all, blockSum{stored, stored - sum, Sq(off/Unit) + Sq(sum*unsure/Unit)})
		}
	}
	return all
}

// addSums adds to y = x·weightᵀ what it is more where the minima of the weight's blocks are multiplied with sums of x's
// blocks, and the rounding errors of these products' sum and of the rest.
func addSums(y *Value, all []blockSum, weight *model.Weight) {
	out := weight.Shape[0]
	n := len(all) / y.Rows()
	minima, chain := minima(weight), newSums(n, float64(n)/6, 1, true)
	for i := range y.Values {
		row, column := i/out, i%out
		var products addition
		more, v := 0.0, 0.0
		for b, s := range all[row*n : (row+1)*n] {
			m := float64(minima[column*n+b])
			products = products.add(m*s.stored, 0)
			more += m * s.more
			v += Sq(m) * s.v
		}
		y.Set(i, float64(y.Values[i])+more, y.Variance(i)+v+2*products.variance(chain))
	}
	y.roundLater = true
}

// minima are the stored minima of a weight's blocks of Q4_1 or Q5_1. Of a weight that was decoded they are the
// least number of each block: the encoder gives that the code 0.
func minima(w *model.Weight) (all []float32) {
	if w.DType.HasMinimum() {
		_, size := w.DType.Block()
		for b := range slices.Chunk(w.Data, size) { // d, m, codes
			all, _ = tensor.Tensor{DType: tensor.F16, Shape: []int{1}, Data: b[2:4]}.Float32s(all) // F16 decodes
		}
		return all
	}
	block, _ := tensor.Q5_1.Block()
	for row := range slices.Chunk(model.NewPlain(model.Options{DType: tensor.F32}).Values(w), w.Shape[1]) {
		for b := range slices.Chunk(row, block) {
			all = append(all, slices.Min(b))
		}
	}
	return all
}

// sameBlock is the factor of the variance of numbers whose errors are all those of one step.
const sameBlock = 4

// step is the step of a block, the largest number over the largest code in float32, and its relative standard
// deviation.
func (r *Rounding) step(x *Value, from, to int) (step, unsure float64) {
	top := from
	for i := from; i < to; i++ {
		if math.Abs(float64(x.Values[i])) > math.Abs(float64(x.Values[top])) {
			top = i
		}
	}
	most := math.Abs(float64(x.Values[top]))
	if most == 0 {
		return 0, 0
	}
	return float64(float32(most / r.most)), Unit * math.Sqrt(x.Variance(top)) / most
}

// either rounds a number of standard deviation s, which on either side of a tie, up to so far from it, may be rounded
// either way. It returns the standard deviation of the result. Of a number that may be a tie that is what lies half way
// between both, and of others that Lambda·s may carry over a tie the nearest one, with the deviation of a flip, as
// point has it. Where s is no small part of the spacing, it is the number itself.
func (p *precision) either(y, s, tie float64) (r, off float64) {
	r = p.Round(y)
	reach, u := Lambda*s+tie, p.Ulp(y)
	least, most := p.Round(y-reach), p.Round(y+reach)
	switch half := (least + most) / 2; {
	case least == most:
		return r, 0
	case s > u/4:
		return y, math.Sqrt(Sq(s) + Sq(u)/12)
	case math.Abs(y-half) <= s+tie:
		return half, (most - least) / math.Sqrt2 // variance 2/4, as all ties of a row may go the same way
	default:
		return r, (most - least) * math.Sqrt(max(leastFlip, math.Erfc(math.Abs(y-half)/(s*math.Sqrt2))))
	}
}
