package kernel

import (
	"encoding/binary"
	"math"
	"unsafe"
)

// chunk is the most numbers that one call into assembly converts: Go cannot interrupt assembly,
// and the garbage collector waits for it. chunk is a multiple of lanes.
const chunk = 1 << 15

// streamFrom is the size in bytes of an output that the caches cannot hold: kernels write it
// around them, from the next multiple of cacheLine on.
const (
	streamFrom = 16 << 20
	cacheLine  = 64
)

// unscaled is the scale of numbers without scales.
var unscaled = []float32{1}

// Widen decodes len(dst) numbers from src; numbers of a block format are whole blocks. Every
// value is exact, or as a block format defines it; a NaN stays a NaN. Widen panics if src is too
// short.
func Widen(dst []float32, src []byte, f Format) {
	src = src[:f.Bytes(len(dst))]
	switch {
	case f == F8E4M3 || f.coded():
		WidenBlocks(dst, src, f, unscaled, nil, max(1, len(dst)))
		return
	case f == F8E8M0:
		widenPortable(dst, src, f)
		return
	case f.Blocked():
		blocks[f].widen(dst, src)
		return
	}
	size := f.Size()
	im := current()
	widen, head := im.element.widen[f], 0
	if stream := im.stream.widen[f]; stream != nil && 4*len(dst) >= streamFrom {
		widen, head = stream, toCacheLine(unsafe.Pointer(&dst[0]))/4
	}
	widenPortable(dst[:head], src, f)
	dst, src = dst[head:], src[head*size:]
	done := 0
	if widen != nil {
		done = inChunks(len(dst), func(i, n int) { widen(&dst[i], &src[i*size], n) })
	}
	widenPortable(dst[done:], src[done*size:], f)
}

// WidenBlocks is Widen with number i multiplied by scales[i/block], the product rounded
// once to float32. If f is one of codes of integers, zeros[i/block] is subtracted before; zeros may be nil.
func WidenBlocks(dst []float32, src []byte, f Format, scales, zeros []float32, block int) {
	if f == INT4 || f == F4 { // the last code may be half a byte
		widenNibbles(dst, src, (*[16]float32)(codeValues[f]), scales, zeros, block)
		return
	}
	src = src[:f.Bytes(len(dst))]
	if f == F8E4M3 {
		widenE4M3Blocks(dst, src, scales, block)
		return
	}
	if f.coded() {
		widenCodes(dst, src, f, scales, zeros, block)
		return
	}
	for i := 0; i*block < len(dst); i++ {
		part := dst[i*block : min((i+1)*block, len(dst))]
		Widen(part, src[i*block*f.Size():], f)
		multiply(part, scales[i])
	}
}

// widenE4M3Blocks is WidenBlocks for F8E4M3. One call of the kernel takes the blocks that a
// chunk holds or, if blocks are longer or not a multiple of lanes, a piece of one block.
func widenE4M3Blocks(dst []float32, src []byte, scales []float32, block int) {
	widen := current().widenE4M3
	whole := widen != nil && block%lanes == 0 && block <= chunk
	for at := 0; at < len(dst); {
		n, perScale := min(block-at%block, len(dst)-at, chunk), chunk
		if whole {
			n, perScale = min(chunk/block*block, len(dst)-at), block
		}
		done := 0
		if widen != nil && n >= lanes {
			done = n &^ (lanes - 1)
			widen(&dst[at], &src[at], done, &scales[at/block], perScale)
		}
		rest := dst[at+done : at+n] // all of one block
		widenPortable(rest, src[at+done:], F8E4M3)
		at += n
		multiply(rest, scales[(at-1)/block])
	}
}

// NarrowBlocks sets dst to the BF16 of F8E4M3 codes times scales, as WidenBlocks and Narrow do, and returns how many
// of the products BF16 rounds. It reports false, and leaves dst undefined, if a product is neither zero nor a
// normal number that BF16 holds.
func NarrowBlocks(dst, src []byte, scales []float32, block int) (rounded int, ok bool) {
	const leastNormal, infinite = 2 * 0x00800000, 2 * 0x7f7f8000
	narrow, n := current().narrowE4M3, len(src)
	// The number of products that BF16 holds, and of their bits the least of 2·|product| - 1 and the largest of 2·|product|.
	sums := [3]uint32{0, math.MaxUint32, 0}
	if narrow != nil && n > 0 && n <= chunk && n%lanes == 0 && block%lanes == 0 {
		narrow(&dst[:2*n][0], &src[0], n, &scales[:(n-1)/block+1][0], block, &sums[0])
	} else {
		for i, code := range src {
			bits := math.Float32bits(float32FromE4M3(code) * scales[i/block])
			binary.LittleEndian.PutUint16(dst[2*i:], encodeBF16(bits))
			if bits<<16 == 0 {
				sums[0]++
			}
			sums[1], sums[2] = min(sums[1], bits<<1-1), max(sums[2], bits<<1)
		}
	}
	return n - int(sums[0]), sums[1] >= leastNormal-1 && sums[2] < infinite
}

// multiply multiplies each x by scale.
func multiply(x []float32, scale float32) {
	for i := range x {
		x[i] *= scale
	}
}

// Narrow encodes src into dst, rounding to nearest, ties to even. Values beyond
// the format's range become infinite, a NaN stays a (quiet) NaN. f is F32, F16 or BF16.
// Narrow panics if dst is too short or for other formats.
func Narrow(dst []byte, src []float32, f Format) {
	if f >= F8E4M3 {
		panic("kernel: Narrow: " + f.String() + " is read only")
	}
	size := f.Size()
	dst = dst[:len(src)*size]
	im := current()
	narrow, head := im.element.narrow[f], 0
	if stream := im.stream.narrow[f]; stream != nil && len(dst) >= streamFrom {
		if bytes := toCacheLine(unsafe.Pointer(&dst[0])); bytes%size == 0 {
			narrow, head = stream, bytes/size
		}
	}
	narrowPortable(dst, src[:head], f)
	dst, src = dst[head*size:], src[head:]
	done := 0
	if narrow != nil {
		done = inChunks(len(src), func(i, n int) { narrow(&dst[i*size], &src[i], n) })
	}
	narrowPortable(dst[done*size:], src[done:], f)
}

// toCacheLine returns the number of bytes from p to the next cache line, 0 at its start.
func toCacheLine(p unsafe.Pointer) int { return int(-uintptr(p) % cacheLine) }

// RoundTo rounds x in place to the nearest values of f (F32, F16 or BF16), ties to even.
// A NaN stays a (quiet) NaN; a number beyond the range becomes infinite.
func RoundTo(x []float32, f Format) {
	if f == F32 {
		return
	}
	done := 0
	if round := current().element.round[f]; round != nil {
		done = inChunks(len(x), func(i, n int) { round(&x[i], &x[i], n) })
	}
	for i, v := range x[done:] {
		x[done+i] = Rounded(v, f)
	}
}

// widenTo64 converts src to float64, which is exact, with the kernels of im.
func widenTo64(im *implementation, dst []float64, src []float32) {
	done := 0
	if im.widen64 != nil {
		done = inChunks(len(src), func(i, n int) { im.widen64(&dst[i], &src[i], n) })
	}
	for i, v := range src[done:] {
		dst[done+i] = float64(v)
	}
}

// inChunks cuts the largest multiple of lanes up to n into pieces of at most chunk, calls
// f(i, m) for each piece i … i+m, and returns the multiple.
func inChunks(n int, f func(i, n int)) int {
	n &^= lanes - 1
	for i := 0; i < n; i += chunk {
		f(i, min(chunk, n-i))
	}
	return n
}
