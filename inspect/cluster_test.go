package inspect

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// about returns an observation about an expert, or about some.
func about(id string, value float64, layer int, experts ...int) Observation {
	return Observation{ID: id, Layer: layer, Experts: experts, Tensor: fmt.Sprintf("layer %d, %v", layer, experts),
		Text: "text", Value: &value, Expected: Finite(1)}
}

// copies returns what is found of weights that two layers share.
func copies(id string, experts ...int) Observation {
	o := Observation{ID: id, Layer: 4, Experts: experts, Tensor: "a", Text: "has the numbers of b"}
	for _, layer := range []int{4, 5} {
		o.Members = append(o.Members, Member{layer, experts, fmt.Sprintf("%s %v of %d", id, experts, layer), nil})
	}
	return o
}

// briefs returns level, kind, layer, experts and size of findings.
func briefs(found []Observation) (all []string) {
	for _, o := range found {
		all = append(all, fmt.Sprint(o.Level, " ", o.ID, " ", o.Layer, " ", o.Experts, " ", o.size()))
	}
	return all
}

// TestOneCauseIsOneFinding: single experts of a layer, pairs with a common expert, a copied layer, and what all
// layers have.
func TestOneCauseIsOneFinding(t *testing.T) {
	layer := []Observation{copies("duplicate-matrix")}
	for e := range 64 {
		layer = append(layer, copies("duplicate", e))
	}
	for name, c := range map[string]struct {
		found []Observation
		want  []string
		said  string
	}{
		"two matrices of an expert":  {[]Observation{about("norm", 3, 2, 7), about("norm", 9, 2, 7)}, []string{"notice norm 2 [7] 2"}, "2 such"},
		"experts of a layer":         {[]Observation{about("norm", 3, 2, 7), about("norm", 9, 2, 4)}, []string{"notice norm 2 [4 7] 2"}, "experts 4, 7"},
		"pairs apart":                {[]Observation{about("similar", 3, 2, 1, 2), about("similar", 2, 2, 3, 4)}, []string{"notice similar 2 [1 2] 2", "notice similar 2 [3 4] 2"}, ""},
		"pairs by a third":           {[]Observation{about("similar", 3, 2, 1, 2), about("similar", 2, 2, 5, 4), about("similar", 2, 2, 2, 5)}, []string{"notice similar 2 [1 2 4 5] 6"}, "such are experts 1, 2, 4, 5"},
		"three layers":               {[]Observation{about("norm", 3, 1, 7), about("norm", 3, 2, 7), about("norm", 3, 3, 7)}, []string{"notice norm 1 [7] 1", "notice norm 2 [7] 1", "notice norm 3 [7] 1"}, ""},
		"four layers":                {[]Observation{about("norm", 3, 1, 7), about("norm", 3, 2, 7), about("norm", 8, 3, 6), about("norm", 3, 4, 7)}, []string{"notice norm 3 [6] 4"}, "4 such in layers 1-4"},
		"other kinds, and by levels": {[]Observation{about("norm", 3, 1, 7), about("nan", 3, 2, 7)}, []string{"error nan 2 [7] 1", "notice norm 1 [7] 1"}, ""},
		"by size":                    {[]Observation{about("norm", 3, 1, 7), about("similar", 3, 9, 1, 2)}, []string{"notice similar 9 [1 2] 2", "notice norm 1 [7] 1"}, ""},
		"a layer copied": {layer, []string{"error duplicate-layer 4 " + fmt.Sprint(numbers(64)) + " 130"},
			"layer 5 repeats layer 4: 64 experts and 1 other tensor are equal"},
	} {
		t.Run(name, func(t *testing.T) {
			got := Cluster(c.found)
			require.Equal(t, c.want, briefs(got))
			assert.Contains(t, got[0].Text, c.said)
			require.Equal(t, got[0].Text, Cluster(c.found)[0].Text, "the observations stay as they are")
		})
	}
}

func numbers(n int) (all []int) {
	for i := range n {
		all = append(all, i)
	}
	return all
}

// TestLevels: what no healthy checkpoint has is an error, all else a notice.
func TestLevels(t *testing.T) {
	assert.Equal(t, []string{"error", "notice"}, strings.Fields(fmt.Sprint(levelOf("nan"), " ", levelOf("norm"))))
	assert.True(t, Error.AtLeast(Notice) && Error.AtLeast(Error) && Notice.AtLeast(Notice))
	assert.False(t, Notice.AtLeast(Error) || Error.AtLeast("none"))
	assert.Equal(t, "2 errors, 1 notice", CountLevels([]Level{Error, Notice, Error}))
	assert.Equal(t, "no finding", CountLevels(nil))
}
