package format_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/format"
	"dsmoe/convert/internal/fixture"
	"dsmoe/convert/safetensors"
	"dsmoe/model/tensor"
)

// TestShards: tensors are divided as huggingface_hub divides them.
func TestShards(t *testing.T) {
	for _, c := range []struct {
		sizes []int
		want  string
	}{
		{[]int{5, 5, 1}, "01 2"}, {[]int{10, 10}, "0 1"}, {[]int{3, 11, 3}, "1 02"}, {[]int{11}, "0"}, {[]int{9, 2, 0, 8}, "0 123"},
	} {
		var infos []tensor.Info
		for i, n := range c.sizes {
			infos = append(infos, tensor.Info{Name: fmt.Sprint(i), DType: tensor.U8, Shape: []int{n}})
		}
		shards, err := safetensors.Format().Shards(infos, 10, format.Described{})
		require.NoError(t, err)
		var got []string
		for i, s := range shards {
			names := ""
			for j := range s.Layout.Infos {
				names += s.Layout.Infos[j].Name
			}
			got = append(got, names)
			if len(shards) > 1 {
				require.Equal(t, fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, len(shards)), s.Name)
			} else {
				require.Equal(t, "model.safetensors", s.Name)
			}
		}
		require.Equal(t, c.want, strings.Join(got, " "), c.sizes)
	}
}

// TestShardsRefuse what no file could hold.
func TestShardsRefuse(t *testing.T) {
	info := func(name string, shape ...int) tensor.Info {
		return tensor.Info{Name: name, DType: tensor.BF16, Shape: shape}
	}
	for name, c := range map[string]struct {
		infos []tensor.Info
		limit int64
		want  string
	}{
		"nothing":             {nil, 10, "no tensors"},
		"twice":               {[]tensor.Info{info("a", 1), info("a", 1)}, 10, "tensor a: name occurs twice"},
		"twice in two shards": {[]tensor.Info{info("a", 1), info("a", 1)}, 2, "tensor a: name occurs twice"},
		"negative":            {[]tensor.Info{info("a", -1)}, 10, "tensor a: negative dimension"},
		"dtype":               {[]tensor.Info{{Name: "a"}}, 10, "tensor a: dtype invalid"},
		"name":                {[]tensor.Info{info("a\n")}, 10, "cannot be printed"},
	} {
		_, err := safetensors.Format().Shards(c.infos, c.limit, format.Described{})
		require.ErrorContains(t, err, c.want, name)
	}
}

// TestIndex is what Python wrote for the same tensors.
func TestIndex(t *testing.T) {
	dir := fixture.Path(t, "v1-base/checkpoint")
	python := fixture.Read(t, dir, "model.safetensors.index.json")
	d := json.NewDecoder(strings.NewReader(python[strings.Index(python, `"weight_map": `)+len(`"weight_map": `):]))
	_, err := d.Token()
	require.NoError(t, err)
	var order []string
	held, total := map[string]string{}, int64(0)
	for d.More() {
		name, err := d.Token()
		require.NoError(t, err)
		file, err := d.Token()
		require.NoError(t, err)
		f, err := safetensors.Open(dir + "/" + file.(string))
		require.NoError(t, err)
		info, _, ok := f.Lookup(name.(string))
		require.True(t, ok)
		require.NoError(t, f.Close())
		order = append(order, info.Name)
		held[info.Name] = file.(string)
		total += info.Bytes()
	}
	var got strings.Builder
	require.NoError(t, format.WriteIndex(&got, total, func(yield func(name, file string) bool) {
		for _, name := range order {
			if !yield(name, held[name]) {
				return
			}
		}
	}))
	require.Equal(t, python, got.String())
}
