package kernel

import "math"

// Exp returns e^x with an error below 1 unit in the last place. It is the algorithm of
// FreeBSD's e_exp.c, as math.Exp in portable Go, but every product is rounded before it is
// added, so that compilers and libraries that fuse give the same bits.
// Exp(NaN) is NaN, Exp(-Inf) is 0, and a result too large for float64 is +Inf.
//
//	x = k·ln2 + r, |r| ≤ ln2/2;  exp(x) = 2^k · exp(r)
//	exp(r) = 1 + r + r·c/(2-c),  c = r - r²·P(r²)
func Exp(x float64) float64 {
	const (
		ln2Hi = 6.93147180369123816490e-01
		ln2Lo = 1.90821492927058770002e-10
		log2e = 1.44269504088896338700e+00
		p1    = 1.66666666666666657415e-01
		p2    = -2.77777777770155933842e-03
		p3    = 6.61375632143793436117e-05
		p4    = -1.65339022054652515390e-06
		p5    = 4.13813679705723846039e-08
	)
	switch {
	case x != x || x > math.MaxFloat64:
		return x
	case x > 709.782712893384:
		return math.Inf(1)
	case x < -745.1332191019411:
		return 0
	}
	k := math.Floor(float64(log2e*x) + 0.5)
	hi := x - float64(k*ln2Hi)
	lo := float64(k * ln2Lo)
	r := hi - lo
	t := float64(r * r)
	p := p4 + float64(t*p5)
	p = p3 + float64(t*p)
	p = p2 + float64(t*p)
	p = p1 + float64(t*p)
	c := r - float64(t*p)
	y := 1 - ((lo - float64(r*c)/(2-c)) - hi)
	return math.Ldexp(y, int(k))
}

// exps replaces each x by Exp(x).
func exps(x []float64) {
	n := 0
	if im := current(); im.exp != nil {
		n = inChunks(len(x), func(i, n int) { im.exp(&x[i], &x[i], n) })
	}
	for i, v := range x[n:] {
		x[n+i] = Exp(v)
	}
}

// Softmax replaces x by exp(x - max x) / Σ exp(x - max x), computed in float64 and
// rounded once to float32. The sum is taken from the first to the last.
func Softmax(x []float32) {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	top := float32(math.Inf(-1))
	for _, v := range x {
		top = max(top, v)
	}
	s.exps = grow(s.exps, len(x))
	for i, v := range x {
		s.exps[i] = float64(v) - float64(top)
	}
	exps(s.exps)
	sum := 0.0
	for _, e := range s.exps {
		sum += e
	}
	for i, e := range s.exps {
		x[i] = float32(e / sum)
	}
}

// SiLU sets dst[i] = x / (1 + exp(-x)), x = src[i], computed in float64 and
// rounded once to float32. dst may be src; it is as long or longer.
func SiLU(dst, src []float32) {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	s.exps = grow(s.exps, len(src))
	for i, v := range src {
		s.exps[i] = -float64(v)
	}
	exps(s.exps)
	for i, v := range src {
		dst[i] = float32(float64(v) / (1 + s.exps[i]))
	}
}

// Softplus is log(1 + e^x), and x where x > 20, as torch.nn.functional.softplus has it; within a few units
// of float64.
func Softplus(x float64) float64 {
	if x > 20 {
		return x
	}
	t, shift := Exp(x), 0.0
	if t > 0.5 { // 1 + t = 2^e · (1 + t) with a smaller t
		fraction, e := math.Frexp(1 + t)
		if fraction < math.Sqrt2/2 {
			fraction, e = 2*fraction, e-1
		}
		t, shift = fraction-1, float64(float64(e)*math.Ln2)
	}
	s := t / (2 + t) // log(1 + t) = 2·artanh(t/(2+t)) for t in [√½ - 1, 0.5]
	square, sum := float64(s*s), 0.0
	for k := 23; k > 0; k -= 2 {
		sum = float64(sum*square) + 1/float64(k)
	}
	return shift + float64(2*s*sum)
}
