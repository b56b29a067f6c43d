package inspect

// Tensor names and the numbers in them, of layers and experts: many names are folded
// into one pattern.

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"dsmoe/text"
)

// hole stands for a number in a template. No tensor name holds it.
const hole = "\x00"

// maxHoles is how many numbers of a name are taken out of it: more than any model's names
// have, and few enough for boxes, whose work grows with the square.
const maxHoles = 8

// Number reads a component of a name that is a number as it is usually written.
func Number(part string) (int, bool) {
	n, err := strconv.Atoi(part)
	return n, err == nil && n >= 0 && strconv.Itoa(n) == part
}

// box is the product of sets of numbers, one set per hole of a template. The sets
// are ascending.
type box [][]int

// fill writes the box into the holes of a template:
// "layers.{1..27}.mlp.experts.{0..63}.up". Of a set with more runs of numbers than most,
// the first and the last are written.
func (b box) fill(template string, most int) string {
	for _, set := range b {
		template = strings.Replace(template, hole, text.Set(set, most), 1)
	}
	return template
}

// boxes divides tuples of the same length, ascending and distinct, into boxes:
// first numbers that go with the same rest share theirs. Tuples that are a product
// of sets give one box.
func boxes(tuples [][]int) []box {
	if len(tuples) > 0 && len(tuples[0]) == 0 {
		return []box{{}}
	}
	var all []box
	firstBox := map[string]int{} // index in all of the first box of each rest
	for len(tuples) > 0 {
		first, n := tuples[0][0], 1
		for n < len(tuples) && tuples[n][0] == first {
			n++
		}
		tails := make([][]int, n)
		for i := range tails {
			tails[i] = tuples[i][1:]
		}
		rest := boxes(tails)
		tuples = tuples[n:]
		key := fmt.Sprint(rest)
		i, seen := firstBox[key]
		if !seen {
			firstBox[key] = len(all)
			for _, r := range rest {
				all = append(all, append(box{{first}}, r...))
			}
			continue
		}
		for k := range rest {
			all[i+k][0] = append(all[i+k][0], first)
		}
	}
	return all
}

// names returns the names that a template stands for, numbers ascending.
func (b box) names(template string) []string {
	if len(b) == 0 {
		return []string{template}
	}
	var all []string
	for _, n := range b[0] {
		all = append(all, b[1:].names(strings.Replace(template, hole, strconv.Itoa(n), 1))...)
	}
	return all
}

// pattern is a set of names that differ in numbers only.
type pattern struct {
	Name  string   // with sets of numbers: "model.layers.{1..27}.mlp.experts.{0..63}.up_proj.weight"
	Brief string   // for a message: with few numbers of each set, cut as text.Quote cuts
	Names []string // in their order, numbers by value
}

// The runs of numbers that a pattern's name and its brief form spell out.
const (
	AllRuns   = math.MaxInt
	briefRuns = 8
)

// Fold writes names, in any order, as patterns in the order of their first names.
func Fold(names []string) []pattern {
	names = slices.SortedFunc(slices.Values(names), text.CompareNames)
	var templates []string
	tuples := map[string][][]int{}
	for _, name := range slices.Compact(names) {
		parts, numbers := strings.Split(name, "."), []int{}
		for i, part := range parts { // "layers.3.mlp.experts.17.up" is "layers.H.mlp.experts.H.up", H the hole, and [3 17]
			if n, ok := Number(part); ok && len(numbers) < maxHoles {
				numbers = append(numbers, n)
				parts[i] = hole
			}
		}
		t := strings.Join(parts, ".")
		if tuples[t] == nil {
			templates = append(templates, t)
		}
		tuples[t] = append(tuples[t], numbers)
	}
	var all []pattern
	for _, t := range templates {
		for _, b := range boxes(tuples[t]) {
			all = append(all, pattern{b.fill(t, AllRuns), text.Quote(b.fill(t, briefRuns)), b.names(t)})
		}
	}
	slices.SortFunc(all, func(a, b pattern) int { return text.CompareNames(a.Names[0], b.Names[0]) })
	return all
}
