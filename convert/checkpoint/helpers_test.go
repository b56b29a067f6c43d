package checkpoint

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/safetensors"
	"dsmoe/model/tensor"
)

const (
	sharded = "../../fixtures/v1-base/checkpoint"
	whole   = "../../fixtures/v1-dense/checkpoint"
	shard1  = "model-00001-of-00003.safetensors"
	shard2  = "model-00002-of-00003.safetensors"
	shard3  = "model-00003-of-00003.safetensors"
	embed   = "model.embed_tokens.weight" // in shard1
	lmHead  = "lm_head.weight"            // in shard3
)

// tinyFile makes a safetensors file of one-byte tensors.
func tinyFile(names ...string) string {
	var infos []tensor.Info
	for _, n := range names {
		infos = append(infos, tensor.Info{Name: n, DType: tensor.U8, Shape: []int{1}})
	}
	l, err := safetensors.NewLayout(infos, nil)
	if err != nil {
		panic(err)
	}
	return string(l.Header()) + string(make([]byte, len(names)))
}

// headerLength returns where the data of a safetensors file begins.
func headerLength(data string) int { return 8 + int(data[0]) + int(data[1])<<8 + int(data[2])<<16 }

func toJSON(t testing.TB, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	require.NoError(t, err)
	return string(b)
}
