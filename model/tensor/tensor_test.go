package tensor

import (
	"encoding/json"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDTypes: every dtype has a name that reads as itself, a size, and is one of those
// that cast, integers, or neither.
func TestDTypes(t *testing.T) {
	casts, integers := map[DType]bool{F32: true, F16: true, BF16: true}, 0
	var blocked []string
	for d := Invalid + 1; d <= Bool; d++ {
		parsed, err := ParseDType(d.String())
		require.NoError(t, err)
		require.Equal(t, d, parsed)
		text, err := json.Marshal(d)
		require.NoError(t, err)
		var again DType
		require.NoError(t, json.Unmarshal(text, &again))
		require.Equal(t, d, again)
		elements, bytes := d.Block()
		require.Equal(t, int64(3*bytes), d.Bytes(int64(3*elements)), d)
		require.Equal(t, int64(3*elements), d.Elements(int64(3*bytes)), d)
		if d.Blocked() {
			blocked = append(blocked, fmt.Sprintf("%s %d %d", d, elements, bytes))
		} else {
			require.Contains(t, []int64{2, 3, 4, 5, 6, 7, 8, 16, 32, 64}, d.Bytes(8), d)
			require.Equal(t, max(1, 8/gcd(8, int(d.Bytes(8)))), elements, d)
		}
		require.Equal(t, casts[d], d.Casts(), d)
		require.False(t, d.Casts() && d.Integer(), d)
		_, err = NewCast(d, F32)
		require.Equal(t, casts[d], err == nil, d)
		_, err = FP8.Dequantiser(d)
		require.Equal(t, casts[d], err == nil, d)
		if d.Integer() {
			integers++
			require.Contains(t, "IUB", d.String()[:1])
		}
	}
	require.Equal(t, 9, integers)
	require.False(t, F64.Integer() || C64.Integer() || Invalid.Integer() || DType(99).Integer())
	require.Equal(t, "DType(99)", DType(99).String())
	require.Zero(t, DType(99).Bytes(8)+DType(99).Elements(8)+Invalid.Bytes(8)+Invalid.Elements(8))
	require.Equal(t, []string{"Q4_0 32 18", "Q4_1 32 20", "Q5_0 32 22", "Q5_1 32 24", "Q8_0 32 34", "Q2_K 256 84", "Q3_K 256 110", "Q4_K 256 144", "Q5_K 256 176", "Q6_K 256 210", "IQ4_NL 32 18", "IQ4_XS 256 136", "MXFP4 32 17"}, blocked)
	for _, name := range []string{"", "invalid", "f32", "F32 ", "DType(99)"} {
		_, err := ParseDType(name)
		require.ErrorContains(t, err, "unknown dtype")
	}
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// TestSize: the bytes of a shape, or why it has none.
func TestSize(t *testing.T) {
	for _, c := range []struct {
		dtype DType
		shape []int
		want  int64
		cause string
	}{
		{F32, nil, 4, ""},
		{F32, []int{2, 3}, 24, ""},
		{BF16, []int{0, math.MaxInt}, 0, ""},
		{F4, []int{3, 2}, 3, ""},
		{F6E2M3, []int{4}, 3, ""},
		{Invalid, []int{5}, 0, ""},
		{F4, []int{3}, 0, "3 elements of F4 do not fill whole bytes"},
		{F6E3M2, []int{2}, 0, "do not fill whole bytes"},
		{Q8_0, []int{3, 64}, 204, ""},
		{Q6_K, []int{2, 3, 256}, 1260, ""},
		{MXFP4, []int{5, 0}, 0, ""},
		{Q4_K, []int{1 << 30, 1 << 20, 1 << 10}, 9 << 56, ""},
		{Q8_0, []int{32, 33}, 0, "rows of shape [32 33] are no whole blocks of 32 elements of Q8_0"},
		{Q4_K, []int{256, 32}, 0, "no whole blocks of 256 elements of Q4_K"},
		{Q4_0, nil, 0, "no whole blocks of 32 elements"},
		{U8, []int{-1}, 0, "negative dimension -1"},
		{U8, []int{0, -1}, 0, "negative dimension -1"},
		{U8, []int{1 << 30, 1 << 30, 1 << 30}, 0, "number of elements overflows 64 bits"},
		{F64, []int{1 << 30, 1 << 30, 8}, 0, "number of bits overflows 64 bits"},
		{U8, []int{1 << 30, 1 << 30, 1}, 1 << 60, ""},
		{U8, []int{1 << 30, 1 << 30, 2}, 0, "number of bits overflows 64 bits"},
	} {
		got, err := Size(c.dtype, c.shape)
		if c.cause != "" {
			require.ErrorContains(t, err, c.cause)
			continue
		}
		require.NoError(t, err, "%s %v", c.dtype, c.shape)
		require.Equal(t, c.want, got, "%s %v", c.dtype, c.shape)
		require.Equal(t, c.want, Info{DType: c.dtype, Shape: c.shape}.Bytes(), "%s %v", c.dtype, c.shape)
	}
}

// TestRow: a view of one row along the first axis, which cannot grow into the next.
func TestRow(t *testing.T) {
	x := Tensor{DType: U16, Shape: []int{3, 2}, Data: []byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}}
	row := x.Row(1)
	require.Equal(t, Tensor{DType: U16, Shape: []int{2}, Data: []byte{4, 5, 6, 7}}, row)
	require.Equal(t, 4, cap(row.Data))
	require.Equal(t, 2, row.Len())
	require.Equal(t, []byte{10, 11}, x.Row(2).Row(1).Data)
	require.Equal(t, 1, x.Row(2).Row(1).Len())
}

// TestFloat32s: numbers are appended; what is no number is an error and appends nothing.
func TestFloat32s(t *testing.T) {
	got, err := Tensor{DType: BF16, Shape: []int{2}, Data: []byte{0x80, 0x3f, 0x00, 0xc0}}.Float32s([]float32{7})
	require.NoError(t, err)
	require.Equal(t, []float32{7, 1, -2}, got)
	for _, d := range []DType{F64, I32, Bool, F8E5M2, F6E3M2, C64} {
		got, err := Tensor{DType: d, Shape: []int{1}, Data: make([]byte, 8)}.Float32s([]float32{7})
		require.ErrorContains(t, err, "dtype "+d.String()+" does not decode to float32")
		require.Equal(t, []float32{7}, got)
	}
}
