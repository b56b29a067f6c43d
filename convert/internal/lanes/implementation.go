package lanes

import "crypto/sha256"

// implementation is a way to hash several streams at once.
type implementation struct {
	name  string
	lanes int // streams at once
	few   int // so many streams or fewer are faster one by one

	// blocks compresses n blocks of each of the streams that p[:lanes] point at,
	// whose states are the columns of h. It is nil if there are no lanes.
	blocks func(h *[8][16]uint32, p *[16]*byte, n int)
}

// standard is crypto/sha256 alone.
var standard = implementation{name: "standard"}

// best is the first implementation that this machine has.
var best = supported()[0]

// stretch is how many blocks the assembly gets at once: it cannot be preempted.
const stretch = 64

// hash absorbs the whole blocks that all jobs of a set have in common.
func (im *implementation) hash(set []*job) {
	blocks := len(set[0].b) / sha256.BlockSize
	var h [8][16]uint32
	for lane, j := range set {
		blocks = min(blocks, len(j.b)/sha256.BlockSize)
		for i, v := range j.d.h {
			h[i][lane] = v ^ initial[i]
		}
	}
	for left := blocks; left > 0; left -= stretch {
		n := min(left, stretch)
		var p [16]*byte
		for lane := range im.lanes {
			p[lane] = &set[min(lane, len(set)-1)].b[0] // idle lanes repeat the last
		}
		im.blocks(&h, &p, n)
		for _, j := range set {
			j.b = j.b[n*sha256.BlockSize:]
		}
	}
	for lane, j := range set {
		for i := range j.d.h {
			j.d.h[i] = h[i][lane] ^ initial[i]
		}
		j.d.length += uint64(blocks * sha256.BlockSize)
	}
}
