package gguf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"dsmoe/convert/format"
	"dsmoe/model/tensor"
	"dsmoe/text"
)

// alignment is the alignment, in bytes, of tensors in written files: ggml's default.
const alignment = 32

// layout is the header of a GGUF file.
type layout struct {
	head  format.Head
	infos []tensor.Info
}

// newLayout lays out tensors in their order, each padded to the alignment, as gguf-py's
// GGUFWriter does. The first of several files holds the keys; each holds its number.
func newLayout(tensors []tensor.Info, head format.Head) (*format.Layout, error) {
	l := &layout{head, slices.Clone(tensors)}
	for _, info := range tensors {
		if _, ok := typeOf(info.DType); !ok {
			return nil, fmt.Errorf("layout: tensor %s: GGUF has no dtype %s", text.Quote(info.Name), info.DType)
		}
		if len(info.Name) > maxName || len(info.Shape) > maxDims {
			return nil, fmt.Errorf("layout: tensor %s: a name has %d bytes at most, a shape %d dimensions",
				text.Quote(info.Name), maxName, maxDims)
		}
		if len(info.Shape) == 0 {
			return nil, fmt.Errorf("layout: tensor %s: a scalar", text.Quote(info.Name))
		}
	}
	if len(head.Keys) < 8 && head.Shard == 0 {
		return nil, errors.New("layout: there are no keys")
	}
	offsets := []int64{int64(len(l.encode()))}
	for i, info := range tensors {
		offsets = append(offsets, padded(offsets[i]+info.Bytes(), alignment))
	}
	return &format.Layout{Infos: l.infos, Offsets: offsets, Header: l.encode}, nil
}

// encode returns the header, padded to the alignment.
func (l *layout) encode() []byte {
	keys := slices.Clone(l.head.Keys)
	if l.head.Shard > 0 {
		keys = make([]byte, 8)
	}
	if l.head.Shards > 1 { // keys that say which of several files this is, of the types that gguf-split gives them
		w := &keyWriter{b: keys}
		w.key("split.no", u16)
		w.b = binary.LittleEndian.AppendUint16(w.b, uint16(l.head.Shard))
		w.key("split.count", u16)
		w.b = binary.LittleEndian.AppendUint16(w.b, uint16(l.head.Shards))
		w.key("split.tensors.count", i32)
		keys = binary.LittleEndian.AppendUint32(w.b, uint32(l.head.Tensors))
	}
	b := append(make([]byte, 0, len(keys)+128*len(l.infos)+64), magic...)
	b = binary.LittleEndian.AppendUint32(b, 3)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(l.infos)))
	b = append(b, keys...)
	offset := int64(0)
	for _, info := range l.infos {
		b = binary.LittleEndian.AppendUint32(appendText(b, info.Name), uint32(len(info.Shape)))
		for i := range info.Shape {
			b = binary.LittleEndian.AppendUint64(b, uint64(info.Shape[len(info.Shape)-1-i]))
		}
		number, _ := typeOf(info.DType)
		b = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint32(b, number), uint64(offset))
		offset = padded(offset+info.Bytes(), alignment)
	}
	return append(b, make([]byte, padded(int64(len(b)), alignment)-int64(len(b)))...)
}
