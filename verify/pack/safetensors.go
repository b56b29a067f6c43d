package pack

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/nlpodyssey/safetensors"

	"dsmoe/model/tensor"
	"dsmoe/text"
)

// extent is a tensor of a safetensors file: its bytes begin at From behind the header.
type extent struct {
	tensor.Info
	from int64
}

// extentsOf returns the tensors of a safetensors file of so many bytes, and where they begin in it.
func extentsOf(file io.ReaderAt, size int64) (extents map[string]extent, from int64, err error) {
	length := make([]byte, 8)
	if _, err := file.ReadAt(length, 0); err != nil || binary.LittleEndian.Uint64(length) > maxHeader {
		return nil, 0, fmt.Errorf("not a safetensors file with a header of at most %s", text.Bytes(maxHeader))
	}
	header := make([]byte, binary.LittleEndian.Uint64(length))
	if _, err := file.ReadAt(header, 8); err != nil {
		return nil, 0, errors.New("the header is cut off")
	}
	var m safetensors.Metadata
	if err := json.Unmarshal(header, &m); err != nil {
		return nil, 0, fmt.Errorf("the header cannot be read: %w", err)
	}
	from = int64(8 + len(header))
	extents, err = checkExtents(m.Tensors(), size-from)
	return extents, from, err
}

// checkExtents returns the tensors of a header if they fill size bytes, one behind the other.
func checkExtents(infos map[string]*safetensors.TensorInfo, size int64) (map[string]extent, error) {
	names := slices.SortedFunc(maps.Keys(infos), func(a, b string) int {
		x, y := infos[a].DataOffsets, infos[b].DataOffsets
		return cmp.Or(cmp.Compare(x[0], y[0]), cmp.Compare(x[1], y[1]), cmp.Compare(a, b))
	})
	extents, end := map[string]extent{}, uint64(0)
	for _, name := range names {
		info := infos[name]
		dtype, err := tensor.ParseDType(info.DType.String())
		if err != nil {
			return nil, err
		}
		e := extent{tensor.Info{Name: name, DType: dtype}, int64(end)}
		for _, d := range info.Shape {
			e.Shape = append(e.Shape, int(d))
		}
		n, err := tensor.Size(e.DType, e.Shape)
		if err != nil || info.DataOffsets != [2]uint64{end, end + uint64(n)} {
			return nil, fmt.Errorf("tensor %.120q: data_offsets %v, shape %v: not the bytes that follow", name, info.DataOffsets,
				info.Shape)
		}
		extents[name], end = e, end+uint64(n)
	}
	if end != uint64(size) {
		return nil, fmt.Errorf("%d bytes behind the header, its tensors have %d", size, end)
	}
	return extents, nil
}

// ints returns the elements of an I64 tensor.
func ints(t tensor.Tensor) ([]int, error) {
	if t.DType != tensor.I64 {
		return nil, fmt.Errorf("dtype %s, I64 expected", t.DType)
	}
	values := make([]int, t.Len())
	for i := range values {
		values[i] = int(int64(binary.LittleEndian.Uint64(t.Data[8*i:])))
	}
	return values, nil
}

// maxHeader is how large the header of a safetensors file of a pack may be.
const maxHeader = 16 << 20
