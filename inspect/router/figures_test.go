package router

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/inspect"
	"dsmoe/text/page"
)

// TestSpectraOfManyRouters: those with the largest condition numbers, a singular one among them, in the order of layers.
func TestSpectraOfManyRouters(t *testing.T) {
	r := &Report{}
	for l := range 20 {
		r.Layers = append(r.Layers, Layer{Layer: l, Singular: []float64{2, 1}, Condition: inspect.Finite(float64(l))})
	}
	r.Layers[2].Condition = nil
	r.Layers = append(r.Layers, Layer{Layer: 20, Singular: []float64{}})
	f, caption := r.Spectra()
	lines := f.(page.Lines)
	require.Len(t, lines.Series, maxCurves)
	assert.Equal(t, []string{"layer 2", "layer 9", "layer 10"}, []string{lines.Series[0].Name, lines.Series[1].Name,
		lines.Series[2].Name})
	assert.Equal(t, [][2]float64{{1, 2}, {2, 1}}, lines.Series[0].Points)
	assert.Contains(t, caption, "of the 12 of 20 routers")
	none, _ := (&Report{}).Spectra()
	assert.Nil(t, none)
}
