package tensor

// The encoders of IQ4_NL and IQ4_XS, whose 16 codes stand for numbers at uneven distances: quantize_row_iq4_nl_impl without
// an importance matrix.

import (
	"encoding/binary"
	"math"

	"dsmoe/model/internal/kernel"
)

// nearest are the codes nearest to numbers from (i - 256)/2 on, the upper one of two as near: halfway between the values of two
// codes lies a multiple of 1/2.
var nearest = func() (codes [512]byte) {
	for i := range codes {
		for k := 1; k < len(kernel.ValuesIQ4) && float32(i-256) >= kernel.ValuesIQ4[k-1]+kernel.ValuesIQ4[k]; k++ {
			codes[i] = byte(k)
		}
	}
	return codes
}()

// nearestIQ4 is best_index_int8: the code nearest to v, the last one of NaN.
func nearestIQ4(v float32) byte {
	switch {
	case v <= kernel.ValuesIQ4[0]:
		return 0
	case !(v < kernel.ValuesIQ4[15]):
		return 15
	}
	return nearest[int(float64(2*float64(v))+256)] // exact, and positive
}

// scaleIQ4 returns the scale of a part: of those that map its number of largest magnitude to -134 … -120, or first to 127,
// and are then fitted to the codes that the numbers get, the first with the least sum of squared errors, weighted with x².
func scaleIQ4(x []float32) (scale float32) {
	top := extreme(x)
	if abs32(top) < kernel.LeastGroup {
		return 0
	}
	best := float32(0)
	for try := -8; try <= 7; try++ { // -8 stands for the first
		per := (float32(try) + kernel.ValuesIQ4[0]) / top
		if try == -8 {
			per = 1 / (-top / kernel.ValuesIQ4[0])
		}
		var qx, q2 float32
		for _, v := range x {
			q, w := kernel.ValuesIQ4[nearestIQ4(per*v)], float32(v*v)
			wq := float32(w * q)
			qx += float32(wq * v)
			q2 += float32(wq * q)
		}
		if try == -8 || q2 > 0 && float32(qx*qx) > float32(best*q2) {
			scale = qx / q2
			best = scale * qx
		}
	}
	if scale != scale {
		return math.Float32frombits(0xffc00000) // the NaN of SSE2
	}
	return scale
}

// putIQ4 sets dst to the codes of 32 numbers under a scale.
func putIQ4(dst []byte, x []float32, scale float32) {
	per := inverse(scale)
	for j := range dst[:16] {
		dst[j] = nearestIQ4(per*x[j]) | nearestIQ4(per*x[j+16])<<4
	}
}

// encodeIQ4_NL is quantize_iq4_nl.
func encodeIQ4_NL(dst []byte, x []float32) {
	scale := scaleIQ4(x)
	PutF16(dst, scale)
	putIQ4(dst[2:18], x, scale)
}

// encodeIQ4_XS is quantize_iq4_xs: the scales of 8 parts, rounded to 6 bits, times an F16.
func encodeIQ4_XS(dst []byte, x []float32) {
	var scales [8]float32
	for p := range scales {
		scales[p] = scaleIQ4(x[32*p:][:32])
	}
	top := float32(0)
	for _, scale := range scales {
		if abs32(scale) > abs32(top) {
			top = scale
		}
	}
	d := -top / 32
	PutF16(dst, d)
	id, high := inverse(d), uint16(0)
	clear(dst[4:8])
	for p, scale := range scales {
		code := kernel.Clamp(kernel.Nearest(id*scale), -32, 31)
		putIQ4(dst[8+16*p:][:16], x[32*p:], d*float32(code))
		dst[4+p/2] |= byte(code+32) & 15 << (p % 2 * 4)
		high |= uint16(code+32) >> 4 << (2 * p)
	}
	binary.LittleEndian.PutUint16(dst[2:], high)
}

// codeIQ4 returns the code of number i of a block of IQ4_NL or IQ4_XS.
func (b *storedBlock) codeIQ4(i int) int {
	if b.dtype == IQ4_NL {
		return low(b.data[2:], i)
	}
	return low(b.data[8+i/32*16:], i%32)
}

// leftBeyond reports whether the encoder may have left number i of a block of IQ4_NL or IQ4_XS beyond an end of the codes. It
// takes a scale for a part only if the squares of the errors, weighted with x², have no larger sum. Under the first, fitted
// or not, the number of the largest magnitude is at 127, no number is farther than 127 - 113 of that from its code, and
// codes are taken anew without more error. Rounding the scales moves a code's number by moved at most: 31 also stands for 32.
func (b *storedBlock) leftBeyond(i int, y, x []float32, slack float32) bool {
	if code := b.codeIQ4(i); !isEnd(code, 15) || !(float32(x[i]-y[i])*y[i] > 0) {
		return false
	}
	moved := 127 * float64(errorF16(b.super))
	if b.levels > 0 {
		moved = 127 * (float64(b.super) + float64(b.levels)*float64(errorF16(b.super)))
	}
	first := i &^ 31
	low, high := extent(x[first:][:32])
	rms, weights, loss := max(-low, high)*14/127*(1+0x1p-10)+moved+float64(slack), 0.0, 0.0
	for j, v := range x[first:][:32] {
		w, e := float64(v)*float64(v), float64(y[first+j])-float64(v)
		weights, loss = weights+w, loss+w*e*e
	}
	return loss <= rms*rms*weights
}
