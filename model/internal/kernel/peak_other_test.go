//go:build !amd64 || purego

package kernel

// peakLoop knows no loop for this machine.
func peakLoop(string, Accumulator) (run func(n int), flops int) { return nil, 0 }
