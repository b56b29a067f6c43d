package tensor

import (
	"encoding/binary"
	"math"
	"math/rand"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// anomaliesOf counts by the definition: every element decoded.
func anomaliesOf(t *testing.T, data []byte, d DType) (a Anomalies) {
	t.Helper()
	values, err := Tensor{DType: d, Shape: []int{int(d.Elements(int64(len(data))))}, Data: data}.Float32s(nil)
	assert.NoError(t, err)
	for _, v := range values {
		switch {
		case v != v:
			a.NaN++
		case math.IsInf(float64(v), 0):
			a.Infinite++
		case math.IsInf(float64(Rounded(v, F16)), 0):
			a.BeyondF16++
		}
		a.Nonzero = a.Nonzero || v != 0
	}
	return a
}

// TestAnomaliesOfEveryNumber: each 8- and 16-bit number alone, F32s around the limits and at
// random, among others, in tensors of all lengths to 70.
func TestAnomaliesOfEveryNumber(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	check := func(data []byte, d DType) {
		var got Anomalies
		got.Add(data, d)
		if want := anomaliesOf(t, data, d); want != got {
			assert.Equal(t, want, got, "%s % x", d, data)
		}
	}
	for code := range 1 << 16 {
		check([]byte{byte(code), byte(code >> 8)}, F16)
		check([]byte{byte(code), byte(code >> 8)}, BF16)
		if code < 256 {
			check([]byte{byte(code)}, F8E4M3)
		}
	}
	for _, near := range []uint32{0, 0x477fefff, 0x477ff000, 0x477fffff, 0x47800000, 0x7f7fffff, 0x7f800000, 0x7f800001, 0x7fc00000, 0x7fffffff} {
		for _, sign := range []uint32{0, 1 << 31} {
			check(binary.LittleEndian.AppendUint32(nil, near|sign), F32)
		}
	}
	for n := range 71 {
		for _, d := range []DType{F32, F16, BF16, F8E4M3} {
			data := make([]byte, d.Bytes(int64(n)))
			check(data, d) // zeros
			r.Read(data)
			check(data, d)
		}
	}
}

// TestAnomaliesInParts: the sum of parts, of any size, is that of the whole.
func TestAnomaliesInParts(t *testing.T) {
	r := rand.New(rand.NewSource(2))
	data := make([]byte, 3*scanned+24)
	r.Read(data)
	for _, d := range []DType{F32, F16, BF16, F8E4M3} {
		want := anomaliesOf(t, data, d)
		var whole, parts Anomalies
		whole.Add(data, d)
		for rest := data; len(rest) > 0; {
			n := min(len(rest), (1+r.Intn(2000))*4)
			var part Anomalies
			part.Add(rest[:n], d)
			parts.Merge(part)
			rest = rest[n:]
		}
		assert.Equal(t, want, whole)
		assert.Equal(t, want, parts)
	}
	var zero Anomalies
	zero.Add(make([]byte, 2*scanned), BF16)
	assert.Equal(t, Anomalies{}, zero)
	last := make([]byte, 2*scanned)
	last[2*scanned-1] = 0x80 // -0
	zero.Add(last, BF16)
	assert.Equal(t, Anomalies{}, zero)
	last[2*scanned-2] = 1
	zero.Add(last, BF16)
	assert.Equal(t, Anomalies{Nonzero: true}, zero)
	assert.Panics(t, func() { zero.Add(last, I8) })
}

// BenchmarkAnomalies searches weights, from memory and from the cache, beside a plain read of
// the same memory.
func BenchmarkAnomalies(b *testing.B) {
	const size = 256 << 20
	data := make([]byte, size)
	for i := 0; i < len(data); i += 2 { // BF16 near 1
		binary.LittleEndian.PutUint16(data[i:], uint16(0x3f80-i%512))
	}
	run := func(name string, size int, f func(data []byte)) {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(size))
			for b.Loop() {
				f(data[:size])
			}
		})
	}
	var a Anomalies
	for _, d := range []DType{BF16, F16, F32, F8E4M3} {
		run(d.String()+"/memory", size, func(data []byte) { a.Add(data, d) })
		run(d.String()+"/cached", 128<<10, func(data []byte) { a.Add(data, d) })
	}
	var sum uint64
	run("read/memory", size, func(data []byte) {
		for ; len(data) >= 64; data = data[64:] {
			w := (*[64]byte)(data)
			for k := 0; k < 64; k += 8 {
				sum += binary.LittleEndian.Uint64(w[k:])
			}
		}
	})
	buffer := make([]byte, size)
	run("copy/memory", size, func(data []byte) { copy(buffer, data) })
	_ = sum
}

// TestAnomaliesOfBlocks are those of what the blocks stand for.
func TestAnomaliesOfBlocks(t *testing.T) {
	block := make([]byte, 34)
	block[2], block[3] = 1, 0xff // 1, -1, 0, …
	for _, c := range []struct {
		scale uint16
		want  Anomalies
	}{
		{0, Anomalies{}},
		{0x3c00, Anomalies{Nonzero: true}},
		{0x7bff, Anomalies{Nonzero: true}},
		{0x7c00, Anomalies{Nonzero: true, Infinite: 2, NaN: 30}},
		{0x7e00, Anomalies{Nonzero: true, NaN: 32}},
	} {
		block[0], block[1] = byte(c.scale), byte(c.scale>>8)
		var got Anomalies
		got.Add(append(make([]byte, 34*100), block...), Q8_0)
		require.Equal(t, c.want, got, "%04x", c.scale)
		require.Equal(t, c.want.NaN+c.want.Infinite, NotFinite(block, Q8_0))
		require.Equal(t, c.want.NaN+c.want.Infinite == 0, Tensor{DType: Q8_0, Shape: []int{32}, Data: block}.Finite())
	}
	block[3], block[1], block[0] = 127, 0x7b, 0xff
	var got Anomalies
	got.Add(block, Q8_0)
	require.Equal(t, Anomalies{Nonzero: true, BeyondF16: 1}, got)
}
