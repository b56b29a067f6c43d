package config

// params.json, in which Mistral publishes a model's configuration.

import (
	"bytes"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// IsParams reports whether c was read from a params.json.
func (c *Config) IsParams() bool {
	return c.family != nil && c.family.modelType == mistralLarge3.modelType
}

// named returns a params.json of a mixture of experts with the model_type that Parse knows it by, and the keys of the object moe
// beside its own, as "moe.num_experts". Other documents stay.
func (doc document) named() (document, error) {
	values := doc.values()
	if moe := values["moe"]; values["model_type"] != nil || values["dim"] == nil || moe.Kind() != '{' {
		return doc, nil
	}
	inner, err := readDocument(values["moe"])
	if err != nil {
		return nil, err
	}
	flat := document{{"model_type", jsontext.Value(`"model_type"`), jsontext.Value(`"` + mistralLarge3.modelType + `"`)}}
	for _, m := range doc {
		if m.key != "moe" {
			flat = append(flat, m)
			continue
		}
		for _, of := range inner {
			flat = append(flat, member{"moe." + of.key, slices.Concat([]byte(`"moe.`), bytes.TrimPrefix(of.raw, []byte(`"`))), of.value})
		}
	}
	return flat, nil
}
