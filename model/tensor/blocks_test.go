package tensor

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/nlpodyssey/safetensors"
	"github.com/stretchr/testify/require"
)

// blockTypes are those that Blocked tells of.
var blockTypes = []DType{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4}

// ggml reads what scripts/gguf_blocks.py had llama.cpp make: rows of numbers, their blocks
// of each type, and blocks of noise with the numbers they stand for.
func ggml(t testing.TB) func(name string) []byte {
	file, err := os.ReadFile("../../fixtures/gguf-blocks/blocks.safetensors")
	require.NoError(t, err)
	parsed, err := safetensors.Deserialize(file)
	require.NoError(t, err)
	return func(name string) []byte {
		x, ok := parsed.Tensor(name)
		require.True(t, ok, name)
		return x.Data()
	}
}

func float32s(data []byte) []float32 {
	values, err := Tensor{DType: F32, Shape: []int{len(data) / 4}, Data: data}.Float32s(nil)
	if err != nil {
		panic(err)
	}
	return values
}

// quantise encodes x and returns what was lost.
func quantise(t testing.TB, d DType, x []float32) ([]byte, Loss) {
	q, err := NewQuantiser(d)
	require.NoError(t, err)
	var lost Loss
	out := make([]byte, d.Bytes(int64(len(x))))
	require.NoError(t, q.Convert(out, x, &lost), d)
	return out, lost
}

func dequantise(t testing.TB, d DType, blocks []byte) []float32 {
	values, err := Tensor{DType: d, Shape: []int{int(d.Elements(int64(len(blocks))))}, Data: blocks}.Float32s(nil)
	require.NoError(t, err)
	return values
}

// TestBlocksAreGGML: byte for byte the blocks of llama.cpp's encoders, and bit for bit the
// numbers of its decoders, zeros, denormals, outliers, ties, overflow and noise among them.
func TestBlocksAreGGML(t *testing.T) {
	read := ggml(t)
	rows := float32s(read("rows"))
	for _, d := range blockTypes {
		if d.Quantises() {
			want, _ := quantise(t, d, rows)
			elements, bytes := d.Block()
			for i, block := 0, read(d.String()); len(block) > 0; i, block = i+1, block[bytes:] {
				require.Equal(t, block[:bytes], want[i*bytes:][:bytes], "%s block %d of %v", d, i, rows[i*elements:][:elements])
			}
		}
		want, got := float32s(read("values."+d.String())), dequantise(t, d, read("noise."+d.String()))
		require.Len(t, got, len(want))
		for i := range want {
			if math.Float32bits(want[i]) != math.Float32bits(got[i]) && (want[i] == want[i] || got[i] == got[i]) {
				t.Fatalf("%s: number %d: got %x, want %x", d, i, got[i], want[i])
			}
		}
	}
}

// TestBlocksBesideOthers: the bytes of a block do not depend on how many are encoded at once.
func TestBlocksBesideOthers(t *testing.T) {
	rows := float32s(ggml(t)("rows"))
	for _, d := range blockTypes {
		if !d.Quantises() {
			continue
		}
		want, _ := quantise(t, d, rows)
		elements, size := d.Block()
		for n := range 5 {
			x := rows[n*elements:][:(n+1)*elements]
			got, _ := quantise(t, d, x)
			require.Equal(t, want[n*size:][:len(got)], got, "%d blocks of %s", n+1, d)
			if d.Weighs() && elements == 256 { // smaller blocks depend on their row
				importance := slices.Repeat([]float32{1, 3, 0.5, 2}, len(x)/4)
				q, err := NewQuantiser(d)
				require.NoError(t, err)
				require.NoError(t, q.ConvertRow(got, x, importance, new(Loss)))
				for i := range n + 1 {
					alone := make([]byte, size)
					require.NoError(t, q.ConvertRow(alone, x[i*elements:][:elements], importance[:elements], new(Loss)))
					require.Equal(t, alone, got[i*size:][:size], "block %d of %d of %s", i, n+1, d)
				}
			}
		}
	}
}

// TestQuantiseLoss: the sums are those of the definition, in float64, and do not depend on
// how rows are cut; a scale beyond F16 is counted element by element, and so is a block
// of which nothing is left.
func TestQuantiseLoss(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	x := make([]float32, 8*256)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	for _, d := range blockTypes[:10] {
		out, lost := quantise(t, d, x)
		y := dequantise(t, d, out)
		var squares, errors, largest float64
		rounded := int64(0)
		for i, v := range x {
			if y[i] != v {
				rounded++
			}
			e := float64(y[i] - v)
			squares, errors, largest = squares+float64(v)*float64(v), errors+e*e, max(largest, math.Abs(e))
		}
		require.InEpsilon(t, squares, lost.Squares, 1e-12, d)
		require.InEpsilon(t, errors, lost.Errors, 1e-12, d)
		require.Equal(t, largest, lost.Largest, d)
		require.InEpsilon(t, math.Sqrt(errors/squares), lost.RelRMS(), 1e-12, d)
		require.Zero(t, lost.Overflow+lost.Flushed+lost.NotFinite+lost.Denormal, d)
		require.Equal(t, rounded, lost.Rounded, d)

		q, err := NewQuantiser(d)
		require.NoError(t, err)
		cut := Loss{}
		for i := 0; i < len(x); i += 256 {
			q.Convert(make([]byte, d.Bytes(256)), x[i:i+256], &cut)
		}
		require.Equal(t, lost, cut, d)

		huge, tiny := make([]float32, 256), make([]float32, 256)
		for i := range huge {
			huge[i], tiny[i] = -1e9+float32(i), 1e-12
		}
		tiny[7], huge[9] = 0, 1e9
		_, lost = quantise(t, d, huge)
		require.Equal(t, Loss{Overflow: 256}, lost, d)
		_, lost = quantise(t, d, tiny)
		require.Equal(t, int64(255), lost.Flushed, d)
		require.Equal(t, 1.0, lost.RelRMS(), d)
		require.Zero(t, lost.Rounded, d)
		_, lost = quantise(t, d, slices.Concat(huge, tiny, x))
		require.Equal(t, []int64{256, 255, rounded}, []int64{lost.Overflow, lost.Flushed, lost.Rounded}, d)
		_, lost = quantise(t, d, y)
		require.Less(t, lost.Rounded, rounded, d) // some are kept
	}
	require.Zero(t, Loss{}.RelRMS())
}

// TestHalfUnits: half the spacing at a number, of denormal ones that of the least; of a cast that
// rounded those alone, 0 from above the least normal number on.
func TestHalfUnits(t *testing.T) {
	half := Tensor{DType: F16, Shape: []int{5}, Data: encode(F16, 0x3c00, 0x8400, 0x0401, 0x0001, 0)} // 1, -2^-14, above, 2^-24, 0
	require.Equal(t, []float32{0x1p-11, 0x1p-25, 0x1p-25, 0x1p-25, 0x1p-25}, half.HalfSteps(nil))
	require.Equal(t, half.HalfSteps(nil), Rounding{By: "cast F16"}.HalfSteps(nil, half))
	require.Equal(t, []float32{7, 0, 0x1p-25, 0, 0x1p-25, 0x1p-25}, Rounding{By: "cast F16", Denormals: true}.HalfSteps([]float32{7}, half))
	short := Tensor{DType: BF16, Shape: []int{3}, Data: encode(BF16, 0x3f80, 0x0080, 0x0001)}
	require.Equal(t, []float32{0x1p-8, 0x1p-134, 0x1p-134}, short.HalfSteps(nil))
	cast, none, denormals := Rounding{By: "cast F16"}, Rounding{}, Rounding{By: "cast F16", Denormals: true}
	require.Equal(t, cast, none.And(cast))
	require.Equal(t, denormals, denormals.And(none))
	require.Equal(t, denormals, denormals.And(denormals))
	require.Equal(t, cast, denormals.And(cast))
}

// TestHalfSteps: what was quantised lies within the half steps, and fills them.
func TestHalfSteps(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, scale := range []float64{1, 1e-3, 1e-6} { // the last has scales below the normal F16
		x := make([]float32, 64*256)
		for i := range x {
			x[i] = float32(scale * r.NormFloat64() / (0.1 + math.Abs(r.NormFloat64())))
		}
		for _, d := range blockTypes[:10] {
			out, _ := quantise(t, d, x)
			h, y, sum := Tensor{DType: d, Shape: []int{len(x)}, Data: out}.HalfSteps([]float32{7}), dequantise(t, d, out), 0.0
			require.Len(t, h, 1+len(x))
			for i := range x {
				ratio := math.Abs(float64(y[i])-float64(x[i])) / float64(h[i+1])
				if d != Q2_K && !(ratio <= 1.0001) { // TestPastTheEnd
					require.LessOrEqual(t, ratio, 1.0001, "%s %g: %d", d, scale, i)
				}
				sum += 3 * ratio * ratio
			}
			if scale > 1e-5 {
				require.InDelta(t, 0.93, math.Sqrt(sum/float64(len(x))), 0.12, "%s %g", d, scale)
			}
		}
	}
	h := Tensor{DType: MXFP4, Shape: []int{32}, Data: append([]byte{128}, []byte("\x10\x32\x54\x76\x98\xba\xdc\xfe\x00\x00\x00\x00\x00\x00\x00\x00")...)}.HalfSteps(nil)
	require.Equal(t, []float32{0.5, 0.5, 1, 2, 0.5, 0.5, 1, 2}, h[:8]) // of 0, 2, 4, 8, -0, …
	require.Equal(t, []float32{0.5, 0.5, 1, 4}, h[16:20])              // of 1, 3, 6, 12, …
}

// TestHalfStepsOfIQ4: what llama.cpp encoded lies within the half steps, but for few numbers beyond the ends of the
// codes, and fills them.
func TestHalfStepsOfIQ4(t *testing.T) {
	read := ggml(t)
	rows := float32s(read("rows"))
	for _, d := range []DType{IQ4_NL, IQ4_XS} {
		far, all, squares := 0, 0, 0.0
		for r := range len(rows) / 256 {
			x, data := rows[256*r:][:256], read(d.String())[d.Bytes(int64(256*r)):][:d.Bytes(256)]
			y, h := dequantise(t, d, data), Tensor{DType: d, Shape: []int{256}, Data: data}.HalfSteps(nil)
			for i := range x {
				ratio := math.Abs(float64(y[i])-float64(x[i])) / float64(h[i])
				if all++; ratio > 1 {
					far++
				}
				if r < 4 { // normally distributed
					squares += 3 * ratio * ratio / (4 * 256)
				}
			}
		}
		require.Less(t, far, all/100, d)
		require.InDelta(t, 0.9, math.Sqrt(squares), 0.12, d)
	}
}

// TestPastUnevenEnds: a number of the largest magnitude beside others that are nearer to the last code of IQ4 under a smaller
// scale is left farther past it than HalfSteps says; a scale of half the right size is found there too.
func TestPastUnevenEnds(t *testing.T) {
	for _, d := range []DType{IQ4_NL, IQ4_XS} {
		far := 0
		for k := range 64 {
			x := make([]float32, 256)
			for i := range x {
				x[i] = (113 + float32(k)/8) / 127
				if i%32 == k%32 {
					x[i] = 1
				}
			}
			block, _ := quantise(t, d, x)
			h, y := Tensor{DType: d, Shape: []int{256}, Data: block}.HalfSteps(nil), dequantise(t, d, block)
			for i, v := range x {
				if abs32(y[i]-v) > h[i] {
					far++
				}
			}
			_, size := d.Block()
			for b := range len(block) / size {
				block[b*size+1] -= 4
			}
			n := int(d.Elements(int64(size)))
			y = dequantise(t, d, block)
			require.GreaterOrEqual(t, new(measure).beyond(y[:n], x[:n], block[:size], d, math.Float32bits(1)), 0, "%s %d", d, k)
		}
		require.Equal(t, d == IQ4_NL, far > 0)
	}
}

// TestUnevenScalesOfFewBits: numbers halfway between two codes, under scales that F16 rounds to few bits or to 0, are within
// the half steps of IQ4.
func TestUnevenScalesOfFewBits(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	for n := range 400 {
		x := make([]float32, 256)
		for i := range x {
			x[i] = float32((float64(r.IntN(5)-2) + r.NormFloat64()*1e-3) * math.Pow(10, -4-float64(n%5)))
		}
		for _, d := range []DType{IQ4_NL, IQ4_XS} {
			quantise(t, d, x)
		}
	}
}

// TestFaultyBlocks: an encoder whose block does not stand for its numbers is found out: by a code
// that is off by two, by a scale that is half or twice what it should be.
func TestFaultyBlocks(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 5))
	x := make([]float32, 4096)
	for i := range x {
		x[i] = float32(r.NormFloat64() / (0.1 + math.Abs(r.NormFloat64())))
	}
	places := map[DType]struct{ scale, code int }{ // bytes of a block: the upper one of its scale, one of a code in its lower bits
		Q4_0: {1, 9}, Q4_1: {1, 11}, Q5_0: {1, 13}, Q5_1: {1, 15}, Q8_0: {1, 13}, Q2_K: {81, 30}, Q3_K: {109, 60}, Q4_K: {1, 77}, Q5_K: {1, 99}, Q6_K: {209, 60},
		IQ4_NL: {1, 9}, IQ4_XS: {1, 60},
	}
	for d, at := range places {
		q, err := NewQuantiser(d)
		require.NoError(t, err)
		elements, size := d.Block()
		found := map[string]int{}
		for name, fault := range map[string]func(block []byte){
			"code":  func(b []byte) { b[at.code] ^= 2 },
			"scale": func(b []byte) { b[at.scale] += 4 }, // a power of two in F16
			"half":  func(b []byte) { b[at.scale] -= 4 },
		} {
			q.encode = func(dst []byte, x []float32) {
				d.encodeBlocks(dst, x)
				fault(dst)
			}
			for first := 0; first < len(x); first += elements {
				part := x[first:][:elements]
				err := q.Convert(make([]byte, size), part, new(Loss))
				var beyond *BeyondError
				if errors.As(err, &beyond) {
					found[name]++
					require.Equal(t, part[beyond.Element], beyond.Source)
					require.ErrorContains(t, err, fmt.Sprintf("but its %s block has ", d))
				}
			}
		}
		all := len(x) / elements
		require.Equal(t, []int{all, all}, []int{found["scale"], found["half"]}, "%s of %d blocks", d, all)
		require.Greater(t, found["code"], all*9/10, "%s: the outermost codes also stand for numbers beyond them", d)
	}
}

// TestPastTheEnd: Q2_K leaves numbers without weight, zeros, farther past the end of their part's range than
// HalfSteps says, within the part's extent; a step that is half of what it should be is found there too.
func TestPastTheEnd(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 7))
	far, refused := 0, 0
	for range 300 {
		x := make([]float32, 256)
		for i := range x {
			if x[i] = float32(r.NormFloat64()); r.IntN(10) > 0 {
				x[i] = 0
			}
		}
		block, _ := quantise(t, Q2_K, x)
		h, y := Tensor{DType: Q2_K, Shape: []int{256}, Data: block}.HalfSteps(nil), dequantise(t, Q2_K, block)
		for i, v := range x {
			if abs32(y[i]-v) > h[i] {
				far++
			}
		}
		block[81] -= 4
		y = dequantise(t, Q2_K, block)
		if new(measure).beyond(y, x, block, Q2_K, math.Float32bits(1)) >= 0 {
			refused++
		}
	}
	require.Greater(t, far, 100)
	require.Equal(t, 300, refused)
}

// twoGroups are bytes of a Q5_K block of whose last part the numbers are from 25.5 to 26.2 or from 27.8 to 28.6.
const twoGroups = "\x01\x1aP\xbf\xda\xc4M\x85\x82\x04\xe5\x12\xca\x16\f\xe0\x91\xa7$\xf4 \xec\v\x12\x1bf\raTWB\x03"

// TestTwoGroupsFarFromZero: the encoder gives each group one code, with a step of 2.6 times what the range needs. That is
// right, and a block that is farther from the numbers than the encoder comes is not.
func TestTwoGroupsFarFromZero(t *testing.T) {
	blocks := []byte(strings.Repeat(twoGroups, 6)[:176])
	x := dequantise(t, Q5_K, blocks)
	block, _ := quantise(t, Q5_K, x)
	y := dequantise(t, Q5_K, block)
	groups := map[float32]int{}
	for _, v := range y[224:] {
		groups[v]++
	}
	require.Len(t, groups, 2)
	beyond := func(x []float32) int { return new(measure).beyond(y, x, block, Q5_K, math.Float32bits(2)) }
	require.Equal(t, -1, beyond(x))
	all := slices.Clone(x)
	for i := range all[224:] {
		all[224+i] += 0.4
	}
	require.GreaterOrEqual(t, beyond(all), 224)
	one := slices.Clone(x)
	one[233] += 0.5
	require.Equal(t, 233, beyond(one))
}

// TestNoQuantiser: types that nothing is quantised to.
func TestNoQuantiser(t *testing.T) {
	for _, d := range []DType{Invalid, F32, F8E4M3, F4, MXFP4, C64, Bool, 99} {
		_, err := NewQuantiser(d)
		require.EqualError(t, err, "nothing can be quantised to dtype "+d.String())
		require.False(t, d.Quantises())
	}
}

// FuzzBlocks: any bytes decode, and any finite numbers encode, to as many bytes as they
// should and no more; what was decoded and is finite encodes again with an error that the
// type allows, or is counted.
func FuzzBlocks(f *testing.F) {
	f.Add([]byte{1, 2, 3})
	f.Add([]byte("\x00\x3c\xff\x7f\x01\x80\xff\xff"))
	f.Add([]byte(twoGroups))
	f.Add([]byte("<\x009d")) // steps of a part that are nothing beside its minimum's rounding
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) == 0 {
			return
		}
		for _, d := range blockTypes {
			const guard = 0xa5
			elements, bytes := d.Block()
			blocks := make([]byte, bytes)
			for i := range blocks {
				blocks[i] = data[i%len(data)]
			}
			x := dequantise(t, d, blocks)
			require.Len(t, x, elements)
			for i := range x {
				if x[i]-x[i] != 0 {
					x[i] = float32(i)
				}
			}
			if !d.Quantises() {
				continue
			}
			out := make([]byte, bytes+1)
			out[bytes] = guard
			var lost Loss
			require.NoError(t, (&Quantiser{d, d.encodeBlocks}).Convert(out[:bytes], x, &lost))
			require.EqualValues(t, guard, out[bytes])
			require.False(t, math.IsNaN(lost.Squares+lost.Errors+lost.Largest))
			y := dequantise(t, d, out[:bytes])
			require.Equal(t, lost.Overflow, NotFiniteValues(y))
		}
	})
}

// BenchmarkQuantise encodes, counting losses, in bytes of float32 a second.
func BenchmarkQuantise(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	x := make([]float32, 1<<14)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	for _, d := range blockTypes[:10] {
		b.Run(d.String(), func(b *testing.B) {
			out, q, lost := make([]byte, d.Bytes(int64(len(x)))), Quantiser{d, d.encodeBlocks}, Loss{}
			b.SetBytes(int64(4 * len(x)))
			for b.Loop() {
				q.Convert(out, x, &lost)
			}
		})
	}
}

// BenchmarkBlocks decodes, in bytes of float32 a second.
func BenchmarkBlocks(b *testing.B) {
	for _, d := range blockTypes {
		b.Run(d.String(), func(b *testing.B) {
			blocks := make([]byte, d.Bytes(1<<14))
			for i := range blocks {
				blocks[i] = byte(i * 7)
			}
			x := Tensor{DType: d, Shape: []int{1 << 14}, Data: blocks}
			values := make([]float32, 0, 1<<14)
			b.SetBytes(4 << 14)
			for b.Loop() {
				values, _ = x.Float32s(values[:0])
			}
		})
	}
}
