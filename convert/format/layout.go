package format

import "dsmoe/model/tensor"

// Layout is a file before its data is written: every byte of the header and the place of
// every tensor are known.
type Layout struct {
	Infos   []tensor.Info // in the order of their data
	Offsets []int64       // in the file: of each tensor's first byte, and of the file's end
	Header  func() []byte // makes the first bytes of the file, up to the data, anew at each call
}

// Size returns the size of the file in bytes.
func (l *Layout) Size() int64 { return l.Offsets[len(l.Infos)] }
