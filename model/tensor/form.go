package tensor

import (
	"cmp"
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
	Method  string // config.Quantization's Method that announces it; "" if none does
	Numbers DType  // what its elements are decoded to; Invalid: they are numbers already

	// Parts are what the names of the tensors beside the weight's own have behind the weight's
	// name, that of its scales first. The elements of the weight are codes, and each block of the
	// matrix has a scale that its codes are multiplied by: see Scaling. nil for forms without
	// scales, which have none of what follows.
	Parts   []string
	Codes   DType              // the dtype of the codes
	Own     string             // what the tensor of the codes is called in place of "weight"; "" for the same
	In      []DType            // dtypes that files hold several codes in; nil: they have that of the codes
	Block   [2]int             // rows and columns that share a scale; zero: the config says it
	Scales  DType              // the dtype of scales that are made
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
	FP8        = &Form{Name: "FP8", Method: "fp8", Numbers: F32, Parts: []string{"_scale_inv"}, Codes: F8E4M3, Scales: F32,
		Largest: 448, Nearest: nearestE4M3, values: valuesE4M3(), encode: encodeE4M3}
)

// Forms of codes of four bits.
var (
	// packedINT4 is pack-quantized of compressed-tensors: integers from -8 on, stored with 8 added.
	packedINT4 = &Form{Name: "INT4", Method: "pack-quantized", Numbers: F32, Parts: []string{scalePart, ShapePart},
		Codes: INT4, Scales: BF16, Own: "weight_packed", In: []DType{I32}, Largest: 8, values: valuesINT4[:]}
	// packedZeros is packedINT4 with a zero beside each scale.
	packedZeros = &Form{Name: "INT4 with zeros", Method: "pack-quantized, asymmetric", Numbers: F32,
		Parts: []string{scalePart, ZerosPart, ShapePart}, Codes: INT4, Scales: BF16, Own: "weight_packed", In: []DType{I32}, Largest: 15,
		values: valuesINT4[:]}
	// FP4 is E2M1 with a power of two for 32 numbers, as experts of DeepSeek-V4 have it beside FP8.
	FP4 = &Form{Name: "FP4", Method: "fp8", Numbers: F32, Parts: []string{"_scale_inv"}, Codes: F4, Scales: F8E8M0,
		In: []DType{I8, U8}, Block: [2]int{1, 32}, Largest: 6, values: valuesE2M1[:]}
	// packedMXFP4 is FP4 as compressed-tensors writes it.
	packedMXFP4 = &Form{Name: "MXFP4", Method: "mxfp4-pack-quantized", Numbers: F32, Parts: []string{scalePart}, Codes: F4,
		Scales: F8E8M0, Own: "weight_packed", In: []DType{U8}, Block: [2]int{1, 32}, Largest: 6, values: valuesE2M1[:]}
	// packedNVFP4 and nvfp4 are E2M1 with an E4M3 scale for 16 numbers and one of the tensor, which
	// compressed-tensors divides by and ModelOpt multiplies with.
	packedNVFP4 = &Form{Name: "NVFP4", Method: "nvfp4-pack-quantized", Numbers: F32,
		Parts: []string{scalePart, "_global_scale"}, Codes: F4, Scales: F8E4M3, Own: "weight_packed",
		In: []DType{U8}, Block: [2]int{1, 16}, Second: divided, Largest: 6, values: valuesE2M1[:]}
	nvfp4 = &Form{Name: "NVFP4", Method: "nvfp4", Numbers: F32, Parts: []string{scalePart, "_scale_2"}, Codes: F4,
		Scales: F8E4M3, In: []DType{U8}, Block: [2]int{1, 16}, Second: multiplied, Largest: 6, values: valuesE2M1[:]}

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
		Own: "qweight", In: []DType{I32}, Largest: 15, values: valuesINT4[:], layout: &l}
	if !l.interleaved {
		f.Parts = append(f.Parts, OrderPart)
	}
	return f
}

// scaled lists the forms with scales. The first of a dtype of codes stands for all of it.
var scaled = []*Form{FP8, packedINT4, packedZeros, awq, gptq, gptqV2, gptqDescAct, gptqV2DescAct, FP4, packedMXFP4,
	packedNVFP4, nvfp4}

// beside lists how files name tensors beside a weight, by the end of their names, and what of the form
// that is, behind the weight's name. method is the only one that has it; "" for all.
var beside = []struct{ stored, part, method string }{
	{"_scale_inv", "_scale_inv", ""},
	{".weight_scale", scalePart, ""},
	{".weight_scale_2", "_scale_2", ""},
	{".weight_global_scale", "_global_scale", ""},
	{".weight_zero_point", ZerosPart, ""},
	{".weight_g_idx", OrderPart, ""},
	{".weight_shape", ShapePart, ""},
	{".scale", "_scale_inv", "fp8"},
	{".input_scale", "_input_scale", "nvfp4"},
	{".input_global_scale", "_input_global_scale", "nvfp4-pack-quantized"},
}

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

// PartOf tells what a stored tensor is in a checkpoint whose config announces method: part is "" for
// a weight, or what the name of a tensor beside it has behind the weight's name. info is its header
// entry as form has it, which the tensor is the codes of; nil for tensors that have their own dtype. places
// is where its elements lie, if the form has them transposed.
func PartOf(stored Info, method string) (info Info, part string, form *Form, places *Places) {
	if f := FormOf(method); f.layout != nil {
		if info, part, places, ok := f.layout.partOf(stored); ok && part == "" {
			return info, part, f, places
		} else if ok {
			return info, part, nil, places
		}
	}
	for _, b := range beside {
		if owner, ok := strings.CutSuffix(stored.Name, b.stored); ok && (b.method == "" || b.method == method) {
			if b.stored != b.part {
				stored.Name = owner + ".weight" + b.part
			}
			if stored.DType == U8 && b.part == scalePart { // as compressed-tensors stores them
				stored.DType = F8E8M0
			}
			return stored, b.part, nil, nil
		}
	}
	for _, f := range scaled {
		if info, ok := f.codes(stored); ok && f.Method == method {
			return info, "", f, nil
		}
	}
	return stored, "", nil, nil
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

// codes returns the header entry of the codes that a stored tensor holds in f, if it is of the form.
func (f *Form) codes(stored Info) (info Info, ok bool) {
	owner, ok := strings.CutSuffix(stored.Name, "."+cmp.Or(f.Own, "weight"))
	ok = ok && f.layout == nil
	if ok && f.Own != "" && stored.DType == Invalid { // its header was not read
		return Info{Name: owner + ".weight"}, true
	}
	if !ok || !slices.Contains(f.In, stored.DType) || len(stored.Shape) != 2 {
		return info, false
	}
	shape := slices.Clone(stored.Shape)
	shape[1] = int(f.Codes.Elements(stored.DType.Bytes(int64(shape[1]))))
	return Info{owner + ".weight", f.Codes, shape}, true
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
	s := Scaling{Scales: scales, Second: f.Second, Zeros: f.HasZeros(), Shape: shape, Blocks: b}
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

// HasZeros reports whether each block has a zero.
func (f *Form) HasZeros() bool { return slices.Contains(f.Parts, ZerosPart) }

// NeedsOrder reports whether the part OrderPart may not be missing, and TakesOrder whether it may be there.
func (f *Form) NeedsOrder() bool { return f.layout != nil && f.layout.ordered }

// TakesOrder reports whether the form knows the part OrderPart.
func (f *Form) TakesOrder() bool { return slices.Contains(f.Parts, OrderPart) }

// Blocks returns how a matrix of the form is divided, if the config has this block for forms without one
// of their own. A config without columns has one block a row.
func (f *Form) Blocks(shape []int, block [2]int) Blocks {
	if f.Block != [2]int{} {
		block = f.Block
	}
	return Blocks{shape[0], shape[1], block[0], max(cmp.Or(block[1], shape[1]), 1)}
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
	if len(f.values) == 16 {
		return data[i/2] >> (i % 2 * 4) & 15
	}
	return data[i]
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
