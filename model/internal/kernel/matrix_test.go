package kernel

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRowIsScaled compares each number of a block-scaled matrix with its definition.
func TestRowIsScaled(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	for _, shape := range [][4]int{{5, 7, 2, 3}, {4, 6, 2, 3}, {3, 3, 128, 128}, {130, 257, 128, 128}} {
		rows, cols, blockRows, blockCols := shape[0], shape[1], shape[2], shape[3]
		blocks := (cols + blockCols - 1) / blockCols
		m := Matrix{
			Format: F8E4M3, Rows: rows, Cols: cols, Data: make([]byte, rows*cols),
			Scales:    random(r, (rows+blockRows-1)/blockRows*blocks),
			BlockRows: blockRows, BlockCols: blockCols,
		}
		for i := range m.Data {
			m.Data[i] = byte(r.UintN(0x7f)) | byte(r.UintN(2)<<7)
		}
		row := make([]float32, cols)
		for i := range rows {
			m.Row(row, i)
			for c, v := range row {
				exact := float64(float32FromE4M3(m.Data[i*cols+c])) * float64(m.Scales[i/blockRows*blocks+c/blockCols])
				require.Equal(t, float32(exact), v, "%v: row %d column %d", shape, i, c)
			}
		}
	}
}

// TestRow has rows of every kind: as stored, rounded, and plain values.
func TestRow(t *testing.T) {
	r := rand.New(rand.NewPCG(16, 2))
	const rows, cols = 3, 21
	for _, f := range []Format{F32, F16, BF16, F8E4M3} {
		m := stored(r, rows, cols, f, 1)
		all, row := make([]float32, rows*cols), make([]float32, cols)
		widenPortable(all, m.Data, f)
		for i := range rows {
			want := all[i*cols : (i+1)*cols]
			requireSame(t, want, m.Row(row, i))
			rounded := m
			rounded.Round, rounded.Via = true, BF16
			for c, v := range rounded.Row(row, i) {
				require.True(t, same(Rounded(want[c], BF16), v), "%v row %d column %d", f, i, c)
			}
		}
		values := Matrix{Rows: rows, Cols: cols, Values: all}
		require.Same(t, &all[cols], &values.Row(nil, 1)[0], "plain values are not copied")
	}
}

// TestInPlace says which matrices tiles read as they are.
func TestInPlace(t *testing.T) {
	anyLength, whole := implementation{anyLength: true}, implementation{}
	for _, im := range []*implementation{&anyLength, &whole} {
		im.tile[F32].float32[0] = func(*[tileRows]*byte, *[maxWidth]*float32, int, *[256]float32) {}
		im.tile[BF16] = im.tile[F32]
	}
	data := make([]byte, 2*32*4)
	for _, c := range []struct {
		name             string
		m                Matrix
		anyLength, whole bool
	}{
		{"values", Matrix{Rows: 2, Cols: 32, Values: make([]float32, 64)}, true, true},
		{"BF16", Matrix{Rows: 2, Cols: 32, Format: BF16, Data: data}, true, true},
		{"BF16, odd length", Matrix{Rows: 2, Cols: 31, Format: BF16, Data: data}, true, false},
		{"F16, which has no tile", Matrix{Rows: 2, Cols: 32, Format: F16, Data: data}, false, false},
		{"F8E4M3", Matrix{Rows: 2, Cols: 32, Format: F8E4M3, Data: data}, false, false},
		{"scaled", Matrix{Rows: 2, Cols: 32, Format: BF16, Data: data, Scales: unscaled, BlockRows: 2, BlockCols: 32}, false, false},
		{"rounded", Matrix{Rows: 2, Cols: 32, Format: BF16, Data: data, Round: true, Via: F16}, false, false},
	} {
		require.Equal(t, c.anyLength, c.m.inPlace(&anyLength), c.name)
		require.Equal(t, c.whole, c.m.inPlace(&whole), c.name)
	}
}
