package inspect

import (
	"fmt"
	"math/rand"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"dsmoe/text"
)

func TestFold(t *testing.T) {
	grid := func(format string, layers, experts []int) (names []string) {
		for _, l := range layers {
			for _, e := range experts {
				names = append(names, fmt.Sprintf(format, l, e))
			}
		}
		return names
	}
	const up = "model.layers.%d.mlp.experts.%d.up_proj.weight"
	for name, test := range map[string]struct {
		names []string
		want  []string
	}{
		"nothing":    {nil, nil},
		"no numbers": {[]string{"lm_head.weight"}, []string{"lm_head.weight"}},
		"one":        {[]string{"model.layers.3.x"}, []string{"model.layers.3.x"}},
		"pair":       {[]string{"a.1", "a.0"}, []string{"a.{0..1}"}},
		"gap":        {[]string{"a.5", "a.0", "a.3", "a.4", "a.2", "a.9"}, []string{"a.{0,2..5,9}"}},
		"product": {grid(up, []int{1, 2, 3}, []int{0, 1}),
			[]string{"model.layers.{1..3}.mlp.experts.{0..1}.up_proj.weight"}},
		"missing one": {grid(up, []int{1, 2, 3}, []int{0, 1, 2})[1:],
			[]string{"model.layers.1.mlp.experts.{1..2}.up_proj.weight",
				"model.layers.{2..3}.mlp.experts.{0..2}.up_proj.weight"}},
		"not numbers":  {[]string{"a.01", "a.+1", "a.1"}, []string{"a.1", "a.+1", "a.01"}},
		"first number": {[]string{"1.a", "0.a"}, []string{"{0..1}.a"}},
		"by value":     {[]string{"b.10.x", "b.9.y", "b.2.x"}, []string{"b.{2,10}.x", "b.9.y"}},
		"many numbers": {[]string{"1.1.1.1.1.1.1.1.2.3", "1.1.1.1.1.1.1.0.2.3", "1.1.1.1.1.1.1.1.2.4"},
			[]string{"1.1.1.1.1.1.1.{0..1}.2.3", "1.1.1.1.1.1.1.1.2.4"}},
		"twice": {[]string{"a.1", "a.1"}, []string{"a.1"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, p := range Fold(test.names) {
				got = append(got, p.Name)
			}
			assert.Equal(t, test.want, got)
		})
	}
}

// TestFoldLosesNothing folds random sets of names and unfolds them again.
func TestFoldLosesNothing(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	for range 200 {
		var names []string
		for range r.Intn(40) {
			names = append(names, fmt.Sprintf("a.%d.b.%d.%d", r.Intn(3), r.Intn(4), r.Intn(2)))
		}
		var got []string
		for _, p := range Fold(names) {
			got = append(got, p.Names...)
		}
		slices.SortFunc(names, text.CompareNames)
		slices.SortFunc(got, text.CompareNames)
		assert.Equal(t, slices.Compact(names), got)
	}
}
