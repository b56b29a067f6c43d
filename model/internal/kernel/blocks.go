package kernel

// The block formats of ggml. Numbers lie in blocks of 32 or 256 with their scales. A code
// stands for a product, or a product and a sum, each rounded once to float32 in the order of
// ggml's dequantize_row functions, never fused.

import (
	"encoding/binary"
	"math"
)

// blocks lists the block formats: numbers and bytes of a block, and the decoder of a row.
var blocks = [...]struct {
	numbers, bytes int
	widen          func(dst []float32, src []byte)
}{
	F6E2M3: {4, 3, nil}, // WidenBlocks decodes codes
	F4:     {2, 1, nil},
	INT2:   {4, 1, nil},
	INT3:   {8, 3, nil},
	INT4:   {2, 1, nil},
	INT5:   {8, 5, nil},
	INT6:   {4, 3, nil},
	INT7:   {8, 7, nil},
	UINT8:  {1, 1, nil},
	INT8:   {1, 1, nil},
	Q4_0:   {32, 18, widenQ4_0},
	Q4_1:   {32, 20, widenQ4_1},
	Q5_0:   {32, 22, widenQ5_0},
	Q5_1:   {32, 24, widenQ5_1},
	Q8_0:   {32, 34, widenQ8_0},
	Q2_K:   {256, 84, widenQ2_K},
	Q3_K:   {256, 110, widenQ3_K},
	Q4_K:   {256, 144, widenQ4_K},
	Q5_K:   {256, 176, widenQ5_K},
	Q6_K:   {256, 210, widenQ6_K},
	IQ4_NL: {32, 18, widenIQ4_NL},
	IQ4_XS: {256, 136, widenIQ4_XS},
	MXFP4:  {32, 17, widenMXFP4},
}

// Bytes returns the size of n numbers in bytes; n numbers of a block format are whole blocks.
func (f Format) Bytes(n int) int {
	if !f.Blocked() {
		return n * f.Size()
	}
	b := &blocks[f]
	if n%b.numbers != 0 {
		panic("kernel: not whole blocks of " + f.String())
	}
	return n / b.numbers * b.bytes
}

// f16At decodes the F16 that b begins with.
func f16At(b []byte) float32 {
	return math.Float32frombits(decodeF16(binary.LittleEndian.Uint16(b)))
}

// widenQ4_0 decodes blocks of
//
//	d F16; qs[16]       y[j] = (qs[j]&15 - 8)·d,  y[j+16] = (qs[j]>>4 - 8)·d
func widenQ4_0(dst []float32, src []byte) {
	for ; len(dst) >= 32; dst, src = dst[32:], src[18:] {
		d, y := f16At(src), (*[32]float32)(dst)
		for j, q := range (*[16]byte)(src[2:]) {
			y[j] = float32(int32(q&15)-8) * d
			y[j+16] = float32(int32(q>>4)-8) * d
		}
	}
}

// widenQ4_1 decodes blocks of
//
//	d F16; m F16; qs[16]    y[j] = (qs[j]&15)·d + m,  y[j+16] = (qs[j]>>4)·d + m
func widenQ4_1(dst []float32, src []byte) {
	for ; len(dst) >= 32; dst, src = dst[32:], src[20:] {
		d, m, y := f16At(src), f16At(src[2:]), (*[32]float32)(dst)
		for j, q := range (*[16]byte)(src[4:]) {
			y[j] = float32(float32(q&15)*d) + m
			y[j+16] = float32(float32(q>>4)*d) + m
		}
	}
}

// widenQ5_0 decodes blocks of
//
//	d F16; qh uint32; qs[16]    y[j] = ((qs[j]&15 | bit j of qh ·16) - 16)·d,
//	                            y[j+16] = ((qs[j]>>4 | bit j+16 of qh ·16) - 16)·d
func widenQ5_0(dst []float32, src []byte) {
	for ; len(dst) >= 32; dst, src = dst[32:], src[22:] {
		d, qh, y := f16At(src), binary.LittleEndian.Uint32(src[2:]), (*[32]float32)(dst)
		for j, q := range (*[16]byte)(src[6:]) {
			y[j] = float32(int32(uint32(q&15)|qh>>j&1<<4)-16) * d
			y[j+16] = float32(int32(uint32(q>>4)|qh>>(j+16)&1<<4)-16) * d
		}
	}
}

// widenQ5_1 decodes blocks of
//
//	d F16; m F16; qh uint32; qs[16]    y[j] = (qs[j]&15 | bit j of qh ·16)·d + m,
//	                                   y[j+16] = (qs[j]>>4 | bit j+16 of qh ·16)·d + m
func widenQ5_1(dst []float32, src []byte) {
	for ; len(dst) >= 32; dst, src = dst[32:], src[24:] {
		d, m, qh, y := f16At(src), f16At(src[2:]), binary.LittleEndian.Uint32(src[4:]), (*[32]float32)(dst)
		for j, q := range (*[16]byte)(src[8:]) {
			y[j] = float32(float32(int32(uint32(q&15)|qh>>j&1<<4))*d) + m
			y[j+16] = float32(float32(int32(uint32(q>>4)|qh>>(j+16)&1<<4))*d) + m
		}
	}
}

// widenQ8_0 decodes blocks of
//
//	d F16; qs[32] int8      y[j] = qs[j]·d
func widenQ8_0(dst []float32, src []byte) {
	if widen := current().widenQ8; widen != nil {
		done := inChunks(len(dst)&^31, func(i, n int) { widen(&dst[i], &src[i/32*34], n) })
		dst, src = dst[done:], src[done/32*34:]
	}
	for ; len(dst) >= 32; dst, src = dst[32:], src[34:] {
		d, y := f16At(src), (*[32]float32)(dst)
		for j, q := range (*[32]byte)(src[2:]) {
			y[j] = float32(int8(q)) * d
		}
	}
}

// widenQ2_K decodes blocks of
//
//	scales[16]; qs[64]; d F16; dmin F16
//
// in 2 halves of 128 numbers, number l of quarter k of a half: its code is at bits 2k of qs[l], and
// y = (d·(s&15))·q - dmin·(s>>4) with a scale s for 16 numbers.
func widenQ2_K(dst []float32, src []byte) {
	decodeBlocks(dst, src, 84, 0, func(l *Lines, block []byte) {
		d, dmin := f16At(block[80:]), f16At(block[82:])
		for p, s := range (*[16]byte)(block) {
			l.Scale[p], l.Low[p] = d*float32(s&15), float32(dmin*float32(s>>4))
		}
		twoBitCodes(&l.Codes, block[16:80])
	})
}

// twoBitCodes sets the codes to two bits each of 64 bytes, as Q2_K has them.
func twoBitCodes(codes *[256]byte, q []byte) {
	for i := 0; i < 256; i += 8 {
		eight := binary.LittleEndian.Uint64(q[i/128*32+i%32:]) >> (i % 128 / 32 * 2)
		binary.LittleEndian.PutUint64(codes[i:], eight&(3*eachByte))
	}
}

// eachByte has a 1 in each byte.
const eachByte = 0x0101010101010101

// ScaleQ3 returns the scale of part p of 16, -32 … 31, from the 12 bytes of a Q3_K block: the low 4
// bits of parts 0 … 7 and 8 … 15 are the halves of bytes 0 … 7, the high 2 lie in bytes 8 … 11.
func ScaleQ3(p int, q *[12]byte) int {
	return int(q[p%8]>>(p/8*4)&15|q[8+p%4]>>(p/4*2)&3<<4) - 32
}

// widenQ3_K decodes blocks of
//
//	hmask[32]; qs[64]; scales[12]; d F16
//
// as Q2_K's, but y = (d·scale)·(q - 4): bit k of hmask[l] is worth 4, k counting the quarters of both
// halves.
func widenQ3_K(dst []float32, src []byte) {
	decodeBlocks(dst, src, 110, 4, func(l *Lines, block []byte) {
		d := f16At(block[108:])
		for p := range l.Scale {
			l.Scale[p], l.Low[p] = d*float32(ScaleQ3(p, (*[12]byte)(block[96:]))), 0
		}
		twoBitCodes(&l.Codes, block[32:96])
		addBit(&l.Codes, block[:32], 2)
	})
}

// addBit gives the codes of part p of 32 numbers bit p of 32 bytes, as the given bit.
func addBit(codes *[256]byte, q []byte, bit int) {
	for i := 0; i < 256; i += 8 {
		eight := binary.LittleEndian.Uint64(q[i%32:]) >> (i / 32) & eachByte << bit
		binary.LittleEndian.PutUint64(codes[i:], binary.LittleEndian.Uint64(codes[i:])|eight)
	}
}

// ScaleMin returns the 6-bit scale and minimum of part j of 8, from the 12 bytes of a
// Q4_K or Q5_K block: get_scale_min_k4.
func ScaleMin(j int, q *[12]byte) (scale, min byte) {
	if j < 4 {
		return q[j] & 63, q[j+4] & 63
	}
	return q[j+4]&15 | q[j-4]>>6<<4, q[j+4]>>4 | q[j]>>6<<4
}

// widenQ4_K decodes blocks of
//
//	d F16; dmin F16; scales[12]; qs[128]
//
// in 8 parts of 32 numbers. Parts 2i and 2i+1 are the low and high halves of qs[32i:]:
// y = (d·scale)·q - dmin·min with the part's scale and min.
func widenQ4_K(dst []float32, src []byte) {
	decodeBlocks(dst, src, 144, 0, func(l *Lines, block []byte) {
		fourBitCodes(&l.Codes, block[16:])
		l.setMinimums(block)
	})
}

// fourBitCodes sets the codes to the halves of 128 bytes, as Q4_K has them.
func fourBitCodes(codes *[256]byte, q []byte) {
	for i := 0; i < 256; i += 8 {
		eight := binary.LittleEndian.Uint64(q[i/64*32+i%32:]) >> (i % 64 / 32 * 4)
		binary.LittleEndian.PutUint64(codes[i:], eight&(15*eachByte))
	}
}

// setMinimums sets the lines to the scales and minimums of a Q4_K or Q5_K block.
func (l *Lines) setMinimums(block []byte) {
	d, dmin, scales := f16At(block), f16At(block[2:]), (*[12]byte)(block[4:])
	for p := range 8 {
		scale, low := ScaleMin(p, scales)
		l.SetPart(p, d*float32(scale), float32(dmin*float32(low)))
	}
}

// widenQ5_K decodes blocks of
//
//	d F16; dmin F16; scales[12]; qh[32]; qs[128]
//
// as Q4_K's; bit p of qh[j] is worth 16 in number j of part p.
func widenQ5_K(dst []float32, src []byte) {
	decodeBlocks(dst, src, 176, 0, func(l *Lines, block []byte) {
		fourBitCodes(&l.Codes, block[48:])
		addBit(&l.Codes, block[16:48], 4)
		l.setMinimums(block)
	})
}

// widenQ6_K decodes blocks of
//
//	ql[128]; qh[64]; scales[16] int8; d F16
//
// in 2 halves of 128 numbers, number l of quarter k of a half: its low bits are in half a
// byte of ql, the high ones at 2k of qh[l], and y = (d·scale)·(q - 32) with a scale for
// 16 numbers.
func widenQ6_K(dst []float32, src []byte) {
	decodeBlocks(dst, src, 210, 32, func(l *Lines, block []byte) {
		d := f16At(block[208:])
		for p, scale := range (*[16]byte)(block[192:]) {
			l.Scale[p], l.Low[p] = d*float32(int8(scale)), 0
		}
		for i := 0; i < 256; i += 8 {
			half, quarter, j := i/128, i%128/32, i%32
			low := binary.LittleEndian.Uint64(block[64*half+quarter%2*32+j:]) >> (quarter / 2 * 4) & (15 * eachByte)
			high := binary.LittleEndian.Uint64(block[128+32*half+j:]) >> (2 * quarter) & (3 * eachByte)
			binary.LittleEndian.PutUint64(l.Codes[i:], low|high<<4)
		}
	})
}

// ValuesIQ4 are the values of the codes of IQ4_NL and IQ4_XS: kvalues_iq4nl.
var ValuesIQ4 = [16]float32{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}

// halves sets y to values of the low and the high halves of 16 bytes, times d.
func halves(y *[32]float32, q *[16]byte, values *[16]float32, d float32) {
	for j, q := range q {
		y[j] = values[q&15] * d
		y[j+16] = values[q>>4] * d
	}
}

// widenIQ4_NL decodes blocks of
//
//	d F16; qs[16]       y[j] = v(qs[j]&15)·d,  y[j+16] = v(qs[j]>>4)·d
func widenIQ4_NL(dst []float32, src []byte) {
	for ; len(dst) >= 32; dst, src = dst[32:], src[18:] {
		halves((*[32]float32)(dst), (*[16]byte)(src[2:]), &ValuesIQ4, f16At(src))
	}
}

// ScaleIQ4 returns the scale of part p of 8, -32 … 31, of an IQ4_XS block: its low four bits are half a byte, the high
// ones two bits of a uint16.
func ScaleIQ4(p int, block []byte) int {
	return int(block[4+p/2]>>(p%2*4)&15|block[2+p/4]>>(p%4*2)&3<<4) - 32
}

// widenIQ4_XS decodes blocks of
//
//	d F16; scales_h uint16; scales_l[4]; qs[128]
//
// in 8 parts as IQ4_NL's, of d·scale with the part's scale.
func widenIQ4_XS(dst []float32, src []byte) {
	for ; len(dst) >= 256; dst, src = dst[256:], src[136:] {
		d := f16At(src)
		for p := range 8 {
			halves((*[32]float32)(dst[32*p:]), (*[16]byte)(src[8+16*p:]), &ValuesIQ4, d*float32(ScaleIQ4(p, src)))
		}
	}
}

// valuesMXFP4 holds twice the values of E2M1, as ggml has them: -0 is +0.
var valuesMXFP4 = [16]float32{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}

// widenMXFP4 decodes blocks of
//
//	e E8M0; qs[16]      y[j] = v(qs[j]&15)·d,  y[j+16] = v(qs[j]>>4)·d
//
// with d = 2^(e-128) and v twice the value of E2M1. As in ggml, e = 255 is 2^127, not NaN.
func widenMXFP4(dst []float32, src []byte) {
	for ; len(dst) >= 32; dst, src = dst[32:], src[17:] {
		d := math.Float32frombits(0x00200000 << src[0])
		if src[0] >= 2 {
			d = math.Float32frombits(uint32(src[0]-1) << 23)
		}
		halves((*[32]float32)(dst), (*[16]byte)(src[1:]), &valuesMXFP4, d)
	}
}
