package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// readQuantization reads quantization_config: null, or FP8 E4M3 weights in blocks, as in the
// published DeepSeek-V3. It refuses any other method by name, and ignores the fields about
// activations.
func readQuantization(d *decoding, key string, value jsontext.Value) {
	if value.Kind() == 'n' {
		return
	}
	if value.Kind() != '{' {
		d.fail(key, fmt.Errorf("%s is not null or an object", show(value)))
		return
	}
	doc, err := readDocument(value)
	if err != nil {
		d.fail(key, err)
		return
	}
	o := doc.values()
	q := &d.config.Quantization
	d.part(key, "quant_method", o, func(v jsontext.Value) (err error) {
		q.Method, err = parseOneOf(v, "fp8")
		return err
	})
	if _, ok := o["fmt"]; ok {
		d.part(key, "fmt", o, func(v jsontext.Value) error {
			_, err := parseOneOf(v, "e4m3")
			return err
		})
	}
	if _, ok := o["modules_to_not_convert"]; ok {
		d.part(key, "modules_to_not_convert", o, func(v jsontext.Value) (err error) {
			q.Except, err = parseNames(v)
			return err
		})
	}
	d.part(key, "weight_block_size", o, func(v jsontext.Value) (err error) {
		q.Block, err = parseBlock(v)
		return err
	})
}

// StaysUnquantised reports whether quantization_config.modules_to_not_convert names the module:
// an entry is the module's name, or its beginning or end ("model.layers.3", "lm_head").
func (c *Config) StaysUnquantised(module string) bool {
	return slices.ContainsFunc(c.Quantization.Except, func(entry string) bool {
		return module == entry || strings.HasPrefix(module, entry+".") || strings.HasSuffix(module, "."+entry)
	})
}

// parseNames reads null or a list of strings.
func parseNames(v jsontext.Value) (names []string, err error) {
	if v.Kind() != 'n' && v.Kind() != '[' || json.Unmarshal(v, &names) != nil {
		return nil, errors.New("not a list of names, nor null")
	}
	return names, nil
}

// parseBlock reads [rows, columns].
func parseBlock(v jsontext.Value) (block [2]int, err error) {
	var parts []jsontext.Value
	if v.Kind() != '[' || json.Unmarshal(v, &parts) != nil || len(parts) != 2 {
		return block, errors.New("not two integers, such as [128, 128]")
	}
	for i, part := range parts {
		if block[i], err = parseInteger(part, 1, maxDim); err != nil {
			return block, err
		}
	}
	return block, nil
}
