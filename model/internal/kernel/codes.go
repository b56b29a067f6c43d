package kernel

import "math"

// codeValues holds what codes stand for without their scales: see tensor.DType.
var codeValues = [...][]float32{
	F6E2M3: e2m3(),
	F4: {0, 0.5, 1, 1.5, 2, 3, 4, 6,
		float32(math.Copysign(0, -1)), -0.5, -1, -1.5, -2, -3, -4, -6},
	INT2: {-2, -1, 0, 1}, INT3: integers(3), INT4: integers(4), INT5: integers(5), INT6: integers(6), INT7: integers(7),
	UINT8: integers(8), INT8: append(integers(8)[128:], integers(8)[:128]...),
}

// integers returns those of so many bits, from the least on.
func integers(bits int) []float32 {
	values := make([]float32, 1<<bits)
	for i := range values {
		values[i] = float32(i - len(values)/2)
	}
	return values
}

// e2m3 returns the numbers of 2 bits of exponent and 3 of fraction, those with a sign last.
func e2m3() []float32 {
	values := make([]float32, 64)
	for i := range 32 {
		values[i] = float32(i) / 8
		if i >= 8 {
			values[i] = float32(8+i%8) * float32(int(1)<<(i/8-1)) / 8
		}
		values[i+32] = -values[i]
	}
	return values
}

// coded reports whether f is one of codes whose values are in codeValues.
func (f Format) coded() bool { return F6E2M3 <= f && f <= INT8 }

// widenCodes is WidenBlocks for codes of any number of bits. src begins with a whole one.
func widenCodes(dst []float32, src []byte, f Format, scales, zeros []float32, block int) {
	values, bits, zero := codeValues[f], 8*blocks[f].bytes/blocks[f].numbers, float32(0)
	for i := range dst {
		if zeros != nil {
			zero = zeros[i/block]
		}
		at := i * bits
		word := uint(src[at/8])
		if at%8+bits > 8 {
			word |= uint(src[at/8+1]) << 8
		}
		dst[i] = (values[word>>(at%8)&(1<<bits-1)] - zero) * scales[i/block]
	}
}

// widenNibbles is WidenBlocks for values of two codes to a byte. All products of a block are in a
// table, which the codes of the block are looked up in. A block of an odd length ends within a byte.
func widenNibbles(dst []float32, src []byte, values *[16]float32, scales, zeros []float32, block int) {
	var products [16]float32
	for at, i := 0, 0; at < len(dst); i++ {
		scale, zero, end := scales[i], float32(0), min(at+block, len(dst))
		if zeros != nil {
			zero = zeros[i]
		}
		for k, v := range values {
			products[k] = (v - zero) * scale
		}
		if at%2 == 1 {
			dst[at] = products[src[at/2]>>4]
			at++
		}
		for part := dst[at:end]; len(part) >= 2; part, at = part[2:], at+2 {
			code := src[at/2]
			part[0], part[1] = products[code&15], products[code>>4]
		}
		if at < end {
			dst[at] = products[src[at/2]&15]
			at++
		}
	}
}

// decodeE8M0 returns the bits of 2^(b-127); of 255 those of NaN.
func decodeE8M0(b byte) uint32 {
	switch b {
	case 0:
		return 1 << 22
	case 255:
		return 0x7fc00000
	}
	return uint32(b) << 23
}
