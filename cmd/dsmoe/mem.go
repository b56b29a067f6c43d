package main

import (
	"github.com/spf13/cobra"

	"dsmoe/inspect/header"
	"dsmoe/text"
)

func newInspectMem() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "mem {CONFIG|CHECKPOINT}",
		Short: "Work out the memory that a model takes, from the config alone",
		Long: `Prints the bytes of the weights, the KV cache and the activations for each --context
with each --batch, from config.json alone.

  weights   in torch_dtype; with an FP8 quantization_config its matrices a byte an
            element, and 4 for each block's scale. Multi-token prediction layers are
            shown apart, and not counted
  kv_cache  tokens * 2 * num_hidden_layers * num_key_value_heads * head_dim * bytes of
            torch_dtype; of latent attention, as DeepSeek-V2 caches it,
            tokens * num_hidden_layers * (kv_lora_rank + qk_rope_head_dim) * bytes;
            tokens is context * batch
  prefill   activations while all these tokens pass at once: the larger of
            tokens * (2*hidden_size + widest) * bytes, and, of the last tokens' logits,
            batch * (hidden_size * bytes + 4*vocab_size). widest is the largest of
            num_attention_heads * 2*(qk_head_dim + v_head_dim),
            3*intermediate_size if a layer is dense,
            num_experts_per_tok * (2*hidden_size + 3*moe_intermediate_size), and
            n_shared_experts * 3*moe_intermediate_size + hidden_size
  decode    the same for batch tokens, one of each sequence
  total     weights + kv_cache + prefill

The activations are those of one layer, which others use again, without the scores of
attention: eager ones take 4 * batch * num_attention_heads * context^2 bytes more.
Allocators, fragmentation and workspaces of kernels are not counted.`,
		Example: `  dsmoe inspect mem fixtures/states/deepseek-moe-16b/config.json
  dsmoe inspect mem --context 4096,8192 --batch 1,8 fixtures/v3/checkpoint
  dsmoe inspect mem --json fixtures/v1-base/checkpoint
  dsmoe inspect mem --context 4096,32768 --plot mem.svg fixtures/v3/checkpoint`,
		Args:        expect("CONFIG or CHECKPOINT"),
		Annotations: exits("done", ""),
	}
	cmd.ValidArgsFunction = completeArguments("mem CONFIG")
	out := addOutput(cmd, text.TSV)
	contexts := cmd.Flags().IntSlice("context", nil, "`tokens` of a sequence: 4096,32768 (default max_position_embeddings)")
	batches := cmd.Flags().IntSlice("batch", []int{1}, "`sequences` at once: 1,8")
	out.plot = addPlot(cmd, "bars of what each context and batch takes")
	cmd.RunE = out.plot.around(func(cmd *cobra.Command, args []string) error {
		c, _, err := configOf(args[0])
		if err != nil {
			return err
		}
		if len(*contexts) == 0 {
			*contexts = []int{c.MaxPositionEmbeddings}
		}
		r, err := header.MemoryOf(args[0], c, *contexts, *batches)
		if err != nil {
			return misuse(cmd, err.Error())
		}
		return out.print(cmd, r)
	})
	return cmd
}
