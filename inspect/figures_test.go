package inspect

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/model/tensor"
	"dsmoe/text/page"
)

// TestExpertsOfStatsAreDrawn: layers and experts by their numbers, shared ones behind them, and what
// has no number is none.
func TestExpertsOfStatsAreDrawn(t *testing.T) {
	group := func(name string, std float64, nan int64) GroupStats {
		return GroupStats{Name: name, Numbers: Numbers{Std: finite(std), NaN: nan}}
	}
	r := StatsReport{By: ByExpert, Groups: []GroupStats{
		group("model.layers.10.mlp.experts.2", 1, 0), group("model.layers.10.mlp.experts.11", 2, 0), group("model.layers.10.mlp.shared_experts", 3, 0),
		group("model.layers.9.mlp.experts.11", 4, 7), group("model.layers.9.mlp.experts.2", math.NaN(), 1)}}
	m := r.Figure().(page.Heatmap)
	assert.Equal(t, []string{"9", "10"}, m.Rows)
	assert.Equal(t, []string{"2", "11", "shared"}, m.Columns)
	assert.Equal(t, "[[NaN 4 NaN] [1 2 3]]", fmt.Sprint(m.Values))
	assert.True(t, m.Marked(0, 1) && m.Marked(0, 0))
	assert.False(t, m.Marked(1, 1) || m.Marked(0, 2))
	assert.Nil(t, (&StatsReport{By: ByExpert}).Figure())
	assert.Nil(t, (&StatsReport{By: ByLayer}).Figure())
	assert.Nil(t, (&StatsReport{By: ByTensor}).Figure())
}

// TestTensorsOfStatsAreDrawn: experts share a column, whose number is the largest; what is in no layer has
// a row; and names of the checkpoint's own do not make it wide.
func TestTensorsOfStatsAreDrawn(t *testing.T) {
	tensor := func(name string, most float64) TensorStats {
		return TensorStats{Name: name, Numbers: Numbers{AbsMax: &most}}
	}
	r := StatsReport{By: ByTensor, Tensors: []TensorStats{tensor("model.embed_tokens.weight", 9), tensor("model.layers.1.mlp.experts.0.up_proj.weight", 2),
		tensor("model.layers.1.mlp.experts.1.up_proj.weight", 5), tensor("model.layers.1.mlp.experts.2.up_proj.weight", 3)}}
	m := r.Figure().(page.Heatmap)
	assert.Equal(t, []string{"1", outsideRow}, m.Rows)
	assert.Equal(t, []string{"embed_tokens", "mlp.experts.*.up_proj"}, m.Columns)
	assert.Equal(t, "[[NaN 5] [9 NaN]]", fmt.Sprint(m.Values))
	for i := range 1000 {
		r.Tensors = append(r.Tensors, tensor(fmt.Sprintf("model.layers.1.x%d", i), float64(i)))
	}
	m = r.Figure().(page.Heatmap)
	assert.Len(t, m.Columns, maxKinds+1)
	assert.Contains(t, m.Columns, otherKinds)
}

// TestLargestOfTreeAreDrawn: of many tensors the largest.
func TestLargestOfTreeAreDrawn(t *testing.T) {
	l := &Listing{}
	for i := range 200 {
		l.Tensors = append(l.Tensors, Tensor{Name: fmt.Sprintf("t%03d.weight", i), DType: tensor.F32, Shape: []int{i + 1}, Bytes: int64(4 * (i + 1))})
	}
	bars := l.Tree(0).Figure().(page.Bars)
	require.Len(t, bars.Rows, maxBars)
	assert.Equal(t, "t140", bars.Rows[0].Label)
	assert.Equal(t, "parameters: the 60 largest of 200 modules and tensors", bars.Name)
	assert.Nil(t, (&Listing{}).Tree(0).Figure())
}

// alikeLayer is a layer of n experts without any likeness.
func alikeLayer(layer, n int) LayerExperts {
	zeros := func() (c Cosines) {
		for range n {
			c = append(c, make([]float64, n))
		}
		return c
	}
	l := LayerExperts{Layer: layer, Function: &PairSpread{}, Similarity: &Similarity{Gate: zeros(), Up: zeros(), Function: zeros()}}
	for e := range n {
		l.Experts = append(l.Experts, ExpertNumbers{Expert: e})
	}
	return l
}

// TestPairsShareCells: of more than maxSide experts a cell has the largest of its pairs, matrices
// above the diagonal and functions below, and is outlined if a finding names one of them.
func TestPairsShareCells(t *testing.T) {
	l := alikeLayer(3, 130)
	l.Similarity.Up[5][129], l.Similarity.Up[129][5] = -.75, -.75
	l.Similarity.Function[5][129], l.Similarity.Function[129][5] = .5, .5
	l.Similarity.Gate[6][7] = math.NaN()
	m := l.pairs([]Observation{{Layer: 3, Experts: []int{5, 129}}, {Layer: 4, Experts: []int{0, 64}}}).(page.Heatmap)
	require.Len(t, m.Rows, 44)
	assert.Equal(t, []string{"0–2", "3–5"}, m.Rows[:2])
	assert.Equal(t, "129", m.Rows[43])
	sum, marked := 0.0, 0
	for i, row := range m.Values {
		for k, v := range row {
			if v == v {
				sum += v
			} else {
				assert.True(t, i == 43 && k == 43, "%d %d", i, k)
			}
			if m.Marked(i, k) {
				marked++
			}
		}
	}
	assert.Equal(t, .75, m.Values[1][43])
	assert.Equal(t, .5, m.Values[43][1])
	assert.Equal(t, 1.25, sum)
	assert.True(t, m.Marked(1, 43) && m.Marked(43, 1) && marked == 2)
	few := alikeLayer(0, 3)
	assert.Equal(t, []string{"0", "1", "2"}, few.pairs(nil).(page.Heatmap).Columns)
}

// TestPairsOfManyLayers: those that are most alike are drawn, that is said, and the cosines are let go.
func TestPairsOfManyLayers(t *testing.T) {
	r := &Report{Experts: &ExpertsReport{}}
	for l := range 15 {
		r.Experts.Layers = append(r.Experts.Layers, alikeLayer(l, 2))
	}
	r.Experts.Layers[14].Function.Largest = -.9
	r.Experts.Layers[13].Up = &MatrixSpread{Pairs: &PairSpread{Largest: .8}}
	r.takePairs()
	require.Len(t, r.pairs, maxPairDrawings)
	var titles []string
	for _, p := range r.pairs {
		titles = append(titles, p.Figure.(page.Heatmap).ColName)
	}
	assert.Equal(t, []string{"layer 0", "layer 1"}, titles[:2])
	assert.Equal(t, []string{"layer 9", "layer 13", "layer 14"}, titles[9:])
	assert.Contains(t, r.pairsText, "These are the 12 of 15 layers in which two experts are most alike.")
	for _, l := range r.Experts.Layers {
		assert.Nil(t, l.Similarity)
	}
}

// TestManyFilesAreDrawn: neither files nor numbers of layers make a drawing large, and no byte is lost.
func TestManyFilesAreDrawn(t *testing.T) {
	c := &Checkpoint{}
	for i := range 950 {
		c.Files = append(c.Files, File{Name: fmt.Sprintf("f%d", i), Tensors: []tensor.Info{{Name: fmt.Sprintf("model.layers.%d.x", 7*i), DType: tensor.F32, Shape: []int{1 << 18}}, {Name: "y", DType: tensor.BF16, Shape: []int{1 << 19}}}})
	}
	for _, f := range []page.Figure{c.fileMap(), c.dtypeMap()} {
		m := f.(page.Heatmap)
		assert.LessOrEqual(t, len(m.Rows), maxFiles)
		assert.LessOrEqual(t, len(m.Columns), maxLayers+1)
		assert.Equal(t, outsideRow, m.Columns[len(m.Columns)-1])
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
	m := c.fileMap().(page.Heatmap)
	assert.Equal(t, []string{"files 1–10", "files 11–20"}, m.Rows[:2])
	assert.Equal(t, []string{"0–33", "34–67"}, m.Columns[:2])
	c.Files[0].Tensors[0].Name = fmt.Sprintf("model.layers.%d.x", math.MaxInt)
	assert.Less(t, len(c.fileMap().(page.Heatmap).Columns), maxLayers+3)
}

// TestSpectraOfManyRouters: those with the largest condition numbers, a singular one among them, in the order of layers.
func TestSpectraOfManyRouters(t *testing.T) {
	r := &RouterReport{}
	for l := range 20 {
		r.Layers = append(r.Layers, LayerRouter{Layer: l, Singular: []float64{2, 1}, Condition: finite(float64(l))})
	}
	r.Layers[2].Condition = nil
	r.Layers = append(r.Layers, LayerRouter{Layer: 20, Singular: []float64{}})
	f, caption := r.spectra()
	lines := f.(page.Lines)
	require.Len(t, lines.Series, maxCurves)
	assert.Equal(t, []string{"layer 2", "layer 9", "layer 10"}, []string{lines.Series[0].Name, lines.Series[1].Name, lines.Series[2].Name})
	assert.Equal(t, [][2]float64{{1, 2}, {2, 1}}, lines.Series[0].Points)
	assert.Contains(t, caption, "of the 12 of 20 routers")
	none, _ := (&RouterReport{}).spectra()
	assert.Nil(t, none)
}

// TestFindingsAreToldOnce: what the audit says of a tensor of which an observation says the same is
// left out; all else stays, notes aside, the whole first and then by layer.
func TestFindingsAreToldOnce(t *testing.T) {
	up := "model.layers.2.mlp.experts.3.up_proj.weight"
	m := &reportMaker{Report: &Report{Findings: []ReportFinding{}}}
	m.Report.Audit = &AuditReport{Findings: []Finding{
		{Kind: Value, Tensor: up, Cause: "1 of 9 values are NaN"}, {Kind: Shape, Tensor: up, Cause: "[3 4]"}, {Kind: Note, Tensor: up},
		{Kind: Value, Tensor: "model.layers.1.mlp.experts.7", Cause: "every weight of the expert is zero"},
		{Kind: Value, Tensor: "lm_head.weight", Cause: "every value is zero"}, {Kind: Broken, File: "a.bin", Cause: "cut"}}}
	m.Experts = &ExpertsReport{Findings: []Observation{{ID: "nan", Layer: 2, Experts: []int{3}, Tensor: up}, {ID: "channel", Layer: 1, Experts: []int{7}, Tensor: "model.layers.1.mlp.experts.7"}}}
	m.Routers = &RouterReport{Findings: []Observation{{ID: "dead-row", Layer: 1, Experts: []int{4}}}}
	m.collect()
	var got []string
	for _, f := range m.Findings {
		layer := "-"
		if f.Layer != nil {
			layer = fmt.Sprint(*f.Layer)
		}
		got = append(got, fmt.Sprint(layer, " ", f.ID, " ", f.Experts))
	}
	assert.Equal(t, []string{"- value []", "- broken []", "1 value [7]", "1 channel [7]", "1 dead-row [4]", "2 shape [3]", "2 nan [3]"}, got)
	assert.Equal(t, "a.bin: cut", m.Findings[1].Text)
	var text strings.Builder
	require.NoError(t, m.Report.WriteText(&text))
	assert.Contains(t, text.String(), "  broken: a.bin: cut\n")
}
