package inspect

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"dsmoe/config/configtest"
	"dsmoe/model/synth"
	"dsmoe/model/tensor"
)

// TestMemoryOf16B: the numbers of DeepSeekMoE-16B, worked out by hand.
func TestMemoryOf16B(t *testing.T) {
	r := MemoryOf("x", configtest.Fixture(t, "states/deepseek-moe-16b"), []int{4096, 1}, []int{1, 8})
	assert.EqualValues(t, 32_751_456_256, r.Weights)
	assert.Equal(t, tensor.BF16, r.DType)
	assert.False(t, r.Assumed)
	const kv = 2 * 28 * 16 * 128 * 2
	// An expert's widest part: 6 · (2·2048 + 3·1408); a dense layer's: 3 · 10944 = 32832.
	const widest = 6 * (2*2048 + 3*1408)
	const token = (2*2048 + widest) * 2
	const logits = 2048*2 + 4*102400
	assert.Equal(t, Memory{4096, 1, 32_751_456_256, kv * 4096, token * 4096, logits, 32_751_456_256 + kv*4096 + token*4096}, r.Rows[0])
	assert.Equal(t, Memory{4096, 8, 32_751_456_256, kv * 4096 * 8, token * 4096 * 8, 8 * logits, 32_751_456_256 + 8*(kv+token)*4096}, r.Rows[1])
	assert.Equal(t, Memory{1, 1, 32_751_456_256, kv, logits, logits, 32_751_456_256 + kv + logits}, r.Rows[2])
	assert.Len(t, r.Rows, 4)
}

// TestMemoryOfLatentAttention: the cache of DeepSeek-V3 is 61 · (512 + 64) values a token, and its
// heads are the widest: 128 · 2·(192 + 128).
func TestMemoryOfLatentAttention(t *testing.T) {
	c := override(t, configtest.Fixture(t, "states/deepseek-v3"), "torch_dtype", `"bfloat16"`)
	r := MemoryOf("x", c, []int{1000}, []int{2})
	assert.EqualValues(t, 2*671_026_419_200, r.Weights)
	assert.EqualValues(t, 61*576*2*2000, r.Rows[0].KVCache)
	const widest = 8 * (2*7168 + 3*2048)
	assert.EqualValues(t, 2000*(2*7168+widest)*2, r.Rows[0].Prefill)
	assert.Equal(t, "mtp", r.Modules[len(r.Modules)-1].Module)
	assert.Contains(t, printed(t, r), "not counted")

	few := override(t, c, "num_experts_per_tok", "1") // then heads are: 128 · 2·(192 + 128)
	assert.EqualValues(t, 2000*(2*7168+128*2*(192+128))*2, ActivationBytes(override(t, few, "num_attention_heads", "128"), 2000, 1))
}

// TestMemoryOfDenseModels: a model without experts has the widths of its MLP.
func TestMemoryOfDenseModels(t *testing.T) {
	c := override(t, configtest.Fixture(t, "v1-dense/checkpoint"), "intermediate_size", "4096")
	size := int64(2)
	assert.Equal(t, 500*int64(2*c.HiddenSize+3*4096)*size, ActivationBytes(c, 500, 1))
}

// TestMemoryOfWeights: FP8 with its scales is as large as the files are.
func TestMemoryOfWeights(t *testing.T) {
	for _, name := range []string{"v1-base", "v3", "v3-fp8", "v2-lite"} {
		c := override(t, configtest.Fixture(t, name+"/checkpoint"), "torch_dtype", `"bfloat16"`)
		want := int64(0)
		for x := range synth.New(c, 0).Tensors() {
			want += x.Bytes()
		}
		assert.Equal(t, want, MemoryOf("x", c, []int{1}, []int{1}).Weights, name)
	}
}
