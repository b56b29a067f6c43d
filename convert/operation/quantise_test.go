package operation

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/nlpodyssey/safetensors"
	"github.com/stretchr/testify/require"

	"dsmoe/model/tensor"
)

// quantised are the types that there is an encoder of.
var quantised = []tensor.DType{tensor.Q4_0, tensor.Q4_1, tensor.Q5_0, tensor.Q5_1, tensor.Q8_0, tensor.Q2_K, tensor.Q3_K, tensor.Q4_K, tensor.Q5_K, tensor.Q6_K}

// blocks reads what scripts/gguf_blocks.py had llama.cpp make.
func blocks(t *testing.T) *safetensors.SafeTensors {
	file, err := os.ReadFile("../../fixtures/gguf-blocks/blocks.safetensors")
	require.NoError(t, err)
	parsed, err := safetensors.Deserialize(file)
	require.NoError(t, err)
	return &parsed
}

func data(t *testing.T, s *safetensors.SafeTensors, name string) []byte {
	x, ok := s.Tensor(name)
	require.True(t, ok, name)
	return x.Data()
}

// apply runs an operation on a whole source.
func apply(t *testing.T, o Operation, in Input) ([]byte, tensor.Loss) {
	u := o.Unit()
	out, lost := make([]byte, len(in.Data)/u.In*u.Out), tensor.Loss{}
	require.NoError(t, o.Apply(out, in, &lost))
	return out, lost
}

// encoded returns values in F32, F16 or BF16.
func encoded(t *testing.T, values []float32, d tensor.DType) []byte {
	src, err := binary.Append(nil, binary.LittleEndian, values)
	require.NoError(t, err)
	c, err := tensor.NewCast(tensor.F32, d)
	require.NoError(t, err)
	out := make([]byte, d.Bytes(int64(len(values))))
	c.Convert(out, src)
	return out
}

func normal(n int, scale float64) []float32 {
	r, x := rand.New(rand.NewPCG(7, 8)), make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64() * scale)
	}
	return x
}

// TestBlocksAreGGML: Apply gives the blocks that llama.cpp made of rows of all kinds, and so does
// the definition, whose code is its own.
func TestBlocksAreGGML(t *testing.T) {
	b := blocks(t)
	rows := data(t, b, "rows")
	for _, d := range quantised {
		q, err := NewQuantise(tensor.F32, d, tensor.Scaling{})
		require.NoError(t, err)
		want := data(t, b, d.String())
		require.NoError(t, q.Prove(want, Input{Data: rows}), d)
		got, lost := apply(t, q, Input{Data: rows})
		require.True(t, bytes.Equal(want, got), d)
		require.Positive(t, lost.Flushed, d)
		require.Positive(t, lost.RelRMS(), d)

		elements, size := d.Block()
		block := make([]byte, size)
		for i := range len(want) / size {
			x := make([]float32, elements)
			exactValues(tensor.F32, rows)(x, i*elements)
			referenceBlock(block, x, d)
			require.Equal(t, want[i*size:(i+1)*size], block, "%s block %d", d, i)
		}
	}
}

// TestQuantiseProvesEveryByte: no byte of a block can change and be taken for right, but
// that no element is told by.
func TestQuantiseProvesEveryByte(t *testing.T) {
	for _, d := range quantised {
		for _, from := range []tensor.DType{tensor.F32, tensor.F16, tensor.BF16} {
			q, err := NewQuantise(from, d, tensor.Scaling{})
			require.NoError(t, err)
			in := Input{Data: encoded(t, normal(512, 0.02), from)}
			out, _ := apply(t, q, in)
			require.NoError(t, q.Prove(out, in))
			elements, size := d.Block()
			for i := range out {
				change := byte(1) << (i % 8)
				out[i] ^= change
				var m *Mismatch
				require.ErrorAs(t, q.Prove(out, in), &m, "%s byte %d", d, i)
				require.Equal(t, i/size*elements, m.Element)
				require.Contains(t, m.Error(), "block, but the source gives ")
				out[i] ^= change
			}
		}
	}
}

// fp8Matrix is a matrix of FP8 whose blocks are ragged, the FP8 of a NaN beyond its end, and
// its numbers.
func fp8Matrix(t *testing.T, rows, cols int) (b tensor.Blocks, codes, scales []byte, values []float32) {
	r := rand.New(rand.NewPCG(3, 4))
	b = tensor.Blocks{Rows: rows, Cols: cols, BlockRows: 5, BlockCols: 48}
	gridRows, gridCols := b.Grid()
	s := make([]float32, gridRows*gridCols)
	for i := range s {
		s[i] = float32(r.NormFloat64() * 0.01)
	}
	for i := range rows * cols {
		code := byte(r.IntN(0x7f)) | byte(r.IntN(2)<<7)
		codes = append(codes, code)
		values = append(values, tensor.E4M3(code)*s[i/cols/5*gridCols+i%cols/48])
	}
	return b, codes, encoded(t, s, tensor.F32), values
}

// TestQuantiseFP8 gives the blocks of the products, whole, in pieces, and of a transposed
// matrix, whose elements come one by one.
func TestQuantiseFP8(t *testing.T) {
	const rows, cols = 64, 256
	b, codes, scales, values := fp8Matrix(t, rows, cols)
	for _, d := range quantised {
		q, err := NewQuantise(tensor.F8E4M3, d, tensor.Scaling{Scales: tensor.F32, Blocks: b})
		require.NoError(t, err)
		plain, err := NewQuantise(tensor.F32, d, tensor.Scaling{})
		require.NoError(t, err)
		want, lost := apply(t, plain, Input{Data: encoded(t, values, tensor.F32)})
		u := q.Unit()
		var cut tensor.Loss
		for at, n := 0, u.Elements; at < len(codes); at, n = at+n, min(len(codes)-at-n, 5*u.Elements) {
			in, got := piece(q, codes, scales, at, n), make([]byte, n/u.Elements*u.Out)
			require.NoError(t, q.Apply(got, in, &cut))
			require.Equal(t, want[at/u.Elements*u.Out:][:len(got)], got, d)
			require.NoError(t, q.Prove(got, in))
		}
		require.Equal(t, lost, cut, d) // sums too

		turned, src := make([]float32, 0, len(values)), make([]byte, 0, len(codes))
		view := tensor.View{Shape: []int64{cols, rows}, Stride: []int64{1, cols}}
		for i := range view.Len() {
			turned, src = append(turned, values[view.Element(i)]), append(src, codes[view.Element(i)])
		}
		want, _ = apply(t, plain, Input{Data: encoded(t, turned, tensor.F32)})
		in := Input{Data: src, Sides: [][]byte{scales}, Runs: view.Runs(0, view.Len())}
		got, _ := apply(t, q, in)
		require.Equal(t, want, got, d)
		require.NoError(t, q.Prove(got, in))
		got[len(got)/2] ^= 1
		require.Error(t, q.Prove(got, in), d)
		in.Runs = view.Runs(0, view.Len()-1)
		require.EqualError(t, q.Prove(want, in), "runs of 16383 elements, but there are 16384")
	}
}

// TestQuantiseRefuses: what is infinite or NaN, counted, in F32 and as a product of FP8.
func TestQuantiseRefuses(t *testing.T) {
	x := normal(4096, 1)
	x[17], x[18], x[4000] = float32(math.NaN()), float32(math.Inf(-1)), float32(math.Inf(1))
	for _, d := range quantised {
		q, err := NewQuantise(tensor.BF16, d, tensor.Scaling{})
		require.NoError(t, err)
		err = q.Apply(make([]byte, d.Bytes(4096)), Input{Data: encoded(t, x, tensor.BF16)}, &tensor.Loss{})
		require.EqualError(t, err, "at least 2 elements of the source: infinite or NaN, which "+d.String()+" cannot hold")
	}
	b, codes, scales, _ := fp8Matrix(t, 1, 256)
	codes[7] = 0x7f
	q, err := NewQuantise(tensor.F8E4M3, tensor.Q4_K, tensor.Scaling{Scales: tensor.F32, Blocks: b})
	require.NoError(t, err)
	require.ErrorContains(t, q.Apply(make([]byte, 144), piece(q, codes, scales, 0, 256), &tensor.Loss{}), "at least 1 element of the source")
	for _, c := range []struct {
		from, to tensor.DType
		cause    string
	}{
		{tensor.F32, tensor.MXFP4, "nothing can be quantised to dtype MXFP4"},
		{tensor.F32, tensor.BF16, "nothing can be quantised to dtype BF16"},
		{tensor.Q8_0, tensor.Q4_0, "dtype Q8_0 cannot be quantised"},
		{tensor.I32, tensor.Q4_0, "dtype I32 cannot be quantised"},
	} {
		_, err := NewQuantise(c.from, c.to, tensor.Scaling{})
		require.EqualError(t, err, c.cause)
	}
}

// TestDequantiseBlocks: blocks of noise give the numbers that llama.cpp decodes, those are
// what the proof's own decoding accepts, and none of them can change.
func TestDequantiseBlocks(t *testing.T) {
	b := blocks(t)
	for _, d := range append(quantised, tensor.MXFP4) {
		in := Input{Data: data(t, b, "noise."+d.String())}
		for _, to := range []tensor.DType{tensor.F32, tensor.F16, tensor.BF16} {
			o, err := NewDequantiseBlocks(d, to)
			require.NoError(t, err)
			require.Equal(t, strings.ToLower(d.String())+"-dequantise "+to.String(), o.Name())
			out, _ := apply(t, o, in)
			require.NoError(t, o.Prove(out, in), "%s %s", d, to)
			size := int(to.Bytes(1))
			for i := size - 1; i < len(out); i += size {
				out[i] ^= 0x40
				if err := o.Prove(out, in); err == nil { // a NaN is a NaN
					out[i] ^= 0x40
					require.Positive(t, tensor.NotFinite(out[i+1-size:i+1], to))
					continue
				}
				out[i] ^= 0x40
			}
			if to == tensor.F32 {
				want := data(t, b, "values."+d.String())
				for i := 0; i < len(want); i += 4 {
					x, y := binary.LittleEndian.Uint32(want[i:]), binary.LittleEndian.Uint32(out[i:])
					require.True(t, x == y || tensor.NotFinite(want[i:i+4], tensor.F32) == 1, "%s %d: %08x %08x", d, i/4, x, y)
				}
			}
		}
	}
	_, err := NewDequantiseBlocks(tensor.F8E4M3, tensor.F32)
	require.EqualError(t, err, "dtype F8_E4M3 has no blocks")
	_, err = NewDequantiseBlocks(tensor.Q8_0, tensor.Q4_0)
	require.EqualError(t, err, "Q8_0 cannot be dequantised to Q4_0")
}

// FuzzProof: all that is encoded lies within half a step of its block, and is proven. Refused are
// NaN, infinities, and numbers beyond 10⁸, which no scale in F16 holds: ggml's sums of their
// fourth powers overflow, and its block may stand for 0.
func FuzzProof(f *testing.F) {
	f.Add([]byte{1, 2, 3, 0x3f}, uint8(0))
	f.Add([]byte("\x00\x00\x80\x3f\x01\x00\x80\x3f\xff\xff\x7f\xbf"), uint8(4))
	f.Add([]byte("a"), uint8(167))
	f.Fuzz(func(t *testing.T, noise []byte, which uint8) {
		if len(noise) == 0 {
			return
		}
		src := make([]byte, 4*256)
		for i := range src {
			src[i] = noise[i%len(noise)]
			if i%4 == 3 && i >= len(noise) {
				src[i] += byte(i / 64)
			}
		}
		d := quantised[int(which)%len(quantised)]
		q, err := NewQuantise(tensor.F32, d, tensor.Scaling{})
		require.NoError(t, err)
		out := make([]byte, d.Bytes(256))
		if err := q.Apply(out, Input{Data: src}, &tensor.Loss{}); err != nil {
			huge := slices.ContainsFunc(values(src), func(v float32) bool { return v > 1e8 || v < -1e8 })
			require.True(t, huge || tensor.NotFinite(src, tensor.F32) > 0, "%v", err)
			return
		}
		require.NoError(t, q.Prove(out, Input{Data: src}))
		o, err := NewDequantiseBlocks(d, tensor.BF16)
		require.NoError(t, err)
		back, _ := apply(t, o, Input{Data: out})
		require.NoError(t, o.Prove(back, Input{Data: out}))
	})
}

// values are the numbers of F32.
func values(src []byte) []float32 {
	v := make([]float32, len(src)/4)
	exactValues(tensor.F32, src)(v, 0)
	return v
}

// BenchmarkQuantise writes and proves BF16, in bytes of the source.
func BenchmarkQuantise(b *testing.B) {
	x := make([]byte, 2<<14)
	for i, v := range normal(1<<14, 0.02) {
		binary.LittleEndian.PutUint16(x[2*i:], uint16(math.Float32bits(v)>>16))
	}
	for _, d := range quantised {
		q, _ := NewQuantise(tensor.BF16, d, tensor.Scaling{})
		out, lost := make([]byte, d.Bytes(1<<14)), tensor.Loss{}
		b.Run(d.String(), func(b *testing.B) {
			b.SetBytes(int64(len(x)))
			for b.Loop() {
				q.Apply(out, Input{Data: x}, &lost)
			}
		})
		b.Run(d.String()+" proof", func(b *testing.B) {
			b.SetBytes(int64(len(x)))
			for b.Loop() {
				if q.Prove(out, Input{Data: x}) != nil {
					b.Fatal("differs")
				}
			}
		})
	}
}

// BenchmarkDequantiseBlocks writes and proves BF16, in bytes of that.
func BenchmarkDequantiseBlocks(b *testing.B) {
	for _, d := range append(quantised, tensor.MXFP4) {
		blocks := make([]byte, d.Bytes(1<<14))
		for i := range blocks {
			blocks[i] = byte(i*7) & 0x3f
		}
		o, _ := NewDequantiseBlocks(d, tensor.BF16)
		out, lost := make([]byte, 2<<14), tensor.Loss{}
		b.Run(d.String(), func(b *testing.B) {
			b.SetBytes(int64(len(out)))
			for b.Loop() {
				o.Apply(out, Input{Data: blocks}, &lost)
			}
		})
		b.Run(d.String()+" proof", func(b *testing.B) {
			b.SetBytes(int64(len(out)))
			for b.Loop() {
				if o.Prove(out, Input{Data: blocks}) != nil {
					b.Fatal("differs")
				}
			}
		})
	}
}

// TestQ8HalfWay: a number half way between two codes goes away from zero, one just beside it does
// not.
func TestQ8HalfWay(t *testing.T) {
	below := math.Nextafter32(0.5, 0)
	for _, c := range []struct {
		v    float32
		code int8
	}{{0.5, 1}, {-0.5, -1}, {below, 0}, {-below, 0}, {1.5, 2}, {-1.5, -2}, {126.5, 127}, {0, 0}} {
		x, block := make([]float32, 32), make([]byte, 34)
		x[0], x[1] = 127, c.v // the scale is 1
		referenceBlock(block, x, tensor.Q8_0)
		require.Equal(t, c.code, int8(block[3]), "%v", c.v)
		q, err := NewQuantise(tensor.F32, tensor.Q8_0, tensor.Scaling{})
		require.NoError(t, err)
		out, _ := apply(t, q, Input{Data: encoded(t, x, tensor.F32)})
		require.Equal(t, block, out)
	}
}
