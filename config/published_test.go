package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// decideNothing are keys of published files that no reference's forward pass depends on: generation,
// transformers' bookkeeping, how a server places experts. auto_map is one in families with one reference.
var decideNothing = strings.Fields(`_name_or_path auto_map architectures lm_head rm_head transformers_version use_cache ep_size
	bos_token_id eos_token_id pad_token_id sep_token_id decoder_start_token_id tokenizer_class
	add_cross_attention bad_words_ids begin_suppress_tokens chunk_size_feed_forward cross_attention_hidden_size
	diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size exponential_decay_length_penalty
	finetuning_task forced_bos_token_id forced_eos_token_id id2label is_decoder is_encoder_decoder label2id
	length_penalty max_length min_length no_repeat_ngram_size num_beam_groups num_beams num_return_sequences
	output_attentions output_hidden_states output_scores prefix problem_type pruned_heads remove_invalid_values
	repetition_penalty return_dict return_dict_in_generate suppress_tokens task_specific_params temperature
	tf_legacy_loss tie_encoder_decoder top_k top_p torchscript typical_p use_bfloat16
	attn_type_list mtp_transformer_layers num_mtp_modules qk_norm_type shared_intermediate_size use_mtp use_routing_bias
	enable_lm_head_fp32 expert_hidden_dim moe_router_enable_expert_bias moe_router_use_sigmoid output_router_logits
	qk_norm route_norm use_grouped_mm first_last_k_dense_replace is_moe_layer`)

// TestPublishedConfigs: of the config.json of each published model every key is read, or decides nothing.
func TestPublishedConfigs(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join("..", "fixtures", "configs", "*.json"))
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			doc, err := readDocument(text)
			require.NoError(t, err)
			w := wrapperOf(doc.values())
			if w.key != "" {
				doc, err = w.inner(doc)
				require.NoError(t, err)
			}
			values := doc.values()
			f, err := familyOf(w, values)
			require.NoError(t, err)
			for key, value := range values {
				switch {
				case slices.ContainsFunc(slices.Concat(f.fields, f.unread), named(key)):
				case key == "attention_dropout":
					assert.Equal(t, "0.0", string(value))
				default:
					assert.Contains(t, decideNothing, key)
				}
			}
			c, err := Parse(bytes.NewReader(text))
			require.NoError(t, err)
			told := struct {
				Layers int `json:"num_hidden_layers"`
				Dense  int `json:"first_k_dense_replace"`
				First  int `json:"first_last_k_dense_replace"` // of K-EXAONE, whose class has another key
				Start  int `json:"moe_layer_start_index"`
			}{Layers: c.NumHiddenLayers} // where it is left out
			require.NoError(t, json.Unmarshal(doc.JSON(), &told))
			assert.Equal(t, told.Layers, c.NumHiddenLayers)
			if experts, said := values[c.Key("n_routed_experts")]; said {
				assert.Equal(t, string(experts), fmt.Sprint(c.MoE.NRoutedExperts))
			}
			assert.Len(t, c.MoELayers(), told.Layers-told.Dense-told.First-told.Start)
		})
	}
}
