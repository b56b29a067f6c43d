package pack

import (
	"fmt"
	"slices"
	"strings"

	"dsmoe/model"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// Step says which step of an engine computed some rows of a sequence.
type Step struct {
	Sequence int    `json:"sequence"` // of the trace's batch: a request
	From     int    `json:"from"`     // first row, a position in input_ids
	To       int    `json:"to"`       // position behind the last row
	Phase    string `json:"phase"`    // one of allPhases
	Step     int    `json:"step"`     // number of the step
	Rows     int    `json:"rows"`     // of all requests in the step
	Requests int    `json:"requests"` // in the step
}

// allPhases are how an engine comes to rows: a prompt or its first piece, a later piece, tokens behind the prompt, and rows
// that the engine took from the request that had computed them.
var allPhases = []string{"prefill", "chunk", decodePhase, cachedPhase}

const decodePhase, cachedPhase = "decode", "cached"

// StepCounts counts the rows of a trace by the phase in which an engine computed them.
type StepCounts struct {
	Rows     map[string]int `json:"rows"`     // by phase
	Requests int            `json:"requests"` // sequences with a row
	Steps    int            `json:"steps"`    // that computed a row
	Together int            `json:"together"` // the most requests of one of these steps
}

// StepCounts counts the rows that the manifest's steps list; nil without steps.
func (m *Manifest) StepCounts() *StepCounts {
	if m.Steps == nil {
		return nil
	}
	c, requests, steps := &StepCounts{Rows: map[string]int{}}, map[int]bool{}, map[int]bool{}
	for _, s := range m.Steps {
		c.Rows[s.Phase] += s.To - s.From
		requests[s.Sequence] = true
		if s.Phase != cachedPhase {
			steps[s.Step] = true
			c.Together = max(c.Together, s.Requests)
		}
	}
	c.Requests, c.Steps = len(requests), len(steps)
	return c
}

// DecodeRows returns which rows of an input decode steps computed, by themselves or for the request that has them from a
// cache; nil if the steps are of one sort.
func (m *Manifest) DecodeRows(in *model.Input) []bool {
	rows, n := make([]bool, in.Batch*in.Seq), 0
	for _, s := range m.Steps {
		for row := s.From; row < s.To; row++ {
			rows[s.Sequence*in.Seq+row] = slices.ContainsFunc(m.Steps, func(by Step) bool {
				return by.Phase == decodePhase && by.Step == s.Step && by.From <= row && row < by.To
			}) && s.Phase != "prefill" && s.Phase != "chunk"
			if rows[s.Sequence*in.Seq+row] {
				n++
			}
		}
	}
	if n == 0 || n == len(rows) {
		return nil
	}
	return rows
}

// String counts the rows in words: "12 prefill rows, 36 decode rows of 3 requests, up to 3 in one step".
func (c *StepCounts) String() string {
	var parts []string
	for _, phase := range allPhases {
		if n := c.Rows[phase]; n > 0 {
			parts = append(parts, text.Plural(n, phase+" row"))
		}
	}
	words := fmt.Sprintf("%s of %s", strings.Join(parts, ", "), text.Plural(c.Requests, "request"))
	if c.Together > 1 {
		words += fmt.Sprintf(", up to %d in one step", c.Together)
	}
	return words
}

// Decodes reports whether the trace has rows of decode steps.
func (c *StepCounts) Decodes() bool { return c != nil && c.Rows[decodePhase] > 0 }

// checkSteps returns what is wrong with the manifest's steps: each row of an input that is not padding is in one entry,
// later rows of a sequence are of later steps, and the entries of a step agree about it.
func (m *Manifest) checkSteps(in *model.Input) (problems []problem.Problem) {
	if m.Steps == nil {
		return nil
	}
	add := func(format string, args ...any) {
		problems = append(problems, problem.Problem{File: manifestName, Cause: "steps: " + fmt.Sprintf(format, args...)})
	}
	entries := make([]int, in.Batch*in.Seq) // 1 + the entry of each row
	type step struct {
		first, rows int // the first entry, and the rows of all entries so far
		requests    map[int]bool
	}
	steps := map[int]*step{}
	for i, s := range m.Steps {
		entry := fmt.Sprintf("entry %d", i)
		switch {
		case s.Sequence < 0 || s.Sequence >= in.Batch:
			add("%s: sequence %d is not one of %d", entry, s.Sequence, in.Batch)
			continue
		case s.From < 0 || s.To <= s.From || s.To > in.Seq:
			add("%s: from %d to %d are no rows of a sequence of %d", entry, s.From, s.To, in.Seq)
			continue
		case !slices.Contains(allPhases, s.Phase):
			add("%s: phase %.40q, not one of %s", entry, s.Phase, strings.Join(allPhases, ", "))
		case s.Step < 0 || s.Requests < 1 || s.Rows < s.Requests:
			add("%s: step %d of %d rows of %d requests", entry, s.Step, s.Rows, s.Requests)
		}
		first := s.Sequence*in.Seq + s.From
		for row := first; row < first+s.To-s.From; row++ {
			if in.IsPadding(row) {
				add("%s: row %d of sequence %d is padding", entry, row%in.Seq, s.Sequence)
				break
			} else if entries[row] > 0 {
				add("%s: row %d of sequence %d is in entry %d, too", entry, row%in.Seq, s.Sequence, entries[row]-1)
				break
			}
			entries[row] = i + 1
		}
		if s.Phase == cachedPhase {
			continue
		}
		of := steps[s.Step]
		if of == nil {
			of = &step{first: i, requests: map[int]bool{}}
			steps[s.Step] = of
		}
		of.rows += s.To - s.From
		of.requests[s.Sequence] = true
		switch first := m.Steps[of.first]; {
		case first.Rows != s.Rows || first.Requests != s.Requests:
			add("%s: step %d has %d rows of %d requests, in entry %d %d of %d", entry, s.Step, s.Rows, s.Requests, of.first,
				first.Rows, first.Requests)
		case of.rows > s.Rows || len(of.requests) > s.Requests:
			add("%s: step %d has %d rows of %d requests, the entries up to this one have %d of %d", entry, s.Step, s.Rows,
				s.Requests, of.rows, len(of.requests))
		}
	}
	for sequence := range in.Batch {
		before := -1 // the entry that computed the rows before
		for row := sequence * in.Seq; row < (sequence+1)*in.Seq; row++ {
			switch i := entries[row] - 1; {
			case in.IsPadding(row):
			case i < 0:
				add("row %d of sequence %d is in no entry", row%in.Seq, sequence)
				row = (sequence+1)*in.Seq - 1
			case m.Steps[i].Phase == cachedPhase:
			case before >= 0 && m.Steps[i].Step < m.Steps[before].Step:
				add("entry %d: step %d computed rows that follow those of step %d, entry %d", i, m.Steps[i].Step,
					m.Steps[before].Step, before)
				before = i
			default:
				before = i
			}
		}
	}
	return problems
}
