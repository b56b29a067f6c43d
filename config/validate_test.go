package config

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/text/problem"
)

// problems parses text, which must be refused or not be read, and returns what is wrong.
func problems(t *testing.T, text string) []problem.Problem {
	t.Helper()
	c, err := Parse(strings.NewReader(text))
	if err == nil && c.Quantization.Unread != nil {
		return c.Quantization.Unread
	}
	var e *problem.Error
	require.ErrorAs(t, err, &e)
	require.NotContains(t, err.Error(), "\n")
	return e.Problems
}

func TestRules(t *testing.T) {
	const moe = `"n_routed_experts":16,"num_experts_per_tok":4,`
	for name, test := range map[string]struct{ fields, want string }{
		"zero":                   {`"vocab_size":0`, `vocab_size: 0 is not in 1..16777216`},
		"negative":               {`"hidden_size":-64`, `hidden_size: -64 is not in 1..16777216`},
		"too large":              {`"intermediate_size":16777217`, `intermediate_size: 16777217 is not in 1..16777216`},
		"beyond int64":           {`"moe_intermediate_size":9223372036854775808`, `moe_intermediate_size: 9223372036854775808 is not in 1..16777216`},
		"endless integer":        {`"vocab_size":` + strings.Repeat("9", 1000), `vocab_size: ` + strings.Repeat("9", 40) + `… is not in 1..16777216`},
		"float for integer":      {`"hidden_size":64.0`, `hidden_size: 64.0 is a float, not an integer`},
		"exponent for integer":   {`"hidden_size":1e3`, `hidden_size: 1e3 is a float, not an integer`},
		"string for integer":     {`"hidden_size":"64"`, `hidden_size: "64" is not an integer`},
		"null for integer":       {`"hidden_size":null`, `hidden_size: null is not an integer`},
		"boolean for integer":    {`"hidden_size":true`, `hidden_size: true is not an integer`},
		"array for integer":      {`"num_hidden_layers":[1]`, `num_hidden_layers: an array is not an integer`},
		"object for integer":     {`"num_hidden_layers":{}`, `num_hidden_layers: an object is not an integer`},
		"too many layers":        {`"num_hidden_layers":10001`, `num_hidden_layers: 10001 is not in 1..10000`},
		"no layers":              {`"num_hidden_layers":0`, `num_hidden_layers: 0 is not in 1..10000`},
		"no heads":               {`"num_attention_heads":0`, `num_attention_heads: 0 is not in 1..16777216`},
		"no key and value heads": {`"num_key_value_heads":0`, `num_key_value_heads: 0 is not in 1..16777216, nor null`},
		"0 shared experts":       {`"n_shared_experts":0`, `n_shared_experts: 0 is not in 1..65536, nor null`},
		"0 routed experts":       {`"n_routed_experts":0`, `n_routed_experts: 0 is not in 1..65536, nor null`},
		"too many experts":       {`"n_routed_experts":65537`, `n_routed_experts: 65537 is not in 1..65536, nor null`},
		"0 experts per token":    {`"num_experts_per_tok":0`, `num_experts_per_tok: 0 is not in 1..65536, nor null`},
		"0 layer freq":           {`"moe_layer_freq":0`, `moe_layer_freq: 0 is not in 1..10000`},
		"negative first_k":       {`"first_k_dense_replace":-1`, `first_k_dense_replace: -1 is not in 0..10000`},
		"number for boolean":     {`"norm_topk_prob":1`, `norm_topk_prob: 1 is not true or false`},
		"string for boolean":     {`"seq_aux":"true"`, `seq_aux: "true" is not true or false`},
		"null for boolean":       {`"tie_word_embeddings":null`, `tie_word_embeddings: null is not true or false`},
		"array for boolean":      {`"attention_bias":[]`, `attention_bias: an array is not true or false`},
		"number for string":      {`"scoring_func":1`, `scoring_func: 1 is not a string`},
		"sigmoid":                {moe + `"scoring_func":"sigmoid"`, `scoring_func: "sigmoid" is not "softmax", the only scoring function of the reference's MoEGate`},
		"negative alpha":         {`"aux_loss_alpha":-0.1`, `aux_loss_alpha: -0.1 is not 0 or above`},
		"gelu":                   {`"hidden_act":"gelu"`, `hidden_act: "gelu" is not "silu", the activation of the published models and the only one computed here`},
		"no positions":           {`"max_position_embeddings":0`, `max_position_embeddings: 0 is not in 1..16777216`},
		"negative initializer":   {`"initializer_range":-1`, `initializer_range: -1 is not 0 or above`},
		"zero eps":               {`"rms_norm_eps":0`, `rms_norm_eps: 0 is not above 0`},
		"eps that vanishes":      {`"rms_norm_eps":1e-999`, `rms_norm_eps: 1e-999 is not above 0`},
		"infinite eps":           {`"rms_norm_eps":1e999`, `rms_norm_eps: 1e999 is beyond float64`},
		"string eps":             {`"rms_norm_eps":"1e-6"`, `rms_norm_eps: "1e-6" is not a number`},
		"zero tp":                {`"pretraining_tp":0`, `pretraining_tp: 0 is not in 1..16777216`},
		"uneven tp":              {`"pretraining_tp":3`, `pretraining_tp: 3 does not divide vocab_size 102400: the reference would drop the rest`},
		"uneven tp, hidden":      {`"pretraining_tp":5`, `pretraining_tp: 5 does not divide hidden_size 4096: the reference would drop the rest`},
		"uneven tp, dense":       {`"pretraining_tp":512`, `pretraining_tp: 512 does not divide intermediate_size 11008: the reference would drop the rest`},
		"uneven tp, heads":       {`"pretraining_tp":256,"num_key_value_heads":1`, `pretraining_tp: 256 does not divide num_key_value_heads * head_dim 128: the reference would drop the rest`},
		"tp with bias":           {`"pretraining_tp":2,"attention_bias":true`, `pretraining_tp: 2 with attention_bias: the reference would leave the biases out`},
		"zero theta":             {`"rope_theta":0.0`, `rope_theta: 0.0 is not above 0`},
		"negative theta":         {`"rope_theta":-1`, `rope_theta: -1 is not above 0`},
		"unknown dtype":          {`"torch_dtype":"torch.bfloat16"`, `torch_dtype: "torch.bfloat16" is not one of bfloat16, float16, float32, float64`},
		"number for dtype":       {`"dtype":16`, `dtype: 16 is not a string`},
		"dtypes disagree":        {`"dtype":"float16","torch_dtype":"float32"`, `dtype: "float16" disagrees with torch_dtype "float32"`},

		"heads do not divide":       {`"hidden_size":64,"num_attention_heads":5,"num_key_value_heads":5`, `hidden_size: 64 is not divisible by num_attention_heads 5`},
		"odd head":                  {`"hidden_size":20,"num_attention_heads":4,"num_key_value_heads":4`, `hidden_size: 20 over num_attention_heads 4 makes a head dimension of 5, which is odd: RoPE rotates its halves`},
		"groups do not divide":      {`"num_key_value_heads":3`, `num_key_value_heads: num_attention_heads 32 is not divisible by 3`},
		"default groups, few heads": {`"num_attention_heads":16`, `num_key_value_heads: num_attention_heads 16 is not divisible by 32`},
		"k missing":                 {`"n_routed_experts":16`, `num_experts_per_tok: null, but n_routed_experts is 16`},
		"k null":                    {`"n_routed_experts":16,"num_experts_per_tok":null`, `num_experts_per_tok: null, but n_routed_experts is 16`},
		"k above experts":           {`"n_routed_experts":16,"num_experts_per_tok":17`, `num_experts_per_tok: 17 is more than n_routed_experts 16`},
		"too large in all":          {`"hidden_size":16777216,"num_hidden_layers":10000`, `num_hidden_layers: 10000 layers of these widths have about 1.1e+19 parameters, more than 2.8e+14`},
		"too many tensors":          {`"num_hidden_layers":10000,"n_routed_experts":65536,"num_experts_per_tok":2`, `num_hidden_layers: 10000 layers with 65536 routed experts have about 1966280000 tensors, more than 524288`},

		"scaling not an object":   {`"rope_scaling":"linear"`, `rope_scaling: "linear" is not null or an object`},
		"scaling yarn":            {`"rope_scaling":{"type":"yarn","factor":4.0}`, `rope_scaling.type: "yarn" is not one of linear, dynamic`},
		"scaling without type":    {`"rope_scaling":{"factor":4.0}`, `rope_scaling.type: missing`},
		"scaling without factor":  {`"rope_scaling":{"type":"linear"}`, `rope_scaling.factor: missing`},
		"scaling extra key":       {`"rope_scaling":{"type":"linear","factor":4.0,"x":1}`, `rope_scaling: unknown key "x"; it takes only type, factor`},
		"integer factor":          {`"rope_scaling":{"type":"linear","factor":4}`, `rope_scaling.factor: 4 is an integer; the reference demands a float, such as 4.0`},
		"factor 1":                {`"rope_scaling":{"type":"linear","factor":1.0}`, `rope_scaling.factor: 1.0 is not above 1`},
		"string factor":           {`"rope_scaling":{"type":"linear","factor":"4.0"}`, `rope_scaling.factor: "4.0" is not a number`},
		"parameters not object":   {`"rope_parameters":[]`, `rope_parameters: an array is not null or an object`},
		"parameters yarn":         {`"rope_parameters":{"rope_type":"yarn","factor":4.0}`, `rope_parameters.rope_type: "yarn" is not one of linear, dynamic`},
		"parameters extra key":    {`"rope_parameters":{"partial_rotary_factor":0.5}`, `rope_parameters: unknown key "partial_rotary_factor"; it takes only rope_type, type, rope_theta, factor`},
		"parameters bad theta":    {`"rope_parameters":{"rope_theta":null}`, `rope_parameters.rope_theta: null is not a number`},
		"parameters stray factor": {`"rope_parameters":{"factor":4.0}`, `rope_parameters.factor: a factor needs rope_type "linear"`},
		"parameters two types":    {`"rope_parameters":{"rope_type":"linear","type":"dynamic","factor":4.0}`, `rope_parameters.type: "dynamic" disagrees with rope_type "linear"`},
		"theta disagrees":         {`"rope_parameters":{"rope_theta":5.0},"rope_theta":6.0`, `rope_parameters.rope_theta: 5 disagrees with rope_theta 6`},
		"factor disagrees":        {`"rope_parameters":{"rope_type":"linear","factor":4.0},"rope_scaling":{"type":"linear","factor":8.0}`, `rope_parameters: {"type": "linear", "factor": 4} disagrees with rope_scaling {"type": "linear", "factor": 8}`},
		"scaling against null":    {`"rope_parameters":{"rope_type":"linear","factor":4.0},"rope_scaling":null`, `rope_parameters: {"type": "linear", "factor": 4} disagrees with rope_scaling null`},
		"null against scaling":    {`"rope_parameters":{"rope_type":"default"},"rope_scaling":{"type":"linear","factor":8.0}`, `rope_parameters: null disagrees with rope_scaling {"type": "linear", "factor": 8}`},
	} {
		t.Run(name, func(t *testing.T) {
			got := problems(t, `{"model_type":"deepseek",`+test.fields+`}`)
			require.Len(t, got, 1)
			assert.Equal(t, test.want, got[0].String())
		})
	}
}

// supported lists the model_types that Parse accepts, as the error of another one does.
func supported() string {
	names := map[string]bool{}
	var list []string
	add := func(name string) {
		if !names[name] {
			list = append(list, name)
		}
		names[name] = true
	}
	for _, f := range families {
		if !f.within {
			add(f.modelType)
		}
	}
	for _, w := range wrappers {
		add(w.modelType)
	}
	return "; supported: " + strings.Join(list, ", ")
}

func TestModelType(t *testing.T) {
	assert.Regexp(t, "^; supported: deepseek, deepseek_v2, .*, kimi_k25, deepseek_vl_v2, deepseek_v41, .*, hy_v4_vl$", supported())
	for name, test := range map[string]struct{ text, want string }{
		"missing":  {`{"hidden_size":0}`, `model_type: missing` + supported()},
		"null":     {`{"model_type":null}`, `model_type: null is not a string` + supported()},
		"other":    {`{"model_type":"deepseek_v9"}`, `model_type: "deepseek_v9"` + supported()},
		"case":     {`{"model_type":"DeepSeek"}`, `model_type: "DeepSeek"` + supported()},
		"hostile":  {`{"model_type":"\u001b[31m\n` + strings.Repeat("x", 99) + `"}`, `model_type: "\x1b[31m\n` + strings.Repeat("x", 34) + `"…` + supported()},
		"no field": {`{}`, `model_type: missing` + supported()},
	} {
		t.Run(name, func(t *testing.T) {
			got := problems(t, test.text)
			require.Len(t, got, 1)
			assert.Equal(t, test.want, got[0].String())
		})
	}
}

// TestAllProblemsAtOnce: the order is that of the table, not of the text, and a
// rule whose fields are broken already stays silent.
func TestAllProblemsAtOnce(t *testing.T) {
	text := `{"torch_dtype":1,"rope_scaling":{"type":"x","factor":4},"num_key_value_heads":3,"hidden_act":"relu",
		"model_type":"deepseek","n_routed_experts":4,"num_experts_per_tok":5,"vocab_size":null,"hidden_size":"x"}`
	var fields []string
	for _, p := range problems(t, text) {
		fields = append(fields, p.Field)
	}
	assert.Equal(t, []string{"vocab_size", "hidden_size", "num_key_value_heads", "num_experts_per_tok", "hidden_act",
		"rope_scaling.type", "rope_scaling.factor", "torch_dtype"}, fields)
	_, err := Parse(strings.NewReader(text))
	assert.ErrorContains(t, err, `8 problems: vocab_size: null is not an integer; hidden_size: "x" is not an integer; num_key`)
}

func TestRopeSpellingsDisagreeTwice(t *testing.T) {
	got := problems(t, `{"model_type":"deepseek","rope_theta":1,"rope_scaling":null,
		"rope_parameters":{"rope_theta":2,"rope_type":"linear","factor":4.0}}`)
	assert.Equal(t, []problem.Problem{
		{Field: "rope_parameters.rope_theta", Cause: "2 disagrees with rope_theta 1"},
		{Field: "rope_parameters", Cause: `{"type": "linear", "factor": 4} disagrees with rope_scaling null`},
	}, got)
}

func TestEveryFieldAtOnce(t *testing.T) {
	var text strings.Builder
	text.WriteString(`{"model_type":"deepseek"`)
	for _, f := range v1Fields[1:] {
		fmt.Fprintf(&text, `,%q:[]`, f.key)
	}
	got := problems(t, text.String()+"}")
	require.Len(t, got, len(v1Fields)-1)
	for i, p := range got {
		assert.Equal(t, v1Fields[i+1].key, p.Field)
	}
	_, err := Parse(strings.NewReader(text.String() + "}"))
	assert.ErrorContains(t, err, fmt.Sprintf("; and %d more", len(got)-20))
}

// TestRulesNameFields: a misspelt key in a rule would switch the rule on too early.
func TestRulesNameFields(t *testing.T) {
	for _, f := range families {
		for _, r := range f.rules {
			for _, key := range r.fields {
				read := f.position(problem.Problem{Field: f.keyIn(nil, key)}) >= 0
				assert.True(t, read || key != r.fields[0] && slices.ContainsFunc(f.unread, named(key)), key)
			}
		}
	}
}
