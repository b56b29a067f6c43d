package kernel

import "math"

// nibbleValues holds what the codes of INT4 and F4 stand for without their scales.
var nibbleValues = [...]*[16]float32{
	INT4: {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7},
	F4: {0, 0.5, 1, 1.5, 2, 3, 4, 6,
		float32(math.Copysign(0, -1)), -0.5, -1, -1.5, -2, -3, -4, -6},
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
