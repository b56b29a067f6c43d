package stats

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"

	"dsmoe/inspect"
	"dsmoe/text/page"
)

// TestExpertsOfStatsAreDrawn: layers and experts by their numbers, shared ones behind them, and what
// has no number is none.
func TestExpertsOfStatsAreDrawn(t *testing.T) {
	group := func(name string, std float64, nan int64) Group {
		return Group{Name: name, Numbers: Numbers{Std: inspect.Finite(std), NaN: nan}}
	}
	r := Report{By: inspect.ByExpert, Groups: []Group{
		group("model.layers.10.mlp.experts.2", 1, 0), group("model.layers.10.mlp.experts.11", 2,
			0), group("model.layers.10.mlp.shared_experts", 3, 0),
		group("model.layers.9.mlp.experts.11", 4, 7), group("model.layers.9.mlp.experts.2", math.NaN(), 1)}}
	m := r.Figure().(page.Heatmap)
	assert.Equal(t, []string{"9", "10"}, m.Rows)
	assert.Equal(t, []string{"2", "11", "shared"}, m.Columns)
	assert.Equal(t, "[[NaN 4 NaN] [1 2 3]]", fmt.Sprint(m.Values))
	assert.True(t, m.Marked(0, 1) && m.Marked(0, 0))
	assert.False(t, m.Marked(1, 1) || m.Marked(0, 2))
	assert.Nil(t, (&Report{By: inspect.ByExpert}).Figure())
	assert.Nil(t, (&Report{By: inspect.ByLayer}).Figure())
	assert.Nil(t, (&Report{By: inspect.ByTensor}).Figure())
}

// TestTensorsOfStatsAreDrawn: experts share a column, whose number is the largest; what is in no layer has
// a row; and names of the checkpoint's own do not make it wide.
func TestTensorsOfStatsAreDrawn(t *testing.T) {
	tensor := func(name string, most float64) Tensor {
		return Tensor{Name: name, Numbers: Numbers{AbsMax: &most}}
	}
	r := Report{By: inspect.ByTensor, Tensors: []Tensor{tensor("model.embed_tokens.weight", 9),
		tensor("model.layers.1.mlp.experts.0.up_proj.weight", 2),
		tensor("model.layers.1.mlp.experts.1.up_proj.weight", 5), tensor("model.layers.1.mlp.experts.2.up_proj.weight", 3)}}
	m := r.Figure().(page.Heatmap)
	assert.Equal(t, []string{"1", "no layer"}, m.Rows)
	assert.Equal(t, []string{"embed_tokens", "mlp.experts.*.up_proj"}, m.Columns)
	assert.Equal(t, "[[NaN 5] [9 NaN]]", fmt.Sprint(m.Values))
	for i := range 1000 {
		r.Tensors = append(r.Tensors, tensor(fmt.Sprintf("model.layers.1.x%d", i), float64(i)))
	}
	m = r.Figure().(page.Heatmap)
	assert.Len(t, m.Columns, maxKinds+1)
	assert.Contains(t, m.Columns, otherKinds)
}
