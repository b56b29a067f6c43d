package tensor

import (
	"slices"
	"strings"
)

// Places says where in a stored tensor the elements of a matrix lie that is stored in another order: the
// view has the matrix's elements row by row.
type Places struct {
	Elements DType `json:"of"` // dtype of what is put into order: of codes, or of scales
	View
}

// Bytes returns the size of the stored tensor, and of the matrix.
func (p *Places) Bytes() int64 { return p.Elements.Bytes(p.Len()) }

// Picker sets elements of dst, from element at on, to the n elements of a matrix from element first on.
type Picker func(dst []byte, at int64, stored []byte, first, n int64)

// Pick sets elements of dst, from element at on, to the n elements of the matrix from element first on. stored
// is the whole stored tensor.
func (p *Places) Pick(dst []byte, at int64, stored []byte, first, n int64) {
	p.inBlocks(first, n, func(first, i, n int64) {
		last := len(p.Shape) - 1
		for index := p.index(first); n > 0; index[last] = 0 {
			run, place, step := min(p.Shape[last]-index[last], n), p.at(index), p.Stride[last]
			for end := i + run; i < end; i++ {
				p.put(dst, at+i, stored, place)
				place += step
			}
			p.next(index[:last])
			n -= run
		}
	})
}

// PickByDefinition is Pick with the definition of each element's place, which a proof compares Pick with.
func (p *Places) PickByDefinition(dst []byte, at int64, stored []byte, first, n int64) {
	p.inBlocks(first, n, func(first, i, n int64) {
		index := p.index(first)
		for end := i + n; i < end; i++ {
			p.put(dst, at+i, stored, p.at(index))
			p.next(index)
		}
	})
}

// placesBlock is how many elements along the last axis are picked of all rows before the next: their lines of
// the stored tensor, of which the next rows need the same, stay in the processor's cache.
const placesBlock = 64

// inBlocks calls do for parts of n elements from first on that make up all of them: each with its first element,
// which it is of the n, and its length.
func (p *Places) inBlocks(first, n int64, do func(first, i, n int64)) {
	row := p.Shape[len(p.Shape)-1]
	if row <= placesBlock || n <= row {
		do(first, 0, n)
		return
	}
	for begin := int64(0); begin < row; begin += placesBlock {
		for at := first - first%row; at < first+n; at += row {
			from, to := max(at+begin, first), min(at+begin+placesBlock, at+row, first+n)
			if from < to {
				do(from, from-first, to-from)
			}
		}
	}
}

// index returns where an element of the matrix is along each axis of the view.
func (p *Places) index(element int64) []int64 {
	index := make([]int64, len(p.Shape))
	for axis := len(index) - 1; axis >= 0; axis-- {
		index[axis], element = element%p.Shape[axis], element/p.Shape[axis]
	}
	return index
}

// next goes to the next element along the leading axes that index has.
func (p *Places) next(index []int64) {
	for axis := len(index) - 1; axis >= 0; axis-- {
		if index[axis]++; index[axis] < p.Shape[axis] {
			return
		}
		index[axis] = 0
	}
}

// at returns the place of an element: the sum of its index times Stride along each axis.
func (p *Places) at(index []int64) (place int64) {
	for axis, i := range index {
		place += i * p.Stride[axis]
	}
	return place
}

// put sets element i of dst to the stored element at place.
func (p *Places) put(dst []byte, i int64, stored []byte, place int64) {
	if p.Elements == INT4 || p.Elements == F4 {
		code, shift := stored[place/2]>>(place%2*4)&15, i%2*4
		dst[i/2] = dst[i/2]&(0xf0>>shift) | code<<shift
		return
	}
	size := p.Elements.Bytes(1)
	copy(dst[i*size:(i+1)*size], stored[place*size:])
}

// Part returns the bytes begin … end of the matrix, in the memory of buffer if that is enough. pick is Pick or
// PickByDefinition.
func (p *Places) Part(buffer, stored []byte, begin, end int64, pick Picker) []byte {
	buffer = slices.Grow(buffer[:0], int(end-begin))[:end-begin]
	pick(buffer, 0, stored, p.Elements.Elements(begin), p.Elements.Elements(end-begin))
	return buffer
}

// layout is how the tensors of a form lie in files that hold them transposed: codes of four bits in I32, [in,
// out/8] or [in/8, out], a row of scales for each group of columns [groups, out], and zeros packed along
// the rows [groups, out/8].
type layout struct {
	interleaved bool // codes are packed along the rows, in the order of AWQ; else along the columns, as GPTQ
	above       int  // what is added to a zero
	ordered     bool // g_idx has the group of each column; else it may only say what the order says
}

// ends are what files have behind the name of a module for each part of a weight.
var ends = map[string]string{"qweight": "", "scales": scalePart, "qzeros": ZerosPart, "g_idx": OrderPart}

// partOf tells what a stored tensor is: its header entry as the form has it, and which part of its weight.
func (l *layout) partOf(stored Info) (info Info, part string, places *Places, ok bool) {
	dot := strings.LastIndexByte(stored.Name, '.') + 1
	part, ok = ends[stored.Name[dot:]]
	packed := strings.HasPrefix(stored.Name[dot:], "q")
	if !ok || part == "" && stored.DType != Invalid && (stored.DType != I32 || len(stored.Shape) != 2) {
		return stored, "", nil, false
	}
	info = Info{stored.Name[:dot] + "weight" + part, stored.DType, stored.Shape}
	if len(info.Shape) != 2 || packed && info.DType != I32 || !packed && !info.DType.Casts() {
		return info, part, nil, true
	}
	info.Shape = []int{info.Shape[1], info.Shape[0]}
	places = l.places(&info, part)
	return info, part, places, true
}

// places returns where the elements of a part lie, whose header entry is transposed. Of codes it makes that the
// entry of the codes.
func (l *layout) places(info *Info, part string) *Places {
	rows, cols := int64(info.Shape[0]), int64(info.Shape[1])
	switch {
	case part == scalePart:
		return &Places{info.DType, View{[]int64{rows, cols}, []int64{1, rows}}}
	case part == "":
		info.DType = INT4
		if !l.interleaved {
			info.Shape[1] *= 8
			return &Places{INT4, View{[]int64{rows, cols, 8}, []int64{8, 8 * rows, 1}}}
		}
		info.Shape[0] *= 8 // row 8v+k is nibble 0, 4, 1, 5, 2, 6, 3, 7 of word v
		return &Places{INT4, View{[]int64{rows, 4, 2, cols}, []int64{8, 1, 4, 8 * rows}}}
	case l.interleaved:
		return &Places{INT4, View{[]int64{rows, cols, 4, 2}, []int64{8, 8 * rows, 1, 4}}}
	}
	return &Places{INT4, View{[]int64{rows, cols, 8}, []int64{8, 8 * rows, 1}}}
}

// tensors returns the header entries of a matrix of rows and columns whose rows have that many scales.
func (l *layout) tensors(name string, shape []int, groups int) []Info {
	rows, cols := shape[0], shape[1]
	codes := []int{cols / 8, rows}
	if l.interleaved {
		codes = []int{cols, rows / 8}
	}
	module := strings.TrimSuffix(name, "weight")
	all := []Info{{module + "qweight", I32, codes}, {module + "scales", F16, []int{groups, rows}},
		{module + "qzeros", I32, []int{groups, rows / 8}}}
	if !l.interleaved {
		all = append(all, Info{module + "g_idx", I32, []int{cols}})
	}
	return all
}

// transposed returns a form of codes of four bits whose tensors lie transposed.
func transposed(name, method string, l layout) *Form {
	f := &Form{Name: name, Method: method, Numbers: F32, Parts: []string{scalePart, ZerosPart}, Codes: INT4, Scales: F16,
		Own: "qweight", In: []DType{I32}, Largest: 15, values: valuesINT4[:], layout: &l}
	if !l.interleaved {
		f.Parts = append(f.Parts, OrderPart)
	}
	return f
}
