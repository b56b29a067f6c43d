package verify_test

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/convert/checkpoint"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/verify"
	"dsmoe/verify/report"
)

// renumbered gives expert e of a layer, its row of the router, its bias and what a table says the number of order(e).
func renumbered(t *testing.T, c *checkpoint.Checkpoint, layer int, order []int, stays ...string) altered {
	a := altered{Source: c, tensors: map[string]tensor.Tensor{}}
	set := weights.New(c.Config, c)
	for _, w := range set.All() {
		what := strings.TrimPrefix(w.Name, fmt.Sprintf("model.layers.%d.mlp.gate.", layer))
		switch {
		case w.Layer != layer || slices.Contains(stays, what):
		case w.Expert >= 0:
			a.tensors[w.Stored] = get(t, c, set.Find(w.Row.NameIn(layer, slices.Index(order, w.Expert))).Stored)
		case what == "weight", what == "e_score_correction_bias":
			a.tensors[w.Stored] = rowsBy(get(t, c, w.Stored), func(i int) int { return slices.Index(order, i) })
		case what == "tid2eid":
			x := get(t, c, w.Stored)
			for i := 0; i < len(x.Data); i += 8 {
				binary.LittleEndian.PutUint64(x.Data[i:], uint64(order[binary.LittleEndian.Uint64(x.Data[i:])]))
			}
			a.tensors[w.Stored] = x
		}
	}
	return a
}

// TestRenumberedExperts_every: the cause says whether the routed sums are the same with the layer's own choice of experts.
func TestRenumberedExperts_every(t *testing.T) {
	t.Parallel()
	const same, differ = "; the routed sums are the same, only the ids differ", "; the routed sums differ"
	rotated := func(n int) (order []int) {
		for e := range n {
			order = append(order, (e+3)%n)
		}
		return order
	}
	for i, test := range []struct {
		pack       string
		layer      int
		order      []int
		stays      string
		text, ends string
	}{
		{"v1-base/golden-f32", 1, rotated(16), "", "numbered otherwise: expert 0 is row 3", same},
		{"v2-lite/golden-f32", 2, rotated(16), "", "numbered otherwise: ", same},
		{"v3/golden-f32", 2, []int{1, 0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, "", "numbered otherwise: expert 0 is row 1", same},
		{"v3/golden-f32", 2, rotated(16), "", "numbered otherwise: ", differ}, // groups are others
		{"v3/golden-f32", 2, rotated(16), "e_score_correction_bias", "but e_score_correction_bias is not: ", differ},
		{"v4/golden-f32", 0, rotated(7), "", "numbered otherwise: expert 0 is row 3", same},
		{"v4/golden-f32", 0, rotated(7), "tid2eid", "but tid2eid is not: ", differ},
		{"v4/golden-f32", 2, rotated(7), "", "numbered otherwise: ", same},
	} {
		if i%2 > 0 && !configtest.Every(t) {
			continue
		}
		c, p := open(t, test.pack)
		r := run(t, c.Config, renumbered(t, c, test.layer, test.order, test.stays), p, verify.Options{})
		require.Equal(t, report.Fail, r.Verdict, "%v", test)
		require.NotNil(t, r.Cause, "%v: %s", test, *r.FirstDivergence)
		require.Equal(t, "experts-renumbered", r.Cause.ID, r.Cause.Text)
		require.Contains(t, r.Cause.Text, test.text)
		require.Regexp(t, test.ends+"$", r.Cause.Text)
	}
}

// TestRouterRowsWithoutExperts: the cause claims no order of the experts where no stage of theirs was compared.
func TestRouterRowsWithoutExperts(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v1-base/golden-f32")
	r := run(t, c.Config, renumbered(t, c, 1, []int{1, 0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}), p,
		verify.Options{Stages: []string{"mlp.gate.*"}})
	requireFails(t, r, "model.layers.1.mlp.gate.logits", "router-rows")
	require.Equal(t, "the router's rows are in another order than the reference's (no stage of the experts was compared): "+
		"expert 0 is row 1, expert 1 is row 0", r.Cause.Text)
}
