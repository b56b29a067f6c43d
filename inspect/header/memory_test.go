package header

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/config/configtest"
	"dsmoe/inspect/inspecttest"
	"dsmoe/model/synth"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
)

// TestMemoryOf16B: the numbers of DeepSeekMoE-16B, worked out by hand.
func TestMemoryOf16B(t *testing.T) {
	r, err := MemoryOf("x", configtest.Fixture(t, "states/deepseek-moe-16b"), Weights{}, []int{4096, 1}, []int{1, 8})
	require.NoError(t, err)
	assert.Equal(t, int64(32_751_456_256), r.Weights.Bytes)
	assert.Equal(t, tensor.BF16, r.DType)
	assert.False(t, r.Assumed)
	const kv = 2 * 28 * 16 * 128 * 2
	// An expert's widest part: 6 · (2·2048 + 3·1408); a dense layer's: 3 · 10944 = 32832.
	const widest = 6 * (2*2048 + 3*1408)
	const token = (2*2048 + widest) * 2
	const logits = 2048*2 + 4*102400
	assert.Equal(t, memory{4096, 1, 32_751_456_256, kv * 4096, token * 4096, logits,
		32_751_456_256 + kv*4096 + token*4096, nil}, r.Rows[0])
	assert.Equal(t, memory{4096, 8, 32_751_456_256, kv * 4096 * 8, token * 4096 * 8, 8 * logits,
		32_751_456_256 + 8*(kv+token)*4096, nil}, r.Rows[1])
	assert.Equal(t, memory{1, 1, 32_751_456_256, kv, logits, logits, 32_751_456_256 + kv + logits, nil}, r.Rows[2])
	assert.Len(t, r.Rows, 4)
}

// memoryOf is the memory of one token whose logits are few.
func memoryOf(t *testing.T, c *config.Config) memory {
	t.Helper()
	r, err := MemoryOf("x", inspecttest.Override(t, c, "vocab_size", "100"), Weights{}, []int{1}, []int{1})
	require.NoError(t, err)
	return r.Rows[0]
}

// TestMemoryOfLatentAttention: the cache of DeepSeek-V3 is 61 · (512 + 64) values a token, and
// its routed experts are the widest.
func TestMemoryOfLatentAttention(t *testing.T) {
	c := inspecttest.Override(t, configtest.Fixture(t, "states/deepseek-v3"), "torch_dtype", `"bfloat16"`)
	r, err := MemoryOf("x", c, Weights{}, []int{1000}, []int{2})
	require.NoError(t, err)
	assert.Equal(t, int64(2*671_026_419_200), r.Weights.Bytes)
	assert.EqualValues(t, 61*576*2*2000, r.Rows[0].KVCache)
	const widest = 8 * (2*7168 + 3*2048)
	assert.EqualValues(t, 2000*(2*7168+widest)*2, r.Rows[0].Prefill)
	assert.Equal(t, "mtp", r.Modules[len(r.Modules)-1].Module)
	assert.Contains(t, inspecttest.Printed(t, r), "not counted")

	few := memoryOf(t, inspecttest.Override(t, c, "num_experts_per_tok", "2")) // then heads are the widest
	assert.EqualValues(t, (2*7168+128*2*(192+128))*2, few.Prefill)
	many := memoryOf(t, inspecttest.Override(t, inspecttest.Override(t, c, "num_experts_per_tok", "2"), "n_shared_experts", "40")) // and then shared experts
	assert.EqualValues(t, (2*7168+3*40*2048+7168)*2, many.Prefill)
}

// TestMemoryOfDenseModels: a model without experts has the widths of its MLP.
func TestMemoryOfDenseModels(t *testing.T) {
	c := inspecttest.Override(t, configtest.Fixture(t, "v1-dense/checkpoint"), "intermediate_size", "4096")
	assert.EqualValues(t, (2*c.HiddenSize+3*4096)*2, memoryOf(t, c).Prefill)
}

// TestMemoryOfWeights: FP8 with its scales is as large as the files are.
func TestMemoryOfWeights(t *testing.T) {
	for _, name := range []string{"v1-base", "v3", "v3-fp8", "v2-lite"} {
		c := inspecttest.Override(t, configtest.Fixture(t, name+"/checkpoint"), "torch_dtype", `"bfloat16"`)
		want := int64(0)
		for x := range synth.New(c, 0).Tensors() {
			want += x.Bytes()
		}
		assert.Equal(t, want, memoryOfWeights(t, c), name)
	}
}

func memoryOfWeights(t *testing.T, c *config.Config) int64 {
	t.Helper()
	r, err := MemoryOf("x", c, Weights{}, []int{1}, []int{1})
	require.NoError(t, err)
	return r.Weights.Bytes
}

// TestMemoryOfHeldWeights: what is said of the weights is counted, by module and dtype.
func TestMemoryOfHeldWeights(t *testing.T) {
	w := Weights{From: FromFiles, Held: []Held{{table.Attention, tensor.Q8_0, 34}, {table.Embedding, tensor.F32, 400},
		{table.Attention, tensor.Q6_K, 210}, {table.MTP, tensor.F32, 1 << 40}, {"", tensor.F32, 4}}}
	r, err := MemoryOf("x", configtest.Fixture(t, "v1-dense/checkpoint"), w, []int{1}, []int{1})
	require.NoError(t, err)
	assert.Equal(t, weightBytes{FromFiles, 648, []dtypeBytes{{tensor.F32, 404}, {tensor.Q6_K, 210}, {tensor.Q8_0, 34}}}, r.Weights)
	assert.Equal(t, []moduleMemory{{"embed_tokens", 400}, {"self_attn", 244}, {"mtp", 1 << 40}, {"other", 4}}, r.Modules)
	assert.EqualValues(t, 648, r.Rows[0].Weights)
	assert.Contains(t, inspecttest.Printed(t, r), "weights in F32, Q6_K, Q8_0, by the files; cache and activations in BF16\n")
}

// TestMemoryThatCannotBe: every context and batch that makes no sense is named, and numbers
// that are too large are no numbers.
func TestMemoryThatCannotBe(t *testing.T) {
	c := configtest.Fixture(t, "v1-dense/checkpoint")
	_, err := MemoryOf("x", c, Weights{}, []int{0, 1, maxTokens}, []int{1, 2, -1})
	assert.EqualError(t, err, "context 0 with batch 1: not 1 to 1,000,000,000 tokens\ncontext 0 with batch 2: not 1 to 1,000,000,000 tokens\n"+
		"context 0 with batch -1: not 1 to 1,000,000,000 tokens\ncontext 1 with batch -1: not 1 to 1,000,000,000 tokens\n"+
		"context 1000000000 with batch 2: not 1 to 1,000,000,000 tokens\ncontext 1000000000 with batch -1: not 1 to 1,000,000,000 tokens")
	huge := configtest.Parse(t, `{"model_type": "deepseek", "torch_dtype": "float32", "num_hidden_layers": 10000, "hidden_size": 65536, "num_attention_heads": 64,
		"num_key_value_heads": 64, "intermediate_size": 1, "vocab_size": 100}`)
	_, err = MemoryOf("x", huge, Weights{}, []int{1, maxTokens}, []int{1})
	assert.EqualError(t, err, "context 1000000000 with batch 1: more bytes than 64 bits can count")
}

// TestMemoryOfExpertsInALatentSpace: MLPs without gate_proj hold two rows of their width, routed experts take and give the latent
// one: 2·16 + 12 + 3·(2·12 + 2·8) values of 2 bytes. Without a latent space the routed experts take and give hidden_size.
func TestMemoryOfExpertsInALatentSpace(t *testing.T) {
	for latent, want := range map[string]int64{"12": 2 * (2*16 + 12 + 3*(2*12+2*8)), "null": 2 * (2*16 + 3*(2*16+2*8))} {
		c, err := config.Parse(strings.NewReader(`{"model_type":"nemotron_h","vocab_size":8,"hidden_size":16,"moe_intermediate_size":8,
			"num_experts_per_tok":3,"n_routed_experts":8,"moe_latent_size":` + latent + `,"layers_block_type":["moe"],
			"moe_shared_expert_intermediate_size":12,"torch_dtype":"bfloat16"}`))
		require.NoError(t, err)
		r, err := MemoryOf("c", c, Weights{}, []int{1}, []int{1})
		require.NoError(t, err)
		require.Equal(t, want, r.Rows[0].Decode, latent)
	}
}
