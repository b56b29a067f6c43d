package router

import (
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/inspect/inspecttest"
)

// TestExchangedMatrices_every: gate_proj and up_proj of one expert, the one's numbers being the other's, in a model where
// gate_proj answers to its row; nothing is told of a model without such a fault.
func TestExchangedMatrices_every(t *testing.T) {
	for seed := range uint64(5) {
		if seed > 0 && !configtest.Every(t) {
			break
		}
		s := inspecttest.Model(t, inspecttest.Kind{Coupling: 0.5, Neurons: 0.3}, seed)
		require.Empty(t, routers(t, s, Options{Coupling: true}).Findings)
		gate, up := inspecttest.ExpertName(4, 9, "gate"), inspecttest.ExpertName(4, 9, "up")
		s.Data[gate], s.Data[up] = s.Data[up], s.Data[gate]
		r := routers(t, s, Options{Coupling: true})
		require.Equal(t, []string{"exchanged 4 [9]"}, inspecttest.Kinds(r.Findings))
		require.Empty(t, routers(t, s, Options{}).Findings, "the experts are not read")
	}
}
