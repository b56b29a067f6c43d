package inspect

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/config/configtest"
	"dsmoe/model/table"
	"dsmoe/text"
)

// TestSelection: what is selected, and what of a selection is not there.
func TestSelection(t *testing.T) {
	names := func(c *config.Config) (all []string) {
		for s := range table.FamilyOf(c).Slots(c) {
			all = append(all, s.Name)
		}
		return all
	}(configtest.Fixture(t, "v1-base/checkpoint"))
	self := func(s string) string { return s }
	for name, c := range map[string]struct {
		s    Selection
		want int
	}{
		"all":              {Selection{}, 186},
		"layer":            {Selection{Layers: text.Spans{{0, 0}}}, 9},
		"layers":           {Selection{Layers: text.Spans{{1, 2}, {3, 3}}}, 3 * 58},
		"experts":          {Selection{Experts: text.Spans{{0, 0}, {5, 9}}}, 3 * 6 * 3},
		"expert of layer":  {Selection{Layers: text.Spans{{1, 1}}, Experts: text.Spans{{15, 15}}}, 3},
		"glob":             {Selection{Match: []string{"*.gate.weight", "lm_head.*"}}, 4},
		"glob of a layer":  {Selection{Match: []string{"*.gate.weight"}, Layers: text.Spans{{3, 3}}}, 1},
		"glob and experts": {Selection{Match: []string{"*.up_proj.weight"}, Experts: text.Spans{{3, 4}}}, 6},
	} {
		got, err := Pick(c.s, names, self)
		require.NoError(t, err, name)
		assert.Len(t, got, c.want, name)
		assert.True(t, slices.IsSortedFunc(got, func(a, b string) int {
			return slices.Index(names, a) - slices.Index(names,
				b)
		}))
	}
	_, err := Pick(Selection{Layers: text.Spans{{2, 5}}, Experts: text.Spans{{16, 17}},
		Match: []string{"nosuch", "[", "*"}}, names, self)
	assert.EqualError(t, err, "layers 2-5: 4, 5 not there: the checkpoint has 0-3\n"+
		"experts 16-17: 16, 17 not there: the checkpoint has 0-15\n"+
		"the glob \"nosuch\" matches no tensor\n"+
		"\"[\" is not a glob: * stands for anything, ? for a character, [a-z] for one of a set")
	_, err = Pick(Selection{Layers: text.Spans{{0, 0}}, Experts: text.Spans{{1, 1}}}, names, self)
	assert.ErrorContains(t, err, "nothing is selected")
	_, err = Pick(Selection{Experts: text.Spans{{1, 1}}}, []string{"model.norm.weight"}, self)
	assert.EqualError(t, err, "experts 1: 1 not there: the checkpoint has none")

	fused := []string{"layers.1.mlp.experts.gate_up_proj", "layers.1.mlp.experts.gate_up_proj_scale_inv",
		"layers.1.mlp.gate.weight"}
	got, err := Pick(Selection{Layers: text.Spans{{1, 1}}, Experts: text.Spans{{7, 7}}}, fused, self)
	require.NoError(t, err)
	assert.Equal(t, fused[:2], got, "fused experts are of every number, and names may lack model.")
	got, err = Pick(Selection{Match: []string{"*.gate_up_proj"}}, fused, self)
	require.NoError(t, err)
	assert.Equal(t, fused[:2], got, "scales go with their weight")
}
