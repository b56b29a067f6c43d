//go:build !purego

package kernel

// native lists the assembly: NEON is part of every arm64.
func native() []*implementation { return []*implementation{&neon} }

var neon = implementation{
	name: "neon",
	tile: [...]tiles{
		F32: {
			[...]tileKernel[float32]{neonTile32F32x1, neonTile32F32x2, nil, neonTile32F32x4},
			[...]tileKernel[float64]{neonTile64F32x1, neonTile64F32x2, nil, neonTile64F32x4},
		},
		BF16: {
			[...]tileKernel[float32]{neonTile32BF16x1, neonTile32BF16x2, nil, neonTile32BF16x4},
			[...]tileKernel[float64]{neonTile64BF16x1, neonTile64BF16x2, nil, neonTile64BF16x4},
		},
	},
	partial: partialKernels{
		group: 4, pack: neonPack4, short: neonShorten,
		sums: [...]partialKernel{nil, nil, nil, neonPartial4},
	},
	element: elementKernels{ // the others in portable Go
		widen:  [...]func(*float32, *byte, int){F32: copyIn, BF16: nil},
		narrow: [...]func(*byte, *float32, int){F32: copyOut, BF16: nil},
	},
}
