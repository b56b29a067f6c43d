package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
)

// TestPublishedModels: a tiny copy of each published model, with the keys of its config.json but for widths and
// numbers, is synthesised, converted, written to GGUF where llama.cpp has the model, inspected, and is the same in
// all these forms.
func TestPublishedModels(t *testing.T) {
	paths, err := filepath.Glob(fixture("configs", "*.json"))
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".json")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			at := func(name string) string { return filepath.Join(dir, name) }
			require.NoError(t, os.WriteFile(at("config.json"), []byte(configtest.Published(t, name, shrink)), 0o644))
			commands := [][]string{
				{"synth", at("config.json"), at("tiny"), "--seed", "3"},
				{"convert", at("tiny"), at("bf16"), "--type", "bf16"},
				{"diff", at("tiny"), at("bf16")},
				{"inspect", at("bf16")},
				{"inspect", "arch", at("bf16")},
				{"inspect", "audit", at("bf16")},
			}
			if name != "deepseek-ocr" && !strings.HasPrefix(name, "deepseek-vl2") {
				commands = append(commands, []string{"convert", at("bf16"), at("tiny.gguf"), "--type", "bf16", "--no-vocab"},
					[]string{"diff", at("tiny"), at("tiny.gguf")}, []string{"inspect", "audit", at("tiny.gguf")})
			}
			for _, args := range commands {
				status, stdout, stderr := dsmoe(t.Context(), args...)
				assert.Zero(t, status, "%s: %s%s", strings.Join(args, " "), stdout, stderr)
			}
		})
	}
}

// shrink makes a model tiny: no rule, and no relation between widths that are equal, is lost.
func shrink(keys map[string]any) {
	most := map[string]int{"num_hidden_layers": 3, "first_k_dense_replace": 1, "hidden_size": 64,
		"intermediate_size": 96, "moe_intermediate_size": 24, "n_routed_experts": 16, "vocab_size": 96,
		"num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 32,
		"qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 16, "head_dim": 16, "rotary_dim": 8,
		"num_experts": 16, "num_local_experts": 16, "moe_num_experts": 16}
	if _, ok := keys["hidden_size"]; ok && keys["num_hidden_layers"] == nil {
		keys["num_hidden_layers"] = json.Number("30") // DeepSeek-VL2's default
	}
	for key, n := range most {
		if was, ok := keys[key].(json.Number); ok && was != "0" {
			keys[key] = min(n, number(was))
		}
	}
}

func number(n json.Number) (value int) {
	fmt.Sscan(string(n), &value)
	return value
}
