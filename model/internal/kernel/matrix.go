package kernel

import "unsafe"

// Matrix is a row-major matrix of Rows × Cols numbers, either as stored, in Data, or, if
// Data is nil, as float32, in Values.
//
// The number at (r, c) is the stored one, decoded; times a scale, if there are Scales:
//
//	float32((stored - zero) * Scales[r/BlockRows*blocks + c/BlockCols]),  blocks = ⌈Cols/BlockCols⌉
//
// with the zero of the same block, if there are Zeros; the product rounded once; and then rounded to Via,
// if Round is set.
type Matrix struct {
	Rows int // r < Rows; the output features of weights
	Cols int // c < Cols; the input features of weights

	Format Format // format of Data; rows of a block format are whole blocks, without Scales but for codes
	Data   []byte // at least Rows × Cols numbers of Format, at any alignment

	Scales    []float32 // [⌈Rows/BlockRows⌉, ⌈Cols/BlockCols⌉], one factor per block; may be nil
	Zeros     []float32 // of codes of integers, like Scales: what is subtracted from the codes of a block; may be nil
	BlockRows int       // rows of a block, fewer at the lower edge
	BlockCols int       // columns of a block, fewer at the right edge

	Round bool   // round the numbers of Data to Via, as a reference that casts its weights
	Via   Format // F32, F16 or BF16

	Values []float32 // at least Rows × Cols numbers, if Data is nil
}

// check panics if the lengths do not fit.
func (m *Matrix) check() {
	n := m.Rows * m.Cols
	if m.Data == nil && len(m.Values) < n || m.Data != nil && len(m.Data) < m.Format.Bytes(n) {
		panic("kernel: Matrix: lengths do not fit")
	}
}

// inPlace reports whether the tiles of im read m from its memory.
func (m *Matrix) inPlace(im *implementation) bool {
	if m.Cols%lanes != 0 && !im.anyLength {
		return false
	}
	return m.raw() && im.tile[m.format()].float32[0] != nil
}

// raw reports whether decoding the memory gives the numbers of the matrix, and tiles and panels
// know the format.
func (m *Matrix) raw() bool {
	return m.Data == nil || m.Scales == nil && !m.Round && (m.Format == F32 || m.Format == BF16)
}

// format returns the format of the numbers in memory.
func (m *Matrix) format() Format {
	if m.Data == nil {
		return F32
	}
	return m.Format
}

// packedFormat returns the format in which rows are packed: the format in memory, or F32 if they
// are decoded first.
func (m *Matrix) packedFormat() Format {
	if m.raw() {
		return m.format()
	}
	return F32
}

// rowBytes returns the size of a row in memory.
func (m *Matrix) rowBytes() int { return m.format().Bytes(m.Cols) }

// start returns the address of row r in memory; the next rows follow it.
func (m *Matrix) start(r int) unsafe.Pointer {
	if m.Data == nil {
		return unsafe.Pointer(&m.Values[r*m.Cols])
	}
	return unsafe.Pointer(&m.Data[r*m.rowBytes()])
}

// Row returns row r as float32: decoded into dst[:Cols], or a part of Values.
func (m *Matrix) Row(dst []float32, r int) []float32 { return m.part(dst, r, 0, m.Cols) }

// part returns the numbers from … to-1 of row r as float32: decoded into dst, or a part of
// Values. With Scales, from is a multiple of BlockCols; in a block format the numbers are whole
// blocks.
func (m *Matrix) part(dst []float32, r, from, to int) []float32 {
	first, n := r*m.Cols+from, to-from
	if m.Data == nil {
		return m.Values[first : first+n]
	}
	at := m.Format.Bytes(first)
	dst, src := dst[:n], m.Data[at:at+m.Format.Bytes(n)]
	if m.Scales == nil {
		Widen(dst, src, m.Format)
	} else {
		block := r/m.BlockRows*ceilDiv(m.Cols, m.BlockCols) + from/m.BlockCols
		zeros := m.Zeros
		if zeros != nil {
			zeros = zeros[block:]
		}
		WidenBlocks(dst, src, m.Format, m.Scales[block:], zeros, m.BlockCols)
	}
	if m.Round {
		RoundTo(dst, m.Via)
	}
	return dst
}
