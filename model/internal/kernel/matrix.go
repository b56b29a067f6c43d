package kernel

import "unsafe"

// Matrix is a row-major matrix of Rows × Cols numbers: either as it is stored, in
// Data, which need not be aligned, or, if Data is nil, in Values.
//
// Scales, if not nil, holds one factor per block of BlockRows × BlockCols numbers
// (ragged at the edges), and the number at (r, c) is
//
//	float32(stored * Scales[r/BlockRows*blocks + c/BlockCols]),  blocks = ⌈Cols/BlockCols⌉
//
// the product rounded once. If Round is set, each number is then rounded to Via, as
// the reference does when it casts its weights to the compute dtype.
type Matrix struct {
	Format Format
	Rows   int
	Cols   int
	Data   []byte

	Scales    []float32
	BlockRows int
	BlockCols int

	Round bool
	Via   Format

	Values []float32
}

// check panics if the lengths do not fit.
func (m *Matrix) check() {
	n := m.Rows * m.Cols
	if m.Data == nil && len(m.Values) < n || m.Data != nil && len(m.Data) < n*m.Format.Size() {
		panic("kernel: Matrix: lengths do not fit")
	}
}

// inPlace says whether im's tiles read m where it is.
func (m *Matrix) inPlace(im *implementation) bool {
	if m.Cols%Lanes != 0 && !im.anyLength {
		return false
	}
	return m.raw() && im.tile[m.format()].float32[0] != nil
}

// raw says whether the numbers in memory are those of the matrix.
func (m *Matrix) raw() bool {
	return m.Data == nil || m.Scales == nil && !m.Round && m.Format < F8E4M3
}

// format is the format of the numbers in memory.
func (m *Matrix) format() Format {
	if m.Data == nil {
		return F32
	}
	return m.Format
}

// rowBytes is the size of a row in memory.
func (m *Matrix) rowBytes() int { return m.Cols * m.format().Size() }

// start returns where row r is in memory, and those after it.
func (m *Matrix) start(r int) unsafe.Pointer {
	if m.Data == nil {
		return unsafe.Pointer(&m.Values[r*m.Cols])
	}
	return unsafe.Pointer(&m.Data[r*m.rowBytes()])
}

// Row returns row r as float32, decoded into dst[:Cols] if it is stored.
func (m *Matrix) Row(dst []float32, r int) []float32 {
	if m.Data == nil {
		return m.Values[r*m.Cols : (r+1)*m.Cols]
	}
	n := m.Cols * m.Format.Size()
	dst, src := dst[:m.Cols], m.Data[r*n:(r+1)*n]
	if m.Scales == nil {
		Widen(dst, src, m.Format)
	} else {
		blocks := (m.Cols + m.BlockCols - 1) / m.BlockCols
		WidenBlocks(dst, src, m.Format, m.Scales[r/m.BlockRows*blocks:], m.BlockCols)
	}
	if m.Round {
		RoundTo(dst, m.Via)
	}
	return dst
}
