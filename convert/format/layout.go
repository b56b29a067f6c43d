package format

import "dsmoe/model/tensor"

// Layout is a file before its data is written: every byte of the header and the place of
// every tensor are known.
type Layout struct {
	infos   []tensor.Info // in the order of their data
	offsets []int64       // of each tensor, and of the file's end
	header  func() []byte
}

// NewLayout returns the layout of a file with these tensors, in the order of their data, at these offsets; one more
// offset is the file's end. header makes the bytes before the data.
func NewLayout(tensors []tensor.Info, offsets []int64, header func() []byte) *Layout {
	return &Layout{tensors, offsets, header}
}

// Header makes the first bytes of the file, up to the data. They are made anew at each call, and not kept.
func (l *Layout) Header() []byte { return l.header() }

// Len returns the number of tensors.
func (l *Layout) Len() int { return len(l.infos) }

// Info returns tensor i, in the order of their data.
func (l *Layout) Info(i int) tensor.Info { return l.infos[i] }

// Offset returns the place of tensor i's first byte in the file.
func (l *Layout) Offset(i int) int64 { return l.offsets[i] }

// Size returns the size of the file in bytes.
func (l *Layout) Size() int64 { return l.offsets[len(l.infos)] }
