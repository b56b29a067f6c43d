package operation

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/model/tensor"
)

// random returns n bytes that are numbers near 1 in any dtype, so that a cast does no more than
// round and a change of the highest byte shows.
func random(n int) []byte {
	b, r := make([]byte, n), rand.New(rand.NewPCG(4, 5))
	for i := range b {
		b[i] = byte(0x3c + r.IntN(4))
	}
	return b
}

// operations lists one of each kind, with the source bytes of the matrix that it works on
// and what lies beside them.
func operations(t *testing.T) map[string]struct {
	operation   Operation
	src, beside []byte
} {
	cast := func(from, to tensor.DType) Operation {
		c, err := NewCast(from, to)
		require.NoError(t, err)
		return c
	}
	dequantise := func(to, scales tensor.DType) Operation {
		d, err := NewDequantise(tensor.F8E4M3, to, tensor.Scaling{Scales: scales, Blocks: tensor.Blocks{Rows: 12, Cols: 20, BlockRows: 5, BlockCols: 8}})
		require.NoError(t, err)
		return d
	}
	fill := func(_ tensor.Info, dst []byte, offset int64) error {
		copy(dst, random(2000)[offset:])
		return nil
	}
	return map[string]struct {
		operation   Operation
		src, beside []byte
	}{
		"copy":                   {Copy{tensor.BF16}, random(480), nil},
		"copy, 6 bits":           {Copy{tensor.F6E2M3}, random(180), nil},
		"copy, 4 bits":           {Copy{tensor.F4}, random(120), nil},
		"cast BF16":              {cast(tensor.F32, tensor.BF16), random(960), nil},
		"cast F16":               {cast(tensor.BF16, tensor.F16), random(480), nil},
		"cast F32":               {cast(tensor.F16, tensor.F32), random(480), nil},
		"cast F32 of BF16":       {cast(tensor.BF16, tensor.F32), random(480), nil},
		"cast BF16 of F16":       {cast(tensor.F16, tensor.BF16), random(480), nil},
		"fp8-dequantise F32":     {dequantise(tensor.F32, tensor.F32), random(240), random(36)},
		"fp8-dequantise BF16":    {dequantise(tensor.BF16, tensor.F16), random(240), random(18)},
		"fp8-dequantise F16":     {dequantise(tensor.F16, tensor.BF16), random(240), random(18)},
		"make of noise":          {Make{"of noise", tensor.Info{DType: tensor.F16, Shape: []int{240}}, fill}, nil, nil},
		"make of noise, 4 bits":  {Make{"of noise", tensor.Info{DType: tensor.F4, Shape: []int{240}}, fill}, nil, nil},
		"make of noise, 64 bits": {Make{"of noise", tensor.Info{DType: tensor.I64, Shape: []int{240}}, fill}, nil, nil},
	}
}

// piece cuts elements at, …, at+n-1 out of a source, with what the operation asks for.
func piece(o Operation, src, beside []byte, at, n int) Input {
	u := o.Unit()
	in := Input{Data: src[at/u.Elements*u.In:][:n/u.Elements*u.In], At: int64(at)}
	for _, span := range SidesOf(o, int64(at), int64(n)) {
		in.Sides = append(in.Sides, beside[span.Begin:span.End])
	}
	return in
}

// TestPiecesMakeTheWhole: an operation gives the same elements in pieces of any size as in
// one, proves each of them, and names the element that was changed.
func TestPiecesMakeTheWhole(t *testing.T) {
	const elements = 240
	for name, c := range operations(t) {
		t.Run(name, func(t *testing.T) {
			u := c.operation.Unit()
			whole := make([]byte, elements/u.Elements*u.Out)
			var lost tensor.Loss
			require.NoError(t, c.operation.Apply(whole, piece(c.operation, c.src, c.beside, 0, elements), &lost))
			require.Equal(t, tensor.Loss{Rounded: lost.Rounded}, lost)
			for _, n := range []int{4, 12, 28, 100} {
				var sum tensor.Loss
				for at := 0; at < elements; at += n {
					in := piece(c.operation, c.src, c.beside, at, min(n, elements-at))
					got := make([]byte, min(n, elements-at)/u.Elements*u.Out)
					require.NoError(t, c.operation.Apply(got, in, &sum))
					require.Equal(t, whole[at/u.Elements*u.Out:][:len(got)], got, "%d from %d", n, at)
					require.NoError(t, c.operation.Prove(got, in))
				}
				require.Equal(t, lost, sum)
			}
			requireMismatches(t, c.operation, whole, piece(c.operation, c.src, c.beside, 0, elements))
		})
	}
}

// requireMismatches changes the highest byte of each element, or its sign alone, and has
// the change found.
func requireMismatches(t *testing.T, o Operation, out []byte, in Input) {
	t.Helper()
	u := o.Unit()
	for i := 0; i < len(out); i += u.Out {
		highest, change := &out[i+u.Out-1], byte(0x80+i/u.Out%2)
		*highest ^= change
		var m *Mismatch
		require.ErrorAs(t, o.Prove(out, in), &m)
		assert.Equal(t, i/u.Out*u.Elements, m.Element)
		assert.ErrorContains(t, m, fmt.Sprintf("element %d reads %s, but the source gives %s", m.Element, m.Got, m.Want))
		assert.Equal(t, fmt.Sprintf("element %d reads %s, but the source gives %s", m.Element+1000, m.Got, m.Want), m.Differs(int64(m.Element)+1000))
		assert.NotEqual(t, m.Got, m.Want)
		*highest ^= change
	}
	require.NoError(t, o.Prove(out, in))
}

// TestNames are what plans and manifests hold.
func TestNames(t *testing.T) {
	names := map[string]bool{}
	for _, c := range operations(t) {
		names[c.operation.Name()] = true
	}
	require.Equal(t, map[string]bool{"copy": true, "cast BF16": true, "cast F16": true, "cast F32": true, "fp8-dequantise F32": true,
		"fp8-dequantise BF16": true, "fp8-dequantise F16": true, "make of noise": true}, names)
}

// TestUnits: the fewest elements that fill whole bytes.
func TestUnits(t *testing.T) {
	for d, want := range map[tensor.DType]unit{tensor.F64: {1, 8, 8}, tensor.Bool: {1, 1, 1}, tensor.F6E3M2: {4, 3, 3}, tensor.F4: {2, 1, 1}} {
		require.Equal(t, want, Copy{d}.Unit(), d)
		made := Make{Info: tensor.Info{DType: d}}.Unit()
		require.Equal(t, unit{want.Elements, 0, want.Out}, made, d)
	}
}

// TestDequantiseSides: the rows of scales that a run of elements needs, and no more.
func TestDequantiseSides(t *testing.T) {
	d, err := NewDequantise(tensor.F8E4M3, tensor.BF16, tensor.Scaling{Scales: tensor.F16, Blocks: tensor.Blocks{Rows: 10, Cols: 6, BlockRows: 4, BlockCols: 4}})
	require.NoError(t, err)
	const row = 2 * 2 // two blocks of F16
	for _, c := range []struct{ at, n, first, last int64 }{
		{0, 1, 0, 0}, {0, 24, 0, 0}, {0, 25, 0, 1}, {23, 1, 0, 0}, {24, 24, 1, 1}, {23, 26, 0, 2}, {59, 1, 2, 2}, {0, 60, 0, 2},
	} {
		require.Equal(t, []Span{{c.first * row, (c.last + 1) * row}}, d.Sides(c.at, c.n), "%d from %d", c.n, c.at)
	}
}

// TestNoSuchOperation: dtypes that nothing is known to be done with, and scales that are
// no numbers.
func TestNoSuchOperation(t *testing.T) {
	_, err := NewCast(tensor.I32, tensor.F32)
	require.ErrorContains(t, err, "dtype I32 cannot be cast")
	_, err = NewCast(tensor.F32, tensor.F8E4M3)
	require.ErrorContains(t, err, "nothing can be cast to dtype F8_E4M3")
	_, err = NewDequantise(tensor.F8E4M3, tensor.F64, tensor.Scaling{Scales: tensor.F32, Blocks: tensor.Blocks{}})
	require.ErrorContains(t, err, "FP8 cannot be dequantised to F64")
	d, err := NewDequantise(tensor.F8E4M3, tensor.F32, tensor.Scaling{Scales: tensor.I32, Blocks: tensor.Blocks{Rows: 1, Cols: 1, BlockRows: 1, BlockCols: 1}})
	require.NoError(t, err)
	in := Input{Data: []byte{0x38}, Sides: [][]byte{{1, 0, 0, 0}}}
	require.ErrorContains(t, d.Apply(make([]byte, 4), in, &tensor.Loss{}), "dtype I32 does not decode")
	require.ErrorContains(t, d.Prove(make([]byte, 4), in), "dtype I32 does not decode")
}

// TestMakeFails: the rule's error is that of the operation.
func TestMakeFails(t *testing.T) {
	boom := errors.New("boom")
	m := Make{"x", tensor.Info{DType: tensor.U8}, func(tensor.Info, []byte, int64) error { return boom }}
	require.ErrorIs(t, m.Apply(make([]byte, 1), Input{}, nil), boom)
	require.ErrorIs(t, m.Prove(make([]byte, 1), Input{}), boom)
}

// TestCopyCounts: NaNs and infinities are copied like other bytes, and counted.
func TestCopyCounts(t *testing.T) {
	src := binary.LittleEndian.AppendUint32(nil, 0x7f800001)
	out := make([]byte, 4)
	var lost tensor.Loss
	require.NoError(t, Copy{tensor.F32}.Apply(out, Input{Data: src}, &lost))
	require.Equal(t, tensor.Loss{NotFinite: 1}, lost)
	require.Equal(t, src, out)
	require.NoError(t, Copy{tensor.F32}.Apply(out, Input{Data: out}, &lost))
	require.Equal(t, tensor.Loss{NotFinite: 2}, lost)
	out[3] = 0xff
	require.EqualError(t, Copy{tensor.F32}.Prove(out, Input{Data: src}), "element 0 reads ff800001, but the source gives 7f800001")
}

// TestCastCounts: what a cast loses is in its count, and is no mismatch.
func TestCastCounts(t *testing.T) {
	src := binary.LittleEndian.AppendUint64(nil, 0x0000_0001_7f7f_ffff) // the largest F32 and the least
	c, err := NewCast(tensor.F32, tensor.F16)
	require.NoError(t, err)
	out := make([]byte, 4)
	var lost tensor.Loss
	require.NoError(t, c.Apply(out, Input{Data: src}, &lost))
	require.Equal(t, tensor.Loss{Overflow: 1, Flushed: 1}, lost)
	require.Equal(t, []byte{0, 0x7c, 0, 0}, out)
	require.NoError(t, c.Prove(out, Input{Data: src}))
}
