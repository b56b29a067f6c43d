package report

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/inspect"
	"dsmoe/inspect/experts"
	"dsmoe/inspect/header"
	"dsmoe/inspect/matrix"
	"dsmoe/inspect/router"
	"dsmoe/text/page"
	"dsmoe/text/problem"
)

// alikeLayer is a layer of n experts without any likeness.
func alikeLayer(layer, n int) experts.Layer {
	zeros := func() (c matrix.Cosines) {
		for range n {
			c = append(c, make([]float64, n))
		}
		return c
	}
	l := experts.Layer{Layer: layer, Function: &matrix.PairSpread{},
		Similarity: &experts.Similarity{Matrices: experts.Matrices[matrix.Cosines]{Gate: zeros(), Up: zeros()},
			Function: zeros()}}
	for e := range n {
		l.Experts = append(l.Experts, experts.Expert{Expert: e})
	}
	return l
}

// TestPairsOfManyLayers: those that are most alike are drawn, that is said, and the cosines are let go.
func TestPairsOfManyLayers(t *testing.T) {
	r := &Report{Experts: &experts.Report{}}
	for l := range 15 {
		r.Experts.Layers = append(r.Experts.Layers, alikeLayer(l, 2))
	}
	r.Experts.Layers[14].Function.Largest = -.9
	r.Experts.Layers[13].Up = &experts.MatrixSpread{Pairs: &matrix.PairSpread{Largest: .8}}
	r.takePairs()
	require.Len(t, r.pairs, maxPairDrawings)
	var titles []string
	for _, p := range r.pairs {
		titles = append(titles, p.Figure.(page.Heatmap).ColName)
	}
	assert.Equal(t, []string{"layer 0", "layer 1"}, titles[:2])
	assert.Equal(t, []string{"layer 5", "layer 13", "layer 14"}, titles[5:])
	assert.Contains(t, r.pairsText, "These are the 8 of 15 layers in which two experts are most alike.")
	for _, l := range r.Experts.Layers {
		assert.Nil(t, l.Similarity)
	}
}

// TestFindingsAreToldOnce: what the audit says of a tensor of which an observation says the same is
// left out; all else stays, notes aside, errors first.
func TestFindingsAreToldOnce(t *testing.T) {
	up := "model.layers.2.mlp.experts.3.up_proj.weight"
	m := &maker{Report: &Report{Findings: []finding{}}}
	m.Report.Audit = &header.AuditReport{Findings: []inspect.Finding{
		inspect.Value.Of(problem.Problem{Tensor: up, Cause: "1 of 9 values are NaN"}),
		inspect.Shape.Of(problem.Problem{Tensor: up, Cause: "[3 4]"}),
		inspect.Note.Of(problem.Problem{Tensor: up}),
		inspect.Value.Of(problem.Problem{Tensor: "model.layers.1.mlp.experts.7",
			Cause: "every weight of the expert is zero"}),
		inspect.Value.Of(problem.Problem{Tensor: "lm_head.weight", Cause: "every value is zero"}),
		inspect.Broken.Of(problem.Problem{File: "a.bin", Cause: "cut"})}}
	m.Experts = &experts.Report{Examined: inspect.Examined{Observed: []inspect.Observation{{ID: "nan", Layer: 2, Experts: []int{3}, Tensor: up},
		{ID: "channel", Layer: 1, Experts: []int{7}, Tensor: "model.layers.1.mlp.experts.7"}}}}
	m.Routers = &router.Report{Examined: inspect.Examined{Observed: []inspect.Observation{{ID: "dead-row", Layer: 1, Experts: []int{4}}}}}
	m.collect()
	var got []string
	for _, f := range m.Findings {
		layer := "-"
		if f.Layer != nil {
			layer = fmt.Sprint(*f.Layer)
		}
		got = append(got, fmt.Sprint(layer, " ", f.ID, " ", f.Experts))
	}
	assert.Equal(t, []string{"2 shape [3]", "1 value [7]", "- value []", "- broken []", "1 dead-row [4]",
		"2 nan [3]", "1 channel [7]"}, got)
	assert.Equal(t, "a.bin: cut", m.Findings[3].Text)
	var text strings.Builder
	require.NoError(t, m.Report.WriteText(&text))
	assert.Contains(t, text.String(), "  error: broken: a.bin: cut\n")
}
