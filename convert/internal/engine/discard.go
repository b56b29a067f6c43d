package engine

import "dsmoe/convert/internal/output"

// Leftover is what an unfinished run left.
type Leftover = output.Leftover

// Leftovers returns what unfinished runs to dst left, and those to other outputs in the directory dst.
func Leftovers(dst string, s Settings) ([]Leftover, error) {
	return output.Leftovers(dst, s.withDefaults().Client)
}

// Discard removes what unfinished runs to dst left, and returns it.
func Discard(dst string, s Settings) ([]Leftover, error) {
	s = s.withDefaults()
	return output.Discard(dst, s.Disk, s.Client)
}
