package weights

import (
	"iter"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/config/configtest"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
)

// headers are header entries in their order.
type headers []tensor.Info

func (h headers) Tensors() iter.Seq[tensor.Info] { return slices.Values(h) }

// named returns the headers of a whole checkpoint of c with the names of a naming.
func named(c *config.Config, n *table.Naming) (h headers) {
	for _, info := range table.FamilyOf(c).Implied(c) {
		info.Name = n.Of(c, info.Name)
		h = append(h, info)
	}
	return h
}

// TestNamings: each naming spells every weight, scales and prediction layers too, in a way of its own that is read
// back.
func TestNamings(t *testing.T) {
	for _, fixture := range []string{"v4", "v4-128", "v4-fp4", "hy-v3", "minimax-m2", "exaone-moe", "ernie45-moe", "sarvam-moe", "ling-2",
		"blocks/kimi-linear"} {
		c := configtest.Fixture(t, fixture+"/checkpoint")
		f := table.FamilyOf(c)
		for i := range f.Namings {
			h := named(c, &f.Namings[i])
			s := New(c, h)
			require.NoError(t, s.Check(c), "%s, %s", fixture, f.Namings[i].Whose)
			assert.Equal(t, f.Namings[i].Whose, s.Naming().Whose)
			fusedAlone := strings.HasPrefix(fixture, "v4") || fixture == "minimax-m2" // as transformers 5.23 and 5.24 load them
			assert.Equal(t, fusedAlone && f.Namings[i].Name == "transformers", s.Unfound(c) != nil, fixture)
			for _, w := range s.All() {
				stored := w.Name
				if w.Header != nil {
					stored = w.Header.Name
				}
				require.Equal(t, w.Stored, s.StoredName(c, stored))
				require.True(t, Implied(c, w.Stored), w.Stored)
			}
		}
	}
}

// TestNamingsDoNotMix: a name of another naming, a weight under two names, an unknown name and a prediction layer that
// is not whole are each an error that names what it is about.
func TestNamingsDoNotMix(t *testing.T) {
	c := configtest.Fixture(t, "v4-128/checkpoint")
	whole := named(c, &table.FamilyOf(c).Namings[0])
	find := func(name string) tensor.Info {
		return whole[slices.IndexFunc(whole, func(i tensor.Info) bool { return i.Name == name })]
	}
	as := func(old, name string) tensor.Info {
		info := find(old)
		info.Name = name
		return info
	}
	without := func(names ...string) headers {
		return slices.DeleteFunc(slices.Clone(whole), func(i tensor.Info) bool { return slices.Contains(names, i.Name) })
	}
	const wqa = "layers.0.attn.wq_a.weight"
	for name, test := range map[string]struct {
		h    headers
		want []string
	}{
		"mixture": {append(without(wqa), as(wqa, "model.layers.0.self_attn.q_a_proj.weight")), []string{
			"model.layers.0.self_attn.q_a_proj.weight: is a name of transformers' modules, but embed.weight is a published name"}},
		"twice": {append(slices.Clone(whole), as(wqa, "model."+wqa)), []string{
			"model." + wqa + ": is a name of save_pretrained or a published name behind model., but embed.weight is a published name",
			"is there twice: in " + wqa + " and in model." + wqa}},
		"unknown": {append(without(wqa), as(wqa, "layers.0.attn.wqa.weight")), []string{
			wqa + ": missing, shape [12 24] is expected",
			"layers.0.attn.wqa.weight: unexpected, shape [12 24]; the nearest known name is " + wqa}},
		"prediction layer": {without("mtp.0.e_proj.weight", "mtp.0.ffn.experts.3.w1.weight"), []string{
			"mtp.0.e_proj.weight: missing, shape [24 24] is expected",
			"mtp.0.ffn.experts.3.w1.weight: missing, shape [16 24] is expected"}},
		"placeholder": {append(without("layers.0.attn.wq_a.weight"), tensor.Info{Name: "layers.0.attn.wq_a.weight",
			DType: tensor.BF16, Shape: []int{0}}), []string{"layers.0.attn.wq_a.weight: shape [0], a placeholder: the ranks"}},
		"entries": {append(slices.Clone(whole), as("layers.1.attn.indexer.wq_b.weight", "layers.0.attn.indexer.wq_b.weight")),
			[]string{"layers.0.attn.indexer.wq_b.weight: unexpected"}},
	} {
		err := New(c, test.h).Check(c)
		require.Error(t, err, name)
		for _, want := range test.want {
			assert.ErrorContains(t, err, want, name)
		}
		assert.Equal(t, len(test.want)-1, strings.Count(err.Error(), "; ")-strings.Count(err.Error(), "; the nearest"), name)
	}
	none := slices.DeleteFunc(slices.Clone(whole), func(i tensor.Info) bool { return strings.HasPrefix(i.Name, "mtp.") })
	require.NoError(t, New(c, none).Check(c))
	assert.Len(t, table.FamilyOf(c).Notes(c, New(c, none).Has), 1)
	two, err := c.Override(map[string]jsontext.Value{"num_nextn_predict_layers": jsontext.Value("2")})
	require.NoError(t, err)
	require.NoError(t, New(two, whole).Check(two))
	assert.Contains(t, table.FamilyOf(two).Notes(two, New(two, whole).Has)[0], "prediction layers mtp.1")
}
