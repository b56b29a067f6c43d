package config

// Which layers have a mixture of experts, and limits by layer, in families whose attention is not computed.

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// layerFrequency is the row of moe_layer_freq where transformers' class reads it: a number, or 0 or 1 for each layer. A list
// stands for mlp_layer_types, with dense layers before first_k_dense_replace.
var layerFrequency = func() field {
	row := v1.row("moe_layer_freq", 1)
	row.read = readLayerFrequency
	return row
}()

func readLayerFrequency(d *decoding, key string, value jsontext.Value) {
	var flags []int
	if value.Kind() != '[' {
		n, err := parseInteger(value, 1, maxLayers)
		store(d, key, &d.config.Layers.MoELayerFreq, n, err)
	} else if json.Unmarshal(value, &flags) != nil {
		d.fail(key, fmt.Errorf("%s is not a number or a list of numbers", show(value)))
	} else if d.config.Layers.MLPLayerTypes == nil {
		d.config.Layers.MLPLayerTypes = typed(len(flags), denseMLP, sparseMLP,
			func(l int) bool { return flags[l] == 0 || l < d.config.Layers.FirstKDenseReplace })
	}
}

// denseLayers is the row of mlp_only_layers.
func denseLayers(missing []int) field {
	return field{"mlp_only_layers", missing, single(func(c *Config) *[]int { return &c.Layers.MLPOnly },
		func(v jsontext.Value) (layers []int, err error) {
			if json.Unmarshal(v, &layers) != nil {
				return nil, fmt.Errorf("%s is not a list of layers", show(v))
			}
			return layers, nil
		}).ifSet().deciding(layersDiffer)}
}

// sparseStep is the row of decoder_sparse_step.
var sparseStep = field{"decoder_sparse_step", 1,
	integer(func(c *Config) *int { return &c.Layers.MoEInterval }, 1, maxLayers).deciding(layersDiffer)}

// sparseBySteps: each decoder_sparse_step-th layer has experts, unless mlp_only_layers lists it.
var sparseBySteps = rule{[]string{"mlp_only_layers", "decoder_sparse_step", "num_hidden_layers"}, func(c *Config) error {
	c.Layers.MLPLayerTypes = typed(c.NumHiddenLayers, sparseMLP, denseMLP, func(l int) bool {
		return (l+1)%c.Layers.MoEInterval == 0 && !slices.Contains(c.Layers.MLPOnly, l)
	})
	return nil
}}

// readSparseLayers reads the layers with experts, "3,4" or a list, where mlp_layer_types does not say it.
func readSparseLayers(d *decoding, key string, value jsontext.Value) {
	sparse, err := map[int]bool{}, error(nil)
	list, _ := parseString(value)
	if value.Kind() == '[' {
		list = strings.Trim(string(value), "[]")
	}
	for item := range strings.SplitSeq(list, ",") {
		n, bad := strconv.Atoi(strings.TrimSpace(item))
		if sparse[n] = true; bad != nil {
			err = fmt.Errorf("%s is not a list of layers", show(value))
		}
	}
	if types := &d.config.Layers.MLPLayerTypes; err != nil || *types == nil {
		store(d, key, types, typed(d.config.NumHiddenLayers, sparseMLP, denseMLP, func(l int) bool { return sparse[l] }), err)
	}
}

// limitsOfLayers refuses a list of limits for fewer layers.
func limitsOfLayers(list func(c *Config) []float64) func(c *Config) error {
	return func(c *Config) error {
		n := len(list(c))
		return errorIf(n > 0 && n < c.NumHiddenLayers, "%d layers; num_hidden_layers is %d", n, c.NumHiddenLayers)
	}
}

// limits reads a limit for each layer; null and 0 set none.
func limits(get func(*Config) *[]float64) reader {
	return single(get, func(v jsontext.Value) (list []float64, err error) {
		if err := json.Unmarshal(v, &list); err != nil {
			return nil, fmt.Errorf("%s is not a list of numbers", show(v))
		}
		for l, limit := range list {
			if limit < 0 {
				return nil, fmt.Errorf("layer %d: %v is below 0", l, limit)
			}
		}
		return list, nil
	}).ifSet()
}

// readModules reads the modules of the layers: a list of names, or a letter for each layer. Their count is the
// number of layers.
func readModules(d *decoding, key string, value jsontext.Value) {
	modules, err := parseNames(value)
	if letters, bad := parseString(value); bad == nil {
		err = nil
		for _, letter := range letters {
			modules = append(modules, string(letter))
		}
	}
	types := map[string]string{"moe": sparseMLP, "E": sparseMLP, "mlp": denseMLP, "-": denseMLP, "full_attention": noMLP,
		"attention": noMLP, "*": noMLP, "linear_attention": noMLP, "mamba": noMLP, "M": noMLP}
	for l, module := range modules {
		if modules[l] = types[module]; modules[l] == "" {
			err = fmt.Errorf("layer %d: %s is not a module of this family", l, quote(module))
		}
	}
	if d.config.Layers.MLPLayerTypes != nil { // the list before the letters
		return
	}
	store(d, key, &d.config.Layers.MLPLayerTypes, modules, err)
	store(d, key, &d.config.NumHiddenLayers, max(1, len(modules)), err)
}
