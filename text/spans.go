package text

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Spans is a set of numbers that a user wrote, such as layers: "0-3,7". The empty Spans holds all
// numbers.
type Spans []Span

// Span is the first and the last number of a run.
type Span [2]int

// ParseSpans reads "0-3,7". The error names what: "not layers such as 0-3,7".
func ParseSpans(s, what string) (Spans, error) {
	var spans Spans
	for one := range strings.SplitSeq(s, ",") {
		from, to, isRange := strings.Cut(strings.TrimSpace(one), "-")
		if !isRange {
			to = from
		}
		a, errA := strconv.ParseUint(from, 10, 20)
		b, errB := strconv.ParseUint(to, 10, 20)
		if errA != nil || errB != nil || a > b {
			return nil, fmt.Errorf("not %s such as 0-3,7", what)
		}
		spans = append(spans, Span{int(a), int(b)})
	}
	return spans, nil
}

// String returns the form that ParseSpans reads.
func (s Spans) String() string {
	var parts []string
	for _, r := range s {
		part := strconv.Itoa(r[0])
		if r[1] != r[0] {
			part += "-" + strconv.Itoa(r[1])
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ",")
}

// Has reports whether n is in the set.
func (s Spans) Has(n int) bool {
	return len(s) == 0 || slices.ContainsFunc(s, func(r Span) bool { return r[0] <= n && n <= r[1] })
}

// Prefix returns n if the set is the numbers 0 to n-1.
func (s Spans) Prefix() (n int, ok bool) {
	if len(s) == 0 {
		return 0, false
	}
	for s.Has(n) {
		n++
	}
	ok = n > 0 && !slices.ContainsFunc(s, func(r Span) bool { return r[1] >= n })
	return n, ok
}

// Check returns an error that names the numbers of the set, such as layers, that who does not have; nil if
// it has all. The keys of present are what it has.
func (s Spans) Check(who, what string, present map[int]bool) error {
	var missing []int
	for _, r := range s {
		for n := r[0]; n <= r[1]; n++ {
			if !present[n] {
				missing = append(missing, n)
			}
		}
	}
	if missing == nil {
		return nil
	}
	slices.Sort(missing)
	have := "has none"
	if len(present) > 0 {
		have = "has " + Ranges(slices.Sorted(maps.Keys(present)))
	}
	return fmt.Errorf("%s %s: %s not there: %s %s", what, s, Ranges(slices.Compact(missing)), who, have)
}
