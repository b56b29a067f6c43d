package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// readQuantization reads quantization_config: null, or a method of quantMethods. It refuses any other
// method by name.
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
	d.part(key, "quant_method", o, func(v jsontext.Value) error {
		method, err := parseString(v)
		if read := quantMethods[method]; err == nil && read != nil {
			read(d, key, o)
		} else if err == nil {
			err = refusedMethod(method)
		}
		return err
	})
}

// quantMethods lists what reads the quantization_config of each quant_method.
var quantMethods = map[string]func(d *decoding, key string, o map[string]jsontext.Value){
	"fp8": readFP8, "compressed-tensors": readCompressed, "modelopt": readModelOpt,
}

// remedies says what to do with the weights of methods that are not read.
var remedies = map[string]string{
	"bitsandbytes":     "load it with transformers, call dequantize(), and save it",
	"gptq":             "dequantise it with GPTQModel",
	"awq":              "dequantise it with AutoAWQ",
	"auto-round":       "dequantise it with AutoRound",
	"intel/auto-round": "dequantise it with AutoRound",
	"blockwise_int8":   "multiply its INT8 codes with their scales in Python",
	"w8a8_int8":        "multiply its INT8 codes with their scales in Python",
	"w4afp8":           "convert the FP8 checkpoint that it was made from",
	"mxfp4":            "load it with transformers and dequantize=True in Mxfp4Config, and save it",
}

// refusedMethod says that a quant_method is not read, and what to do.
func refusedMethod(method string) error {
	remedy := cmp.Or(remedies[method], "convert the checkpoint that it was made from")
	return fmt.Errorf("%q is not read, but %s; %s", method, "fp8, compressed-tensors and modelopt are", remedy)
}

// readFP8 reads FP8 E4M3 weights in blocks, as in the published DeepSeek-V3. It ignores the fields about
// activations.
func readFP8(d *decoding, key string, o map[string]jsontext.Value) {
	q := &d.config.Quantization
	q.Method = "fp8"
	if _, ok := o["fmt"]; ok {
		d.part(key, "fmt", o, func(v jsontext.Value) error {
			_, err := parseOneOf(v, "e4m3")
			return err
		})
	}
	if v, ok := o["expert_dtype"]; ok {
		readExpertDType(d, key+".expert_dtype", v)
	}
	q.PowerOfTwo = show(o["scale_fmt"]) == `"ue8m0"`
	q.readExcept(d, key, o, "modules_to_not_convert")
	d.part(key, "weight_block_size", o, func(v jsontext.Value) (err error) {
		q.Block, err = parseBlock(v)
		return err
	})
}

// ExceptKey returns the key of quantization_config whose entries Except has.
func (q *Quantization) ExceptKey() string {
	if q.Method == "fp8" {
		return "modules_to_not_convert"
	}
	return "ignore"
}

// readExcept reads the list of modules that are not quantised, if there is one.
func (q *Quantization) readExcept(d *decoding, key string, o map[string]jsontext.Value, name string) {
	if _, ok := o[name]; !ok {
		return
	}
	d.part(key, name, o, func(v jsontext.Value) (err error) {
		q.Except, err = parseNames(v)
		return err
	})
	for _, entry := range q.Except {
		pattern, is := strings.CutPrefix(entry, "re:") // of Python, found at the beginning of a name
		if !is && strings.Contains(entry, "*") {       // of ModelOpt: a whole name, * stands for anything
			pattern, is = strings.ReplaceAll(regexp.QuoteMeta(entry), `\*`, ".*")+"$", true
		}
		if !is {
			continue
		}
		compiled, err := regexp.Compile("^(?:" + pattern + ")")
		if err != nil {
			q.Unclear = true
			continue
		}
		q.patterns = append(q.patterns, compiled)
	}
}

// readCompressed reads what compressed-tensors writes: weights of four bits in groups of a row.
func readCompressed(d *decoding, key string, o map[string]jsontext.Value) {
	q := &d.config.Quantization
	d.part(key, "format", o, func(v jsontext.Value) (err error) {
		q.Method, err = parseOneOf(v, "pack-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized")
		if err != nil {
			err = fmt.Errorf("%w; dequantise the weights with compressed-tensors", err)
		}
		return err
	})
	q.readExcept(d, key, o, "ignore")
	d.part(key, "config_groups", o, func(v jsontext.Value) (err error) {
		var groups map[string]struct {
			Weights *weightScheme `json:"weights"`
		}
		if json.Unmarshal(v, &groups) != nil || len(groups) == 0 {
			return errors.New("not an object of groups with weights")
		}
		var first *weightScheme
		for _, name := range slices.Sorted(maps.Keys(groups)) {
			scheme := groups[name].Weights
			if scheme != nil && scheme.Symmetric == nil {
				scheme.Symmetric = true
			}
			if first == nil {
				first = scheme
			}
			if scheme == nil || *scheme != *first {
				return errors.New("groups of weights that are quantised in several ways are not read")
			}
		}
		if q.Block, err = first.block(q.Method); first.Symmetric == false && err == nil {
			q.Method += asymmetric
		}
		return err
	})
}

// weightScheme is how compressed-tensors quantises weights.
type weightScheme struct {
	Bits     int    `json:"num_bits"`
	Type     string `json:"type"`
	Strategy string `json:"strategy"`
	Group    int    `json:"group_size"`

	Symmetric any `json:"symmetric"` // false if there are zeros; true by default
}

// asymmetric is what Method has behind a format of weights with zeros.
const asymmetric = ", asymmetric"

// block returns the rows and columns that share a scale, 0 columns for a whole row, if method has weights
// of the scheme.
func (s weightScheme) block(method string) ([2]int, error) {
	want := map[string]weightScheme{"pack-quantized": {4, "int", "group", s.Group, s.Symmetric},
		"nvfp4-pack-quantized": {4, "float", "tensor_group", 16, true},
		"mxfp4-pack-quantized": {4, "float", "group", 32, true}}[method]
	channel := s == weightScheme{4, "int", "channel", s.Group, s.Symmetric} && method == "pack-quantized"
	switch {
	case channel:
		return [2]int{1, 0}, nil
	case s != want || s.Group < 1 || s.Group > maxDim:
		return [2]int{}, fmt.Errorf("weights of %d bits, type %q, strategy %q and group_size %d are not read as %s: "+
			"dequantise them with compressed-tensors", s.Bits, s.Type, s.Strategy, s.Group, method)
	}
	return [2]int{1, s.Group}, nil
}

// readModelOpt reads what ModelOpt writes: NVFP4.
func readModelOpt(d *decoding, key string, o map[string]jsontext.Value) {
	q := &d.config.Quantization
	d.part(key, "quant_algo", o, func(v jsontext.Value) error {
		_, err := parseOneOf(v, "NVFP4")
		if q.Method = "nvfp4"; err != nil {
			err = fmt.Errorf("%w; convert the checkpoint that it was made from", err)
		}
		return err
	})
	q.Block = [2]int{1, 16}
	q.readExcept(d, key, o, "ignore")
	q.readExcept(d, key, o, "exclude_modules")
}

// refuseMLX refuses what MLX writes beside quantization_config: codes with scales and biases.
func refuseMLX(d *decoding, key string, value jsontext.Value) {
	if value.Kind() != 'n' {
		d.fail(key, errors.New("weights of MLX are not read; dequantise them with mlx_lm.convert --dequantize"))
	}
}

// StaysUnquantised reports whether quantization_config excepts the module: an entry is the module's name,
// its beginning or end ("model.layers.3", "lm_head"), or a pattern, of the stored name too.
func (c *Config) StaysUnquantised(module string) bool {
	match := func(p *regexp.Regexp) bool { return p.MatchString(module) || p.MatchString(c.Prefix()+module) }
	names := func(entry string) bool {
		entry = strings.TrimPrefix(entry, c.Prefix())
		return module == entry || strings.HasPrefix(module, entry+".") || strings.HasSuffix(module, "."+entry)
	}
	return slices.ContainsFunc(c.Quantization.patterns, match) || slices.ContainsFunc(c.Quantization.Except, names)
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
