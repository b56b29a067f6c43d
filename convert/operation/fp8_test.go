package operation

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"testing"

	"github.com/nlpodyssey/safetensors"
	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/model/tensor"
)

// fp8Blocks reads what scripts/fp8.py had transformers make.
func fp8Blocks(t *testing.T) *safetensors.SafeTensors {
	file, err := os.ReadFile("../../fixtures/fp8-blocks/blocks.safetensors")
	require.NoError(t, err)
	parsed, err := safetensors.Deserialize(file)
	require.NoError(t, err)
	return &parsed
}

// magnitudes returns the largest magnitudes of all blocks of a source, found in two ways.
func magnitudes(t *testing.T, op Blockwise, src []byte, d tensor.DType) []float32 {
	b := op.Grid()
	rows, width := b.Grid()
	all, again := make([]float32, rows*width), make([]float32, rows*width)
	for r := range b.Rows {
		row := src[d.Bytes(int64(r*b.Cols)):][:d.Bytes(int64(b.Cols))]
		grid := r / b.BlockRows * width
		op.Magnitudes(all[grid:][:width], row, int64(r*b.Cols))
		op.MagnitudesByDefinition(again[grid:][:width], row, int64(r*b.Cols))
	}
	require.Equal(t, fmt.Sprint(all), fmt.Sprint(again)) // NaN too
	return all
}

// fp8 returns both operations for a source, and its largest magnitudes.
func fp8(t *testing.T, src []byte, d tensor.DType, b tensor.Blocks, powersOfTwo bool) (*Encode, *Scales, []float32) {
	encode, err := NewEncode(d, tensor.F8E4M3, b, powersOfTwo)
	require.NoError(t, err)
	scales, err := NewScales(d, tensor.F8E4M3, b, powersOfTwo)
	require.NoError(t, err)
	return encode, scales, magnitudes(t, encode, src, d)
}

// TestFP8IsTransformers_every: codes and scales are those of transformers, byte for byte, and the proof
// accepts them; a code or a scale off by one is refused.
func TestFP8IsTransformers_every(t *testing.T) {
	s, step := fp8Blocks(t), 13
	if configtest.Every(t) {
		step = 3
	}
	for _, d := range []tensor.DType{tensor.F32, tensor.F16, tensor.BF16} {
		for kind, powersOfTwo := range map[string]bool{"f32": false, "ue8m0": true} {
			name := d.String() + "." + kind
			src, codes, grid := data(t, s, d.String()), data(t, s, name), data(t, s, name+".scales")
			b := tensor.Blocks{Rows: len(codes) / 80, Cols: 80, BlockRows: 8, BlockCols: 16}
			encode, scales, largest := fp8(t, src, d, b, powersOfTwo)

			in := Input{Data: src, Largest: largest}
			got, lost := apply(t, encode, in)
			require.Equal(t, codes, got, name)
			requireErrors(t, lost, src, codes, grid, d, b)
			require.NoError(t, encode.Prove(codes, in), name)
			for i := 0; i < len(codes); i += step {
				for _, wrong := range []byte{codes[i] + 1, codes[i] - 1, codes[i] ^ 0x80} {
					right := codes[i]
					codes[i] = wrong
					row := Input{Data: src[d.Bytes(int64(i/80*80)):][:d.Bytes(80)], At: int64(i / 80 * 80), Largest: largest[i/80/8*5:]}
					if m, is := encode.Prove(codes[i/80*80:][:80], row).(*Mismatch); !is || m.Element != i%80 {
						t.Fatalf("%s: code %d, %#x for %#x: %v", name, i, wrong, right, m)
					}
					codes[i] = right
				}
			}

			written := make([]byte, len(grid))
			require.NoError(t, scales.Apply(written, Input{Largest: largest}, nil))
			require.Equal(t, grid, written, name)
			require.NoError(t, scales.Prove(grid, Input{Largest: largest}), name)
			for i := range largest {
				written[4*i]++
				require.Error(t, scales.Prove(written, Input{Largest: largest}), name)
				written[4*i]--
			}
		}
	}
}

// requireErrors: the sums of the errors of codes and their scales, and the elements that changed.
func requireErrors(t *testing.T, lost tensor.Loss, src, codes, grid []byte, d tensor.DType, b tensor.Blocks) {
	values := make([]float32, len(codes))
	exactValues(d, src)(values, 0)
	_, width := b.Grid()
	var want tensor.Loss
	for i, v := range values {
		scale := math.Float32frombits(binary.LittleEndian.Uint32(grid[4*(b.GridRow(int64(i))*width+i%b.Cols/b.BlockCols):]))
		e := float64(float32(tensor.E4M3(codes[i])*scale) - v)
		want.Squares, want.Errors, want.Largest = want.Squares+float64(v)*float64(v), want.Errors+e*e, max(want.Largest, math.Abs(e))
		if e != 0 {
			want.Rounded++
		}
	}
	require.InEpsilon(t, want.Squares, lost.Squares, 1e-9)
	require.InEpsilon(t, want.Errors, lost.Errors, 1e-9)
	require.Equal(t, tensor.Loss{Rounded: want.Rounded, Squares: lost.Squares, Errors: lost.Errors, Largest: want.Largest}, lost)
}

// TestFP8Edges: blocks of numbers so small that transformers has no scale for them, the largest
// numbers, partial blocks, and blocks with an infinity or NaN, which are refused.
func TestFP8Edges(t *testing.T) {
	b := tensor.Blocks{Rows: 3, Cols: 5, BlockRows: 2, BlockCols: 4}
	tiny, huge := float32(math.SmallestNonzeroFloat32), float32(math.MaxFloat32)
	values := []float32{
		tiny, -tiny, 0, 0x1p-126, huge,
		0, 0x1p-130, 0x1p-127, 0, -huge,
		3, 1, -2, 448, float32(math.Copysign(0, -1)),
	}
	for _, powersOfTwo := range []bool{false, true} {
		src := encoded(t, values, tensor.F32)
		encode, scales, largest := fp8(t, src, tensor.F32, b, powersOfTwo)
		require.Equal(t, []float32{0x1p-126, huge, 448, 0}, largest)
		grid := make([]byte, 16)
		require.NoError(t, scales.Apply(grid, Input{Largest: largest}, nil))
		require.NoError(t, scales.Prove(grid, Input{Largest: largest}))
		scale := func(i int) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(grid[4*i:])) }
		require.Equal(t, []float32{0x1p-126, 1, 1}, []float32{scale(0), scale(2), scale(3)})
		codes, lost := apply(t, encode, Input{Data: src, Largest: largest})
		require.NoError(t, encode.Prove(codes, Input{Data: src, Largest: largest}))
		require.EqualValues(t, 2, lost.Overflow, "448 times the scale of the largest number is infinite")
		require.Equal(t, []byte{0, 0x80, 0, 0x38}, codes[:4])
		require.Equal(t, []byte{0, 0x18, 0x30, 0}, codes[5:9])
		require.Equal(t, []byte{0x44, 0x38, 0xc0, 0x7e, 0x80}, codes[10:])

		for _, bad := range []float32{float32(math.Inf(-1)), float32(math.NaN())} {
			values[6] = bad
			src := encoded(t, values, tensor.F32)
			largest := magnitudes(t, encode, src, tensor.F32)
			var refused *notFiniteError
			require.ErrorAs(t, encode.Apply(make([]byte, 15), Input{Data: src, Largest: largest}, &tensor.Loss{}), &refused)
			require.ErrorAs(t, scales.Apply(make([]byte, 16), Input{Largest: largest}, nil), &refused)
			require.EqualError(t, refused, "at least 1 element of the source: infinite or NaN, for which a block of F8_E4M3 has no scale")
			values[6] = 0x1p-130
		}
	}
	_, err := NewEncode(tensor.Q8_0, tensor.F8E4M3, b, false)
	require.Error(t, err)
	_, err = NewScales(tensor.F32, tensor.BF16, b, false)
	require.Error(t, err)
}

// TestFP8ScalesByDefinition: of a scale and its factor three roundings are excused, and no more.
func TestFP8ScalesByDefinition(t *testing.T) {
	exact, err := NewScales(tensor.F32, tensor.F8E4M3, tensor.Blocks{Rows: 1, Cols: 1, BlockRows: 1, BlockCols: 1}, false)
	require.NoError(t, err)
	powers, err := NewScales(tensor.F32, tensor.F8E4M3, tensor.Blocks{Rows: 1, Cols: 1, BlockRows: 1, BlockCols: 1}, true)
	require.NoError(t, err)
	for _, c := range []struct {
		s                      *Scales
		scale, factor, largest float64
		right                  bool
	}{
		{exact, 1, 1, 448, true}, {exact, 1 + 0x1p-22, 1 - 0x1p-22, 448, true},
		{exact, 1 + 0x1p-20, 1 - 0x1p-20, 448, false}, {exact, 1 - 0x1p-20, 1 + 0x1p-20, 448, false},
		{exact, 1, 1 + 0x1p-20, 448, false}, {exact, 1, 1 - 0x1p-20, 448, false},
		{exact, 1, 1, 0, true}, {exact, 2, 0.5, 0, false},
		{exact, 0x1p-126, 0x1p126, 1e-40, true}, {exact, 0x1p-126, 0x1p126, 449 * 0x1p-126, false},
		{powers, 1, 1, 448, true}, {powers, 1, 1, 225, true}, {powers, 1, 1, 224, false}, {powers, 1, 1, 449, false},
		{powers, 1.5, 1 / 1.5, 448, false},
	} {
		require.Equal(t, c.right, c.s.defined(c.scale, c.factor, c.largest), "%+v", c)
	}
}

// TestFP8PowersOfTwo: at the largest code times a power of two, and next to it.
func TestFP8PowersOfTwo(t *testing.T) {
	e := tensor.Encoder{Form: tensor.FP8, PowersOfTwo: true}
	for k := -126; k <= 119; k++ {
		top := float32(math.Ldexp(448, k))
		scale, factor := e.Scale(top)
		require.Equal(t, float32(math.Ldexp(1, k)), scale)
		require.Equal(t, float32(math.Ldexp(1, -k)), factor)
		above, _ := e.Scale(math.Nextafter32(top, float32(math.Inf(1))))
		require.Equal(t, 2*scale, above)
	}
}

// FuzzFP8: whatever the numbers are, the proofs accept what was written, or an infinity or NaN was refused.
func FuzzFP8(f *testing.F) {
	f.Add([]byte("\x00\x00\x80\x3f\xff\xff\x7f\x7f"), false)
	f.Add([]byte("\x01\x00\x00\x80\x00\x00\xe0\x43"), true)
	f.Fuzz(func(t *testing.T, noise []byte, powersOfTwo bool) {
		b := tensor.Blocks{Rows: 3, Cols: 5, BlockRows: 2, BlockCols: 3}
		src := make([]byte, 4*b.Rows*b.Cols)
		for i := copy(src, noise); i < len(src) && len(noise) > 0; i++ {
			src[i] = noise[i%len(noise)] + byte(i/16)
		}
		encode, scales, largest := fp8(t, src, tensor.F32, b, powersOfTwo)
		in, grid, codes := Input{Data: src, Largest: largest}, make([]byte, 4*len(largest)), make([]byte, b.Rows*b.Cols)
		if err := encode.Apply(codes, in, &tensor.Loss{}); err != nil {
			require.Positive(t, tensor.NotFinite(src, tensor.F32), "%v", err)
			require.Error(t, scales.Apply(grid, in, nil))
			return
		}
		require.NoError(t, encode.Prove(codes, in))
		require.NoError(t, scales.Apply(grid, in, nil))
		require.NoError(t, scales.Prove(grid, in))
	})
}
