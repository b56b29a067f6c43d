package pack

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
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

// TestGatesKeptByVersion: since transformers 5.24 classes whose gates compute in float32 keep their weights there.
func TestGatesKeptByVersion(t *testing.T) {
	for name, versions := range map[string]map[string]bool{
		"v3":         {"5.23.0": false, "5.24.0": true, "6.0.1": true, "": false},
		"minimax-m2": {"5.24.0": false},
		"v4":         {"5.24.0": false},
	} {
		c := configtest.Fixture(t, name+"/checkpoint")
		p, err := Open(filepath.Join("..", "..", "fixtures", name, "golden-bf16"))
		require.NoError(t, err)
		for version, kept := range versions {
			p.Manifest.Reference.Transformers, p.Manifest.KeptFloat32 = version, nil
			ran, err := p.Config(c, "")
			require.NoError(t, err)
			require.Equal(t, kept, ran.Rules().Router.KeepsGate, name+" "+version)
		}
		p.Manifest.Reference.Transformers, p.Manifest.KeptFloat32 = "5.24.0", []string{}
		ran, err := p.Config(c, "")
		require.NoError(t, err)
		require.False(t, ran.Rules().Router.KeepsGate, "the manifest says so")
	}
}
