package kernel

import "encoding/binary"

// E4M3Table holds what the F8E4M3 numbers become in a 16-bit format once they are
// multiplied by a scale: a block of numbers that share a scale has but these values.
type E4M3Table struct {
	format    Format
	scale     float32
	magnitude [128]uint16 // of the numbers without sign; the sign is the top bit
}

// Set makes t the table of f, F16 or BF16, and scale: each product is rounded to
// float32, and that to f.
func (t *E4M3Table) Set(f Format, scale float32) {
	t.format, t.scale = f, scale
	for i := range t.magnitude {
		v := float32FromE4M3(byte(i)) * scale
		if f == BF16 {
			t.magnitude[i] = bf16FromFloat32(v)
		} else {
			t.magnitude[i] = f16FromFloat32(v)
		}
	}
}

// Decode writes the entries of the numbers in src to dst, two bytes each.
func (t *E4M3Table) Decode(dst, src []byte) {
	dst = dst[:2*len(src)]
	im := current()
	switch {
	case im.lookup != nil:
		n := len(src) &^ 31
		for i := 0; i < n; i += chunk {
			im.lookup(&dst[2*i], &src[i], min(chunk, n-i), &t.magnitude)
		}
		dst, src = dst[2*n:], src[n:]
	case im.widenE4M3 != nil:
		t.compute(dst, src)
		return
	}
	for i, b := range src {
		binary.LittleEndian.PutUint16(dst[2*i:], t.magnitude[b&0x7f]^uint16(b&0x80)<<8)
	}
}

// compute is Decode for processors that multiply faster than they look up.
func (t *E4M3Table) compute(dst, src []byte) {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	s.rows = grow(s.rows, 1024)
	for len(src) > 0 {
		n := min(len(src), len(s.rows))
		WidenScaled(s.rows[:n], src, F8E4M3, t.scale)
		Narrow(dst, s.rows[:n], t.format)
		dst, src = dst[2*n:], src[n:]
	}
}
