//go:build !linux

package kernel

import "testing"

// Where no page can be closed, the operands lie in ordinary memory.

func atPageEnd(_ *testing.T, data []byte) []byte { return data }

func floatsAtPageEnd(_ *testing.T, values []float32) []float32 { return values }
