package text_test

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/text"
)

// TestWriteJSON writes what encoding/json does, and null where that refuses a number.
func TestWriteJSON(t *testing.T) {
	type part struct {
		V *float64 `json:"v"`
		E []int    `json:"e,omitempty"`
		N []int    `json:"n"`
	}
	v := 1e21
	document := struct {
		part
		F []float64         `json:"f"`
		M map[string]string `json:"m"`
		Z int               `json:"z,omitzero"`
	}{part{V: &v}, []float64{0, 1e-7, -0.5, 1 << 53, 5e-324}, map[string]string{"b": "<&>", "a": "\u2028"}, 0}
	var want, got strings.Builder
	e := json.NewEncoder(&want)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	require.NoError(t, e.Encode(document))
	require.NoError(t, text.WriteJSON(&got, document))
	require.Equal(t, want.String(), got.String())

	v = math.NaN()
	document.F = []float64{math.Inf(1), 2, math.Inf(-1)}
	got.Reset()
	require.NoError(t, text.WriteJSON(&got, &document))
	require.JSONEq(t, `{"v":null,"n":null,"f":[null,2,null],"m":{"a":"\u2028","b":"<&>"}}`, got.String())
}

// TestFigure: NaN and infinities are words.
func TestFigure(t *testing.T) {
	for want, v := range map[string]float64{"1.5": 1.5, "infinite": math.Inf(1), "-infinite": math.Inf(-1), "not a number": math.NaN()} {
		require.Equal(t, want, text.Figure("%.3g", v))
	}
}
