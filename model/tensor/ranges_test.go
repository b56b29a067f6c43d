package tensor

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
)

// blockNumbers makes 256 numbers of one of several kinds.
func blockNumbers(r *rand.Rand, kind int) []float32 {
	x, scale := make([]float32, 256), math.Exp(3*r.NormFloat64())
	for i := range x {
		v := r.NormFloat64()
		switch kind {
		case 1: // heavy tails
			v /= 0.1 + math.Abs(r.NormFloat64())
		case 2: // one sign
			v = math.Abs(v) + 3*r.Float64()
		case 3: // mostly zero
			v *= float64(r.IntN(8) / 7)
		case 4: // parts of other sizes
			v *= math.Exp2(float64(-(i / 16 * 7 % 12)))
		case 5: // few values
			v = math.Round(2 * v)
		case 6: // an outlier
			if i == 77 {
				v = 300
			}
		case 7: // scales below the normal F16
			v *= 1e-6 / scale
		case 8: // nearly equal
			v = 5 + 1e-3*v
		}
		x[i] = float32(v * scale)
	}
	return x
}

// TestRightBlocksUseTheirRange_every: whatever the numbers, and their importance, no encoder of ggml wastes the range of a
// block, and the half steps are those of its scale.
func TestRightBlocksUseTheirRange_every(t *testing.T) {
	rounds := 900
	if configtest.Every(t) {
		rounds = 2700
	}
	for _, d := range blockTypes[:10] {
		r := rand.New(rand.NewPCG(8, 9))
		elements, size := d.Block()
		for round := range rounds {
			x, importance := blockNumbers(r, round%9), make([]float32, 256)
			for i := range importance {
				if importance[i] = float32(math.Exp(3 * r.Float64() * r.NormFloat64())); r.IntN(3) == 0 {
					importance[i] = 0
				}
			}
			out := make([]byte, d.Bytes(256))
			d.encodeBlocks(out, x)
			for weighted := range 2 {
				if weighted == 1 && d.Weighs() {
					d.encodeRow(out, x, importance)
				}
				for i := 0; i < 256; i += elements {
					block := out[i/elements*size:][:size]
					factors, wasted := excess(d, block, dequantise(t, d, block))
					if wasted || slices.ContainsFunc(factors, func(f float64) bool { return f != 1 }) {
						t.Fatalf("%s: kind %d: %v %x: %v %v", d, round%9, x[i:i+elements], block, wasted, factors)
					}
				}
			}
		}
	}
}

// TestWastedRange: blocks of which a number beyond the others was rounded away afterwards. Those whose scale is four times what
// the rest needs are wasted, and have half steps below those of their scale; those at 1.2 times are not wasted.
func TestWastedRange(t *testing.T) {
	r := rand.New(rand.NewPCG(10, 11))
	for _, d := range []DType{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q3_K, Q4_K, Q5_K, Q6_K} {
		k := weighings[d]
		for _, times := range []float32{1.2, 4} {
			found := 0
			for range 100 {
				x := blockNumbers(r, 0)[:max(32, 256*min(1, int(k.levels)))]
				for p := 0; p < len(x); p += k.part {
					low, high := extent(x[p+1:][:k.part-1])
					x[p] = times * float32(max(-low, high))
					if k.minimums {
						x[p] = times*float32(high-low) + float32(low)
					}
				}
				block, _ := quantise(t, d, x)
				y := dequantise(t, d, block)
				for p := 0; p < len(x); p += k.part {
					y[p] = 0
				}
				factors, wasted := excess(d, block, y)
				if wasted {
					found++
					require.Less(t, slices.Min(factors), 1.0, d)
				}
			}
			require.Equal(t, map[float32]int{1.2: 0, 4: 100}[times], found, "%s %v", d, times)
		}
	}
	// The scales of a block's parts, at 31 of 63 and at 32.
	block := make([]byte, 144)
	for i := range 128 {
		block[16+i] = 0x0f | byte(i%16)<<4
	}
	PutF16(block, 1)
	for _, c := range []struct {
		scale  byte
		wasted bool
	}{{30, true}, {31, false}, {63, false}} {
		clear(block[4:16])
		putScaleMin(block, 2, c.scale, 0)
		factors, wasted := excess(Q4_K, block, dequantise(t, Q4_K, block))
		require.Equal(t, c.wasted, wasted, c.scale)
		require.Equal(t, c.wasted, factors[0] < 1)
		wasteful, blocks := Wasteful(append(block, block...), Q4_K)
		require.Equal(t, []int64{map[bool]int64{true: 2}[c.wasted], 2}, []int64{wasteful, blocks})
	}
}

// excess is that of a block of d.
func excess(d DType, data []byte, y []float32) (factors []float64, wasted bool) {
	b := blockOf(data, d)
	return b.excess(nil, y)
}

// TestWastedHalfSteps: Q8_0 codes of at most 3 have half a step of the scale under which the largest would be 127.
func TestWastedHalfSteps(t *testing.T) {
	block := make([]byte, 34)
	PutF16(block, 1)
	right := append([]byte(nil), block...)
	right[2], right[3], block[2], block[3] = 127, 3, 3, 0xfe
	h := Tensor{DType: Q8_0, Shape: []int{64}, Data: append(block, right...)}.HalfSteps(nil)
	require.InDelta(t, 3.5/127/2, h[0], 1e-3)
	require.InDelta(t, 0.5, h[33], 2e-3)
}
