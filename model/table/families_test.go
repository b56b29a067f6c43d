package table_test

import (
	"compress/gzip"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
)

// TestTablesAreTheRealModels: names and shapes of the reference's modules, and where the
// reference holds experts apart, its order.
func TestTablesAreTheRealModels(t *testing.T) {
	for name, ordered := range map[string]bool{"deepseek-moe-16b": true, "deepseek-v2-lite": false, "deepseek-v3": false,
		"deepseek-v32": false, "glm-5": false, "deepseek-v4-flash": false,
		"deepseek-v4-pro": false} {
		t.Run(name, func(t *testing.T) {
			c := configtest.Fixture(t, "states/"+name)
			var got []named
			for s := range table.FamilyOf(c).Slots(c) {
				got = append(got, named{s.Name, s.Shape})
			}
			want := readState(t, name)
			if !ordered {
				byName := func(a, b named) int { return strings.Compare(a.Name, b.Name) }
				slices.SortFunc(got, byName)
				slices.SortFunc(want, byName)
			}
			require.Len(t, got, len(want))
			for i := range want {
				require.Equal(t, want[i], got[i])
			}
		})
	}
}

// named is a tensor's name and shape.
type named struct {
	Name  string
	Shape []int
}

// readState reads a states/*/tensors.json.gz: an object of name to shape, in the order
// of the reference's state_dict.
func readState(t *testing.T, name string) (all []named) {
	t.Helper()
	f, err := os.Open(filepath.Join("..", "..", "fixtures", "states", name, "tensors.json.gz"))
	require.NoError(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	d := json.NewDecoder(z)
	token := func() json.Token {
		x, err := d.Token()
		require.NoError(t, err)
		return x
	}
	for token(); d.More(); {
		x := named{Name: token().(string)}
		require.NoError(t, d.Decode(&x.Shape))
		all = append(all, x)
	}
	return all
}

// TestPredictionLayers: DeepSeek-V3's MTP layer is a decoder layer and six weights more,
// numbered on from the decoder's.
func TestPredictionLayers(t *testing.T) {
	c := configtest.Fixture(t, "states/deepseek-v3")
	names := map[string]bool{}
	for s := range table.FamilyOf(c).MTPSlots(c) {
		require.True(t, strings.HasPrefix(s.Name, "model.layers.61."), s.Name)
		names[s.Name] = true
	}
	require.Len(t, names, 6+7+256*3+2+3+2)
	require.Contains(t, names, "model.layers.61.eh_proj.weight")
	require.Contains(t, names, "model.layers.61.mlp.experts.255.down_proj.weight")
	v2 := configtest.Fixture(t, "states/deepseek-v2-lite")
	for s := range table.FamilyOf(v2).MTPSlots(v2) {
		t.Fatal(s.Name)
	}
}

// TestTorchDType: a config without one has what these models are published in.
func TestTorchDType(t *testing.T) {
	for field, want := range map[string]tensor.DType{
		``:                          tensor.BF16,
		`,"torch_dtype":null`:       tensor.BF16,
		`,"torch_dtype":"bfloat16"`: tensor.BF16,
		`,"torch_dtype":"float16"`:  tensor.F16,
		`,"dtype":"float32"`:        tensor.F32,
		`,"torch_dtype":"float64"`:  tensor.F64,
	} {
		require.Equal(t, want, table.TorchDType(configtest.Parse(t, `{"model_type":"deepseek"`+field+`}`)), field)
	}
}

// TestLayersFollowEachOther: the weights of a layer stand together.
func TestLayersFollowEachOther(t *testing.T) {
	for _, modelType := range []string{"deepseek", "deepseek_v3", "axk1", "deepseek_v32", "deepseek_v4"} {
		var layers []int
		c := configtest.Parse(t, `{"model_type":"`+modelType+`","num_hidden_layers":3}`)
		for s := range table.FamilyOf(c).Slots(c) {
			if n := len(layers); n == 0 || layers[n-1] != s.Layer {
				layers = append(layers, s.Layer)
			}
		}
		require.Equal(t, []int{-1, 0, 1, 2, -1}, layers, modelType)
	}
}
