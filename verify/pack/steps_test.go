package pack

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"dsmoe/model"
	"dsmoe/text/problem"
)

// TestSteps: each row that is not padding is in one entry, rows of a sequence are in order, and entries of a step agree.
func TestSteps(t *testing.T) {
	in := &model.Input{Batch: 2, Seq: 4, InputIDs: make([]int, 8), AttentionMask: []int{1, 1, 1, 1, 1, 1, 1, 0}}
	right := []Step{{0, 0, 2, "prefill", 0, 2, 1}, {0, 2, 3, "decode", 1, 4, 2}, {0, 3, 4, "decode", 2, 2, 2},
		{1, 0, 2, "cached", 0, 2, 1}, {1, 2, 3, "chunk", 1, 4, 2}}
	m := &Manifest{Steps: right}
	assert.Empty(t, m.checkSteps(in), "step 2 may have a row of a request that is not recorded")
	assert.Equal(t, "2 prefill rows, 1 chunk row, 2 decode rows, 2 cached rows of 2 requests, up to 2 in one step", m.StepCounts().String())
	assert.Equal(t, 3, m.StepCounts().Steps)
	assert.Equal(t, "1 decode row of 1 request", (&Manifest{Steps: []Step{{0, 0, 1, "decode", 9, 1, 1}}}).StepCounts().String())
	assert.Nil(t, (&Manifest{}).checkSteps(in))
	assert.NotEmpty(t, (&Manifest{Steps: []Step{}}).checkSteps(in), "no entry is no list")

	with := func(i int, s Step) []Step {
		steps := append([]Step{}, right...)
		steps[i] = s
		return steps
	}
	for want, steps := range map[string][]Step{
		"entry 4: sequence 2 is not one of 2":                         with(4, Step{2, 2, 3, "chunk", 1, 4, 2}),
		"entry 4: sequence -1 is not one of 2":                        with(4, Step{-1, 2, 3, "chunk", 1, 4, 2}),
		"entry 1: from 2 to 2 are no rows of a sequence of 4":         with(1, Step{0, 2, 2, "decode", 1, 4, 2}),
		"entry 1: from -1 to 2 are no rows of a sequence of 4":        with(1, Step{0, -1, 2, "decode", 1, 4, 2}),
		"entry 2: from 3 to 5 are no rows of a sequence of 4":         with(2, Step{0, 3, 5, "decode", 2, 4, 2}),
		`entry 0: phase "Prefill", not one of prefill, chunk, decode`: with(0, Step{0, 0, 2, "Prefill", 0, 2, 1}),
		"entry 0: step -1 of 2 rows of 1 requests":                    with(0, Step{0, 0, 2, "prefill", -1, 2, 1}),
		"entry 0: step 0 of 2 rows of 0 requests":                     with(0, Step{0, 0, 2, "prefill", 0, 2, 0}),
		"entry 0: step 0 of 1 rows of 2 requests":                     with(0, Step{0, 0, 2, "prefill", 0, 1, 2}),
		"entry 4: row 3 of sequence 1 is padding":                     with(4, Step{1, 2, 4, "chunk", 1, 4, 2}),
		"entry 2: row 2 of sequence 0 is in entry 1, too":             with(2, Step{0, 2, 4, "decode", 2, 2, 2}),
		"row 3 of sequence 0 is in no entry":                          right[:2],
		"row 0 of sequence 1 is in no entry":                          with(3, Step{1, 1, 2, "cached", 0, 2, 1}),
		"entry 4: step 1 has 3 rows of 2 requests, in entry 1 4 of 2": with(4, Step{1, 2, 3, "chunk", 1, 3, 2}),
		"entry 4: step 1 has 4 rows of 1 requests, in entry 1 4 of 2": with(4, Step{1, 2, 3, "chunk", 1, 4, 1}),
		"entry 2: step 0 computed rows that follow those of step 1":   with(2, Step{0, 3, 4, "decode", 0, 4, 1}),
		"entry 0: step 0 has 1 rows of 1 requests, the entries up":    with(0, Step{0, 0, 2, "prefill", 0, 1, 1}),
		"entry 4: step 2 has 2 rows of 1 requests, the entries up":    append(with(2, Step{0, 3, 4, "decode", 2, 2, 1})[:4:4], Step{1, 2, 3, "chunk", 2, 2, 1}),
	} {
		assert.ErrorContains(t, problem.In("", (&Manifest{Steps: steps}).checkSteps(in)...), want)
	}
}
