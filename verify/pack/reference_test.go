package pack

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPython: what a sparse manifest does not say is not printed.
func TestPython(t *testing.T) {
	whole := Reference{Model: "DeepseekForCausalLM", Kind: "remote code", File: "modeling_deepseek.py", Transformers: "4.39.3",
		Torch: "2.3.1", Device: "cpu"}
	require.Equal(t, "DeepseekForCausalLM (remote code modeling_deepseek.py), transformers 4.39.3, torch 2.3.1 on cpu", whole.String())
	require.Equal(t, "(remote code)", (&Reference{Kind: "remote code"}).String())
	require.Equal(t, "DeepseekV3ForCausalLM (transformers native), torch 2.8.0",
		(&Reference{Model: "DeepseekV3ForCausalLM", Kind: "transformers native", Torch: "2.8.0"}).String())
}
