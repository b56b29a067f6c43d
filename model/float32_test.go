package model

import (
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/model/table"
)

// TestInFloat32: which weights a reference keeps in float32.
func TestInFloat32(t *testing.T) {
	for _, test := range []struct {
		family string
		module table.Module
		role   table.Role
		kept   bool
	}{
		{"deepseek_v3", table.Router, table.EScoreCorrectionBias, true},
		{"minimax_m2", table.Router, table.EScoreCorrectionBias, false},
		{"deepseek_v3", table.Router, table.Gate, false},
		{"ernie4_5_moe", table.Router, table.Gate, true},
		{"deepseek_v3", table.Norms, table.InputLayernorm, false},
		{"deepseek_v4", table.Norms, table.InputLayernorm, true},
		{"deepseek_v4", table.Attention, table.Sinks, true},
		{"deepseek_v4", table.Attention, table.QAProj, false},
	} {
		c := config.Defaults(test.family)
		row := table.FamilyOf(c).Row(test.module, test.role)
		require.NotNil(t, row, "%+v", test)
		require.Equal(t, test.kept, InFloat32(c, table.Place{Row: row}), "%+v", test)
	}
}
