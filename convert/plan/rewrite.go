package plan

// The output's config.json.

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
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
	members, _ := documentMembers(raw) // the config was parsed
	var inner []byte                   // the edited configuration of a language model within another
	at := slices.IndexFunc(members, func(m documentMember) bool { return m.key == c.src.Config.Within() })
	if at >= 0 {
		inner = raw[members[at].value:members[at].end]
		within, _ := documentMembers(inner)
		if inner, err = editDocument(inner, c.edits(inner, within, chosen)); err != nil {
			return d, err
		}
	}
	edits := c.edits(raw, members, chosen)
	if at >= 0 { // what stands around it says the dtype once more
		edits = slices.DeleteFunc(edits, func(e edit) bool {
			return !slices.ContainsFunc(members, func(m documentMember) bool { return m.key == e.key })
		})
		edits = append(edits, edit{members[at].key, inner})
	}
	if d.text, err = editDocument(raw, edits); err != nil {
		return d, err
	}
	if d.config, err = config.Parse(bytes.NewReader(d.text)); err != nil {
		return d, fmt.Errorf("%s as it would be written: %w", c.configName(), err)
	}
	d.missing = c.missing(d.config, chosen)
	c.checkExceptions(d.config, chosen)
	return d, nil
}

// configName is what the config of the source, or of a directory, is called.
func (c *conversion) configName() string { return cmp.Or(c.src.ConfigFile(), checkpoint.ConfigName) }

// edits are the changes to a document with these members.
func (c *conversion) edits(document []byte, members []documentMember, chosen selection) []edit {
	values := map[string]string{} // by key
	for _, m := range members {
		value := document[m.value:m.end]
		values[m.key] = string(value)
		var within []documentMember
		if value[0] == '{' {
			within, _ = documentMembers(value) // the config was parsed
		}
		for _, of := range within {
			values[m.key+"."+of.key] = string(value[of.value:of.end])
		}
	}
	return slices.Concat(c.dtypeEdits(values), c.layerEdits(values, chosen), c.expertEdits(values))
}

// dtypeEdits are the changes that say in which dtypes and forms the weights are stored. values are the
// document's.
func (c *conversion) dtypeEdits(values map[string]string) (edits []edit) {
	set := func(key, value string) {
		if old, ok := values[key]; ok && old != value {
			edits = append(edits, edit{key, []byte(value)})
		}
	}
	if c.o.encodes() {
		return c.fp8Edits(values)
	}
	if c.o.DType == tensor.Invalid {
		return nil
	}
	name := strconv.Quote(table.TorchName(c.o.DType))
	if values["torch_dtype"] == "" && values["dtype"] == "" && c.src.Config.HasKey("torch_dtype") {
		edits = append(edits, edit{"torch_dtype", []byte(name)})
	}
	set("torch_dtype", name)
	set("dtype", name)
	for _, key := range []string{"quantization_config", "expert_dtype"} {
		if _, ok := values[key]; ok {
			edits = append(edits, edit{key, nil})
		}
	}
	return edits
}

// layerEdits returns the changes to the numbers of layers in a document with these values. It adds a missing number,
// which would have a default.
func (c *conversion) layerEdits(values map[string]string, chosen selection) (edits []edit) {
	have := c.src.Config
	put := func(key string, n int) { edits = append(edits, edit{key, []byte(strconv.Itoa(n))}) }
	if n, ok := c.o.Layers.Prefix(); ok && n < have.NumHiddenLayers {
		put(have.Key("num_hidden_layers"), n)
		for _, key := range []string{"mlp_layer_types", "layer_types", "indexer_types", "layers_block_type"} {
			var types []jsontext.Value
			if json.Unmarshal([]byte(values[key]), &types) == nil && len(types) > n {
				kept, _ := json.Marshal(types[:n]) // they were parsed
				edits = append(edits, edit{key, kept})
			}
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

// expertEdits returns the changes to the numbers of experts and of groups in a document with these values.
func (c *conversion) expertEdits(values map[string]string) (edits []edit) {
	for _, experts := range c.kept {
		n := strconv.Itoa(len(experts))
		own := c.src.Config.Key("n_routed_experts")
		for _, key := range []string{own, "num_experts", "num_local_experts"} {
			if values[key] != "" && !slices.ContainsFunc(edits, func(e edit) bool { return e.key == key }) {
				edits = append(edits, edit{key, []byte(n)})
			}
		}
		if edits == nil { // the default is another
			edits = []edit{{own, []byte(n)}}
		}
		if have := c.src.Config; have.LimitsGroups() && have.Router.NGroup > 1 {
			groups := len(groupSizes(have, experts))
			edits = append(edits, edit{have.Key("n_group"), []byte(strconv.Itoa(groups))},
				edit{have.Key("topk_group"), []byte(strconv.Itoa(min(have.Router.TopKGroup, groups)))})
		}
		return edits // all layers are alike
	}
	return nil
}

// checkExceptions refuses a quantization_config that tells experts apart by numbers that change.
func (c *conversion) checkExceptions(written *config.Config, chosen selection) {
	from, has := c.src.Config, &c.src.Config.Quantization
	if c.kept == nil || len(has.Except) == 0 && has.Groups == nil || !written.Quantization.Announced() {
		return
	}
	for _, w := range chosen.kept {
		slot := table.Slot{Name: w.Name, Shape: w.Shape, Place: w.Place}
		if excepted, scheme := slot.Excepted(from), slot.Scheme(from); w.Expert >= 0 && w.Part == "" {
			slot.Name = c.kept.Smaller(w.Name)
			cause := ""
			if slot.Excepted(written) != excepted {
				cause = "excepts some experts"
			} else if slot.Scheme(written) != scheme {
				cause = "stores some experts in another form,"
			}
			if cause != "" {
				c.problem(w.Name, "quantization_config %s by their numbers, which change: --type bf16 decodes the weights", cause)
				return
			}
		}
	}
}
