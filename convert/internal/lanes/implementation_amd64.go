//go:build !purego

package lanes

import (
	"slices"

	"golang.org/x/sys/cpu"
)

// supported lists what this machine runs, best first. crypto/sha256 with the
// instructions for it beats eight lanes, but not sixteen.
func supported() []*implementation {
	x := &cpu.X86
	if !x.HasAVX2 {
		return []*implementation{&standard}
	}
	all := []*implementation{&avx2, &standard}
	if hasSHA() {
		slices.Reverse(all)
	}
	if x.HasAVX512F && x.HasAVX512BW && x.HasAVX512VL {
		all = slices.Insert(all, 0, &avx512)
	}
	return all
}

var (
	avx512 = implementation{name: "avx512", lanes: 16, few: 2, blocks: blocks16}
	avx2   = implementation{name: "avx2", lanes: 8, few: 2, blocks: blocks8}
)
