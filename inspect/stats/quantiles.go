package stats

// Quantiles without sorting: numbers have keys that are ordered as they are, and are counted
// by the upper half of the key. Which numbers a quantile is among is then known; where they
// are not one number, they are read again and counted by the lower half.

import (
	"cmp"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Quantile is a share q of the elements, 0 to 1.
type Quantile struct {
	text  string
	share *big.Rat
}

// maxQuantiles is how many quantiles can be asked for: each takes memory.
const maxQuantiles = 16

// ParseQuantiles reads "0.01,0.5,0.99": different decimal shares from 0 to 1.
func ParseQuantiles(list string) ([]Quantile, error) {
	var all []Quantile
	for one := range strings.SplitSeq(list, ",") {
		one = strings.TrimSpace(one)
		share, ok := new(big.Rat).SetString(one)
		if !ok || len(one) > 20 || strings.Trim(one, "0123456789.") != "" || share.Cmp(big.NewRat(1, 1)) > 0 {
			return nil, fmt.Errorf("not shares from 0 to 1 such as 0.01,0.5,0.99")
		}
		if slices.ContainsFunc(all, func(q Quantile) bool { return q.share.Cmp(share) == 0 }) {
			return nil, fmt.Errorf("%s is given twice", one)
		}
		all = append(all, Quantile{one, share})
	}
	if len(all) > maxQuantiles {
		return nil, fmt.Errorf("more than %d quantiles", maxQuantiles)
	}
	return all, nil
}

// String returns the share as the user gave it.
func (q Quantile) String() string { return q.text }

// rank returns which of n elements in ascending order the quantile is, counted from 1:
// max(⌈q·n⌉, 1).
func (q Quantile) rank(n int64) int64 {
	num := new(big.Int).Mul(q.share.Num(), big.NewInt(n))
	num.Add(num, q.share.Denom()).Sub(num, big.NewInt(1))
	return max(num.Quo(num, q.share.Denom()).Int64(), 1)
}

// keyOf returns a number's key: keys of finite numbers are ordered as those are.
func keyOf(v float32) uint32 {
	b := math.Float32bits(v)
	if b>>31 == 1 {
		return ^b
	}
	return b | 1<<31
}

// valueOf returns the number that has a key.
func valueOf(key uint32) float32 {
	if key>>31 == 0 {
		return math.Float32frombits(^key)
	}
	return math.Float32frombits(key &^ (1 << 31))
}

// search looks for the quantiles of some numbers. Between reading them twice it takes a few
// bytes.
type search struct {
	quantiles []Quantile
	values    []QuantileValue
	open      []target  // those that are not found yet
	exact     []counted // numbers among them that are not read again

	room  sync.Once         // makes room for lower
	slot  *[halves]uint8    // 1 + the index in lower of the upper half of a key; 0 if it is not searched
	lower []*[halves]uint64 // of each upper half that is searched, counts by lower half
}

// target is a quantile among numbers that share the upper half of their keys.
type target struct {
	index int    // in quantiles
	upper uint32 // half of the key
	rank  int64  // among them, from 1
}

// newSearch begins with numbers that are counted one by one, and with others counted by the upper half of their
// keys, which may be nil. It returns nil if there are no numbers.
func newSearch(quantiles []Quantile, known []counted, others *[halves]int64) *search {
	slices.SortFunc(known, func(a, b counted) int { return cmp.Compare(keyOf(a.v), keyOf(b.v)) })
	if others == nil {
		others = new([halves]int64)
	}
	upper, n := *others, int64(0)
	for _, c := range known {
		upper[keyOf(c.v)>>16] += c.n
	}
	for _, count := range upper {
		n += count
	}
	if n == 0 {
		return nil
	}
	s := &search{quantiles: quantiles, values: make([]QuantileValue, len(quantiles))}
	for i, q := range quantiles {
		t := target{index: i, rank: q.rank(n)}
		for ; t.rank > upper[t.upper]; t.upper++ {
			t.rank -= upper[t.upper]
		}
		among := slices.DeleteFunc(slices.Clone(known), func(c counted) bool { return keyOf(c.v)>>16 != t.upper })
		if others[t.upper] == 0 {
			k := 0
			for ; t.rank > among[k].n; k++ {
				t.rank -= among[k].n
			}
			s.values[i] = q.value(among[k].v)
			continue
		}
		if !slices.ContainsFunc(s.open, func(o target) bool { return o.upper == t.upper }) {
			s.exact = append(s.exact, among...)
		}
		s.open = append(s.open, t)
	}
	return s
}

// value returns the quantile with its value; -0 becomes 0.
func (q Quantile) value(v float32) QuantileValue { return QuantileValue{q.text, float64(v) + 0} }

// begin makes room for numbers that are read again.
func (s *search) begin() {
	s.room.Do(func() {
		s.slot = new([halves]uint8)
		for _, t := range s.open {
			if s.slot[t.upper] == 0 {
				s.lower = append(s.lower, new([halves]uint64))
				s.slot[t.upper] = uint8(len(s.lower))
			}
		}
		for _, c := range s.exact {
			s.add(c.v, uint64(c.n))
		}
	})
}

// add counts a finite number. It is safe for concurrent use.
func (s *search) add(v float32, times uint64) {
	key := keyOf(v)
	if slot := s.slot[key>>16]; slot > 0 {
		atomic.AddUint64(&s.lower[slot-1][key%halves], times)
	}
}

// finish finds what is open in what was counted.
func (s *search) finish() {
	for _, t := range s.open {
		lower, l := s.lower[s.slot[t.upper]-1], uint32(0)
		for ; t.rank > int64(lower[l]); l++ {
			t.rank -= int64(lower[l])
		}
		s.values[t.index] = s.quantiles[t.index].value(valueOf(t.upper<<16 | l))
	}
	s.open, s.exact, s.slot, s.lower = nil, nil, nil, nil
}
