package kernel

import "encoding/binary"

// CodeTable has the 16-bit patterns that codes of 8 bits, sign and magnitude, stand for. The patterns of a magnitude
// differ in their sign bit alone.
type CodeTable struct {
	words     [256]uint16 // by code
	low, high [128]byte   // their bytes, by the magnitude of a code
}

// Set gives a magnitude its pattern.
func (p *CodeTable) Set(magnitude int, pattern uint16) {
	p.words[magnitude], p.words[magnitude+128] = pattern, pattern^1<<15
	p.low[magnitude], p.high[magnitude] = byte(pattern), byte(pattern>>8)
}

// patternsBlock divides the number of codes that a kernel looks up.
const patternsBlock = 32

// SamePatterns returns how many of the first codes have in out the pattern that patterns[i/block] has of code i. It panics
// if patterns or out are too short.
func SamePatterns(patterns []CodeTable, codes, out []byte, block int) int {
	out, n := out[:2*len(codes)], len(codes)
	patterns = patterns[:(n+block-1)/block]
	lookUp := current().patterns
	for at := 0; at < n; {
		here := min(chunk, n-at, block-at%block)
		if at%block == 0 && block <= chunk {
			here = min(chunk/block*block, n-at)
		}
		if done := here &^ (patternsBlock - 1); lookUp != nil && done > 0 && (block%patternsBlock == 0 || here <= block) &&
			lookUp(&patterns[at/block].words[0], &codes[at], &out[2*at], done, (block+patternsBlock-1)&^(patternsBlock-1)) == 0 {
			at += done
			continue
		}
		here = min(here, block-at%block)
		same := patternsPortable(&patterns[at/block], codes[at:at+here], out[2*at:])
		if at += same; same < here {
			return at
		}
	}
	return n
}

// patternsPortable is SamePatterns of codes of one block in portable Go.
func patternsPortable(p *CodeTable, codes, out []byte) int {
	i := 0
	for ; len(codes)-i >= 4; i += 4 {
		c := (*[4]byte)(codes[i:])
		want := uint64(p.words[c[0]]) | uint64(p.words[c[1]])<<16 | uint64(p.words[c[2]])<<32 | uint64(p.words[c[3]])<<48
		if binary.LittleEndian.Uint64(out[2*i:]) != want {
			break
		}
	}
	for ; i < len(codes); i++ {
		if binary.LittleEndian.Uint16(out[2*i:]) != p.words[codes[i]] {
			return i
		}
	}
	return i
}
