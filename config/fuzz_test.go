package config

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/text/problem"
)

// FuzzParse: no input panics; what is accepted is written so that it parses to an
// equal Config; what is refused is told in one line of bounded length.
func FuzzParse(f *testing.F) {
	for _, text := range fixtureFiles(f) {
		f.Add([]byte(text))
	}
	for _, test := range hostile {
		if len(test.text) < 1<<12 {
			f.Add([]byte(test.text))
		}
	}
	f.Add([]byte(`{"model_type":"deepseek","dtype":"float16","rope_parameters":{"rope_type":"linear","type":"linear","factor":4.0,"rope_theta":1e4}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse(bytes.NewReader(data))
		if err != nil {
			require.ErrorAs(t, err, new(*problem.Error))
			require.NotContains(t, err.Error(), "\n")
			require.Less(t, len(err.Error()), 1<<13)
			return
		}
		again, err := Parse(bytes.NewReader(c.JSON()))
		require.NoError(t, err)
		assert.Equal(t, c, again)
		assert.Equal(t, c.JSON(), again.JSON())
		assert.Zero(t, c.HeadDim()%2)
		for layer := range min(c.NumHiddenLayers, 64) {
			c.IsMoE(layer)
		}
	})
}
