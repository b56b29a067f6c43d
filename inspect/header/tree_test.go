package header

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/inspect"
	"dsmoe/inspect/inspecttest"
	"dsmoe/model/tensor"
	"dsmoe/text"
)

// child follows names from a node down.
func (n *treeNode) child(t *testing.T, names ...string) *treeNode {
	t.Helper()
	for _, name := range names {
		found := (*treeNode)(nil)
		for _, c := range n.Children {
			if c.Name == name {
				found = c
			}
		}
		require.NotNil(t, found, name)
		n = found
	}
	return n
}

// TestTree: every tensor is in the tree once, layers and experts that are alike share nodes, and
// one that is not has its own.
func TestTree(t *testing.T) {
	c := inspecttest.Whole(configtest.Fixture(t, "v1-base/checkpoint"))
	for i := range c.Files {
		for k := range c.Files[i].Tensors {
			if x := &c.Files[i].Tensors[k]; x.Name == "model.layers.2.mlp.experts.7.up_proj.weight" {
				x.DType = tensor.F32
			}
		}
	}
	l := List(c)
	root := l.Tree(0).Tree
	elements := int64(0)
	for _, x := range l.Tensors {
		elements += int64(tensor.Info{Shape: x.Shape}.Len())
	}
	assert.Equal(t, []any{len(l.Tensors), elements, l.Bytes}, []any{root.Tensors, root.Parameters, root.Bytes})
	assert.Equal(t, Summarize(c).DTypes, root.DTypes)
	both := root.child(t, "model", "layers", "{1,3}", "mlp", "experts", "{0..15}")
	assert.Equal(t, []int{16, 96}, []int{both.Count, both.Tensors})
	assert.Equal(t, int64(2*16*3*24*64), both.Parameters)
	up := both.child(t, "up_proj.weight")
	assert.Equal(t, []int{24, 64}, up.Shape)
	assert.Equal(t, []any{32, int64(32 * 24 * 64 * 2)}, []any{up.Tensors, up.Bytes})
	odd := root.child(t, "model", "layers", "2", "mlp", "experts", "7", "up_proj.weight")
	assert.Equal(t, []dtypeSum{{tensor.F32, 1, 24 * 64 * 4}}, odd.DTypes)
	assert.Equal(t, 45, root.child(t, "model", "layers", "2", "mlp", "experts", "{0..6,8..15}").Tensors)
	assert.Contains(t, inspecttest.Printed(t, l.Tree(2)), "\n    layers ")
	assert.NotContains(t, inspecttest.Printed(t, l.Tree(2)), "mlp")
}

// TestTreeOfScales: they are tensors with bytes, and no parameters.
func TestTreeOfScales(t *testing.T) {
	c := configtest.Fixture(t, "v3-fp8/checkpoint")
	root := List(inspecttest.Whole(c)).Tree(0).Tree
	assert.EqualValues(t, Summarize(inspecttest.Whole(c)).Parameters.Total, root.Parameters)
}

// TestTreeOfOddNames: any names make a tree, each tensor in it once.
func TestTreeOfOddNames(t *testing.T) {
	names := []string{"a", "a", "a.b", "a.b.c", ".", "..", "a..b", "0", "1", "0.x", "1.x", "01.x", "x.0", "x.1", "x.1.y",
		strings.Repeat("d.", 200) + "e"}
	c := &inspect.Checkpoint{Files: []inspect.File{{Name: "f"}}}
	for _, name := range names {
		c.Files[0].Tensors = append(c.Files[0].Tensors, tensor.Info{Name: name, DType: tensor.F32, Shape: []int{2}})
	}
	r := List(c).Tree(0)
	assert.Equal(t, len(names), r.Tree.Tensors)
	leaves := 0
	var walk func(n *treeNode, times int)
	walk = func(n *treeNode, times int) {
		times *= n.Count
		if n.tensor != nil {
			leaves += times
		}
		for _, c := range n.Children {
			walk(c, times)
		}
	}
	walk(r.Tree, 1)
	assert.Equal(t, len(names), leaves)
	var out strings.Builder
	require.NoError(t, r.Sheet().WriteAs(&out, text.TSV))
	assert.Contains(t, out.String(), "\n{0..1}.x\t2\t4\t")
	data, err := json.Marshal(List(&inspect.Checkpoint{}).Tree(0))
	require.NoError(t, err)
	assert.NotContains(t, string(data), "null")
}
