package kernel

import "unsafe"

// chunk is how many elements one call into assembly converts at most: it cannot be
// interrupted, and the garbage collector waits for it.
const chunk = 1 << 15

// streamFrom is the size in bytes of an output that the caches cannot keep, so that
// it is stored around them; cacheLine is the alignment that such stores want.
const (
	streamFrom = 16 << 20
	cacheLine  = 64
)

// unscaled is the scale of numbers that have none.
var unscaled = []float32{1}

// Widen decodes len(dst) numbers from src. Every value is exact; a NaN stays a NaN.
func Widen(dst []float32, src []byte, f Format) {
	if f == F8E4M3 {
		WidenBlocks(dst, src, f, unscaled, max(1, len(dst)))
		return
	}
	size := f.Size()
	src = src[:len(dst)*size]
	im := current()
	if widen := im.stream.widen[f]; widen != nil && 4*len(dst) >= streamFrom {
		head := unaligned(unsafe.Pointer(&dst[0])) / 4
		widenPortable(dst[:head], src, f)
		dst, src = dst[head:], src[head*size:]
		done := whole(len(dst), func(i, n int) { widen(&dst[i], &src[i*size], n) })
		dst, src = dst[done:], src[done*size:]
	} else if widen := im.element.widen[f]; widen != nil {
		done := whole(len(dst), func(i, n int) { widen(&dst[i], &src[i*size], n) })
		dst, src = dst[done:], src[done*size:]
	}
	widenPortable(dst, src, f)
}

// WidenBlocks is Widen with number i multiplied by scales[i/block], the product rounded
// once to float32.
func WidenBlocks(dst []float32, src []byte, f Format, scales []float32, block int) {
	size, widen := f.Size(), current().widenE4M3
	src = src[:len(dst)*size]
	for at := 0; at < len(dst); {
		n, per := min(block-at%block, len(dst)-at, chunk), chunk // of one block
		done := 0
		if f == F8E4M3 && widen != nil {
			if block%Lanes == 0 && block <= chunk && at%block == 0 { // of several
				n, per = min(chunk/block*block, len(dst)-at), block
			}
			if done = n &^ (Lanes - 1); done > 0 {
				widen(&dst[at], &src[at], done, &scales[at/block], per)
			}
		}
		rest := dst[at+done : at+n]
		if f == F8E4M3 {
			widenPortable(rest, src[at+done:], f)
		} else {
			Widen(rest, src[at*size:], f)
		}
		at += n
		for i, scale := 0, scales[(at-1)/block]; i < len(rest); i++ {
			rest[i] *= scale
		}
	}
}

// Narrow encodes src into dst, rounding to nearest, ties to even. Values beyond
// the format's range become infinite, a NaN stays a (quiet) NaN. f is F32, F16 or
// BF16.
func Narrow(dst []byte, src []float32, f Format) {
	if f == F8E4M3 {
		panic("kernel: Narrow: F8E4M3 is read only")
	}
	size := f.Size()
	dst = dst[:len(src)*size]
	im := current()
	if narrow := im.stream.narrow[f]; narrow != nil && len(dst) >= streamFrom && unaligned(unsafe.Pointer(&dst[0]))%size == 0 {
		head := unaligned(unsafe.Pointer(&dst[0])) / size
		narrowPortable(dst, src[:head], f)
		dst, src = dst[head*size:], src[head:]
		done := whole(len(src), func(i, n int) { narrow(&dst[i*size], &src[i], n) })
		dst, src = dst[done*size:], src[done:]
	} else if narrow := im.element.narrow[f]; narrow != nil {
		done := whole(len(src), func(i, n int) { narrow(&dst[i*size], &src[i], n) })
		dst, src = dst[done*size:], src[done:]
	}
	narrowPortable(dst, src, f)
}

// unaligned returns the number of bytes from p to the next cache line.
func unaligned(p unsafe.Pointer) int { return int(-uintptr(p) % cacheLine) }

// RoundTo rounds x in place to the nearest value of f (F32, F16 or BF16), ties to
// even.
func RoundTo(x []float32, f Format) {
	if f == F32 {
		return
	}
	im, size, done := current(), f.Size(), 0
	if im.element.narrow[f] != nil && im.element.widen[f] != nil && len(x) >= Lanes {
		s := scratches.Get().(*scratch)
		defer scratches.Put(s)
		for done+Lanes <= len(x) {
			n := min(len(s.stored)/size, len(x)-done) &^ (Lanes - 1)
			im.element.narrow[f](&s.stored[0], &x[done], n)
			im.element.widen[f](&x[done], &s.stored[0], n)
			done += n
		}
	}
	for i, v := range x[done:] {
		x[done+i] = Rounded(v, f)
	}
}

// widen64 converts src to float64, exactly.
func widen64(im *implementation, dst []float64, src []float32) {
	done := 0
	if im.widen64 != nil {
		done = whole(len(src), func(i, n int) { im.widen64(&dst[i], &src[i], n) })
	}
	for i, v := range src[done:] {
		dst[done+i] = float64(v)
	}
}

// whole calls f(i, m) for the pieces i … i+m of the largest multiple of Lanes up to
// n, and returns that multiple.
func whole(n int, f func(i, n int)) int {
	n &^= Lanes - 1
	for i := 0; i < n; i += chunk {
		f(i, min(chunk, n-i))
	}
	return n
}
