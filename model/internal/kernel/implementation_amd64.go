//go:build !purego

package kernel

import "golang.org/x/sys/cpu"

// native lists the assembly that this processor and operating system run.
func native() []*implementation {
	var all []*implementation
	x := &cpu.X86
	if !x.HasAVX2 || !x.HasFMA || !x.HasF16C {
		return all
	}
	if x.HasAVX512F && x.HasAVX512BW && x.HasAVX512VL && x.HasAVX512DQ {
		if x.HasAVX512BF16 {
			all = append(all, &avx512BF16)
		}
		all = append(all, &avx512)
	}
	return append(all, &avx2)
}

var avx512 = implementation{
	name:      "avx512",
	anyLength: true,
	tile: [...]tiles{
		F32: {
			[...]tileKernel[float32]{avx512Tile32F32x1, avx512Tile32F32x2, nil, avx512Tile32F32x4},
			[...]tileKernel[float64]{avx512Tile64F32x1, avx512Tile64F32x2, nil, avx512Tile64F32x4},
		},
		BF16: {
			[...]tileKernel[float32]{avx512Tile32BF16x1, avx512Tile32BF16x2, nil, avx512Tile32BF16x4},
			[...]tileKernel[float64]{avx512Tile64BF16x1, avx512Tile64BF16x2, nil, avx512Tile64BF16x4},
		},
	},
	panels32: panelKernels[float32]{
		group: 16, rows: 32,
		pack:      avx512Pack32F32,
		packPairs: avx512PackPairs,
		tiles: []panelTile[float32]{
			{4, avx512Add32x4, avx512AddPairs32x4},
			{8, avx512Add32x8, avx512AddPairs32x8},
			{12, avx512Add32x12, avx512AddPairs32x12},
		},
	},
	panels64: panelKernels[float64]{
		group: 16, rows: 16,
		pack:      avx512Pack64F32,
		packPairs: avx512PackPairs,
		tiles: []panelTile[float64]{
			{4, avx512Add64x4, avx512AddPairs64x4},
			{8, avx512Add64x8, avx512AddPairs64x8},
			{12, avx512Add64x12, avx512AddPairs64x12},
		},
	},
	partial: partialKernels{
		group: 16, pack: avx512Pack32F32, short: avx512Shorten,
		sums: [...]partialKernel{avx512Partial1, avx512Partial2, nil, avx512Partial4},
	},
	element: elementKernels{
		widen:  [...]func(*float32, *byte, int){F32: copyIn, F16: avx512WidenF16, BF16: avx512WidenBF16},
		narrow: [...]func(*byte, *float32, int){F32: copyOut, F16: avx512NarrowF16, BF16: avx512NarrowBF16},
		round:  [...]func(dst, src *float32, n int){F16: avx512RoundF16, BF16: avx512RoundBF16},
	},
	stream: elementKernels{
		widen:  [...]func(*float32, *byte, int){F16: avx512WidenF16Stream, BF16: avx512WidenBF16Stream},
		narrow: [...]func(*byte, *float32, int){F16: avx512NarrowF16Stream, BF16: avx512NarrowBF16Stream},
	},
	widenE4M3:   avx512WidenE4M3,
	narrowE4M3:  avx512NarrowE4M3,
	dotE4M3:     avx512DotE4M3,
	addE4M3:     avx512AddE4M3,
	addProducts: avx512AddProducts,
	widen64:     avx512Widen64,
	exp:         avx512Exp,

	square:      avx512Square,
	addMultiple: avx512AddMultiple,
	largest16:   avx512Largest16,
	patterns:    avx512Patterns,

	encodeQ8:     avx2EncodeQ8,
	widenQ8:      avx2WidenQ8,
	blockErrors:  avx2BlockErrors,
	compareQ8:    avx2CompareQ8,
	losses:       [...]lossesKernel{F32: avx512LossesF32, F16: avx512LossesF16, BF16: avx512LossesBF16},
	plain:        avx512Plain,
	extremes:     avx512Extremes,
	runSums:      avx2RunSums,
	runSquares:   avx2RunSquares,
	fitMinimums:  avx512FitMinimums,
	fitAbsolute:  avx512FitAbsolute,
	fitSymmetric: avx512FitSymmetric,
	fitStepwise:  avx512FitStepwise,
	fitGroups:    avx2FitGroups,
	fitWeights:   avx2FitWeights,
	encodeLines:  avx2EncodeLines,
	decodeLines:  avx2DecodeLines,
	spans:        avx2Spans,
}

// avx512BF16 is avx512 with an instruction that multiplies pairs of BF16.
var avx512BF16 = func() implementation {
	im := avx512
	im.name = "avx512bf16"
	im.partial.pairs, im.partial.short = true, avx512ShortPairs
	im.partial.packPairs, im.partial.shortStored = avx512PackPairs, avx512ShortStored
	im.partial.sums = [...]partialKernel{avx512PairsPartial1, avx512PairsPartial2, nil, avx512PairsPartial4}
	return im
}()

// avx512Plain and avx2Plain are the tests of plain roundings.
var avx512Plain = [F8E4M3][F8E4M3]plainKernel{
	F32:  {F32: avx512PlainF32F32, F16: avx512PlainF32F16, BF16: avx512PlainF32BF16},
	F16:  {F32: avx512PlainF16F32, BF16: avx512PlainF16BF16},
	BF16: {F32: avx512PlainBF16F32, F16: avx512PlainBF16F16},
}

var avx2Plain = [F8E4M3][F8E4M3]plainKernel{
	F32:  {F32: avx2PlainF32F32, F16: avx2PlainF32F16, BF16: avx2PlainF32BF16},
	F16:  {F32: avx2PlainF16F32, BF16: avx2PlainF16BF16},
	BF16: {F32: avx2PlainBF16F32, F16: avx2PlainBF16F16},
}

// avx2 also needs FMA and F16C.
var avx2 = implementation{
	name: "avx2",
	tile: [...]tiles{
		F32: {
			[...]tileKernel[float32]{avx2Tile32F32x1, avx2Tile32F32x2, avx2Tile32F32x3, nil},
			[...]tileKernel[float64]{avx2Tile64F32x1, avx2Tile64F32x2, avx2Tile64F32x3, nil},
		},
		BF16: {
			[...]tileKernel[float32]{avx2Tile32BF16x1, avx2Tile32BF16x2, avx2Tile32BF16x3, nil},
			[...]tileKernel[float64]{avx2Tile64BF16x1, avx2Tile64BF16x2, avx2Tile64BF16x3, nil},
		},
	},
	panels32: panelKernels[float32]{
		group: 8, rows: 16,
		pack:      avx2Pack32F32,
		packPairs: avx2PackPairs,
		tiles: []panelTile[float32]{
			{3, avx2Add32x3, avx2AddPairs32x3},
			{6, avx2Add32x6, avx2AddPairs32x6},
		},
	},
	panels64: panelKernels[float64]{
		group: 8, rows: 8,
		pack:      avx2Pack64F32,
		packPairs: avx2PackPairs,
		tiles: []panelTile[float64]{
			{3, avx2Add64x3, avx2AddPairs64x3},
			{6, avx2Add64x6, avx2AddPairs64x6},
		},
	},
	partial: partialKernels{
		group: 8, pack: avx2Pack32F32, short: avx2Shorten,
		sums: [...]partialKernel{avx2Partial1, avx2Partial2, nil, nil},
	},
	element: elementKernels{
		widen:  [...]func(*float32, *byte, int){F32: copyIn, F16: avx2WidenF16, BF16: avx2WidenBF16},
		narrow: [...]func(*byte, *float32, int){F32: copyOut, F16: avx2NarrowF16, BF16: avx2NarrowBF16},
		round:  [...]func(dst, src *float32, n int){F16: avx2RoundF16, BF16: avx2RoundBF16},
	},
	stream: elementKernels{
		widen:  [...]func(*float32, *byte, int){F16: avx2WidenF16Stream, BF16: avx2WidenBF16Stream},
		narrow: [...]func(*byte, *float32, int){F16: avx2NarrowF16Stream, BF16: avx2NarrowBF16Stream},
	},
	widenE4M3:   avx2WidenE4M3,
	narrowE4M3:  avx2NarrowE4M3,
	dotE4M3:     avx2DotE4M3,
	addE4M3:     avx2AddE4M3,
	addProducts: avx2AddProducts,
	widen64:     avx2Widen64,
	exp:         avx2Exp,

	square:      avx2Square,
	addMultiple: avx2AddMultiple,
	largest16:   avx2Largest16,
	patterns:    avx2Patterns,

	encodeQ8:     avx2EncodeQ8,
	widenQ8:      avx2WidenQ8,
	blockErrors:  avx2BlockErrors,
	compareQ8:    avx2CompareQ8,
	losses:       [...]lossesKernel{F32: avx2LossesF32, F16: avx2LossesF16, BF16: avx2LossesBF16},
	plain:        avx2Plain,
	extremes:     avx2Extremes,
	runSums:      avx2RunSums,
	runSquares:   avx2RunSquares,
	fitMinimums:  avx2FitMinimums,
	fitAbsolute:  avx2FitAbsolute,
	fitSymmetric: avx2FitSymmetric,
	fitStepwise:  avx2FitStepwise,
	fitGroups:    avx2FitGroups,
	fitWeights:   avx2FitWeights,
	encodeLines:  avx2EncodeLines,
	decodeLines:  avx2DecodeLines,
	spans:        avx2Spans,
}
