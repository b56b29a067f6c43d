package kernel_test

import (
	"fmt"

	"dsmoe/model/internal/kernel"
)

// The order of a sum is part of its definition. Element k goes to lane k mod 16, and a fixed tree adds the lanes: here lane
// 0 has 1 + 2⁻²⁴, which rounds to 1, and so does lane 8, before both are added.
func ExampleDot32() {
	x, w := make([]float32, 32), make([]float32, 32)
	for k := range w {
		w[k] = 1
	}
	x[0], x[16], x[8], x[24] = 1, 0x1p-24, 1, 0x1p-24
	fmt.Println(kernel.Dot32(x, w))
	x[16], x[24], x[1], x[9] = 0, 0, 0x1p-24, 0x1p-24 // lanes 1 and 9 add up to 2⁻²³ before lane 0 takes it
	x[8] = 0
	fmt.Println(kernel.Dot32(x, w) == 1+0x1p-23)
	// Output:
	// 2
	// true
}

// A matrix is multiplied as it is stored. Blocks of FP8 have a scale each; the result has the same bits with any number of
// workers, for any share of the tokens.
func ExampleMatMul() {
	stored := kernel.Matrix{Format: kernel.F8E4M3, Rows: 2, Cols: 4, Data: []byte{
		0x38, 0x40, 0x38, 0x38, // 1 2 1 1
		0x38, 0xb8, 0x38, 0xb8, // 1 -1 1 -1
	}, Scales: []float32{0.5, 2}, BlockRows: 2, BlockCols: 2}
	x := []float32{1, 2, 3, 4}
	y := make([]float32, 2)
	kernel.MatMul(y, x, stored, []float32{0.25, 0}, kernel.Float64, 1)
	fmt.Println(y)
	// Output: [16.75 -2.5]
}
