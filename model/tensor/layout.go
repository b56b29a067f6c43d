package tensor

import "strings"

// What the names of tensors beside a weight have behind its name.
const (
	scalePart  = "_scale"
	ZerosPart  = "_zero_point" // zeros of the blocks
	OrderPart  = "_g_idx"      // groups of the columns
	ShapePart  = "_shape"      // rows and columns of the codes
	InputParts = "_input"      // of activations, the begin of several: no part of what the weight is
)

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

// partOf returns the header entry of a stored tensor as the form has it, which part of its weight it is, and where its
// elements lie; nil for tensors that are not transposed.
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
	rows, cols := int64(info.Shape[0]), int64(info.Shape[1])
	view := View{[]int64{rows, cols, 8}, []int64{8, 8 * rows, 1}}
	switch {
	case part == scalePart:
		return info, part, &Places{info.DType, View{[]int64{rows, cols}, []int64{1, rows}}}, true
	case part != "" && l.interleaved:
		view = View{[]int64{rows, cols, 4, 2}, []int64{8, 8 * rows, 1, 4}}
	case part == "" && l.interleaved:
		info.DType, info.Shape[0] = INT4, 8*info.Shape[0] // row 8v+k is nibble 0, 4, 1, 5, 2, 6, 3, 7 of word v
		view = View{[]int64{rows, 4, 2, cols}, []int64{8, 1, 4, 8 * rows}}
	case part == "":
		info.DType, info.Shape[1] = INT4, 8*info.Shape[1]
	}
	return info, part, &Places{INT4, view}, true
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
