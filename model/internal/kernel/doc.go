// Package kernel holds the inner loops: dot products, matrix products, the widening and narrowing of 8- and 16-bit
// floats, the encoders of ggml's blocks, and exponentials.
//
// Its one idea: every result is defined to the bit. It depends neither on the machine, nor on the number of threads, nor
// on how a batch is cut. Portable Go is the definition; assembly gives the same bits faster, and a processor without
// assembly runs the definition.
//
// The package reads from the definitions to what is built on them:
//
//	kernel.go, scalar.go, codes.go, blocks.go   the formats, by the conversion of one number or block
//	dot.go, exp.go                                the order of every sum; exponentials
//	matrix.go, matmul.go, portable.go             MatMul, which takes most of the time, in portable Go
//	codec.go, encode.go, fit.go, lines.go, …      conversions, encoders, counts and comparisons
//	partial.go, squares.go                        the sums of an error analysis
//	transposed.go, vector.go                      products with columns and with one vector
//	contract.go, implementation*.go               which assembly this processor has: the only files that name it
//	job.go, tile.go, panel.go, pack.go, copy.go   how MatMul cuts its work for the assembly
//	parallel.go, scratch.go                       goroutines and their memory
//	generated_*.s, generated_*.go                 assembly and its declarations, written by gen, not for reading
//
// KERNELS.md has the same idea in drawings, how the assembly works, and how to add to it. ExampleMatMul and ExampleDot32
// show the calls. Outside this package nothing knows assembly.
//
// Functions panic if lengths do not fit: that is a programmer's mistake.
package kernel
