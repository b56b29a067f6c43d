package manifest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/plan"
	"dsmoe/text/problem"
)

// TestSourceDifferences: a weight file that came, went, or has another size or header is named once, by name.
func TestSourceDifferences(t *testing.T) {
	same := plan.Source{Name: "a", Size: 1, Identity: "x"}
	old := []plan.Source{same, {Name: "gone", Size: 1}, {Name: "longer", Size: 1, Identity: "x"}, {Name: "other", Size: 1, Identity: "x"}}
	now := []plan.Source{{Name: "other", Size: 1, Identity: "y"}, {Name: "longer", Size: 2, Identity: "y"}, {Name: "new"}, same}
	require.Equal(t, []problem.Problem{
		{File: "gone", Cause: "is no longer in the source"},
		{File: "longer", Cause: "has 2 bytes in the source, not 1 byte"},
		{File: "new", Cause: "is new in the source"},
		{File: "other", Cause: "has another header in the source"},
	}, Differences(nil, old, &plan.Plan{Sources: now}))
	require.Empty(t, Differences(nil, old, &plan.Plan{Sources: old}))
}
