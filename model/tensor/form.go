package tensor

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Form is a stored form: which tensors a weight lies in, and which numbers its elements stand
// for. Every dtype has one: Plain, selfScaled or a form with scales. A new form with scales is a
// value here and an entry of scaled; the rest is its quantization_config, which package config
// reads, and how the kernels decode its codes.
type Form struct {
	Name    string // in messages
	Method  string // config.Scheme's Method that announces it; "" if none does
	Numbers DType  // what its elements are decoded to; Invalid: they are numbers already

	// Parts are what the names of the tensors beside the weight's own have behind the weight's
	// name, that of its scales first. The elements of the weight are codes, and each block of the
	// matrix has a scale that its codes are multiplied by: see Scaling. nil for forms without
	// scales, which have none of what follows.
	Parts   []string
	Codes   DType              // the dtype of the codes
	Own     string             // what the tensor of the codes is called in place of "weight"; "" for the same
	In      []DType            // dtypes that files hold several codes in; nil: they have that of the codes
	Block   [2]int             // rows and columns that share a scale; zero: the config or the scales say it
	Scales  DType              // the dtype of scales that are made
	Zeros   DType              // of the zeros of the blocks: that of the codes, packed in I32 along the rows of the grid, or I8; Invalid: none
	Second  secondScale        // what the scales are put through
	Largest float32            // the largest magnitude of a code
	Nearest func(float32) byte // the code nearest to a number, ties to even; beyond Largest, that of Largest; may be nil
	values  []float64          // of all codes, by the definition of their dtype

	encode func(dst []byte, x []float32, factor float32) // sets dst to Nearest of x·factor, rounded to F32

	layout *layout // of forms whose tensors lie transposed; nil for others
}

// The forms without scales, and FP8 as DeepSeek-V3 is published.
var (
	Plain      = &Form{Name: "plain"}
	selfScaled = &Form{Name: "blocks of GGUF", Numbers: F32}
	// Unread is codes with tensors beside them that no form has.
	Unread = &Form{Name: "a form that is not read"}
	FP8    = &Form{Name: "FP8", Method: "fp8", Numbers: F32, Parts: []string{"_scale_inv"}, Codes: F8E4M3, Scales: F32,
		Largest: 448, Nearest: nearestE4M3, values: valuesE4M3(), encode: encodeE4M3}
)

// Forms of codes of eight bits.
var (
	// scaledFP8 is FP8 as compressed-tensors, ModelOpt and AutoFP8 write it: with a scale for the matrix, each row or block.
	scaledFP8 = &Form{Name: "FP8", Method: "float-quantized", Numbers: F32, Parts: []string{scalePart}, Codes: F8E4M3,
		Scales: F32, Largest: 448, values: FP8.values}
	// mxfp8 is E4M3 with a power of two for 32 numbers.
	mxfp8 = &Form{Name: "MXFP8", Method: "mxfp8-quantized", Numbers: F32, Parts: []string{scalePart}, Codes: F8E4M3,
		Scales: F8E8M0, Block: [2]int{1, 32}, Largest: 448, values: FP8.values}
	// blockINT8, scaledINT8 and zerosINT8 are integers of two's complement.
	blockINT8  = integerForm("INT8", "blockwise_int8", INT8, "_scale_inv")
	scaledINT8 = integerForm("INT8", "int-quantized", INT8, scalePart)
	zerosINT8  = integerForm("INT8 with zeros", "int-quantized, asymmetric", INT8, scalePart, ZerosPart)
)

// integerForm returns a form of integers: I8 as they are, or packed in I32 as compressed-tensors does.
func integerForm(name, method string, codes DType, parts ...string) *Form {
	bits, _ := codes.codes()
	f := &Form{Name: name, Method: method, Numbers: F32, Parts: parts, Codes: codes, Scales: BF16, In: []DType{I8},
		Largest: float32(int(1) << (bits - 1)), values: valuesInteger(bits)}
	if codes == INT8 {
		f.values = append(f.values[128:], f.values[:128]...)
	} else {
		f.Own, f.In = "weight_packed", []DType{I32}
		f.Parts = append(f.Parts, ShapePart)
	}
	if slices.Contains(parts, ZerosPart) {
		f.Zeros, f.Largest = codes, 2*f.Largest-1
		if codes == INT8 {
			f.Zeros = I8
		}
	}
	return f
}

// Forms of codes of fewer bits.
var (
	// packedINT4 is pack-quantized of compressed-tensors: integers from -8 on, stored with 8 added.
	packedINT4 = integerForm("INT4", "pack-quantized", INT4, scalePart)
	// packedZeros is packedINT4 with a zero beside each scale.
	packedZeros = integerForm("INT4 with zeros", "pack-quantized, asymmetric", INT4, scalePart, ZerosPart)
	// FP4 is E2M1 with a power of two for 32 numbers, as experts of DeepSeek-V4 have it beside FP8.
	FP4 = &Form{Name: "FP4", Method: "fp8", Numbers: F32, Parts: []string{"_scale_inv"}, Codes: F4, Scales: F8E8M0,
		In: []DType{I8, U8}, Block: [2]int{1, 32}, Largest: 6, values: valuesE2M1}
	// packedMXFP4 and mxfp4 are FP4 as compressed-tensors and ModelOpt write it, packedMXFP6 is E2M3 likewise.
	packedMXFP4 = &Form{Name: "MXFP4", Method: "mxfp4-pack-quantized", Numbers: F32, Parts: []string{scalePart}, Codes: F4,
		Scales: F8E8M0, Own: "weight_packed", In: []DType{U8}, Block: [2]int{1, 32}, Largest: 6, values: valuesE2M1}
	mxfp4 = &Form{Name: "MXFP4", Method: "mxfp4", Numbers: F32, Parts: []string{scalePart}, Codes: F4, Scales: F8E8M0,
		In: []DType{U8}, Block: [2]int{1, 32}, Largest: 6, values: valuesE2M1}
	packedMXFP6 = &Form{Name: "MXFP6", Method: "mxfp6-pack-quantized", Numbers: F32, Parts: []string{scalePart}, Codes: F6E2M3,
		Scales: F8E8M0, Own: "weight_packed", In: []DType{U8}, Block: [2]int{1, 32}, Largest: 7.5, values: valuesE2M3}
	// packedNVFP4 and nvfp4 are E2M1 with an E4M3 scale for 16 numbers and one of the tensor, which
	// compressed-tensors divides by and ModelOpt multiplies with.
	packedNVFP4 = &Form{Name: "NVFP4", Method: "nvfp4-pack-quantized", Numbers: F32,
		Parts: []string{scalePart, "_global_scale"}, Codes: F4, Scales: F8E4M3, Own: "weight_packed",
		In: []DType{U8}, Block: [2]int{1, 16}, Second: divided, Largest: 6, values: valuesE2M1}
	nvfp4 = &Form{Name: "NVFP4", Method: "nvfp4", Numbers: F32, Parts: []string{scalePart, "_scale_2"}, Codes: F4,
		Scales: F8E4M3, In: []DType{U8}, Block: [2]int{1, 16}, Second: multiplied, Largest: 6, values: valuesE2M1}

	// AWQ and GPTQ are integers with a zero beside each scale, which lie transposed. GPTQ's first version stores
	// zeros less 1. Under desc_act each column names its group.
	awq           = transposed("AWQ", "awq", layout{interleaved: true})
	gptq          = transposed("GPTQ", "gptq", layout{above: 1})
	gptqV2        = transposed("GPTQ v2", "gptq_v2", layout{})
	gptqDescAct   = transposed("GPTQ", "gptq, desc_act", layout{above: 1, ordered: true})
	gptqV2DescAct = transposed("GPTQ v2", "gptq_v2, desc_act", layout{ordered: true})
)

// transposed returns a form of codes of four bits whose tensors lie transposed.
func transposed(name, method string, l layout) *Form {
	f := &Form{Name: name, Method: method, Numbers: F32, Parts: []string{scalePart, ZerosPart}, Codes: INT4, Scales: F16,
		Zeros: INT4, Own: "qweight", In: []DType{I32}, Largest: 15, values: valuesInteger(4), layout: &l}
	if !l.interleaved {
		f.Parts = append(f.Parts, OrderPart)
	}
	return f
}

// scaled lists the forms with scales. The first of a dtype of codes stands for all of it.
var scaled = func() []*Form {
	all := []*Form{FP8, scaledFP8, mxfp8, FP4, packedMXFP4, mxfp4, packedNVFP4, nvfp4, packedMXFP6, packedINT4, packedZeros,
		awq, gptq, gptqV2, gptqDescAct, gptqV2DescAct, scaledINT8, zerosINT8, blockINT8}
	for codes := INT2; codes <= UINT8; codes++ {
		if bits, _ := codes.codes(); codes != INT4 {
			name, method := fmt.Sprintf("INT%d", bits), fmt.Sprintf("pack-quantized, %d bits", bits)
			all = append(all, integerForm(name, method, codes, scalePart),
				integerForm(name+" with zeros", method+", asymmetric", codes, scalePart, ZerosPart))
		}
	}
	return all
}()

// beside lists how files name tensors beside a weight, by the end of their names, and what of the form
// that is, behind the weight's name.
var beside = []struct{ stored, part string }{
	{"_scale_inv", "_scale_inv"},
	{".weight_scale", scalePart},
	{".weight_scale_2", "_scale_2"},
	{".weight_global_scale", "_global_scale"},
	{".weight_zero_point", ZerosPart},
	{".weight_g_idx", OrderPart},
	{".weight_shape", ShapePart},
	{".scale", "_scale_inv"},
	{".input_scale", InputParts + "_scale"},
	{".input_global_scale", InputParts + "_global_scale"},
}

// besideModule lists what files call a part in place of "weight".
var besideModule = func() map[string][]string {
	all := map[string][]string{}
	for _, b := range beside {
		if b.stored[0] == '.' {
			all[b.part] = append(all[b.part], b.stored[1:])
		}
	}
	for end, part := range ends {
		all[part] = append(all[part], end)
	}
	return all
}()

// Form returns the stored form of weights whose elements are of dtype d.
func (d DType) Form() *Form {
	if d.Blocked() {
		return selfScaled
	}
	for _, f := range scaled {
		if f.Codes == d {
			return f
		}
	}
	return Plain
}

// Scaled reports whether weights of dtype d are codes with scales beside them.
func (d DType) Scaled() bool { return d.Form().Parts != nil }

// FormOf returns the form that a quant_method announces; Plain if it is "".
func FormOf(method string) *Form {
	for _, f := range scaled {
		if f.Method == method {
			return f
		}
	}
	return Plain
}

// headers returns the header entry of the tensor of that name in a checkpoint, if there is one.
type headers func(name string) (Info, bool)

// PartOf tells what a stored tensor is, by the tensors beside it: part is "" for a weight, or what the name of a tensor
// beside it has behind the weight's name. info is its header entry as form has it, which the tensor is the codes of; nil
// for tensors that have their own dtype. places is where its elements lie, if the form has them transposed. announced is
// the form that the config has for the weight, which decides where the tensors leave several; columns are those of its
// matrix, 0 if they are not known.
func PartOf(stored Info, all headers, announced *Form, columns int) (info Info, part string, form *Form, places *Places) {
	dot := strings.LastIndexByte(stored.Name, '.') + 1
	module := stored.Name[:dot]
	if transposed, ok := all(module + "qweight"); ok {
		if form = formOf(transposed, all, announced, columns); form != nil && form.layout != nil {
			if info, part, places, ok := form.layout.partOf(stored); ok && part == "" {
				return info, part, form, places
			} else if ok {
				return info, part, nil, places
			}
		}
	}
	for _, b := range beside {
		if owner, ok := strings.CutSuffix(stored.Name, b.stored); ok {
			if b.stored != b.part {
				stored.Name = owner + ".weight" + b.part
			}
			if stored.DType == U8 && b.part == scalePart { // as compressed-tensors stores them
				stored.DType = F8E8M0
			}
			return stored, b.part, nil, nil
		}
	}
	form = formOf(stored, all, announced, columns)
	if form != nil && form != Unread {
		info, _ = form.codesOf(stored)
		return info, "", form, nil
	}
	if own := stored.Name[dot:]; own == "weight_packed" || own == "qweight" {
		stored.Name = module + "weight"
	}
	return stored, "", form, nil
}

// formOf returns the form of the weight whose own tensor is stored; Unread if that has something beside it that no form
// has, nil if it is numbers.
func formOf(own Info, all headers, announced *Form, columns int) *Form {
	if own.DType.Casts() || own.DType.Blocked() {
		return nil
	}
	module := own.Name[:strings.LastIndexByte(own.Name, '.')+1]
	weight, named := own.Name, false
	if end := own.Name[len(module):]; end == "weight_packed" || end == "qweight" {
		weight, named = module+"weight", true
	}
	side := func(part string) (Info, bool) { return sideOf(weight, part, all) }
	candidates := scaled
	if announced != nil && announced.Parts != nil {
		if info, ok := announced.codesOf(own); ok && announced.fits(info, side, columns, true) {
			return announced
		}
		candidates = []*Form{announced}
		for _, f := range scaled { // before others those with the codes that are announced, which other tensors may lie beside
			if f.Codes == announced.Codes {
				candidates = append(candidates, f)
			}
		}
		candidates = append(candidates, scaled...)
	}
	for _, f := range candidates {
		if info, ok := f.codesOf(own); ok && f.fits(info, side, columns, false) {
			return f
		}
	}
	beside := slices.ContainsFunc(Parts(), func(part string) bool {
		_, ok := side(part)
		return ok && !strings.HasPrefix(part, InputParts)
	})
	for _, f := range candidates { // none fits: for what is wrong with the scales
		info, ok := f.codesOf(own)
		if !ok || own.DType != f.Codes && !named && !beside {
			continue
		}
		wide := columns == 0 || len(info.Shape) != 2 || info.Shape[1] == columns
		if scales, has := side(f.Parts[0]); f == announced || has && wide && f.TakesScales(scales.DType) {
			return f
		}
	}
	if own.DType.Scaled() || own.DType == Invalid || !named && !beside {
		return nil
	}
	return Unread
}

// sideOf returns the header entry of the stored tensor that is a part of a weight, whatever files call it.
func sideOf(weight, part string, all headers) (info Info, ok bool) {
	module, isModule := strings.CutSuffix(weight, "weight")
	info, ok = all(weight + part)
	for i := 0; isModule && !ok && i < len(besideModule[part]); i++ {
		info, ok = all(module + besideModule[part][i])
	}
	if info.DType == U8 && part == scalePart {
		info.DType = F8E8M0
	}
	return info, ok
}

// fits reports whether the tensors beside codes are those of the form. Of an announced one those behind the scales may be
// missing.
func (f *Form) fits(codes Info, side func(part string) (Info, bool), columns int, announced bool) bool {
	for i, part := range f.Parts {
		_, ok := side(part)
		if optional := announced && i > 0 || part == ShapePart || part == OrderPart && !f.NeedsOrder(); !ok && !optional {
			return false
		}
	}
	scales, _ := side(f.Parts[0])
	if _, has := side(ZerosPart); has && f.Zeros == Invalid || columns > 0 && len(codes.Shape) == 2 && codes.Shape[1] != columns {
		return false
	}
	if scales.DType == Invalid || codes.DType == Invalid {
		return true
	}
	if f.layout != nil {
		packed := codes.Shape[0]
		return len(scales.Shape) == 2 && packed == scales.Shape[1]
	}
	if f.Block != [2]int{} && len(codes.Shape) == 2 {
		rows, cols := f.Blocks(codes.Shape, f.Block).Grid()
		if !slices.Equal(scales.Shape, []int{rows, cols}) {
			return false
		}
	}
	return f.TakesScales(scales.DType)
}

// TakesScales reports whether stored scales of the form may have dtype d.
func (f *Form) TakesScales(d DType) bool {
	switch {
	case f.Second != "" || f.Scales == F8E8M0:
		return d == f.Scales
	}
	return d.Casts() || d == F8E8M0 && f.Codes == F8E4M3
}

// OwnerOf returns the name of the weight that a tensor belongs to: its own, or that of the weight that it
// lies beside, whatever the config announces.
func OwnerOf(name string) string {
	for _, b := range beside {
		if owner, ok := strings.CutSuffix(name, b.stored); ok {
			if b.stored != b.part {
				owner += ".weight"
			}
			return owner
		}
	}
	return name
}

// codesOf returns the header entry of the codes that a stored tensor holds in f, if it may be of the form.
func (f *Form) codesOf(stored Info) (info Info, ok bool) {
	if f.layout != nil {
		info, part, _, ok := f.layout.partOf(stored)
		return info, ok && part == ""
	}
	name, ok := stored.Name, true
	if f.Own != "" {
		name, ok = strings.CutSuffix(name, "."+f.Own)
		name += ".weight"
	}
	if !ok || f.Own != "" && stored.DType == Invalid { // its header was not read
		return Info{Name: name}, ok
	}
	if f.In == nil {
		return stored, stored.DType == f.Codes
	}
	if !slices.Contains(f.In, stored.DType) || len(stored.Shape) != 2 {
		return info, false
	}
	shape := slices.Clone(stored.Shape)
	shape[1] = int(f.Codes.Elements(stored.DType.Bytes(int64(shape[1]))))
	return Info{name, f.Codes, shape}, true
}

// ScalesActivations reports whether the tensor of that name scales what a running model keeps or computes: keys and
// values of its cache, queries, outputs.
func ScalesActivations(name string) bool {
	end := name[strings.LastIndexByte(name, '.')+1:]
	return slices.Contains([]string{"k_scale", "v_scale", "q_scale", "kv_scale", "output_scale", "prob_output_scale", "prob_scale",
		"k_zero_point", "v_zero_point", "input_scale", "input_global_scale", "input_zero_point"}, end)
}

// Parts returns what the names of tensors beside weights have behind the weight's name, scales first.
func Parts() (all []string) {
	for _, b := range beside {
		if !slices.Contains(all, b.part) {
			all = append(all, b.part)
		}
	}
	return all
}

// Forms returns the forms with scales. The slice is shared: do not change it.
func Forms() []*Form { return scaled }

// Tensors returns the header entries of a matrix in the form, whose blocks have that many rows and
// columns: the weight's first, then those beside it. d is the dtype of a plain one.
func (f *Form) Tensors(name string, shape []int, d DType, block [2]int) []Info {
	if f.Parts == nil {
		return []Info{{name, d, shape}}
	}
	rows, cols := f.Blocks(shape, block).Grid()
	if f.layout != nil {
		return f.layout.tensors(name, shape, cols)
	}
	all := []Info{{name, f.Codes, shape}, {name + f.Parts[0], f.Scales, []int{rows, cols}}}
	if f.In != nil {
		codes, _ := f.Codes.Block()
		each, bytes := f.In[0].Block()
		all[0] = Info{strings.TrimSuffix(name, "weight") + cmp.Or(f.Own, "weight"), f.In[0],
			[]int{shape[0], shape[1] / codes * each / bytes}}
	}
	if f.Second != "" {
		all = append(all, Info{name + f.Parts[1], F32, []int{1}})
	}
	return all
}

// PartName returns what files call a part of the weight of that name.
func (f *Form) PartName(name, part string) string {
	for end, of := range ends {
		if f.layout != nil && of == part {
			return strings.TrimSuffix(name, "weight") + end
		}
	}
	return name + part
}

// Scaling returns how the parts of a matrix in blocks turn its codes into numbers. ordered says that it has the
// part OrderPart, shape is the dtype of the part ShapePart; Invalid if it has none.
func (f *Form) Scaling(scales DType, b Blocks, ordered bool, shape DType) Scaling {
	s := Scaling{Scales: scales, Second: f.Second, Zeros: f.Zeros, Shape: shape, Blocks: b}
	if f.layout != nil {
		s.Above = f.layout.above
		if _, s.Groups = b.Grid(); !ordered {
			s.Groups = 0
		} else if f.layout.ordered {
			s.Blocks.BlockCols = 1
		}
	}
	return s
}

// NeedsOrder reports whether the part OrderPart may not be missing.
func (f *Form) NeedsOrder() bool { return f.layout != nil && f.layout.ordered }

// Blocks returns how a matrix of the form is divided, if the config has this block for forms without one
// of their own. A config without rows, or columns, has one block of all.
func (f *Form) Blocks(shape []int, block [2]int) Blocks {
	if f.Block != [2]int{} {
		block = f.Block
	}
	return Blocks{shape[0], shape[1], max(cmp.Or(block[0], shape[0]), 1), max(cmp.Or(block[1], shape[1]), 1)}
}

// BlocksOf is Blocks for a matrix with scales of that shape: they decide where there is one scale, one for each row, or
// where the config has no block and they divide the matrix.
func (f *Form) BlocksOf(shape, scales []int, block [2]int) Blocks {
	b := f.Blocks(shape, block)
	rows, cols := b.Grid()
	n := 1
	for _, d := range scales {
		n *= d
	}
	switch one := len(scales) == 0 || scales[len(scales)-1] == 1; {
	case f.Block != [2]int{} || f.layout != nil || slices.Equal(scales, []int{rows, cols}):
	case n == 1:
		return f.Blocks(shape, [2]int{})
	case n == shape[0] && (len(scales) == 1 || one):
		return f.Blocks(shape, [2]int{1, 0})
	case block == [2]int{} && slices.Equal(scales, []int{(shape[0] + 127) / 128, (shape[1] + 127) / 128}): // as published
		return f.Blocks(shape, [2]int{128, 128})
	case block == [2]int{} && len(scales) == 2 && n > 0:
		b.BlockRows, b.BlockCols = max((shape[0]+scales[0]-1)/scales[0], 1), max((shape[1]+scales[1]-1)/scales[1], 1)
	}
	return b
}

// Values sets dst to what codes stand for without their scales, from element first of data on, by
// the definition of their dtype.
func (f *Form) Values(dst []float64, data []byte, first int) {
	for i := range dst {
		dst[i] = f.values[f.code(data, first+i)]
	}
}

// code returns code i of data.
func (f *Form) code(data []byte, i int) byte {
	bits, _ := f.Codes.codes()
	if bits == 8 {
		return data[i]
	}
	return codeAt(data, bits, i)
}

// codeAt returns code i of data, of fewer than 8 bits.
func codeAt(data []byte, bits, i int) byte {
	at := i * bits
	word := uint(data[at/8])
	if at%8+bits > 8 {
		word |= uint(data[at/8+1]) << 8
	}
	return byte(word >> (at % 8) & (1<<bits - 1))
}

// E4M3 decodes the bits s eeee mmm: the value is (-1)^s · 2^(e-7) · 1.m, or
// (-1)^s · 2^-6 · 0.m for e = 0; all ones but the sign is NaN.
func E4M3(b byte) float32 {
	exponent, fraction := int(b>>3&15), float64(b&7)
	v := math.Ldexp(8+fraction, exponent-10)
	switch {
	case b&0x7f == 0x7f:
		v = math.NaN()
	case exponent == 0:
		v = math.Ldexp(fraction, -9)
	}
	if b&0x80 != 0 {
		v = -v
	}
	return float32(v)
}

func valuesE4M3() []float64 {
	values := make([]float64, 256)
	for i := range values {
		values[i] = float64(E4M3(byte(i)))
	}
	return values
}

// nearestE4M3 rounds v to E4M3. From 2^-6 on a code is the upper bits of an F32 with another bias of
// the exponent; smaller numbers are multiples of 2^-9, the unit of F32 numbers from 2^14 on. The
// codes of one exponent end where those of the next begin.
func nearestE4M3(v float32) byte {
	const largest, leastNormal = 0x43e00000, 121 << 23 // bits of 448 and 2^-6
	b := math.Float32bits(v)
	a := min(b&magnitudeBits, largest)
	code := (a+0x7ffff+a>>20&1)>>20 - 120<<3
	if a < leastNormal {
		code = math.Float32bits(math.Float32frombits(a)+0x1p14) - math.Float32bits(0x1p14)
	}
	return byte(b>>24&0x80 | code)
}

// encodeE4M3 is FP8's encode.
func encodeE4M3(dst []byte, x []float32, factor float32) {
	dst = dst[:len(x)]
	for i, v := range x {
		dst[i] = nearestE4M3(v * factor)
	}
}
