package model

import "dsmoe/model/internal/kernel"

// Kernels names the implementations of the arithmetic that this processor runs, such as
// "avx512", "avx2", "neon" and, always, "portable". The first is the one in use; the
// results of all are the same to the bit.
func Kernels() []string { return kernel.Implementations() }
