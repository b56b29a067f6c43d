package pack

import (
	"fmt"
	"slices"
	"strings"

	"dsmoe/text"
)

// Rows are rows of tokens that a stage has, in sequences of one length, and the steps of an engine that computed them.
type Rows struct {
	Compared []int  // ascending, without padding: sequence × Length + position
	Length   int    // of a sequence
	Steps    []Step // nil if the pack does not say
}

// fewRuns is how many runs of rows are listed.
const fewRuns = 4

// Describe says which of the rows fail: where they are, whether others pass, and what they alone have in common. failing
// is an ascending part of r.Compared.
func (r *Rows) Describe(failing []int) string {
	switch n, all := len(failing), len(r.Compared); {
	case n == 0:
		return "in no row by itself"
	case n == all && n == 1:
		return "in its only row"
	case n == all:
		return fmt.Sprintf("in all %d rows", n)
	}
	words, alike, steps := []string{"in " + r.places(failing) + " alone"}, r.Compared, r.stepOf() // alike have all traits so far
	for _, t := range r.traits(failing, steps) {
		var with []int
		for _, row := range alike {
			if t.has(row) {
				with = append(with, row)
			}
		}
		switch {
		case len(with) == len(alike) || slices.ContainsFunc(failing, func(row int) bool { return !t.has(row) }):
		case !t.shape:
			words, alike = append(words, fmt.Sprintf("%s (%d of %d)", t.words, len(failing), len(with))), with
		case len(with) == len(failing):
			words, alike = append(words, t.words), with
		}
	}
	phases := func(rows []int) map[string]int {
		count := map[string]int{}
		for _, row := range rows {
			if s := steps[row]; s != nil {
				count[s.Phase]++
			}
		}
		return count
	}
	if found, all := phases(failing), phases(r.Compared); len(found) > 1 {
		for _, phase := range allPhases {
			if found[phase] > 0 {
				words = append(words, fmt.Sprintf("%d of %d %s", found[phase], all[phase], phase))
			}
		}
	}
	return strings.Join(words, ", ")
}

// places lists rows by their positions, and by the sequences that have the same ones if there are several.
func (r *Rows) places(failing []int) string {
	sequences := map[string][]int{} // by the positions
	var order []string
	several := r.Compared[0]/r.Length != r.Compared[len(r.Compared)-1]/r.Length
	for rest := failing; len(rest) > 0; {
		sequence, positions := rest[0]/r.Length, []int(nil)
		for len(rest) > 0 && rest[0]/r.Length == sequence {
			positions, rest = append(positions, rest[0]%r.Length), rest[1:]
		}
		where := rowsText(positions)
		if several && len(positions) == len(r.of(r.Compared, sequence)) {
			where = "all rows"
		}
		if sequences[where] == nil {
			order = append(order, where)
		}
		sequences[where] = append(sequences[where], sequence)
	}
	if !several {
		return order[0]
	}
	var parts []string
	for _, where := range order {
		parts = append(parts, fmt.Sprintf("%s of %s %s", where, text.Noun(len(sequences[where]), "sequence"), text.Ranges(sequences[where])))
	}
	return text.Some(parts, fewRuns, "; ")
}

// rowsText is "row 24", "rows 24-47, 50" or, of many runs, "12 scattered rows (3, 9, 14, …)".
func rowsText(positions []int) string {
	runs := 0
	for range text.Runs(positions) {
		runs++
	}
	if runs <= fewRuns {
		return text.Noun(len(positions), "row") + " " + text.Ranges(positions)
	}
	return fmt.Sprintf("%d scattered rows (%s, …)", len(positions), text.Ranges(positions[:3]))
}

// of returns those of the ascending rows that are a sequence's.
func (r *Rows) of(rows []int, sequence int) []int {
	first, _ := slices.BinarySearch(rows, sequence*r.Length)
	last, _ := slices.BinarySearch(rows, (sequence+1)*r.Length)
	return rows[first:last]
}

// trait is what rows may have in common.
type trait struct {
	words string
	has   func(row int) bool
	shape bool // the trait is made to hold of the failing rows: it says something only if no other row has it
}

// traits are those that failing rows may have in common; each is counted among the rows that have those before it.
func (r *Rows) traits(failing []int, steps map[int]*Step) (list []trait) {
	add := func(words string, is func(position int, s *Step) bool) {
		list = append(list, trait{words: words, has: func(row int) bool { return steps[row] != nil && is(row%r.Length, steps[row]) }})
	}
	all, each := "all ", "each "
	if len(failing) == 1 {
		all, each = "", ""
	}
	for _, phase := range allPhases {
		add(all+phase, func(_ int, s *Step) bool { return s.Phase == phase })
	}
	add(all+"in steps of several requests", func(_ int, s *Step) bool { return s.Requests > 1 && s.Phase != cachedPhase })
	add(all+"in steps of one request", func(_ int, s *Step) bool { return s.Requests == 1 && s.Phase != cachedPhase })
	if first := steps[failing[0]]; first != nil {
		add(each+"the first of its step", func(at int, s *Step) bool { return at == s.From && s.To > s.From+1 })
		add(each+"the last of its step", func(at int, s *Step) bool { return at == s.To-1 && s.To > s.From+1 })
		add(fmt.Sprintf("%sof step %d", all, first.Step), func(_ int, s *Step) bool { return s.Step == first.Step })
	}
	// the failing rows of a row's sequence, if others of it pass
	among := func(row int, is func(failing []int) bool) bool {
		fails := r.of(failing, row/r.Length)
		return len(fails) > 0 && len(fails) < len(r.of(r.Compared, row/r.Length)) && is(fails)
	}
	return append(list,
		trait{words: each + "the first of its sequence", has: func(row int) bool { return row == r.of(r.Compared, row/r.Length)[0] }},
		trait{words: "from the beginning on", shape: true, has: func(row int) bool {
			return among(row, func(fails []int) bool { return row <= fails[len(fails)-1] })
		}},
		trait{words: "up to the end", shape: true, has: func(row int) bool {
			return among(row, func(fails []int) bool { return row >= fails[0] })
		}})
}

// stepOf returns the step of each row; none if it is not known.
func (r *Rows) stepOf() map[int]*Step {
	steps := map[int]*Step{}
	for i := range r.Steps {
		for position := r.Steps[i].From; position < r.Steps[i].To; position++ {
			steps[r.Steps[i].Sequence*r.Length+position] = &r.Steps[i]
		}
	}
	return steps
}
