package header

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/inspect"
	"dsmoe/model/tensor"
	"dsmoe/text/page"
)

// TestLargestOfTreeAreDrawn: of many tensors the largest.
func TestLargestOfTreeAreDrawn(t *testing.T) {
	l := &Listing{}
	for i := range 200 {
		l.Tensors = append(l.Tensors, inspect.Tensor{Name: fmt.Sprintf("t%03d.weight", i), DType: tensor.F32,
			Shape: []int{i + 1}, Bytes: int64(4 * (i + 1))})
	}
	bars := l.Tree(0).Figure().(page.Bars)
	require.Len(t, bars.Rows, maxBars)
	assert.Equal(t, "t140", bars.Rows[0].Label)
	assert.Equal(t, "parameters: the 60 largest of 200 modules and tensors", bars.Name)
	assert.Nil(t, (&Listing{}).Tree(0).Figure())
}

// TestManyFilesAreDrawn: neither files nor numbers of layers make a drawing large, and no byte is lost.
func TestManyFilesAreDrawn(t *testing.T) {
	c := &inspect.Checkpoint{}
	for i := range 950 {
		c.Files = append(c.Files, inspect.File{Name: fmt.Sprintf("f%d", i),
			Tensors: []tensor.Info{{Name: fmt.Sprintf("model.layers.%d.x", 7*i), DType: tensor.F32, Shape: []int{1 << 18}},
				{Name: "y", DType: tensor.BF16, Shape: []int{1 << 19}}}})
	}
	for _, f := range []page.Figure{FileMap(c), DTypeMap(c)} {
		m := f.(page.Heatmap)
		assert.LessOrEqual(t, len(m.Rows), maxFiles)
		assert.LessOrEqual(t, len(m.Columns), maxLayers+1)
		assert.Equal(t, "no layer", m.Columns[len(m.Columns)-1])
		mib := 0.0
		for _, row := range m.Values {
			for _, v := range row {
				if v == v {
					mib += v
				}
			}
		}
		assert.Equal(t, 2*950.0, mib)
	}
	m := FileMap(c).(page.Heatmap)
	assert.Equal(t, []string{"files 1–10", "files 11–20"}, m.Rows[:2])
	assert.Equal(t, []string{"0–33", "34–67"}, m.Columns[:2])
	c.Files[0].Tensors[0].Name = fmt.Sprintf("model.layers.%d.x", math.MaxInt)
	assert.Less(t, len(FileMap(c).(page.Heatmap).Columns), maxLayers+3)
}
