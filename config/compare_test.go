package config

import (
	"reflect"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// meant parses both texts and returns the keys that differ, those without meaning in
// brackets.
func meant(t *testing.T, a, b string) string {
	t.Helper()
	x, err := Parse(strings.NewReader(a))
	require.NoError(t, err)
	y, err := Parse(strings.NewReader(b))
	require.NoError(t, err)
	var keys []string
	for _, d := range Differences(x, y) {
		assert.NotEqual(t, string(d.A), string(d.B))
		assert.True(t, d.A.IsValid() && d.B.IsValid(), d.Key)
		if d.Meaning {
			keys = append(keys, d.Key)
		} else {
			keys = append(keys, "("+d.Key+")")
		}
	}
	return strings.Join(keys, " ")
}

func TestDifferences(t *testing.T) {
	const (
		v1   = `{"model_type":"deepseek"`
		v1e  = v1 + `,"n_routed_experts":8,"num_experts_per_tok":2`
		v2   = `{"model_type":"deepseek_v2","num_experts_per_tok":2`
		v3   = `{"model_type":"deepseek_v3"`
		yarn = `"factor":40,"original_max_position_embeddings":4096,"beta_fast":32,"beta_slow":1`
	)
	for name, c := range map[string]struct{ a, b, want string }{
		"nothing":                  {v1 + `}`, v1 + `}`, ""},
		"a default spelled out":    {v3 + `}`, v3 + `,"rms_norm_eps":1e-6,"norm_topk_prob":true,"tie_word_embeddings":false,"torch_dtype":null,"rope_theta":10000,"rope_scaling":null,"moe_layer_freq":1}`, ""},
		"another spelling":         {v3 + `,"rms_norm_eps":0.00001}`, v3 + `,"rms_norm_eps":1e-05}`, ""},
		"an alias":                 {v3 + `,"rope_theta":5000,"dtype":"float16"}`, v3 + `,"rope_parameters":{"rope_theta":5000,"rope_type":"default"},"torch_dtype":"float16"}`, ""},
		"an alias of the scaling":  {v3 + `,"rope_scaling":{"type":"yarn",` + yarn + `}}`, v3 + `,"rope_parameters":{"rope_type":"yarn",` + yarn + `}}`, ""},
		"heads left to default":    {v2 + `}`, v2 + `,"num_key_value_heads":32}`, ""},
		"a key nobody knows":       {v1 + `}`, v1 + `,"use_cache":true}`, ""},
		"eps":                      {v1 + `}`, v1 + `,"rms_norm_eps":1e-5}`, "rms_norm_eps"},
		"norm_topk_prob":           {v1e + `}`, v1e + `,"norm_topk_prob":true}`, "norm_topk_prob"},
		"V2's own class ignores":   {v2 + `}`, v2 + `,"norm_topk_prob":true}`, "(norm_topk_prob)"},
		"scaling factor":           {v3 + `}`, v3 + `,"routed_scaling_factor":1}`, "routed_scaling_factor"},
		"rope scaling":             {v3 + `}`, v3 + `,"rope_scaling":{"type":"yarn",` + yarn + `}}`, "rope_scaling"},
		"rope scaling's part":      {v3 + `,"rope_scaling":{"type":"yarn",` + yarn + `}}`, v3 + `,"rope_scaling":{"type":"yarn","mscale":1,` + yarn + `}}`, "rope_scaling"},
		"storage":                  {v3 + `,"torch_dtype":"bfloat16"}`, v3 + `,"torch_dtype":"float16","quantization_config":{"quant_method":"fp8","weight_block_size":[128,128]}}`, "(torch_dtype) (quantization_config)"},
		"exceptions are storage":   {v3 + `,"quantization_config":{"quant_method":"fp8","weight_block_size":[128,128]}}`, v3 + `,"quantization_config":{"quant_method":"fp8","weight_block_size":[128,128],"modules_to_not_convert":["lm_head"]}}`, "(quantization_config)"},
		"length, without effect":   {v1 + `}`, v1 + `,"max_position_embeddings":64}`, "(max_position_embeddings)"},
		"length of dynamic RoPE":   {v1 + `,"rope_scaling":{"type":"dynamic","factor":2.0}}`, v1 + `,"max_position_embeddings":64,"rope_scaling":{"type":"dynamic","factor":2.0}}`, "max_position_embeddings"},
		"groups of a greedy gate":  {v2 + `}`, v2 + `,"n_group":8}`, "(n_group)"},
		"groups":                   {v3 + `}`, v3 + `,"n_group":4}`, "n_group"},
		"frequency that is no use": {v3 + `}`, v3 + `,"moe_layer_freq":2}`, "(moe_layer_freq)"},
		"reference, in rounding":   {v3 + `}`, v3 + `,"auto_map":{}}`, "(auto_map)"},
		"reference, in the gate":   {v2 + `,"norm_topk_prob":true}`, v2 + `,"norm_topk_prob":true,"auto_map":{}}`, "auto_map"},
		"prediction layers":        {v3 + `}`, v3 + `,"num_nextn_predict_layers":0}`, "(num_nextn_predict_layers)"},
		"initialisation":           {v1 + `}`, v1 + `,"initializer_range":0.006,"pretraining_tp":2}`, "(initializer_range) (pretraining_tp)"},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, c.want, meant(t, c.a, c.b))
			assert.Equal(t, c.want, meant(t, c.b, c.a))
		})
	}
}

// TestEveryFieldIsCompared changes one field of a Config after the other, in each family: one of them has a key for it.
func TestEveryFieldIsCompared(t *testing.T) {
	compared := map[string]bool{}
	for _, f := range families {
		compareFields(t, f.defaults(), compared)
	}
	for name, differs := range compared {
		assert.True(t, differs, name)
	}
}

// compareFields notes which fields of base differ once they are changed.
func compareFields(t *testing.T, base Config, compared map[string]bool) {
	for _, field := range Fields() {
		changed, name := base, field.Name
		switch v := reflect.ValueOf(&changed).Elem().FieldByIndex(field.Index).Addr().Interface().(type) {
		case *int:
			*v += 3
		case *float64:
			*v += 0.5
		case *bool:
			*v = !*v
		case *string:
			*v += "x"
		case *[]string:
			*v = []string{"full", sharedIndexer}
		case *[]int:
			*v = []int{7}
		case *[]float64:
			*v = []float64{7}
		case *Reference:
			*v = Remote
		case **RopeScaling:
			*v = &RopeScaling{Type: "yarn"}
		case *Quantization:
			v.Method = "fp8"
		default:
			t.Fatalf("%s: a field of another type", name)
		}
		if name == "ModelType" {
			changed.ModelType, changed.family = "deepseek_v2", &v2
		}
		compared[name] = compared[name] || len(Differences(&base, &changed)) > 0
	}
}

// TestDifferencesAreJSON of both sides.
func TestDifferencesAreJSON(t *testing.T) {
	a, err := Parse(strings.NewReader(`{"model_type":"deepseek"}`))
	require.NoError(t, err)
	b, err := a.Override(map[string]jsontext.Value{"rms_norm_eps": jsontext.Value("1e-5"), "rope_scaling": jsontext.Value(`{"type":"linear","factor":4.0}`)})
	require.NoError(t, err)
	assert.Equal(t, []Difference{
		{"rms_norm_eps", jsontext.Value("0.000001"), jsontext.Value("0.00001"), true},
		{"rope_scaling", jsontext.Value("null"), jsontext.Value(`{"type": "linear", "factor": 4}`), true},
	}, Differences(a, b))
}
