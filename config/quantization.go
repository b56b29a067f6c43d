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
			known := "quant_method " + denied(o) + knownKeys[strings.TrimPrefix(method, "intel/")]
			if _, ok := o["quant_algo"]; ok && method == "fp8" {
				known += modelOptKeys
			}
			refuseUnknown(d, key, o, known)
		} else if err == nil {
			const read = "fp8, compressed-tensors, modelopt, awq, gptq, auto-round, blockwise_int8 and w8a8_int8 are"
			err = notRead{fmt.Errorf("%q is not read, but %s; %s", method, read,
				cmp.Or(remedies[method], "convert the checkpoint that it was made from"))}
		}
		return err
	})
}

// quantMethods lists what reads the quantization_config of each quant_method.
var quantMethods = map[string]func(d *decoding, key string, o map[string]jsontext.Value){
	"fp8": readFP8, "compressed-tensors": readCompressed, "modelopt": readModelOpt, "awq": readAWQ, "gptq": readGPTQ,
	"auto-round": readAutoRound, "intel/auto-round": readAutoRound, "blockwise_int8": readINT8, "w8a8_int8": readINT8,
}

// remedies says what to do with the weights of methods that are not read.
var remedies = map[string]string{
	"bitsandbytes": "load it with transformers, call dequantize(), and save it",
	"w4afp8":       "convert the FP8 checkpoint that it was made from",
	"mxfp4":        "load it with transformers and dequantize=True in Mxfp4Config, and save it",
}

// readFP8 reads FP8 E4M3 weights in blocks, as in the published DeepSeek-V3, or with one scale each, as AutoFP8 writes
// them. It ignores the fields about activations. ModelOpt adds what it quantised further.
func readFP8(d *decoding, key string, o map[string]jsontext.Value) {
	q := &d.config.Quantization
	if _, ok := o["fmt"]; ok {
		d.part(key, "fmt", o, func(v jsontext.Value) error {
			_, err := parseOneOf(v, "e4m3", "e4m3fn", "float8_e4m3fn", "float8_e4m3")
			return unread(err)
		})
	}
	if v, ok := o["expert_dtype"]; ok && v.Kind() != 'n' {
		readExpertDType(d, key+".expert_dtype", v)
	}
	q.PowerOfTwo = show(o["scale_fmt"]) == `"ue8m0"`
	q.readExcept(d, key, o, "modules_to_not_convert")
	q.readExcept(d, key, o, "ignored_layers") // as vLLM and AutoFP8 call it
	if v, ok := o["weight_block_size"]; ok && v.Kind() != 'n' {
		q.Method = "fp8"
		d.part(key, "weight_block_size", o, func(v jsontext.Value) (err error) {
			q.Block, err = parseBlock(v)
			return err
		})
	} else { // one scale for each weight
		q.Method = "float-quantized"
	}
	if _, ok := o["quant_algo"]; ok {
		readAlgorithms(d, key, o)
	}
}

// readINT8 reads INT8 weights with a scale for each row, or in blocks.
func readINT8(d *decoding, key string, o map[string]jsontext.Value) {
	q := &d.config.Quantization
	q.Method, q.Block = "int-quantized", [2]int{1, 0}
	if _, ok := o["weight_block_size"]; ok || unquote(o["quant_method"]) == "blockwise_int8" {
		d.part(key, "weight_block_size", o, func(v jsontext.Value) (err error) {
			q.Method = "blockwise_int8"
			q.Block, err = parseBlock(v)
			return err
		})
	}
	q.readExcept(d, key, o, "modules_to_not_convert")
	q.readExcept(d, key, o, "ignored_layers")
}

// ExceptKey returns the key of quantization_config whose entries Except has.
func (q *Quantization) ExceptKey() string {
	return cmp.Or(q.exceptKey, "modules_to_not_convert")
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
	q.patterns = q.compile(q.Except)
}

// compile returns the patterns among entries that name modules.
func (q *Quantization) compile(entries []string) (patterns []*regexp.Regexp) {
	for _, entry := range entries {
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
		patterns = append(patterns, compiled)
	}
	return patterns
}

// readCompressed reads what compressed-tensors writes: groups of modules, each with a scheme of its own.
func readCompressed(d *decoding, key string, o map[string]jsontext.Value) {
	q := &d.config.Quantization
	q.exceptKey = "ignore"
	q.readExcept(d, key, o, "ignore")
	if _, ok := o["sparsity_config"]; ok {
		d.part(key, "sparsity_config", o, refuseSparsity)
	}
	if _, ok := o["transform_config"]; ok {
		d.part(key, "transform_config", o, refuseOnline)
	}
	format := unquote(o["format"])
	refuseSchemes(d, key, o, format)
	d.part(key, "config_groups", o, func(v jsontext.Value) (err error) {
		var groups map[string]struct {
			Weights *weightScheme `json:"weights"`
			Targets []string      `json:"targets"`
			Format  string        `json:"format"`
		}
		if cache, ok := o["kv_cache_scheme"]; json.Unmarshal(v, &groups) != nil || len(groups) == 0 && (!ok || cache.Kind() == 'n') {
			return errors.New("not an object of groups with weights")
		}
		for _, name := range slices.Sorted(maps.Keys(groups)) {
			g, scheme := groups[name], Scheme{}
			if g.Weights != nil { // else activations alone are rounded
				if scheme, err = g.Weights.scheme(cmp.Or(g.Format, format)); err != nil {
					return fmt.Errorf("%s: %w", quote(name), err)
				}
			}
			classes := slices.DeleteFunc(g.Targets, func(target string) bool { // others than torch's Linear
				return !strings.ContainsAny(target, ".:*") && target != "Linear"
			})
			if len(g.Targets) > 0 && !slices.Contains(classes, "Linear") {
				q.add(scheme, classes)
			} else if q.Method == "" {
				q.Method, q.Block = scheme.Method, scheme.Block
			} else if (scheme != Scheme{q.Method, q.Block}) {
				return unread(errors.New("groups of the same modules that are quantised in several ways are not read"))
			}
		}
		return nil
	})
}

// weightScheme is how compressed-tensors quantises weights.
type weightScheme struct {
	Bits     int    `json:"num_bits"`
	Type     string `json:"type"`
	Strategy string `json:"strategy"`
	Group    int    `json:"group_size"`
	Block    []int  `json:"block_structure"`

	Symmetric *bool `json:"symmetric"` // false if there are zeros; true by default
}

// asymmetric is what Method has behind a format of weights with zeros.
const asymmetric = ", asymmetric"

// scheme returns what the weights of a format of compressed-tensors are stored as.
func (s weightScheme) scheme(format string) (scheme Scheme, err error) {
	symmetric, block := s.Symmetric == nil || *s.Symmetric, [2]int{1, s.Group}
	switch s.Strategy {
	case "channel":
		block = [2]int{1, 0}
	case "tensor":
		block = [2]int{}
	case "block":
		if len(s.Block) != 2 || min(s.Block[0], s.Block[1]) < 1 || max(s.Block[0], s.Block[1]) > maxDim {
			return scheme, fmt.Errorf("block_structure %v is not two integers, such as [128, 128]", s.Block)
		}
		block = [2]int(s.Block)
	}
	fits, method := false, format
	switch format {
	case "pack-quantized":
		fits = s.Type == "int" && s.Bits >= 2 && s.Bits <= 8 && (s.Strategy == "group" || s.Strategy == "channel")
		if s.Bits != 4 {
			method += fmt.Sprintf(", %d bits", s.Bits)
		}
	case "int-quantized", "float-quantized", "naive-quantized":
		kind, _, _ := strings.Cut(format, "-")
		fits = s.Bits == 8 && (s.Type == kind || kind == "naive") && (s.Type == "int" || symmetric)
		method = s.Type + "-quantized"
	case "nvfp4-pack-quantized":
		fits = s.Bits == 4 && s.Type == "float" && s.Strategy == "tensor_group" && s.Group == 16 && symmetric
	case "mxfp4-pack-quantized", "mxfp6-pack-quantized", "mxfp8-quantized":
		bits := int(format[len("mxfp")] - '0')
		fits = s.Bits == bits && s.Type == "float" && s.Strategy == "group" && s.Group == 32 && symmetric
	default:
		return scheme, unread(fmt.Errorf("format %s is not read; dequantise the weights with compressed-tensors", quote(format)))
	}
	if strings.Contains(s.Strategy, "group") && (s.Group < 1 || s.Group > maxDim) || !fits ||
		!slices.Contains([]string{"tensor", "channel", "group", "tensor_group", "block"}, s.Strategy) {
		return scheme, unread(fmt.Errorf("weights of %d bits, type %q, strategy %q and group_size %d are not read as %s: "+
			"dequantise them with compressed-tensors", s.Bits, s.Type, s.Strategy, s.Group, format))
	}
	if !symmetric {
		method += asymmetric
	}
	return Scheme{method, block}, nil
}

// algorithm is a quant_algo of ModelOpt: how weights are stored, and what config_groups says of them.
type algorithm struct {
	Scheme
	bits, kind string
}

// algorithms lists those that are read. Others scale activations by what lies beside the weights, or store more.
var algorithms = map[string]algorithm{
	"NVFP4":                     {Scheme{"nvfp4", [2]int{1, 16}}, "4", `"float"`},
	"W4A16_NVFP4":               {Scheme{"nvfp4", [2]int{1, 16}}, "4", `"float"`},
	"W4A8_NVFP4_FP8":            {Scheme{"nvfp4", [2]int{1, 16}}, "4", `"float"`},
	"FP8":                       {Scheme{"float-quantized", [2]int{}}, "8", `"float"`},
	"FP8_PER_CHANNEL_PER_TOKEN": {Scheme{"float-quantized", [2]int{1, 0}}, "8", `"float"`},
	"MXFP8":                     {Scheme{"mxfp8-quantized", [2]int{1, 32}}, "8", `"float"`},
	"W4A8_MXFP4_FP8":            {Scheme{"mxfp4", [2]int{1, 32}}, "4", `"float"`},
	"W8A16":                     {Scheme{"int-quantized", [2]int{1, 0}}, "8", `"int"`},
}

// readAlgorithm reads one of algorithms.
func readAlgorithm(v jsontext.Value) (algorithm, error) {
	name, err := parseOneOf(v, slices.Sorted(maps.Keys(algorithms))...)
	if err != nil {
		err = unread(fmt.Errorf("%w; convert the checkpoint that it was made from", err))
	}
	return algorithms[name], err
}

// readModelOpt reads what ModelOpt writes.
func readModelOpt(d *decoding, key string, o map[string]jsontext.Value) {
	q := &d.config.Quantization
	q.exceptKey = "ignore"
	readAlgorithms(d, key, o)
	q.readExcept(d, key, o, "ignore")
	q.readExcept(d, key, o, "exclude_modules")
}

// readAlgorithms reads quant_algo, of MIXED_PRECISION that of each of quantized_layers. What only repeats it in other
// words has to agree.
func readAlgorithms(d *decoding, key string, o map[string]jsontext.Value) {
	q := &d.config.Quantization
	if v := o["quant_algo"]; v.Kind() == 'n' && v != nil { // the cache alone is quantised
		refuseSchemes(d, key, o, "")
		return
	}
	if unquote(o["quant_algo"]) == "MIXED_PRECISION" {
		d.part(key, "quantized_layers", o, func(v jsontext.Value) error {
			var layers map[string]map[string]jsontext.Value
			if json.Unmarshal(v, &layers) != nil {
				return errors.New("not an object of modules")
			}
			for _, name := range slices.Sorted(maps.Keys(layers)) {
				a, err := readAlgorithm(layers[name]["quant_algo"])
				if d.fail(key+".quantized_layers."+name, err); err == nil {
					q.add(a.Scheme, []string{name})
					a.require(d, key+".quantized_layers."+name, layers[name])
				}
			}
			return nil
		})
		refuseSchemes(d, key, o, "")
		return
	}
	d.part(key, "quant_algo", o, func(v jsontext.Value) error {
		a, err := readAlgorithm(v)
		if err != nil {
			return err
		}
		q.Method, q.Block = a.Method, a.Block
		a.require(d, key, o)
		groups := refuseSchemes(d, key, o, "")
		for _, place := range slices.Sorted(maps.Keys(groups)) {
			a.require(d, place+".weights", groups[place])
		}
		return nil
	})
}

// require refuses what says something else of the weights.
func (a algorithm) require(d *decoding, place string, o map[string]jsontext.Value) {
	group := fmt.Sprint(a.Block[1])
	strategies := map[string]string{"nvfp4": `"tensor_group"`, "float-quantized": o["strategy"].String()}
	for _, x := range [][2]string{{"num_bits", a.bits}, {"type", a.kind}, {"group_size", group},
		{"strategy", cmp.Or(strategies[a.Method], `"group"`)}} {
		if v, ok := o[x[0]]; ok && v.Kind() != 'n' && string(v) != x[1] && (x[0] != "group_size" || group != "0") {
			name := strings.ToUpper(a.Method)
			d.fail(place+"."+x[0], fmt.Errorf("%s is not that of %s, %s", show(v), name, x[1]))
		}
	}
}

// readGrouped reads what AWQ, GPTQ and AutoRound share: weights of four bits in groups of a row.
func (q *Quantization) readGrouped(d *decoding, key string, o map[string]jsontext.Value, remedy string) {
	q.Block = [2]int{1, 0}
	d.part(key, "bits", o, func(v jsontext.Value) error {
		if bits, err := parseInteger(v, 1, 32); err != nil || bits != 4 {
			return cmp.Or(err, unread(fmt.Errorf("weights of %d bits are not read: dequantise them with %s", bits, remedy)))
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
			return unread(err)
		})
	}
}

// readOneOf returns the value of a string that must be one of names, in lower case, if it is there.
func readOneOf(d *decoding, key string, o map[string]jsontext.Value, name string, names ...string) (value string) {
	if v, ok := o[name]; ok && v.Kind() != 'n' {
		d.part(key, name, o, func(v jsontext.Value) (err error) {
			value, err = parseOneOf(jsontext.Value(strings.ToLower(string(v))), names...)
			return unread(err)
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
		d.fail(key+".backend", unread(errors.New("weights of llm-awq are not read: dequantise them with it")))
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
		d.fail(key+".is_marlin_format", unread(errors.New("weights of Marlin are not read: dequantise them with AutoGPTQ")))
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
				return unread(fmt.Errorf("%s is quantised in another way than the rest: dequantise the weights with %s (%s)",
					quote(name), remedy, k))
			}
			if unquantised {
				if left || strings.ContainsAny(name, `*^$\(`) {
					name = "re:" + pattern
				}
				q.Except = append(q.Except, name)
			}
		}
		q.patterns = q.compile(q.Except)
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

// StaysUnquantised reports whether quantization_config excepts the module, by its name or another one that files have.
func (c *Config) StaysUnquantised(names ...string) bool {
	return c.matches(c.Quantization.Except, c.Quantization.patterns, names)
}

// SchemeOf returns how quantization_config says that the module is stored that has these names; the zero Scheme is plain.
func (c *Config) SchemeOf(names ...string) Scheme {
	q, first := &c.Quantization, len(c.Quantization.Groups)
	look := func(part string) {
		for _, target := range []string{part, c.Prefix() + part} {
			if i, ok := q.first[target]; ok {
				first = min(first, i)
			}
		}
	}
	for _, module := range names { // as matches does, but there may be a group for each of 45,000 modules
		look(module)
		for i, char := range module {
			if char == '.' {
				look(module[:i])
				look(module[i+1:])
			}
		}
	}
	for _, i := range q.patterned {
		if i < first && c.matches(nil, q.Groups[i].patterns, names) {
			first = i
		}
	}
	if first < len(q.Groups) {
		return q.Groups[first].Scheme
	}
	return Scheme{q.Method, q.Block}
}

// add adds a group of modules.
func (q *Quantization) add(scheme Scheme, targets []string) {
	if q.first == nil {
		q.first = map[string]int{}
	}
	i, g := len(q.Groups), Group{scheme, q.compile(targets)}
	for _, target := range targets {
		if _, named := q.first[target]; !named {
			q.first[target] = i
		}
	}
	if g.patterns != nil {
		q.patterned = append(q.patterned, i)
	}
	q.Groups = append(q.Groups, g)
}

// matches reports whether a module of these names is one that entries and patterns name: an entry is the module's name,
// its beginning or end ("model.layers.3", "lm_head"), or a pattern, of the stored name too.
func (c *Config) matches(entries []string, patterns []*regexp.Regexp, names []string) bool {
	return slices.ContainsFunc(names, func(module string) bool {
		return slices.ContainsFunc(patterns, func(p *regexp.Regexp) bool {
			return p.MatchString(module) || p.MatchString(c.Prefix()+module)
		}) || slices.ContainsFunc(entries, func(entry string) bool {
			entry = strings.TrimPrefix(entry, c.Prefix())
			return module == entry || strings.HasPrefix(module, entry+".") || strings.HasSuffix(module, "."+entry)
		})
	})
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
