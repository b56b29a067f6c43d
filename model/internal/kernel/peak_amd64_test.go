//go:build !purego

package kernel

// peakLoop returns a loop of fused multiply-adds and the operations per round.
func peakLoop(name string, acc Accumulator) (run func(n int), flops int) {
	switch {
	case name == "avx512" && acc == Float32:
		return avx512Peak32, 2 * 12 * 16
	case name == "avx512":
		return avx512Peak64, 2 * 12 * 8
	case name == "avx2" && acc == Float32:
		return avx2Peak32, 2 * 12 * 8
	case name == "avx2":
		return avx2Peak64, 2 * 12 * 4
	}
	return nil, 0
}
