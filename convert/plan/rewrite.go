package plan

// The output's config.json.

import (
	"bytes"
	"fmt"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"dsmoe/config"
	"dsmoe/convert/checkpoint"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
)

// rewrite makes the config of the output.
func (c *conversion) rewrite(chosen selection) (d document, err error) {
	raw, err := c.src.ConfigText()
	if err != nil {
		return d, err
	}
	if d.text, err = editDocument(raw, c.configEdits(raw, chosen)); err != nil {
		return d, err
	}
	if d.config, err = config.Parse(bytes.NewReader(d.text)); err != nil {
		return d, fmt.Errorf("%s as it would be written: %w", checkpoint.ConfigName, err)
	}
	d.missing = c.missing(d.config, chosen)
	return d, nil
}

// configEdits are the changes that keep config.json true.
func (c *conversion) configEdits(raw []byte, chosen selection) (edits []edit) {
	members, _ := documentMembers(raw) // the config was parsed
	values := map[string]string{}
	for _, m := range members {
		values[m.key] = string(raw[m.value:m.end])
	}
	set := func(key, value string) {
		if old, ok := values[key]; ok && old != value {
			edits = append(edits, edit{key, []byte(value)})
		}
	}
	if c.o.encodes() {
		edits = c.fp8Edits(values)
	} else if c.o.DType != tensor.Invalid {
		name := strconv.Quote(table.TorchName(c.o.DType))
		if values["torch_dtype"] == "" && values["dtype"] == "" {
			edits = append(edits, edit{"torch_dtype", []byte(name)})
		}
		set("torch_dtype", name)
		set("dtype", name)
		if _, ok := values["quantization_config"]; ok {
			edits = append(edits, edit{"quantization_config", nil})
		}
	}
	return append(edits, c.layerEdits(values, chosen)...)
}

// layerEdits returns the changes to the numbers of layers, of which values are the document's. It adds a
// missing number, which would have a default.
func (c *conversion) layerEdits(values map[string]string, chosen selection) (edits []edit) {
	have := c.src.Config
	put := func(key string, n int) { edits = append(edits, edit{key, []byte(strconv.Itoa(n))}) }
	if n, ok := c.o.Layers.Prefix(); ok && n < have.NumHiddenLayers {
		put("num_hidden_layers", n)
		var types []jsontext.Value
		if json.Unmarshal([]byte(values["mlp_layer_types"]), &types) == nil && len(types) > n {
			kept, _ := json.Marshal(types[:n]) // they were parsed
			edits = append(edits, edit{"mlp_layer_types", kept})
		}
	} else if len(c.o.Layers) > 0 && !ok {
		c.note("the layers kept are not the first ones: they keep their numbers, and config.json its number of layers")
	}
	f := table.FamilyOf(have)
	absent := f.AbsentMTP(have, chosen.has)
	filtered := c.o.NoMTP || len(c.o.Layers) > 0 || len(absent) > len(f.AbsentMTP(have, c.set.Has))
	n := have.NumNextNPredictLayers - len(absent)
	if filtered && len(absent) > 0 && absent[0] == have.NumHiddenLayers+n {
		put("num_nextn_predict_layers", n)
	}
	return edits
}
