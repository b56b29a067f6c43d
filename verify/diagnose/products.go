package diagnose

import (
	"fmt"
	"slices"

	"dsmoe/model/tensor"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
)

// Mistakes of the reference's arithmetic: products of float32 numbers that a GPU, or a setting of
// torch, rounded to fewer bits first.

// productStages are what a product is first seen at.
var productStages = slices.Concat(pack.MLPOutputs, gateStages, upStages, attendStages,
	[]string{pack.GateLogits, pack.Logits, pack.ExpertOutput, pack.PredictedFrom, pack.PredictedLogits},
	stagesOf(projections))

// productMistakes are products of TF32 and of BF16 numbers, to nearest or cut off.
func productMistakes() (list []mistake) {
	for _, cut := range []bool{false, true} {
		list = append(list,
			mistake{id: "tf32-products", kinds: productStages, unless: "tf32-products",
				undo: undoShortProducts(11, cut, "TF32 numbers, of 10 bits of mantissa (allow_tf32, or float32_matmul_precision "+
					"high)")},
			mistake{id: "bf16-products", kinds: productStages, unless: "bf16-products",
				undo: undoShortProducts(8, cut, "BF16 numbers, of 7 bits of mantissa (float32_matmul_precision medium)")})
	}
	return list
}

// undoShortProducts rounds the operands of all products of a float32 reference to so many
// significant bits.
func undoShortProducts(bits int, cut bool, numbers string) func(x *Trial) string {
	return func(x *Trial) string {
		if x.failed.Pack.DType != tensor.F32 || x.failed.exceedsRounding() {
			return ""
		}
		x.Around = func(a bounds.Arithmetic) bounds.Arithmetic {
			return bounds.NewShortProducts(a, bits, cut)
		}
		return fmt.Sprintf("the reference ran in float32, but its products are those of %s", numbers)
	}
}

// mostRounding is the largest share of a row's size, in root mean square, that rounded products or sums change: thirty
// roundings to BF16 change about a hundredth.
const mostRounding = 0.25

// exceedsRounding reports whether a row of the failed stage differs by more than rounded products or sums explain.
func (f *Failure) exceedsRounding() bool {
	if !slices.Contains(rowStages, f.Kind) && f.Kind != pack.Logits {
		return false
	}
	n := f.Got.Width()
	for first := 0; first < len(f.Want); first += n {
		left, whole := 0.0, 0.0
		for i, want := range f.Want[first : first+n] {
			left, whole = left+bounds.Sq(float64(want)-float64(f.Unrounded[first+i])), whole+bounds.Sq(float64(want))
		}
		if left > mostRounding*mostRounding*whole {
			return true
		}
	}
	return false
}
