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

// readQuantization reads quantization_config: a method of quantMethods. It refuses any other method by name.
func readQuantization(d *decoding, key string, value jsontext.Value) {
	doc, ok := d.document(key, value)
	if !ok {
		return
	}
	o := doc.values()
	d.part(key, "quant_method", o, func(v jsontext.Value) error {
		method, err := parseString(v)
		if read := quantMethods[method]; err == nil && read != nil {
			read(d, key, o)
			refuseUnknown(d, key, o, "quant_method "+denied(o)+knownKeys[strings.TrimPrefix(method, "intel/")])
		} else if err == nil {
			const read = "fp8, compressed-tensors, modelopt, awq, gptq and auto-round are"
			err = fmt.Errorf("%q is not read, but %s; %s", method, read,
				cmp.Or(remedies[method], "convert the checkpoint that it was made from"))
		}
		return err
	})
}

// quantMethods lists what reads the quantization_config of each quant_method.
var quantMethods = map[string]func(d *decoding, key string, o map[string]jsontext.Value){
	"fp8": readFP8, "compressed-tensors": readCompressed, "modelopt": readModelOpt, "awq": readAWQ, "gptq": readGPTQ,
	"auto-round": readAutoRound, "intel/auto-round": readAutoRound,
}

// remedies says what to do with the weights of methods that are not read.
var remedies = map[string]string{
	"bitsandbytes":   "load it with transformers, call dequantize(), and save it",
	"blockwise_int8": "multiply its INT8 codes with their scales in Python",
	"w8a8_int8":      "multiply its INT8 codes with their scales in Python",
	"w4afp8":         "convert the FP8 checkpoint that it was made from",
	"mxfp4":          "load it with transformers and dequantize=True in Mxfp4Config, and save it",
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
	if v, ok := o["expert_dtype"]; ok && v.Kind() != 'n' {
		readExpertDType(d, key+".expert_dtype", v)
	}
	q.PowerOfTwo = show(o["scale_fmt"]) == `"ue8m0"`
	q.readExcept(d, key, o, "modules_to_not_convert")
	q.readExcept(d, key, o, "ignored_layers") // as vLLM and AutoFP8 call it
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
	return cmp.Or(q.exceptKey, "ignore")
}

// readExcept reads a list of modules that are not quantised, if there is one, after those that were read before.
func (q *Quantization) readExcept(d *decoding, key string, o map[string]jsontext.Value, name string) {
	if _, ok := o[name]; !ok {
		return
	}
	d.part(key, name, o, func(v jsontext.Value) error {
		names, err := parseNames(v)
		q.Except = append(q.Except, names...)
		return err
	})
	q.compile()
}

// compile finds the patterns among Except.
func (q *Quantization) compile() {
	q.patterns = nil
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
	if _, ok := o["sparsity_config"]; ok {
		d.part(key, "sparsity_config", o, refuseSparsity)
	}
	if _, ok := o["transform_config"]; ok {
		d.part(key, "transform_config", o, refuseOnline)
	}
	refuseSchemes(d, key, o, unquote(o["format"]))
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
	requireNVFP4(d, key, o)
	groups := refuseSchemes(d, key, o, "")
	for _, place := range slices.Sorted(maps.Keys(groups)) {
		requireNVFP4(d, place+".weights", groups[place])
	}
	q.readExcept(d, key, o, "ignore")
	q.readExcept(d, key, o, "exclude_modules")
}

// requireNVFP4 refuses other weights than NVFP4, in what says something of them.
func requireNVFP4(d *decoding, place string, o map[string]jsontext.Value) {
	for _, x := range [][2]string{{"num_bits", "4"}, {"type", `"float"`}, {"group_size", "16"}, {"strategy", `"tensor_group"`}} {
		if v, ok := o[x[0]]; ok && v.Kind() != 'n' && string(v) != x[1] {
			d.fail(place+"."+x[0], fmt.Errorf("%s is not that of NVFP4, %s", show(v), x[1]))
		}
	}
}

// readGrouped reads what AWQ, GPTQ and AutoRound share: weights of four bits in groups of a row.
func (q *Quantization) readGrouped(d *decoding, key string, o map[string]jsontext.Value, remedy string) {
	q.Block = [2]int{1, 0}
	d.part(key, "bits", o, func(v jsontext.Value) error {
		if bits, err := parseInteger(v, 1, 32); err != nil || bits != 4 {
			return cmp.Or(err, fmt.Errorf("weights of %d bits are not read: dequantise them with %s", bits, remedy))
		}
		return nil
	})
	d.part(key, "group_size", o, func(v jsontext.Value) (err error) {
		if string(v) != "-1" {
			q.Block[1], err = parseInteger(v, 1, maxDim)
		}
		return err
	})
	readOneOf(d, key, o, "pack_dtype", "int32", "torch.int32")
	readOneOf(d, key, o, "data_type", "int")
	if v, ok := o["act_bits"]; ok && v.Kind() != 'n' {
		d.part(key, "act_bits", o, func(v jsontext.Value) error {
			_, err := parseInteger(v, 16, 32)
			return err
		})
	}
}

// readOneOf returns the value of a string that must be one of names, in lower case, if it is there.
func readOneOf(d *decoding, key string, o map[string]jsontext.Value, name string, names ...string) (value string) {
	if v, ok := o[name]; ok && v.Kind() != 'n' {
		d.part(key, name, o, func(v jsontext.Value) (err error) {
			value, err = parseOneOf(jsontext.Value(strings.ToLower(string(v))), names...)
			return err
		})
	}
	return value
}

// readAWQ reads what AutoAWQ writes as its version gemm.
func readAWQ(d *decoding, key string, o map[string]jsontext.Value) {
	q := &d.config.Quantization
	q.Method, q.exceptKey = "awq", "modules_to_not_convert"
	q.readGrouped(d, key, o, "AutoAWQ")
	q.readExcept(d, key, o, q.exceptKey)
	for _, entry := range q.Except { // which may be any words of a name: "self_attn", "model.layers.0."
		q.patterns = append(q.patterns, regexp.MustCompile(`^(.*\.)?`+regexp.QuoteMeta(strings.Trim(entry, "."))+`(\.|$)`))
	}
	for _, name := range []string{"version", "format", "checkpoint_format"} {
		readOneOf(d, key, o, name, "gemm")
	}
	if show(o["backend"]) == `"llm-awq"` {
		d.fail(key+".backend", errors.New("weights of llm-awq are not read: dequantise them with it"))
	}
}

// readGPTQ reads what GPTQModel and AutoGPTQ write.
func readGPTQ(d *decoding, key string, o map[string]jsontext.Value) {
	q := &d.config.Quantization
	q.Method, q.exceptKey = "gptq", "dynamic"
	q.readGrouped(d, key, o, "GPTQModel")
	for _, name := range []string{"format", "checkpoint_format"} {
		q.Method = cmp.Or(readOneOf(d, key, o, name, "gptq", "gptq_v2"), q.Method)
	}
	if v, ok := o["desc_act"]; ok && v.Kind() == 't' && q.Block[1] > 0 {
		q.Method += ", desc_act"
	}
	if v, ok := o["is_marlin_format"]; ok && v.Kind() == 't' {
		d.fail(key+".is_marlin_format", errors.New("weights of Marlin are not read: dequantise them with AutoGPTQ"))
	}
	q.readDifferent(d, key, o, "GPTQModel")
	if v, ok := o["modules_in_block_to_quantize"]; ok && v.Kind() != 'n' {
		q.Unclear = true // it lists the others
	}
}

// readAutoRound reads what AutoRound writes in the packings of AWQ and GPTQ.
func readAutoRound(d *decoding, key string, o map[string]jsontext.Value) {
	q := &d.config.Quantization
	q.Method, q.exceptKey, q.Unclear = "gptq", "extra_config", true // block_name_to_quantize lists the others
	q.readGrouped(d, key, o, "AutoRound")
	q.readDifferent(d, key, o, "AutoRound")
	packing := string(cmp.Or(string(o["packing_format"]), string(o["backend"])))
	switch {
	case strings.Contains(packing, "awq"):
		q.Method = "awq"
	case strings.Contains(packing, "gptqmodel"), packing != "" && !strings.Contains(packing, "gptq"):
		q.Method = "gptq_v2" // zeros as they are
	}
}

// readDifferent reads the modules, by names or patterns, that a table of the config quantises otherwise, or not
// at all: GPTQModel begins their patterns with "-:", AutoRound gives them 16 bits.
func (q *Quantization) readDifferent(d *decoding, key string, o map[string]jsontext.Value, remedy string) {
	if v, ok := o[q.exceptKey]; !ok || v.Kind() == 'n' || v.Kind() == 'f' {
		return
	}
	d.part(key, q.exceptKey, o, func(v jsontext.Value) error {
		var modules map[string]map[string]jsontext.Value
		if json.Unmarshal(v, &modules) != nil {
			return errors.New("not an object of modules")
		}
		for _, name := range slices.Sorted(maps.Keys(modules)) {
			pattern, left := strings.CutPrefix(name, "-:")
			unquantised := left || string(modules[name]["bits"]) == "16"
			if k, ok := differs(modules[name], o, unquantised); ok {
				return fmt.Errorf("%s is quantised in another way than the rest: dequantise the weights with %s (%s)",
					quote(name), remedy, k)
			}
			if unquantised {
				if left || strings.ContainsAny(name, `*^$\(`) {
					name = "re:" + pattern
				}
				q.Except = append(q.Except, name)
			}
		}
		q.compile()
		return nil
	})
}

// differs returns the first key by which a module is quantised otherwise than the rest, or that is not known.
func differs(module, rest map[string]jsontext.Value, unquantised bool) (key string, found bool) {
	for _, k := range slices.Sorted(maps.Keys(module)) {
		switch v := module[k]; {
		case v.Kind() == 'n' || has(differentKeys, k), k == "act_bits" && (string(v) == "16" || string(v) == "32"):
		case has("bits group_size desc_act sym pack_dtype data_type", k) && (unquantised || string(v) == string(rest[k])):
		default:
			return quote(k), true
		}
	}
	return "", false
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

// readExpertDType reads how routed experts are quantised.
func readExpertDType(d *decoding, key string, value jsontext.Value) {
	name, err := parseOneOf(value, "fp4", "fp8")
	// of quantization_config, where transformers looks first
	if known := d.config.Quantization.Experts; err == nil && known != "" && name != known {
		err = fmt.Errorf("%q disagrees with quantization_config.expert_dtype %q", name, known)
	}
	store(d, key, &d.config.Quantization.Experts, name, err)
}
