package safetensors

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"dsmoe/convert/format"
	"dsmoe/model/tensor"
	"dsmoe/text"
)

// layout is the header of a safetensors file.
type layout struct {
	metadata map[string]string
	infos    []tensor.Info
	offsets  []int64 // of each tensor, and of the file's end
}

// NewLayout lays out the tensors in the given order (Sort gives the order that Python writes), with the bytes that
// Python's save_file writes. Nil metadata is what Python writes for PyTorch weights: many versions of transformers cannot
// read files without it. An empty map leaves __metadata__ out; keys are written sorted. It refuses whatever readHeader
// would refuse.
func NewLayout(infos []tensor.Info, metadata map[string]string) (*format.Layout, error) {
	if metadata == nil {
		metadata = map[string]string{"format": "pt"}
	}
	if len(infos) > format.MaxTensors {
		return nil, fmt.Errorf("layout: %d tensors, more than the limit of %d", len(infos), format.MaxTensors)
	}
	l := &layout{metadata: metadata, infos: infos, offsets: make([]int64, 0, len(infos)+1)}
	names, end := make(map[string]bool, len(infos)), int64(0)
	for _, info := range infos {
		size, err := checkInfo(info)
		if err == nil && names[info.Name] {
			err = fmt.Errorf("name occurs twice")
		}
		if err == nil && size > 1<<62-end {
			err = fmt.Errorf("file would exceed 2^62 bytes")
		}
		if err != nil {
			return nil, fmt.Errorf("layout: tensor %s: %w", text.Quote(info.Name), err)
		}
		names[info.Name] = true
		l.offsets = append(l.offsets, end)
		end += size
	}
	l.offsets = append(l.offsets, end)
	header, err := l.encode()
	if err != nil {
		return nil, err
	}
	for i := range l.offsets {
		l.offsets[i] += int64(len(header))
	}
	return &format.Layout{Infos: infos, Offsets: l.offsets, Header: func() []byte {
		header, _ := l.encode() // it succeeded before
		return header
	}}, nil
}

// checkInfo refuses a tensor that readHeader would refuse and returns its size.
func checkInfo(info tensor.Info) (int64, error) {
	if err := checkName(info.Name); err != nil {
		return 0, err
	}
	if info.DType.Bytes(1<<10) == 0 || info.DType.Blocked() {
		return 0, fmt.Errorf("dtype %s", info.DType)
	}
	if len(info.Shape) > maxRank {
		return 0, fmt.Errorf("shape has %d dimensions, more than the limit of %d", len(info.Shape), maxRank)
	}
	for _, d := range info.Shape {
		if int64(d) > maxDim {
			return 0, fmt.Errorf("dimension %d exceeds the limit of %d", d, int64(maxDim))
		}
	}
	return tensor.Size(info.DType, info.Shape)
}

// encode returns the length prefix and the JSON, padded with spaces to a multiple of
// eight bytes.
func (l *layout) encode() ([]byte, error) {
	size := 4096
	for _, info := range l.infos {
		size += len(info.Name) + 128
	}
	b := append(make([]byte, prefixSize, size), '{')
	b, err := appendMetadata(b, l.metadata)
	if err != nil {
		return nil, err
	}
	start := l.offsets[0]
	for i, info := range l.infos {
		if len(b) > prefixSize+1 {
			b = append(b, ',')
		}
		b, _ = jsontext.AppendQuote(b, info.Name) // checkName saw valid UTF-8
		b = append(b, `:{"dtype":"`+info.DType.String()+`","shape":[`...)
		for i, d := range info.Shape {
			if i > 0 {
				b = append(b, ',')
			}
			b = strconv.AppendInt(b, int64(d), 10)
		}
		b = append(b, `],"data_offsets":[`...)
		offset := l.offsets[i] - start
		b = append(strconv.AppendInt(b, offset, 10), ',')
		b = append(strconv.AppendInt(b, offset+info.Bytes(), 10), "]}"...)
	}
	b = append(b, '}')
	for len(b)%8 != 0 {
		b = append(b, ' ')
	}
	n := len(b) - prefixSize
	if n > maxHeader {
		return nil, fmt.Errorf("layout: header of %s, more than the limit of %s", text.Bytes(int64(n)), text.Bytes(maxHeader))
	}
	binary.LittleEndian.PutUint64(b, uint64(n))
	return b, nil
}

func appendMetadata(b []byte, metadata map[string]string) ([]byte, error) {
	if len(metadata) == 0 {
		return b, nil
	}
	b = append(b, `"`+metadataName+`":`...)
	sep := byte('{')
	size := 0
	for _, k := range slices.Sorted(maps.Keys(metadata)) {
		var err1, err2 error
		b = append(b, sep)
		b, err1 = jsontext.AppendQuote(b, k)
		b, err2 = jsontext.AppendQuote(append(b, ':'), metadata[k])
		if err := cmp.Or(err1, err2); err != nil {
			return nil, fmt.Errorf("layout: metadata %s: not valid UTF-8", text.Quote(k))
		}
		if size += len(k) + len(metadata[k]) + 64; size > maxMetadata {
			return nil, fmt.Errorf("layout: metadata exceeds %s", text.Bytes(maxMetadata))
		}
		sep = ','
	}
	return append(b, '}'), nil
}

// writeOrder is the order in which the format's own library writes dtypes: by
// descending alignment, as its Dtype enum lists them.
var writeOrder = [...]tensor.DType{
	tensor.U64, tensor.I64, tensor.F64, tensor.C64, tensor.F32, tensor.U32, tensor.I32,
	tensor.BF16, tensor.F16, tensor.U16, tensor.I16,
	tensor.F8E5M2FNUZ, tensor.F8E4M3FNUZ, tensor.F8E8M0, tensor.F8E4M3, tensor.F8E5M2, tensor.I8, tensor.U8,
	tensor.F6E3M2, tensor.F6E2M3, tensor.F4, tensor.Bool,
}

// Sort puts the tensors in the order in which Python's save_file writes them: by dtype,
// largest elements first, then by name.
func Sort(infos []tensor.Info) {
	slices.SortStableFunc(infos, func(a, b tensor.Info) int {
		return cmp.Or(cmp.Compare(slices.Index(writeOrder[:], a.DType), slices.Index(writeOrder[:], b.DType)),
			strings.Compare(a.Name, b.Name))
	})
}
