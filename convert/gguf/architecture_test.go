package gguf

import (
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/config/configtest"
)

// TestUnheldModels: a family without an architecture is refused by its name, and so is a network with a part or a gate
// that its architecture does not have.
func TestUnheldModels(t *testing.T) {
	for cause, change := range map[string]func(c *config.Config){
		"model_type is deepseek_v9: no architecture of llama.cpp is known for it": func(c *config.Config) { c.ModelType = "deepseek_v9" },
		"model_type is deepseek_v41: no architecture of llama.cpp is known":       func(c *config.Config) { c.ModelType = "deepseek_v41" },
		"model_type is axk1: llama.cpp has no norm behind the experts":            func(c *config.Config) { c.ModelType = "axk1" },
		"model_type is deepseek_v3: llama.cpp's deepseek2 has no indexers":        func(c *config.Config) { c.Indexer.IndexTopK = 8 },
		"llama.cpp's deepseek2 has no hyper-connections, no windowed attention":   func(c *config.Config) { c.HyperConnections.HCMult, c.Windows.OGroups = 4, 2 },
		"model_type is deepseek: llama.cpp's deepseek has no latent attention":    func(c *config.Config) { c.ModelType = "deepseek" },
		"scoring_func is tanh: llama.cpp's deepseek2 has no such gate":            func(c *config.Config) { c.Router.ScoringFunc = "tanh" },
	} {
		c := *configtest.Fixture(t, "v3/checkpoint")
		require.Empty(t, unsayable(&c))
		change(&c)
		made, wrong := arrange(&c, nil, "bf16")
		require.Len(t, wrong, 1, cause)
		require.Contains(t, wrong[0].Cause, cause)
		require.Empty(t, made)
		require.False(t, predicts(&c))
	}
}

// TestModels: each model that files hold names an architecture with its gate, and each architecture is read as one model.
func TestModels(t *testing.T) {
	read := map[string]bool{}
	for _, m := range models {
		require.NotEqual(t, m.arch == "", m.cause == "", m.modelType)
		if m.arch == "" {
			continue
		}
		a := architectureNamed(m.arch)
		require.NotNil(t, a, m.modelType)
		if m.class != "" {
			require.Contains(t, a.scoring, m.scoring)
			require.False(t, read[m.arch+m.scoring], m.modelType)
			read[m.arch+m.scoring], read[m.arch] = true, true
		}
	}
	for _, a := range architectures {
		require.True(t, read[a.name], a.name)
	}
}
