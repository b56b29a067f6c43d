package synth

import "math"

// mt19937 is torch's generator of random numbers on the CPU: MT19937 of Matsumoto
// and Nishimura, seeded as torch.manual_seed does. A copy continues independently from the
// state of the original. Use newMT19937; the zero mt19937 draws zeros.
type mt19937 struct {
	state [624]uint32
	next  int // index of the next word to draw; at the end draw renews the state
}

// newMT19937 returns the generator after torch.manual_seed(seed). As in torch,
// only the low 32 bits of the seed count:
//
//	state[0] = low 32 bits of seed
//	state[i] = 1812433253 · (state[i-1] xor state[i-1] >> 30) + i
func newMT19937(seed uint64) *mt19937 {
	g := &mt19937{}
	g.state[0] = uint32(seed)
	for i := 1; i < len(g.state); i++ {
		before := g.state[i-1]
		g.state[i] = 1812433253*(before^before>>30) + uint32(i)
	}
	g.next = len(g.state)
	return g
}

// draw returns the next 32 bits: at::mt19937::operator().
func (g *mt19937) draw() uint32 {
	if g.next == len(g.state) {
		g.renew()
	}
	y := g.state[g.next]
	g.next++
	y ^= y >> 11
	y ^= y << 7 & 0x9d2c5680
	y ^= y << 15 & 0xefc60000
	return y ^ y>>18
}

// skip draws n times and drops the results; n is not negative.
func (g *mt19937) skip(n int64) {
	for n > int64(len(g.state)-g.next) {
		n -= int64(len(g.state) - g.next)
		g.renew()
	}
	g.next += int(n)
}

// renew computes the next 624 words of the recurrence, in place.
func (g *mt19937) renew() {
	const n, m = len(g.state), 397
	s := &g.state
	for i := range n - m {
		s[i] = s[i+m] ^ twist(s[i], s[i+1])
	}
	for i := n - m; i < n-1; i++ {
		s[i] = s[i+m-n] ^ twist(s[i], s[i+1])
	}
	s[n-1] = s[m-1] ^ twist(s[n-1], s[0])
	g.next = 0
}

// twist joins the top bit of u to the rest of v and multiplies by MT19937's matrix.
func twist(u, v uint32) uint32 {
	return (u&0x80000000|v&0x7fffffff)>>1 ^ -(v&1)&0x9908b0df
}

// kaimingUniform fills dst with the next values of a weight with rows of fanIn
// values, as MoEGate.reset_parameters initialises [n_routed_experts, hidden_size]:
// torch.nn.init.kaiming_uniform_(weight, a=math.sqrt(5)).
//
//	gain  = sqrt(2 / (1 + a²))
//	bound = sqrt(3) · gain / sqrt(fanIn)         in float64, about 1/sqrt(fanIn)
//	u     = (draw mod 2^24) · 2^-24              one draw per value
//	v     = u·2bound - bound                     in float32, rounded once
//
// v is torch.Tensor.uniform_ on float32 tensors (at::transformation::uniform_real) as torch computes it on x86-64 with AVX2
// or more, with a fused multiply-add. float64 gives the same bits: it holds the product and the sum exactly. A weight may be filled in parts, one after the other.
func (g *mt19937) kaimingUniform(dst []float32, fanIn int) {
	a := math.Sqrt(5)
	gain := math.Sqrt(2 / (1 + float64(a*a)))
	bound := float64(float32(math.Sqrt(3) * (gain / math.Sqrt(float64(fanIn)))))
	for i := range dst {
		u := float64(g.draw()&(1<<24-1)) * 0x1p-24
		dst[i] = float32(u*(2*bound) - bound)
	}
}
