package experts

import (
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/inspect"
	"dsmoe/inspect/inspecttest"
	"dsmoe/model/weights"
)

// inParts examines a checkpoint in so many parts, and joins the reports.
func inParts(t *testing.T, s *inspecttest.Stored, parts int) *Report {
	var all []*Report
	for i := range parts {
		w := s.Weights()
		w.TakePart(&inspect.Part{Index: i + 1, Of: parts},
			func(x *weights.Weight) bool { return IsMatrix(x.Place) })
		r, err := Examine(t.Context(), w, Options{})
		require.NoError(t, err)
		all = append(all, r)
	}
	return Merge(all, inspect.ByExpert)
}

// TestExpertsInParts: the merged report is that of one run, but for twins in different parts, of which it says that they
// were not looked for.
func TestExpertsInParts(t *testing.T) {
	order := make([]int, 24)
	for i := range order {
		order[i] = i
	}
	s := inspecttest.Filled(t, "v1-base")
	copyExpert(s, 2, 3, 2, 7, order, 0)
	copyExpert(s, 3, 1, 3, 2, order, 0.01)
	s.Put(inspecttest.ExpertName(1, 4, "gate"), 9, 0x7fc0)
	s.Change(inspecttest.ExpertName(3, 4, "gate"), inspecttest.Row(3*64, 64, inspecttest.Times(20)))
	want := examined(t, s, Options{})
	require.Subset(t, inspecttest.Kinds(want.Findings), []string{"nan 1 [4]", "duplicate 2 [3 7]", "neuron 3 [4]"})
	for _, parts := range []int{1, 2, 3, 100} {
		got := inParts(t, s, parts)
		require.Equal(t, parts > 1, got.NotCompared != "")
		require.Equal(t, want.Findings, got.Findings)
		require.Equal(t, inspecttest.Printed(t, &Report{Layers: want.Layers}),
			inspecttest.Printed(t, &Report{Layers: got.Layers}))
	}

	s = inspecttest.Filled(t, "v1-base")
	copyExpert(s, 2, 3, 1, 5, order, 0)
	require.Equal(t, []string{"duplicate 1 [5]"}, inspecttest.Kinds(inParts(t, s, 1).Findings))
	require.Empty(t, inParts(t, s, 3).Findings)
}
