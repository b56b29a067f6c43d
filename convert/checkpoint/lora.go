package checkpoint

// The config of an adapter of peft.

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"dsmoe/text"
	"dsmoe/text/problem"
)

// AdapterConfig is the name of an adapter's config.
const AdapterConfig = "adapter_config.json"

// lora is what adapter_config.json says.
type lora struct {
	Type       string         `json:"peft_type"`
	Base       string         `json:"base_model_name_or_path"` // model that it was trained on
	Rank       int            `json:"r"`
	Alpha      float64        `json:"lora_alpha"`
	RSLoRA     bool           `json:"use_rslora"`          // scale is lora_alpha/√r, not lora_alpha/r
	Ranks      patterns       `json:"rank_pattern"`        // modules with another r
	Alphas     patterns       `json:"alpha_pattern"`       // modules with another lora_alpha
	Modules    selector       `json:"target_modules"`      // modules that it changes
	Parameters selector       `json:"target_parameters"`   // parameters that it changes
	Excluded   selector       `json:"exclude_modules"`     // modules that it does not change
	Layers     selector       `json:"layers_to_transform"` // decoder layers that it changes; none stands for all
	Saved      selector       `json:"modules_to_save"`     // modules that it holds whole
	Init       jsontext.Value `json:"init_lora_weights"`
	Version    string         `json:"peft_version"` // "" before peft 0.18

	Others map[string]jsontext.Value `json:",embed"`
}

// idle lists keys of adapter_config.json that say how the adapter was trained, or what its tensors show.
var idle = []string{"auto_mapping", "base_model_class", "bias", "corda_config", "ensure_weight_tying", "eva_config",
	"fan_in_fan_out", "inference_mode", "layers_pattern", "loftq_config", "lora_dropout", "lora_ga_config",
	"megatron_config", "megatron_core", "parent_library", "qalora_group_size", "revision",
	"runtime_config", "task_type", "velora_config"}

// variants lists keys of adapter_config.json that change what a merge is, and how.
var variants = map[string]string{
	"alora_invocation_tokens": "an activated LoRA changes the tokens behind its invocation alone",
	"arrow_config":            "Arrow chooses among adapters for each token",
	"kasa_config":             "KaSA adds to the base's weights without its small singular values",
	"layer_replication":       "the adapted model repeats layers of its base",
	"lora_bias":               "a bias of lora_B is not merged",
	"trainable_token_indices": "single rows of the embedding are not replaced",
	"use_bdlora":              "the factors of BD-LoRA are block-diagonal",
	"use_dora":                "DoRA scales each row of the sum anew",
	"use_qalora":              "QA-LoRA changes the zeros of groups of weights",
}

// misread says why adapter_config.json cannot be read.
func misread(err error) string {
	var semantic *json.SemanticError
	if !errors.As(err, &semantic) {
		return text.Line(err.Error())
	}
	cause := "a value of another kind is expected"
	switch t := semantic.GoType; {
	case semantic.Err != nil && t != nil && t.Kind() != reflect.Int: // of a type that reads itself
		cause = semantic.Err.Error()
	case t != nil:
		kinds := map[reflect.Kind]string{reflect.Int: "a whole number", reflect.Float64: "a number", reflect.Bool: "true or false",
			reflect.String: "a text"}
		cause = cmp.Or(kinds[t.Kind()], "an object") + " is expected"
	}
	if key := strings.TrimPrefix(string(semantic.JSONPointer), "/"); key != "" {
		cause = key + ": " + cause
	}
	return text.Line(cause)
}

// check lists what keeps the adapter from being merged, and unknown keys, which may.
func (l *lora) check() (problems []problem.Problem) {
	refuse := func(cause string, args ...any) {
		problems = append(problems, problem.Problem{File: AdapterConfig, Cause: fmt.Sprintf(cause, args...)})
	}
	if l.Type != "LORA" {
		refuse("peft_type is %s: only LORA is merged", text.Quote(l.Type))
		return problems
	}
	if l.Rank <= 0 {
		refuse("r is %d, or missing: a positive number is expected", l.Rank)
	}
	if l.Alpha == 0 {
		refuse("lora_alpha is 0, or missing: nothing would be merged")
	}
	for _, x := range l.Ranks {
		if x.number != math.Trunc(x.number) || x.number <= 0 {
			refuse("rank_pattern has %v: a positive whole number is expected", x.number)
		}
	}
	if changesBase(l.Init) {
		refuse("init_lora_weights is %s, which changes the base's weights before training: save the adapter with "+
			"path_initial_model_for_weight_conversion", l.Init)
	}
	for _, key := range slices.Sorted(maps.Keys(l.Others)) {
		switch cause, known := variants[key]; {
		case unset(l.Others[key]), slices.Contains(idle, key):
		case known:
			refuse("%s is set: %s, which is not supported", key, cause)
		default:
			refuse("%s: unknown key; what it changes is not known", text.Quote(key))
		}
	}
	return problems
}

// unset reports whether a value of adapter_config.json says nothing.
func unset(v jsontext.Value) bool {
	return slices.Contains([]string{"", "null", "false", "{}", "[]", `""`}, string(v))
}

// changesBase reports whether a value of init_lora_weights names an initialisation that changes the base's weights.
func changesBase(init jsontext.Value) bool {
	return slices.ContainsFunc([]string{"pissa", "olora", "corda", "loftq", "lora_ga", "mica"}, func(word string) bool {
		return strings.HasPrefix(strings.ToLower(string(init)), `"`+word)
	})
}

// Of returns the rank of a module's factors, and what their product is multiplied with.
func (l *lora) Of(module string) (rank int, scale float64) {
	r, alpha := l.Ranks.of(module, float64(l.Rank)), l.Alphas.of(module, l.Alpha)
	if l.RSLoRA {
		return int(r), alpha / math.Sqrt(r)
	}
	return int(r), alpha / r
}

// Names reports whether the config names what the adapter changes; without, peft selects it by the model's type.
func (l *lora) Names() bool { return len(l.Modules.Names)+len(l.Parameters.Names) > 0 }

// SelectsModule reports whether the config selects a module of the layer with that number, which is empty outside layers.
func (l *lora) SelectsModule(module, layer string) bool {
	return l.Modules.Selects(module) && !l.Excluded.Selects(module) &&
		(len(l.Layers.Names) == 0 || slices.Contains(l.Layers.Names, layer))
}

// Since reports whether peft 0.minor or a later one wrote the adapter.
func (l *lora) Since(minor int) bool {
	var major, of int
	fmt.Sscanf(l.Version, "%d.%d", &major, &of) // 0 and 0 if it is no version
	return major > 0 || of >= minor
}

// patterns are numbers of modules: a module has the number of the first pattern that matches the end of its name.
type patterns []struct {
	pattern *regexp.Regexp
	number  float64
}

// UnmarshalJSONFrom reads an object, or null.
func (p *patterns) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	t, err := d.ReadToken()
	if err != nil || t.Kind() == 'n' {
		return err
	}
	if t.Kind() != '{' {
		return fmt.Errorf("not an object")
	}
	for d.PeekKind() != '}' {
		key, err := d.ReadToken()
		if err != nil {
			return err
		}
		word := key.String()
		pattern, err := regexp.Compile(`^(.*\.)?(` + word + `)$`)
		if err != nil {
			return fmt.Errorf("the pattern %s is not understood", text.Quote(word))
		}
		var number float64
		if err := json.UnmarshalDecode(d, &number); err != nil {
			return err
		}
		*p = append(*p, struct {
			pattern *regexp.Regexp
			number  float64
		}{pattern, number})
	}
	_, err = d.ReadToken()
	return err
}

// of returns a module's number.
func (p patterns) of(module string, number float64) float64 {
	for _, x := range p {
		if x.pattern.MatchString(module) {
			return x.number
		}
	}
	return number
}

// selector selects modules by the ends of their names, or by a pattern that matches all of a name.
type selector struct {
	Names   []string
	Pattern *regexp.Regexp // nil for names, and for a pattern that is not understood
	Unread  bool           // there is such a pattern
}

// UnmarshalJSONFrom reads a list of names or numbers, a pattern, a number, or null.
func (s *selector) UnmarshalJSONFrom(d *jsontext.Decoder) (err error) {
	var value any
	if err = json.UnmarshalDecode(d, &value); err != nil {
		return err
	}
	switch v := value.(type) {
	case string:
		if s.Names = []string{v}; v != allLinear {
			s.Pattern, err = regexp.Compile(`^(?:` + v + `)$`)
			s.Unread = err != nil
		}
	case []any:
		for _, entry := range v {
			s.Names = append(s.Names, fmt.Sprint(entry))
		}
	case float64:
		s.Names = []string{fmt.Sprint(v)}
	}
	return nil
}

// allLinear is target_modules for all linear layers but the head.
const allLinear = "all-linear"

// Selects reports whether a module is selected.
func (s *selector) Selects(module string) bool {
	if s.Pattern != nil {
		return s.Pattern.MatchString(module)
	}
	return slices.ContainsFunc(s.Names, func(name string) bool {
		return module == name || strings.HasSuffix(module, "."+name) || name == allLinear
	})
}
