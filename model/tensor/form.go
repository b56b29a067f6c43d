package tensor

import (
	"math"
	"strings"
)

// Form is a stored form: which tensors a weight lies in, and which numbers its elements stand
// for. Every dtype has one: Plain, SelfScaled or a form with scales. A new form with scales is a
// value here and an entry of scaled; the rest is its quantization_config, which package config
// reads, and how the kernels decode its codes.
type Form struct {
	Name    string // in messages
	Method  string // quant_method of the quantization_config that announces it; "" if none does
	Numbers DType  // what its elements are decoded to; Invalid: they are numbers already

	// Parts are what the names of the tensors beside the weight's own have behind the weight's
	// name, that of its scales first. The elements of the weight are codes, and each block of the
	// matrix has a scale that its codes are multiplied by: see Blocks. nil for forms without
	// scales, which have none of what follows.
	Parts   []string
	Codes   DType              // the dtype of the codes
	Largest float32            // the largest code
	Nearest func(float32) byte // the code nearest to a number, ties to even; beyond Largest, that of Largest
	values  *[256]float64      // of all codes, by the definition of their dtype

	encode func(dst []byte, x []float32, factor float32) // sets dst to Nearest of x·factor, rounded to F32

	half func(dst []float32, t Tensor) // sets dst to HalfSteps; nil: no rounding is known
}

// The forms without scales, and FP8 as DeepSeek-V3 is published.
var (
	Plain      = &Form{Name: "plain", half: halfUnits}
	SelfScaled = &Form{Name: "blocks of GGUF", Numbers: F32, half: blockSteps}
	FP8        = &Form{Name: "FP8", Method: "fp8", Numbers: F32, Parts: []string{"_scale_inv"}, Codes: F8E4M3,
		Largest: 448, Nearest: nearestE4M3, values: valuesE4M3(), encode: encodeE4M3, half: halfUnits}
)

// scaled lists the forms with scales.
var scaled = []*Form{FP8}

// Form returns the stored form of weights whose elements are of dtype d.
func (d DType) Form() *Form {
	if d.Blocked() {
		return SelfScaled
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

// PartOf tells what a stored tensor is: part is "" for a weight, or what the name of a tensor
// beside it has behind the weight's name. info is its header entry as the weight's form has it.
func PartOf(stored Info) (info Info, part string) {
	for _, f := range scaled {
		for _, part := range f.Parts {
			if strings.HasSuffix(stored.Name, part) {
				return stored, part
			}
		}
	}
	return stored, ""
}

// Forms returns the forms with scales. The slice is shared: do not change it.
func Forms() []*Form { return scaled }

// Tensors returns the header entries of a matrix in the form, whose blocks have that many rows and
// columns: the weight's first, then those beside it. d is the dtype of a plain one.
func (f *Form) Tensors(name string, shape []int, d DType, block [2]int) []Info {
	if f.Parts == nil {
		return []Info{{name, d, shape}}
	}
	rows, cols := Blocks{shape[0], shape[1], block[0], block[1]}.Grid()
	return []Info{{name, f.Codes, shape}, {name + f.Parts[0], F32, []int{rows, cols}}}
}

// Values sets dst to what codes stand for without their scales, from element first of data on, by
// the definition of their dtype.
func (f *Form) Values(dst []float64, data []byte, first int) {
	values := f.values
	for i, code := range data[first:][:len(dst)] {
		dst[i] = values[code]
	}
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

func valuesE4M3() *[256]float64 {
	var values [256]float64
	for i := range values {
		values[i] = float64(E4M3(byte(i)))
	}
	return &values
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
