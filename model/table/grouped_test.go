package table

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNamesOfTransformersAreNotMadeUp: a family has names of transformers' modules if its table says which, be it the
// table's own.
func TestNamesOfTransformersAreNotMadeUp(t *testing.T) {
	published := map[string]string{"mlp.gate": "mlp.router"}
	row := Family{Rows: []Row{{Name: "model.layers.{l}.mlp.gate.weight"}}}
	f := otherNames(row, published, nil)
	require.NotNil(t, f.NamingOf("published"))
	require.Nil(t, f.NamingOf("transformers"))
	f = otherNames(row, published, map[string]string{})
	require.True(t, f.NamingOf("transformers").Fuses)
	require.Equal(t, "model.layers.{l}.mlp.gate.weight", f.NamingOf("transformers").names["model.layers.{l}.mlp.gate.weight"])
}
